"""A member of a shared cursor whose client sends no session keeps its messages for its lease, and loses them after it."""

from __future__ import annotations

import pytest

from actors import VirtualClock
from tests.processes import eventually
from tests.serve.servers import Serving, connected, serving
from wal.errors import ResourceAcquiredError
from wal.message import Message
from wal.node.shared_members import UNNAMED
from wal.read.cursors.cursor import CursorKey
from wal.requests.vchannels import CreateVChannel
from wal.requests.work import JoinCursor, KeepMember, SettleWork, TakeWork, WorkTerms, WorkUnit
from wal.rpc.connection import Connection

KEY = CursorKey.of("workers", ("in",))
TERMS = WorkTerms("none", None, 5, (0.1, 1.0), True, None)
COUNT = 3
LEASE_MS = 300


async def test_member_without_session_loses_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "_metadata", lambda self, changes: self._headers)
    clock = VirtualClock()
    async with serving(clock=clock) as served, connected(served.address) as connection:
        await check_lost_member(served, connection, clock)


async def check_lost_member(served: Serving, connection: Connection, clock: VirtualClock) -> None:
    await served.log.submit(CreateVChannel("in"))
    for number in range(COUNT):
        await served.log.appends.append_waiting(Message("in", b"%d" % number))
    (home,) = served.log.node.pchannels

    async def join(member: bytes) -> None:
        await connection.submit(JoinCursor(KEY, home, member, TERMS, 1, COUNT, LEASE_MS), home)

    async def take(member: bytes) -> tuple[WorkUnit, ...]:
        return await connection.submit(TakeWork(KEY, home, member, 0, COUNT, COUNT, 100), home)

    await join(b"silent")
    units = await eventually(lambda: take(b"silent"))
    outputs = (Message("in", b"output"),)
    await join(b"living")
    shown = await connection.submit(KeepMember(KEY, home, b"living", 0), home)
    assert [(member.client, member.in_hand) for member in shown.members] == [(UNNAMED, COUNT), (UNNAMED, 0)]
    clock.advance(0.9 * LEASE_MS / 1000)
    await connection.submit(KeepMember(KEY, home, b"living", 0), home)
    clock.advance(0.2 * LEASE_MS / 1000)
    again = await eventually(lambda: take(b"living"))
    assert [message.payload for unit in again for message in unit.messages] == [b"0", b"1", b"2"]
    with pytest.raises(ResourceAcquiredError, match="what it had is handed out again"):
        await connection.submit(SettleWork(KEY, home, b"silent", 1, (units[0].first,)), home)
    assert await connection.submit(SettleWork(KEY, home, b"living", 1, (again[0].first,), outputs, (1,)), home) == 1
