"""Records are read back unchanged, old programs refuse new ones, and damage raises; recovery refuses contradictions."""

from __future__ import annotations

import binascii

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadcaster import BroadcastState, Content, CopiesInLog, records
from broadcaster.task import StepKind
from wal.errors import CorruptionError, FormatError
from wal.message import BroadcastHeader, ResourceKey

HEADER = BroadcastHeader(7 << 40, ("a", "b", "ü"), (ResourceKey("d", "k"), ResourceKey("d", "s", shared=True)), True)
CONTENT = Content(b"\x00\xff payload", 12, b"\x81\xa1k\xa1v")
PLACES = {"p0": ["a", "ü"], "p1": ["b"]}


@given(st.sets(st.integers(0, 5 * records.CHUNK_BITS)), st.integers(1, (1 << 63) - 1))
def test_ack_bitmaps_come_back_and_are_removed_whole(acked: set[int], broadcast_id: int) -> None:
    mask = sum(1 << bit for bit in acked)
    saves = records.encode_acks(broadcast_id, mask, records.ack_chunks(mask))
    stored = records.read_records(list(saves), list(saves.values()))
    assert stored.acks.get(broadcast_id, 0) == mask
    assert sorted(records.finished_keys(broadcast_id, recorded=False, acked=mask, aborted=False)) == sorted(saves)
    assert all(len(value) < 200 for value in saves.values())


def test_every_record_is_decoded_as_it_was_encoded() -> None:
    number = HEADER.broadcast_id
    saves = {
        records.task_key(number): records.encode_task(HEADER, CONTENT, PLACES),
        records.progress_key(number): records.encode_progress(0b101),
        records.abort_key(number): records.encode_abort("weil ü"),
        records.done_key(9): records.encode_done(BroadcastState.ABORTED, 1234),
    }
    stored = records.read_records(list(saves), list(saves.values()))
    record = stored.tasks[number]
    assert record.header == HEADER
    assert Content(*record.content) == CONTENT
    assert record.by_pchannel() == PLACES
    assert (stored.progress, stored.aborts) == ({number: 0b101}, {number: "weil ü"})
    assert (stored.done[9].state, stored.done[9].at_ms) == (BroadcastState.ABORTED, 1234)
    assert set(stored.keys[number]) == set(saves) - {records.done_key(9)}


def test_these_are_the_bytes_of_version_1() -> None:
    header = BroadcastHeader(5, ("a", "b"), (ResourceKey("d", "k"),), True)
    assert records.encode_task(header, Content(b"x", 2), {"p0": ["a"], "p1": ["b"]}) == ("lQGUBZKhYaFikZOhZKFrwsOTxAF4AsQAkqJwMKJwMZIAAQ==")
    assert records.encode_acks(5, 3, {0}) == {"acks/0000000000000005/0": "kgHEAQM="}
    assert records.encode_progress(3) == "kgHEAQM="
    assert records.encode_abort("no") == "kgGibm8="
    assert records.encode_done(BroadcastState.DONE, 1) == "kwECAQ=="


@pytest.mark.parametrize("kind", ["task", "progress", "acks", "abort", "done"])
def test_newer_version_is_refused(kind: str) -> None:
    value = binascii.b2a_base64(msgspec.msgpack.encode([2, "whatever it may be"]), newline=False).decode()
    with pytest.raises(FormatError, match="version 2"):
        records.read_records([f"{kind}/0000000000000005" + "/0" * (kind == "acks")], [value])


def test_damage_names_the_key(subtests: pytest.Subtests) -> None:
    cases = [
        ("task/0000000000000005", records.encode_progress(1)),
        ("done/0000000000000005", records.encode_progress(1)),
        ("done/0000000000000005", "not base64"),
        ("done/0000000000000005", ""),
        ("progress/xyz", records.encode_progress(1)),
        ("acks/0000000000000005", records.encode_progress(1)),
        ("others/0000000000000005", records.encode_progress(1)),
        ("abort/0000000000000005", records.encode_progress(1)),
    ]
    for key, value in cases:
        with subtests.test(repr(key)), pytest.raises(CorruptionError, match=key):
            records.read_records([key], [value])


def test_broadcast_without_its_record_is_finished() -> None:
    """An older copy of the KV was restored."""
    ((task, content),) = records.rebuild(
        records.read_records([], []), [CopiesInLog("p0", HEADER, ("a", "ü")), CopiesInLog("p1", HEADER, ("b",))]
    ).tasks
    assert task.complete
    assert content is None
    ((task, _),) = records.rebuild(
        records.read_records([], []), [CopiesInLog("p0", HEADER, ("a",))], located=lambda _: {"ü": "p0", "b": "p1"}
    ).tasks
    assert [(step.pchannel, step.vchannels) for step in task.steps()] == [("p0", ("ü",)), ("p1", ("b",))]
    ((task, _),) = records.rebuild(records.read_records([], []), [CopiesInLog("p0", HEADER, ("a", "ü"), ("a",))]).tasks
    assert task.reason == records.LOST_REASON
    assert [(step.kind, step.vchannels) for step in task.steps()] == [(StepKind.ABORTS, ("ü",))]


def test_copies_that_contradict_each_other_are_damage() -> None:
    on_both = [CopiesInLog("p0", HEADER, ("a", "ü")), CopiesInLog("p1", HEADER, ("b",))]
    saves = {records.task_key(HEADER.broadcast_id): records.encode_task(HEADER, CONTENT, PLACES)}
    stored = records.read_records(list(saves), list(saves.values()))
    ((task, content),) = records.rebuild(stored, on_both).tasks
    assert task.complete
    assert content == CONTENT
    with pytest.raises(CorruptionError, match="pchannel p1"):
        records.rebuild(stored, [CopiesInLog("p1", HEADER, ("a",))])
    other = BroadcastHeader(HEADER.broadcast_id, ("x",))
    with pytest.raises(CorruptionError, match="pchannel p0"):
        records.rebuild(stored, [CopiesInLog("p0", other, ("x",))])
