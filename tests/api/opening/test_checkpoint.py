"""Idempotency keys outlive the log that held them: across checkpoints, truncation, crashes and drops."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.faults import copy_of_open
from tests.probes import local, payloads
from wal import AppendResult, Message, ProducerKey, StartFrom, WALAccesser, open_wal
from wal.errors import CorruptionError, NoSpaceError, TruncatedError
from wal.node.local.log import LocalLog
from wal.storage.files import META_NAME
from wal.storage.kv import SqliteKV
from wal.write import checkpoint_ledger
from wal.write.checkpoint_ledger import CheckpointRule

SEGMENT = 1 << 20
BODY = bytes(100_000)


def folder(data: str) -> Path:
    return Path(data) / "pchannels" / "p0"


def names(data: str, pattern: str) -> list[str]:
    return sorted(path.name for path in folder(data).glob(pattern))


async def checkpointed(log: WALAccesser) -> int:
    """Waits until the checkpoint is at the end of the log, and returns its position."""
    pchannel = local(log).node.pchannels["p0"]
    assert pchannel.checkpointer is not None
    ledger = pchannel.checkpointer.ledger
    async with asyncio.timeout(60):
        while ledger.last.position != pchannel.tail.durable_end or pchannel.log.checkpointed != ledger.last.position:
            await asyncio.sleep(0.01)
    assert ledger.last.state == ledger.last.position
    return ledger.last.position


async def record_of(data: str) -> dict[str, int | None]:
    kv = await SqliteKV.open(Path(data) / META_NAME)
    try:
        found: dict[str, int | None] = msgspec.json.decode(await kv.load("checkpoints/p0"))
        return found
    finally:
        await kv.close()


def same(again: AppendResult, first: AppendResult) -> bool:
    return again.duplicate and (again.message_id, again.time_tick, again.last_confirmed, again.txn_context) == (
        first.message_id,
        first.time_tick,
        first.last_confirmed,
        first.txn_context,
    )


class Keyed:
    """Appends keyed messages of every kind, and checks whether they are known."""

    def __init__(self) -> None:
        self.first: list[AppendResult] = []

    async def append(self, log: WALAccesser, count: int = 1) -> None:
        for number in range(len(self.first) // 4, len(self.first) // 4 + count):
            self.first += [await self._one(log, number, kind) for kind in range(4)]
        assert not any(result.duplicate for result in self.first)

    async def check(self, log: WALAccesser) -> None:
        for at, first in enumerate(self.first):
            number, kind = divmod(at, 4)
            again = await self._one(log, number, kind)
            if kind == 1 and number < len(self.first) // 4 - 16:
                assert again.duplicate
                assert again.message_id is None
            else:
                assert same(again, first), (number, kind)

    async def _one(self, log: WALAccesser, number: int, kind: int) -> AppendResult[Any, Any]:
        if kind == 0:
            return await log.raw_append(Message("a", b"%d" % number), idempotency_key=f"a{number}")
        if kind == 1:
            return await log.raw_append(Message("b", b"%d" % number), idempotency_key=ProducerKey("p", number))
        vchannels = ["a"] if kind == 2 else ["a", "b"]
        txn = await log.txn(vchannels=vchannels, idempotency_key=f"t{kind}-{number}")
        await txn.append(Message("a", b"%d" % number))
        return await txn.commit()


async def test_keys_and_producers_through_a_checkpoint_alone(data: str) -> None:
    keyed = Keyed()
    async with open_wal(data, segment_bytes=SEGMENT) as log:
        await keyed.append(log, 30)
        last = await log.append_bulk([Message("a", BODY) for _ in range(60)])
        before = names(data, "*.wal")
        await log.truncate(up_to=last[-1].message_id)
        position = await checkpointed(log)
        assert names(data, "checkpoint-*") == [f"checkpoint-{position:016x}"]
        left = names(data, "*.wal")
        assert len(left) == 1
        assert len(before) > 2
        await keyed.check(log)
    assert (await record_of(data))["state"] == position
    for _ in range(2):
        async with open_wal(data, segment_bytes=SEGMENT) as log:
            assert await payloads(log, "a") == []
            await keyed.check(log)
            assert await payloads(log, "a") == []


async def test_close_leaves_nothing_to_replay(data: str) -> None:
    keyed = Keyed()
    async with open_wal(data) as log:
        await keyed.append(log, 3)
    record = await record_of(data)
    assert record["position"] == record["state"]
    assert names(data, "checkpoint-*") == [f"checkpoint-{record['state']:016x}"]
    async with open_wal(data) as log:
        assert local(log).node.pchannels["p0"].keyed.table.changes == 0
        await keyed.check(log)
    assert await record_of(data) == record, "nothing keyed happened"


async def test_truncated_before_any_checkpoint_and_crashed(data: str, tmp_path: Path) -> None:
    """Files that recovery needs are kept, whatever is truncated."""
    keyed = Keyed()
    crashed = str(tmp_path / "crashed")
    async with open_wal(data, segment_bytes=SEGMENT) as log:
        checkpointer = local(log).node.pchannels["p0"].checkpointer
        assert checkpointer is not None
        checkpointer.ledger.state_bytes = 1 << 40  # no freed space is worth a checkpoint
        await keyed.append(log, 3)
        for _ in range(3):
            last = await log.append_bulk([Message("a", BODY) for _ in range(20)])
            await keyed.append(log, 1)
            await log.truncate(up_to=last[-1].message_id)
        assert names(data, "checkpoint-*") == []
        held = names(data, "*.wal")
        assert held[0] == f"{0:016x}.wal"
        (entry,) = await log.retention()
        assert "checkpoint" in str(entry.holders)
        copy_of_open(data, Path(crashed))
    async with open_wal(crashed, segment_bytes=SEGMENT) as log:
        await keyed.check(log)
        with pytest.raises(TruncatedError):
            async with log.read("a", deliver_policy=StartFrom(keyed.first[0].message_id)) as scanner:
                await anext(scanner)
        assert len(await payloads(log, "a")) == 3, "the keyed ones after the last truncation"
    async with open_wal(crashed, segment_bytes=SEGMENT) as log:
        await log.raw_append(Message("a", b"more"))
        await keyed.check(log)


async def test_state_without_keys_has_last_events(data: str) -> None:
    async with open_wal(data, segment_bytes=SEGMENT) as log:
        results = await log.append_bulk([Message("a", BODY) for _ in range(60)])
        before = names(data, "*.wal")
        await log.truncate(up_to=results[-1].message_id)
        assert len(names(data, "*.wal")) == 1 < len(before), "space is back when truncate returns"
        position = await checkpointed(log)
    assert names(data, "checkpoint-*") == [f"checkpoint-{position:016x}"]
    record = await record_of(data)
    assert (record["position"], record["state"]) == (position, position)
    async with open_wal(data, segment_bytes=SEGMENT) as log:
        assert await payloads(log, "a") == []
        assert await log.last("a") == results[-1].message_id


async def test_later_state_has_the_keys_of_before(data: str) -> None:
    """Only events without keys follow keyed ones: the state is stored again for the last events, with the keys."""
    keyed = Keyed()
    async with open_wal(data, segment_bytes=SEGMENT) as log:
        await keyed.append(log, 2)
        results = await log.append_bulk([Message("a", BODY) for _ in range(60)])
        await log.truncate(up_to=results[-1].message_id)
        first = await checkpointed(log)
        results = await log.append_bulk([Message("a", BODY) for _ in range(60)])
        await log.truncate(up_to=results[-1].message_id)
        second = await checkpointed(log)
    assert second > first
    record = await record_of(data)
    assert (record["position"], record["state"]) == (second, second)
    assert names(data, "checkpoint-*") == [f"checkpoint-{second:016x}"]
    async with open_wal(data, segment_bytes=SEGMENT) as log:
        await keyed.check(log)


async def test_rule_makes_them_while_appends_go_on(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalLog, "checkpoint_rule", CheckpointRule(keyed_events=50))
    async with open_wal(data) as log:
        ledger = local(log).node.pchannels["p0"].checkpointer
        assert ledger is not None
        seen = set()
        for number in range(1_000):
            await log.raw_append(Message("a", b"x"), idempotency_key=str(number))
            seen.add(ledger.ledger.last.position)
        assert len(seen) > 5
    async with open_wal(data) as log:
        for number in range(1_000):
            assert (await log.raw_append(Message("a", b"y"), idempotency_key=str(number))).duplicate


async def append_a_mib(log: WALAccesser) -> None:
    """Appends frames of more than a MiB together, which cannot be compressed and have no keys."""
    for _ in range(12):
        await log.raw_append(Message("a", random.randbytes(100_000)))


async def test_rule_makes_them_for_bytes_of_plain_appends(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer looks for them; between two appends it rests."""
    monkeypatch.setattr(LocalLog, "checkpoint_rule", CheckpointRule(log_bytes=1 << 20))
    async with open_wal(data) as log:
        checkpointer = local(log).node.pchannels["p0"].checkpointer
        assert checkpointer is not None
        for _ in range(3):
            async with asyncio.timeout(60):
                while checkpointer.moved:
                    await asyncio.sleep(0.01)
                before = checkpointer.ledger.last.position
                await append_a_mib(log)
                while checkpointer.ledger.last.position == before:
                    await asyncio.sleep(0.01)


