"""Broadcasts hold the log until they finish, and stay known however much of the log is truncated and however it was closed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults import copy_of_open
from tests.locations import open_wal
from tests.probes import local, payloads, read_all
from wal import BroadcastAppendResult, BroadcastMessage, BroadcastState, Message, ResourceKey, WALAccesser
from wal.errors import InvalidArgumentError, ResourceAcquiredError
from wal.write.pchannel import PChannel

NAMES = ["a", "b", "c"]
SEGMENT = 1 << 20


async def broadcast(log: WALAccesser, payload: bytes = b"copy", **changes: Any) -> BroadcastAppendResult:
    return await log.broadcast().append(BroadcastMessage(vchannels=NAMES, payload=payload, **changes))


async def ack_all(log: WALAccesser, broadcast_id: int) -> None:
    for name in NAMES:
        await log.broadcast().ack(broadcast_id, name)


def pchannel(log: WALAccesser) -> PChannel:
    return local(log).node.pchannels["p0"]


async def checkpointed(log: WALAccesser) -> None:
    """Writes a checkpoint now; it is durable on return."""
    checkpointer = pchannel(log).checkpointer
    assert checkpointer is not None
    checkpointer.request()
    while checkpointer._running is not None:
        await checkpointer.make_room()


async def test_copies_hold_the_log_until_the_end(location: str) -> None:
    async with open_wal(location) as log:
        before = await log.raw_append(Message("a", b"before"))
        result = await broadcast(log)
        after = await log.raw_append(Message("a", b"after"))
        await log.truncate(up_to=before.message_id)
        for up_to in (result.append_results["a"].message_id, after.message_id):
            with pytest.raises(InvalidArgumentError, match=f"broadcast '{result.broadcast_id}'.*abort"):
                await log.truncate(up_to=up_to)
        (report,) = await log.retention()
        (holder,) = [holder for holder in report.holders if holder.kind == "broadcast"]
        assert holder.name == str(result.broadcast_id)
        assert holder.position == result.append_results["a"].message_id.position
        for name in NAMES[:2]:
            await log.broadcast().ack(result.broadcast_id, name)
        with pytest.raises(InvalidArgumentError, match="broadcast"):
            await log.truncate(up_to=after.message_id)
        await log.broadcast().ack(result.broadcast_id, "c")
        await log.truncate(up_to=after.message_id)
        assert await payloads(log, "a") == []
        (report,) = await log.retention()
        assert [holder for holder in report.holders if holder.kind == "broadcast"] == []


async def test_finished_broadcasts_do_not_hold_the_log(location: str) -> None:
    async with open_wal(location) as log:
        await broadcast(log, needs_ack=False)
        aborted = await broadcast(log)
        await log.broadcast().abort(aborted.broadcast_id, "no")
        last = await log.raw_append(Message("a", b"last"))
        await log.truncate(up_to=last.message_id)


async def test_retention_by_size_stops_at_a_copy(data: str) -> None:
    async with open_wal(data, segment_bytes=SEGMENT, retention_bytes=4 * SEGMENT) as log:
        first = await broadcast(log, bytes(1000))
        for _ in range(12):
            await log.append_bulk([Message("noise", bytes(1 << 16)) for _ in range(16)])
        await local(log).node.retention.turn()
        assert (await read_all(log, "a"))[0].message_id == first.append_results["a"].message_id
        (report,) = await log.retention()
        assert report.bytes > 10 * SEGMENT
        await ack_all(log, first.broadcast_id)
        await local(log).node.retention.turn()
        (report,) = await log.retention()
        assert report.bytes <= 5 * SEGMENT
        assert await payloads(log, "a") == []


async def test_checkpoint_keeps_copies_of_a_truncated_log(data: str, tmp_path: Path) -> None:
    """This holds after a crash as well, which is simulated by a copy of the files."""
    key = ResourceKey("collection", "orders")
    crashed = str(tmp_path / "crashed")
    async with open_wal(data, segment_bytes=SEGMENT) as log:
        over = await broadcast(log, b"over")
        for _ in range(4):
            await log.append_bulk([Message("noise", bytes(1 << 16)) for _ in range(16)])
        kept = await broadcast(log, b"kept", resource_keys=[key])
        await log.broadcast().ack(kept.broadcast_id, "b")
        await ack_all(log, over.broadcast_id)
        middle = await log.raw_append(Message("noise", bytes(1 << 16)))
        with pytest.raises(InvalidArgumentError, match=f"'{kept.broadcast_id}'"):
            await log.truncate(up_to=middle.message_id)
        await log.truncate(up_to=over.append_results["c"].message_id)
        await checkpointed(log)
        table = pchannel(log).copies.table
        assert [listed.header.broadcast_id for listed in table.listed()] == [kept.broadcast_id]
        late = await broadcast(log, b"after the checkpoint")
        copy_of_open(data, Path(crashed))
    for place in (data, crashed):
        for _ in range(2):
            async with open_wal(place, segment_bytes=SEGMENT) as log:
                tasks = {task.broadcast_id: task for task in await log.broadcast().tasks()}
                assert set(tasks) == {kept.broadcast_id, late.broadcast_id}
                assert tasks[kept.broadcast_id].missing_acks == ("a", "c")
                assert {task.state for task in tasks.values()} == {BroadcastState.WAIT_ACK}
                assert await payloads(log, "a") == [b"kept", b"after the checkpoint"]
                with pytest.raises(ResourceAcquiredError):
                    await broadcast(log, resource_keys=[key])
                with pytest.raises(InvalidArgumentError, match=f"'{kept.broadcast_id}'"):
                    await log.truncate(up_to=middle.message_id)
        async with open_wal(place, segment_bytes=SEGMENT) as log:
            await ack_all(log, kept.broadcast_id)
            await ack_all(log, late.broadcast_id)
            await log.truncate(up_to=late.append_results["c"].message_id)
        async with open_wal(place, segment_bytes=SEGMENT) as log:
            assert await log.broadcast().tasks() == []
            assert len(pchannel(log).copies.table) == 0


async def test_finished_broadcast_stays_finished_after_a_crash(data: str, tmp_path: Path) -> None:
    """The done marks record that the broadcasts are finished, no checkpoint does."""
    crashed = tmp_path / "crashed"
    async with open_wal(data) as log:
        first, second = await broadcast(log, b"acked"), await broadcast(log, b"aborted")
        third = await broadcast(log, b"noted", needs_ack=False)
        await checkpointed(log)
        await ack_all(log, first.broadcast_id)
        await log.broadcast().abort(second.broadcast_id, "no")
        copy_of_open(data, Path(crashed))
    for _ in range(2):
        async with open_wal(crashed) as log:
            assert await log.broadcast().tasks() == []
            await log.broadcast().ack(second.broadcast_id, "a")
            await log.broadcast().abort(second.broadcast_id, "again")
            for over in (first, third):
                await log.broadcast().ack(over.broadcast_id, "a")
            assert await payloads(log, "a") == [b"acked", b"aborted", b"noted", b"no"]


async def test_done_marks_go_when_no_checkpoint_lists_them(data: str) -> None:
    """The number of done marks is bounded, even if only acks happen: a checkpoint at the same position drops them."""
    async with open_wal(data) as log:
        broadcaster = log.broadcast()
        ids = [(await broadcast(log)).broadcast_id for _ in range(20)]
        await checkpointed(log)
        before = pchannel(log).log.checkpointed
        for broadcast_id in ids:
            await ack_all(log, broadcast_id)
        assert broadcaster.statistics().done_marks == 20
        await checkpointed(log)
        assert pchannel(log).log.checkpointed == before, "nothing was appended"
        assert broadcaster.statistics().done_marks == 0
    async with open_wal(data) as log:
        assert await log.broadcast().tasks() == []
        assert len(pchannel(log).copies.table) == 0


async def test_log_from_before_there_were_broadcasts_opens(data: str) -> None:
    """The checkpoint of such a log has keys only."""
    async with open_wal(data) as log:
        await log.raw_append(Message("a", b"x"), idempotency_key="k")
        state = pchannel(log).checkpointer
        assert state is not None
        state._state.copies.snapshot = lambda: iter(())  # type: ignore[method-assign]
        await checkpointed(log)
    async with open_wal(data) as log:
        assert (await log.raw_append(Message("a", b"x"), idempotency_key="k")).duplicate
        await broadcast(log)
