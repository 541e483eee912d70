"""Reach: waits for a connection to one of several servers, and reports early if none is possible.

A fault of TLS, or the port of another service, shows in gRPC's reason for a failed connection; the text has the remedy.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Final

import grpc
import grpc.aio

from wal.network.endpoints import Endpoints

LOOK_S: Final = 0.5
"""The pause between two looks for the reason why no member was ever reached: gRPC tries about twice a second."""
LOOKS: Final = 3
"""Consecutive immediate disconnects that are still attributed to a stopping member."""
_FAULTS: Final = {
    "CERTIFICATE_VERIFY_FAILED": (
        "the server's certificate is not of an authority that this client trusts: name the file of the server's authority with ca="
    ),
    "Hostname Verification Check failed": ("the server's certificate is of another host: connect by a name or an address that is in it"),
    "WRONG_VERSION_NUMBER": (
        "the server does not speak TLS on this port: connect with {scheme}://, or give the server a certificate and a key"
    ),
    "Trying to connect an http1.x server": "another service listens on this port, which does not speak gRPC: is it the right port?",
}
"""The explanation for each text that BoringSSL and gRPC use."""
_CLOSED_AT_ONCE: Final = ("Socket closed", "TSI_DATA_CORRUPTED")
"""gRPC's texts for a connection that the server ended at once. The second is for an end by an alert of TLS, as servers in Go do."""


class Reach:
    """Waits until a member is connected, and reports early if TLS makes that impossible.

    `endpoints` are the members. `scheme` begins a location whose connections have no TLS.
    """

    def __init__(self, endpoints: Endpoints, *, scheme: str) -> None:
        self._endpoints = endpoints
        self._scheme = scheme
        self._was_connected = False
        """Whether any member was ever connected, so that address and TLS are right."""

    async def connected(self, deadline: float) -> tuple[int, grpc.aio.Channel] | str | None:
        """Returns the number and channel of a connected member.

        Without one at the deadline (infinite: no limit), or if TLS is the reason, it returns a text with the attempts and the remedy. It
        returns None if the endpoints were stopped.
        """
        endpoints, loop = self._endpoints, asyncio.get_running_loop()
        closed = 0
        while (endpoint := endpoints.connected()) is None:
            if endpoints.stopped:
                return None
            remaining = max(0.0, deadline - loop.time())
            timeout_s = remaining if self._was_connected else min(remaining, LOOK_S)
            if await endpoints.look(timeout_s if timeout_s < math.inf else None):
                continue
            reasons = await endpoints.why()
            closed = closed + 1 if is_closed_at_once(reasons) else 0
            fault = tls_fault(reasons, self._scheme) or (closed_at_once(self._scheme) if closed >= LOOKS else "")
            if (fault and not self._was_connected) or loop.time() >= deadline:
                return f"{'; '.join(reasons)}; {fault or 'is it running, and are address and TLS right?'}"
        self._was_connected = True
        return endpoint


def tls_fault(reasons: Sequence[str], scheme: str) -> str:
    """Returns the fault if TLS, or another service, is why none of several servers can be reached, else an empty text.

    `scheme` begins a location whose connections have no TLS.
    """
    faults = [next((text for words, text in _FAULTS.items() if words in reason), "") for reason in reasons]
    return faults[0].format(scheme=scheme) if all(faults) else ""


def is_closed_at_once(reasons: Sequence[str]) -> bool:
    """Returns whether every server closed the connection before it sent anything."""
    return all(any(words in reason for words in _CLOSED_AT_ONCE) for reason in reasons)


def closed_at_once(scheme: str) -> str:
    """Returns the hint for a server that keeps closing connections; a stopping server does so once."""
    return (
        f"the server closes every connection before it sends anything: if it has TLS, connect with {scheme}+ssl://, and if it asks its "
        "clients for certificates, give one of its authority with certificate= and key="
    )