async def test_failed_one_is_tried_again_without_an_append(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_ledger, "RETRY_S", 0.5)
    monkeypatch.setattr(LocalLog, "checkpoint_rule", CheckpointRule(log_bytes=1 << 20))
    async with open_wal(data) as log:
        pchannel = local(log).node.pchannels["p0"]
        checkpointer, save_state = pchannel.checkpointer, pchannel.log.save_state
        assert checkpointer is not None
        failures, is_full = 0, True

        async def save_with_room(position: int, pieces: Sequence[bytes]) -> None:
            nonlocal failures
            if is_full:
                failures += 1
                raise NoSpaceError("the disk is full")
            await save_state(position, pieces)

        monkeypatch.setattr(pchannel.log, "save_state", save_with_room)
        before = checkpointer.ledger.last.position
        await append_a_mib(log)
        async with asyncio.timeout(60):
            while not failures:
                await asyncio.sleep(0.01)
            appended = failures
            while failures < appended + 2:
                assert checkpointer.moved, "the next attempt waits for time, and needs no frame"
                await asyncio.sleep(0.01)
            is_full = False
            while checkpointer.ledger.last.position == before:
                await asyncio.sleep(0.01)


async def test_dropped_vchannel_does_not_come_back(data: str) -> None:
    async with open_wal(data) as log:
        await log.raw_append(Message("a", b"1"), idempotency_key="k")
        await log.raw_append(Message("a", b"2"), idempotency_key=ProducerKey("p", 1))
        await log.raw_append(Message("b", b"3"), idempotency_key="k")
    async with open_wal(data) as log:
        await log.drop_vchannel("a")
    async with open_wal(data) as log:
        assert await log.producers() == []
        assert not (await log.raw_append(Message("a", b"4"), idempotency_key="k")).duplicate
        assert (await log.raw_append(Message("b", b"5"), idempotency_key="k")).duplicate
        assert await payloads(log, "a") == [b"4"]


