"""What gRPC's reasons for a connection that failed say about TLS, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["CLOSED", "is_closed_at_once", "tls_fault"]

_FAULTS: Final = {
    "CERTIFICATE_VERIFY_FAILED": (
        "the server's certificate is not of an authority that this client trusts: name the file of the server's authority with ca="
    ),
    "Hostname Verification Check failed": (
        "the server's certificate is of another host: connect by a name or an address that is in it"
    ),
    "WRONG_VERSION_NUMBER": (
        "the server does not speak TLS on this port: connect with wal://, or give the server a certificate and a key"
    ),
}
"""What to say for the words that BoringSSL and gRPC use."""
_CLOSED_AT_ONCE: Final = "Socket closed"
CLOSED: Final = (
    "the server closes every connection before it says anything: if it has TLS, connect with wal+ssl://, and if it asks its clients for "
    "certificates, give one of its authority with certificate= and key="
)
"""What to say of a server that does so again and again. One that is being stopped does it once."""


def tls_fault(reasons: Sequence[str]) -> str:
    """Returns what is wrong if TLS is why none of several servers can be reached, else an empty text."""
    found = [next((text for words, text in _FAULTS.items() if words in reason), "") for reason in reasons]
    return found[0] if all(found) else ""


def is_closed_at_once(reasons: Sequence[str]) -> bool:
    """Returns whether every server closed the connection before it said anything."""
    return all(_CLOSED_AT_ONCE in reason for reason in reasons)
