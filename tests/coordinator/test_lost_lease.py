"""A leader that has lost its lease saves nothing more, and its later calls go to the next leader."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from actors import ActorSystem
from wal.channels.owners import OwnerDescription
from wal.channels.pchannels import PChannelMeta
from wal.channels.vchannels import VChannelInfo
from wal.coordinator.coordinator import Coordinator
from wal.errors import NotLeaderError, WALError
from wal.operate.processes.leading import _handed_on
from wal.settings import Settings
from wal.storage.kv import MemoryKV


async def test_calls_of_an_ended_leader_are_forwarded() -> None:
    class Nodes:
        """Nodes that execute every call at once."""

        def begin(self, _infos: tuple[VChannelInfo, ...]) -> Callable[[WALError | None], None]:
            return lambda _error: None

        def end(self, _infos: tuple[VChannelInfo, ...], ended: Callable[[WALError | None], None]) -> None:
            ended(None)

        def forget(self, infos: tuple[VChannelInfo, ...]) -> None: ...

        async def delete_cursors(self, info: VChannelInfo) -> None: ...

    async def created(_meta: PChannelMeta) -> None: ...

    system = ActorSystem("leader")
    await system.start()
    coordinator = Coordinator(MemoryKV(), Settings(), system)
    await coordinator.load(created)
    vchannels = coordinator.vchannels
    vchannels.host = Nodes()
    owner = OwnerDescription("orders")
    await vchannels.create("kept", None)
    names = await vchannels.create_channels(owner, 2)
    await system.stop()  # as at the end of a leader, while calls of its clients are running
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: vchannels.drop("kept"),
        lambda: vchannels.create("new", None),
        lambda: vchannels.create_channels(owner, 1),
        lambda: vchannels.destroy_channels(tuple(names)),
    ]
    for call in calls:
        with pytest.raises(NotLeaderError, match="leads no more"):
            await _handed_on(call())
    assert set(vchannels.directory.saved) == {"kept", *names}