async def test_forgotten_producer_stays_forgotten(data: str) -> None:
    async with open_wal(data) as log:
        await log.raw_append(Message("a", b"1"), idempotency_key=ProducerKey("p", 5))
    async with open_wal(data) as log:
        await log.forget_producer("p")
    async with open_wal(data) as log:
        assert await log.producers() == []
        assert not (await log.raw_append(Message("a", b"2"), idempotency_key=ProducerKey("p", 1))).duplicate


@pytest.mark.parametrize("damage", ["missing", "damaged", "another"])
async def test_damage_is_named_and_can_be_given_up(data: str, damage: str) -> None:
    async with open_wal(data) as log:
        first = await log.raw_append(Message("a", b"1"), idempotency_key="k")
        await log.raw_append(Message("a", b"2"))
    path = folder(data) / names(data, "checkpoint-*")[0]
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "damaged":
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    else:
        path.rename(path.with_name(f"checkpoint-{1:016x}"))
    with pytest.raises(CorruptionError) as caught:
        await open_wal(data)
    assert caught.value.path == str(path)
    assert str(path) in str(caught.value)
    assert "checkpoints/p0" in str(caught.value)
    kv = await SqliteKV.open(Path(data) / META_NAME)
    await kv.remove("checkpoints/p0")
    await kv.close()
    async with open_wal(data) as log:
        assert await payloads(log, "a") == [b"1", b"2"]
        assert same(await log.raw_append(Message("a", b"3"), idempotency_key="k"), first), "it still stands in the log"
        await log.raw_append(Message("a", b"4"), idempotency_key="l")
    async with open_wal(data) as log:
        assert (await log.raw_append(Message("a", b"5"), idempotency_key="l")).duplicate


async def test_each_pchannel_has_its_own(data: str) -> None:
    async with open_wal(data, pchannels=4) as log:
        for number in range(40):
            await log.raw_append(Message(f"v{number}", b"1"), idempotency_key="k")
    async with open_wal(data) as log:
        for number in range(40):
            assert (await log.raw_append(Message(f"v{number}", b"1"), idempotency_key="k")).duplicate


async def test_no_room_at_close_loses_nothing(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    keyed = Keyed()
    async with open_wal(data) as log:
        await keyed.append(log, 3)
        checkpoints = local(log).node.pchannels["p0"].log

        async def full(*_: object) -> None:
            raise NoSpaceError("no room for the checkpoint")

        monkeypatch.setattr(checkpoints, "save_state", full)
    assert names(data, "checkpoint-*") == []
    async with open_wal(data) as log:
        await keyed.check(log)
