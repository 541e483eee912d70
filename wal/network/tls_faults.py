"""TLS faults, and ports of other services, as told by gRPC's reason for a connection that failed; with the remedy. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

__all__ = ["closed_at_once", "is_closed_at_once", "tls_fault"]

_FAULTS: Final = {
    "CERTIFICATE_VERIFY_FAILED": (
        "the server's certificate is not of an authority that this client trusts: name the file of the server's authority with ca="
    ),
    "Hostname Verification Check failed": (
        "the server's certificate is of another host: connect by a name or an address that is in it"
    ),
    "WRONG_VERSION_NUMBER": (
        "the server does not speak TLS on this port: connect with {scheme}://, or give the server a certificate and a key"
    ),
    "Trying to connect an http1.x server": "another service listens on this port, which does not speak gRPC: is it the right port?",
}
"""The explanation for each text that BoringSSL and gRPC use."""
_CLOSED_AT_ONCE: Final = ("Socket closed", "TSI_DATA_CORRUPTED")
"""What gRPC says of a connection that the server ended at once; the second, if it did so with an alert of TLS, as servers in Go do."""


def tls_fault(reasons: Sequence[str], scheme: str) -> str:
    """Returns what is wrong if TLS, or another service, is why none of several servers can be reached, else an empty text.

    `scheme` begins a location whose connections have no TLS.
    """
    found = [next((text for words, text in _FAULTS.items() if words in reason), "") for reason in reasons]
    return found[0].format(scheme=scheme) if all(found) else ""


def is_closed_at_once(reasons: Sequence[str]) -> bool:
    """Returns whether every server closed the connection before it said anything."""
    return all(any(words in reason for words in _CLOSED_AT_ONCE) for reason in reasons)


def closed_at_once(scheme: str) -> str:
    """Returns what to say of a server that does so again and again. One that is being stopped does it once."""
    return (
        f"the server closes every connection before it says anything: if it has TLS, connect with {scheme}+ssl://, and if it asks its "
        "clients for certificates, give one of its authority with certificate= and key="
    )
