"""A consumer over the network keeps its cursor for a lease, which ends early when its client has lost the connection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from actors import VirtualClock
from tests.processes import Line, Other
from tests.serve.servers import serving
from wal import Delivery, open_wal
from wal.client import cursor_home
from wal.errors import ResourceAcquiredError
from wal.node.cursor_claims import CursorClaims
from wal.read.cursors.cursor import CursorKey
from wal.requests.vchannels import CreateVChannel
from wal.serve.access import Access
from wal.settings import ServerBounds
from wal.write.cursor_table import ConsumerLostError

KEY = CursorKey.of("worker", ("in",))
LEASE_MS = 600_000
GRACE_S = 1.0


class Claim:
    """A claim of the client "a", whose streams `come` and `go`."""

    def __init__(self, claims: CursorClaims, clock: VirtualClock, pchannel: Any) -> None:
        self.claims = claims
        self._clock = clock
        self._pchannel = pchannel
        self._streams: list[contextlib.ExitStack] = []
        self.fence = 0

    async def claim(self, holder: bytes = b"1", client: str = "a") -> int:
        claim = await self.claims.lease(KEY, self._pchannel, holder=holder, lease_ms=LEASE_MS, client=client)
        return claim.fence

    async def do(self, step: str) -> None:
        match step:
            case "come":
                self._streams.append(stream := contextlib.ExitStack())
                stream.enter_context(self.claims.connected("a", GRACE_S))
            case "go":
                self._streams.pop().close()
            case "other comes":
                with self.claims.connected("b", GRACE_S):
                    pass
            case "renew":
                self.claims.renew(KEY, self._pchannel, self.fence, holder=b"1", client="a")
            case "claim":
                self.fence = await self.claim()
            case _:
                self._clock.advance(float(step))


@contextlib.asynccontextmanager
async def claimed() -> AsyncIterator[Claim]:
    async with serving(pchannels=1) as node:
        await node.log.submit(CreateVChannel("in"))
        claims, clock = node.log.node.claims, VirtualClock()
        claims._clock = clock
        yield Claim(claims, clock, node.log.node.pchannels["p0"])


@pytest.mark.parametrize(
    ("steps", "free"),
    [
        ("claim, come, go, 0.9", False),
        ("claim, come, go, 1.1", True),
        ("come, go, 0.5, claim, 5", False),
        ("come, claim, go, 1.1", True),
        ("come, come, claim, go, 5", False),
        ("come, claim, go, 0.5, come, 5", False),
        ("come, claim, go, 0.5, come, 5, go, 0.9", False),
        ("come, claim, go, 0.5, come, 5, go, 1.1", True),
        ("come, claim, go, 0.5, renew, 5", False),
        ("come, claim, go, 2, renew, 5", False),
        ("come, claim, go, 2, renew, come, go, 1.1", True),
        ("come, claim, other comes, 5", False),
        ("claim, 5, other comes, 5", False),
        ("claim, 601", True),
    ],
)
async def test_claim_is_free_when_its_client_is_gone(steps: str, free: bool) -> None:
    async with claimed() as claim:
        for step in steps.split(", "):
            await claim.do(step)
        with contextlib.nullcontext() if free else pytest.raises(ResourceAcquiredError, match="held by another consumer"):
            assert await claim.claim(b"2", "b") == claim.fence + 1
        if free:  # the guess may be wrong: the two differ in their number
            with pytest.raises(ConsumerLostError):
                await claim.do("renew")


async def test_local_consumer_waits_no_longer() -> None:
    async with claimed() as claim:
        for step in ("come", "claim", "go"):
            await claim.do(step)
        waiting = asyncio.ensure_future(claim.claims.claim(KEY, "p0", exclusive="wait"))
        for step in ("0.9", "0.2"):
            await asyncio.sleep(0)
            assert not waiting.done()
            await claim.do(step)
        assert (await waiting).fence == claim.fence + 1


async def test_killed_consumer_is_replaced_before_its_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def consume(line: Line, address: str) -> None:
        """Consumes with the longest lease that there is, and never finishes a message."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cursor_home, "LEASE_MS", LEASE_MS)

            async def handle(delivery: Delivery) -> None:
                line.tell(delivery.value)
                await asyncio.get_running_loop().create_future()

            async with open_wal(f"wal://{address}") as log, log.consume("in", handle, cursor="worker"):
                await line.hear()

    monkeypatch.setattr(cursor_home, "POLL_S", 0.02)
    access = Access(listen="127.0.0.1:0", bounds=ServerBounds(consumer_grace_s=0.05))
    handled: list[bytes] = []

    async def handle(delivery: Delivery) -> None:
        handled.append(delivery.value)

    async with serving(pchannels=1, access=access) as node, open_wal(f"wal://{node.address}") as client:
        await client.append("in", b"1")
        async with Other(consume, node.address) as other:
            assert await other.hear() == b"1"
            async with client.consume("in", handle, cursor="worker") as consumer:
                await other.kill()
                await consumer.caught_up()
    assert handled == [b"1"]
