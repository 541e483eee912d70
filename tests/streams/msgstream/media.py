"""The media that the conformance suite runs on. A medium joins it by a class here and a line in PLACES."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, Protocol
from uuid import uuid4

import msgspec
import pytest

from tests.servers.pulsar_fixtures import keeping_namespace
from wal import Secret, WALAccesser, open_wal
from wal.storage.pulsar.address import PulsarAddress
from wal.streams.msgstream import Medium, Outgoing
from wal.streams.msgstream.media.memory import MemoryMedium
from wal.streams.msgstream.media.pulsar import PulsarMedium
from wal.streams.msgstream.media.rocksmq import RocksMQMedium
from wal.streams.msgstream.media.wal import WalMedium
from wal.streams.msgstream.media.wal_ids import WalId


class Place(Protocol):
    """The location of a test's channels."""

    shares: bool
    """Whether several streams can share a subscription."""
    own_ticks: bool
    """Whether the medium has ticks and timestamps of its own, which replace those of the messages."""

    def channels(self, count: int) -> list[str]:
        """Returns names of channels that no other test uses, all different."""
        ...

    async def medium(self) -> Medium:
        """Returns a medium with the channels of this place; the place closes it, and it closes with no stream."""
        ...

    async def bad_ids(self, channel: str) -> list[bytes]:
        """Returns ids that no medium of this kind assigns to messages of this channel, which exists."""
        ...


class MemoryPlace:
    shares = True
    own_ticks = False

    def __init__(self, medium: MemoryMedium) -> None:
        self._medium = medium

    def channels(self, count: int) -> list[str]:
        return [f"channel-{uuid4().hex}" for _ in range(count)]

    async def medium(self) -> MemoryMedium:
        return self._medium

    async def bad_ids(self, channel: str) -> list[bytes]:
        return [b"x", bytes(16)]


@asynccontextmanager
async def memory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MemoryPlace]:
    async with MemoryMedium() as medium:
        yield MemoryPlace(medium)


class PulsarPlace:
    shares = True
    own_ticks = False

    def __init__(self, medium: PulsarMedium) -> None:
        self._medium = medium

    def channels(self, count: int) -> list[str]:
        return [f"channel-{uuid4().hex}" for _ in range(count)]

    async def medium(self) -> PulsarMedium:
        return self._medium

    async def bad_ids(self, channel: str) -> list[bytes]:
        producer = await self._medium.producer(f"{channel}-other")
        foreign = await producer.send([Outgoing(b"", 0)])
        await producer.close()
        return [b"x", *foreign]


@asynccontextmanager
async def pulsar(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[PulsarPlace]:
    host, admin, token = (request.getfixturevalue(f"pulsar_{name}") for name in ("host", "admin_host", "token"))
    tenant, _, namespace = keeping_namespace(f"http://{admin}", token or None).partition("/")
    address = PulsarAddress(f"pulsar://{host}", tenant, namespace, admin_url=f"http://{admin}", token=Secret(token) if token else None)
    async with PulsarMedium(address) as medium:
        yield PulsarPlace(medium)


class RocksMQPlace:
    """Each medium opens the directory for itself; they share one RocksMQ."""

    shares = True
    own_ticks = False

    def __init__(self, directory: Path, stack: AsyncExitStack) -> None:
        self._directory = directory
        self._stack = stack

    def channels(self, count: int) -> list[str]:
        return [f"channel-{uuid4().hex}" for _ in range(count)]

    async def medium(self) -> RocksMQMedium:
        return await self._stack.enter_async_context(RocksMQMedium(self._directory))

    async def bad_ids(self, channel: str) -> list[bytes]:
        return [b"x", bytes(8), bytes(9), (1 << 62).to_bytes(8, "big")]


@asynccontextmanager
async def rocksmq(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RocksMQPlace]:
    async with AsyncExitStack() as stack:
        yield RocksMQPlace(tmp_path / "mq", stack)


class WalPlace:
    shares = False
    own_ticks = True

    def __init__(self, log: WALAccesser) -> None:
        self._log = log

    def channels(self, count: int) -> list[str]:
        return [f"channel-{uuid4().hex}" for _ in range(count)]

    async def medium(self) -> WalMedium:
        return WalMedium(self._log, tick_interval_s=0.02)

    async def bad_ids(self, channel: str) -> list[bytes]:
        there = (await (await (await self.medium()).producer("another")).send([Outgoing(b"", 400)]))[0]
        at = WalId.parse(there, "another").message_id
        assert at is not None
        elsewhere = msgspec.structs.replace(at, incarnation=at.incarnation + 1)
        above = msgspec.structs.replace(at, position=at.position + (1 << 40))
        return [b"x", bytes(40), *(bytes(WalId(channel, wrong)) for wrong in (elsewhere, above))]


def wal_place(location: Callable[[Path], str]) -> Callable[[pytest.FixtureRequest, Path], AbstractAsyncContextManager[Place]]:
    """Returns the place in a log at this location, on two pchannels, with ticks that are promised often."""

    @asynccontextmanager
    async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WalPlace]:
        async with open_wal(location(tmp_path), pchannels=2, time_tick_interval_s=0.02) as log:
            yield WalPlace(log)

    return opened


PLACES: Final[dict[str, Callable[[pytest.FixtureRequest, Path], AbstractAsyncContextManager[Place]]]] = {
    "memory": memory,
    "pulsar": pulsar,
    "rocksmq": rocksmq,
    "log in memory": wal_place(lambda tmp_path: "memory:"),
    "journal": wal_place(lambda tmp_path: f"journal:{tmp_path / 'data'}"),
}
