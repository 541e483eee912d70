"""Reach: waits until a member is connected, and finds out early if TLS is why none ever will be."""

from __future__ import annotations

import asyncio
import math
from typing import Final

import grpc.aio

from wal.network.endpoints import Endpoints
from wal.network.tls_faults import closed_at_once, is_closed_at_once, tls_fault

__all__ = ["Reach"]

LOOK_S: Final = 0.5
"""How often it is asked why no member can be reached before one ever was: gRPC tries about twice a second."""
LOOKS: Final = 3
"""How often in a row a member that closes connections at once is taken for one that is being stopped."""


class Reach:
    """The way to the members of `endpoints`. `scheme` begins a location whose connections have no TLS."""

    def __init__(self, endpoints: Endpoints, *, scheme: str) -> None:
        self._endpoints = endpoints
        self._scheme = scheme
        self._was_connected = False
        """Whether any member was ever connected, so that address and TLS are right."""

    async def connected(self, deadline: float) -> tuple[int, grpc.aio.Channel] | str | None:
        """Returns a connected member, by its number and its channel.

        If there is none by the deadline (infinite: no limit), or TLS is why, it returns what was tried and what to do, as a text. It
        returns None if the endpoints were stopped.
        """
        endpoints, loop = self._endpoints, asyncio.get_running_loop()
        closed = 0
        while (found := endpoints.connected()) is None:
            if endpoints.stopped:
                return None
            left = max(0.0, deadline - loop.time())
            timeout_s = left if self._was_connected else min(left, LOOK_S)
            if await endpoints.look(timeout_s if timeout_s < math.inf else None):
                continue
            reasons = await endpoints.why()
            closed = closed + 1 if is_closed_at_once(reasons) else 0
            fault = tls_fault(reasons, self._scheme) or (closed_at_once(self._scheme) if closed >= LOOKS else "")
            if (fault and not self._was_connected) or loop.time() >= deadline:
                return f"{'; '.join(reasons)}; {fault or 'is it running, and are address and TLS right?'}"
        self._was_connected = True
        return found
