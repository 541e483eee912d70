"""Repack against a naive model: every row goes, in order, to the producer of its hash key, and nowhere else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.msgstream.messages import deletes, inserts, of_type, plain, u32
from wal.errors import InvalidArgumentError
from wal.streams import msgstream
from wal.streams.msgstream.producers import distribute

OTHERS = [msgstream.MsgType.FLUSH, msgstream.MsgType.TIME_TICK, msgstream.MsgType.CREATE_COLLECTION, msgstream.MsgType.SEARCH]


@st.composite
def keyed(draw: st.DrawFn) -> msgstream.TsMsg:
    """A message of any type whose hash keys fit it."""
    message: msgstream.TsMsg = draw(inserts() | deletes() | st.sampled_from(OTHERS).flatmap(of_type))
    count = len(message.timestamps) if isinstance(message, msgstream.InsertMsg | msgstream.DeleteMsg) else 1
    message.hash_keys = draw(st.lists(u32, min_size=count, max_size=count))
    return message


@given(st.lists(keyed(), max_size=8), st.integers(1, 5))
def test_rows_go_in_order_to_their_producer(messages: list[msgstream.TsMsg], producers: int) -> None:
    Row = tuple[Any, ...]

    def rows(message: msgstream.TsMsg) -> list[tuple[int, Row]]:
        """Returns the rows of a message, each with its key. The row of an undivided message is the message."""
        base: Row = (message.msg_type, message.id, message.timestamp, message.source_id, message.target_id, message.trace_ctx)
        columns: Iterable[Row]
        if isinstance(message, msgstream.InsertMsg):
            base += (message.collection_id, message.partition_id)
            columns = zip(message.timestamps, message.row_ids, message.row_data, strict=True)
        elif isinstance(message, msgstream.DeleteMsg):
            base += (message.collection_id, message.partition_id)
            columns = zip(message.timestamps, message.primary_keys, strict=True)
        else:
            columns = iter([(message.marshal_body(),)])
        return [(key, (*base, *row)) for key, row in zip(message.hash_keys, columns, strict=True)]

    def naive(messages: list[msgstream.TsMsg], producers: int) -> dict[int, list[tuple[int, Row]]]:
        found: dict[int, list[tuple[int, Row]]] = {}
        for message in messages:
            for key, row in rows(message):
                found.setdefault(key % producers, []).append((key, row))
        return found

    before = [message.marshal() for message in messages]
    found = distribute(messages, producers)
    assert {index: [row for one in some for row in rows(one)] for index, some in found.items()} == naive(messages, producers)
    assert [message.marshal() for message in messages] == before
    for some in found.values():
        for one in some:
            assert type(one).unmarshal(one.marshal()) == one


@given(inserts(), st.lists(st.integers(0, 3), min_size=6, max_size=6))
def test_rows_of_one_bucket_stay_one_message(message: msgstream.InsertMsg, chosen: list[int]) -> None:
    count = len(message.timestamps)
    message.hash_keys = chosen[:count]
    packs = msgstream.insert_repack([message], [chosen[:count]])
    assert set(packs) == set(chosen[:count])
    for bucket, pack in packs.items():
        (part,) = pack.msgs
        assert set(part.hash_keys) == {bucket}
        assert (pack.begin_ts, pack.end_ts) == (part.begin_ts, part.end_ts)


def test_keys_are_unsigned() -> None:
    highest = msgstream.OpaqueMsg(msgstream.MsgType.FLUSH, hash_keys=[2**32 - 1])
    assert distribute([highest], 10) == {5: [highest]}


def test_runs_of_a_type_are_repacked_separately() -> None:
    calls: list[tuple[list[msgstream.TsMsg], list[list[int]]]] = []

    def repack(messages: list[msgstream.TsMsg], buckets: list[list[int]]) -> dict[int, msgstream.MsgPack]:
        calls.append((messages, buckets))
        return {1: msgstream.MsgPack(messages)}

    a = msgstream.InsertMsg([1, 1], [1, 2], [b"", b""], hash_keys=[4, 6])
    b, c = msgstream.TimeTickMsg(2, hash_keys=[5]), msgstream.TimeTickMsg(3)
    d = msgstream.InsertMsg([4], [1], [b""], hash_keys=[8])
    assert distribute([a, b, c, d], 3, repack) == {1: [a, b, c, d]}
    assert calls == [([a], [[1, 0]]), ([b, c], [[2], []]), ([d], [[2]])]


@pytest.mark.parametrize("keys", [[], [1, 2]])
def test_undivided_message_needs_exactly_one_key(keys: list[int]) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"has {len(keys)} hash keys"):
        msgstream.default_repack([plain(msgstream.MsgType.FLUSH)], [keys])
    with pytest.raises(InvalidArgumentError, match=rf"has {len(keys)} hash keys"):
        distribute([msgstream.OpaqueMsg(msgstream.MsgType.FLUSH, hash_keys=keys)], 1)


@pytest.mark.parametrize("message", [plain(msgstream.MsgType.INSERT), plain(msgstream.MsgType.DELETE)])
@pytest.mark.parametrize("keys", [[], [1, 2]])
def test_rows_need_a_key_each(message: msgstream.TsMsg, keys: list[int]) -> None:
    repack = msgstream.insert_repack if isinstance(message, msgstream.InsertMsg) else msgstream.delete_repack
    with pytest.raises(InvalidArgumentError, match=rf"1 rows has {len(keys)} hash keys"):
        repack([message], [keys])


def test_only_rows_are_split_by_rows() -> None:
    with pytest.raises(InvalidArgumentError, match=r"TIME_TICK.*InsertMsg"):
        msgstream.insert_repack([msgstream.TimeTickMsg(1)], [[0]])
    with pytest.raises(InvalidArgumentError, match=r"INSERT.*DeleteMsg"):
        msgstream.delete_repack([plain(msgstream.MsgType.INSERT)], [[0]])
    with pytest.raises(InvalidArgumentError, match=r"INSERT.*InsertMsg"):
        distribute([msgstream.OpaqueMsg(msgstream.MsgType.INSERT, hash_keys=[1])], 1)


@pytest.mark.parametrize("index", [-1, 2, "0", None])
def test_producer_that_does_not_exist_is_refused(index: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"producer {index!r}.*choose 0 to 1"):
        distribute([msgstream.TimeTickMsg(1)], 2, lambda messages, buckets: {index: msgstream.MsgPack(messages)})


NO_MESSAGES: Any = ["text"]


@pytest.mark.parametrize("result", [None, [], {0: [msgstream.TimeTickMsg(1)]}, {0: None}, {0: msgstream.MsgPack(NO_MESSAGES, 0, 0)}])
def test_repack_function_returns_packs(result: Any) -> None:
    with pytest.raises(TypeError, match="MsgPack"):
        distribute([msgstream.TimeTickMsg(1)], 2, lambda messages, buckets: result)


def test_producer_with_an_empty_pack_gets_nothing() -> None:
    message = msgstream.TimeTickMsg(1)
    assert distribute([message], 2, lambda messages, buckets: {0: msgstream.MsgPack([]), 1: msgstream.MsgPack(messages)}) == {1: [message]}


def test_parts_for_one_producer_need_ids() -> None:
    message = msgstream.InsertMsg([1, 1, 1], [1, 2, 3], [b"", b"", b""], hash_keys=[0, 0, 1], id=7, source_id=3)

    def by_rows(ids: list[int], targets: list[int]) -> dict[int, list[msgstream.TsMsg]]:
        def repack(messages: list[msgstream.TsMsg], buckets: list[list[int]]) -> dict[int, msgstream.MsgPack]:
            packs: dict[int, list[msgstream.TsMsg]] = {}
            for row, (number, target) in enumerate(zip(ids, targets, strict=True)):
                packs.setdefault(target, []).append(msgstream.InsertMsg([1], [row], [b""], id=number, source_id=3))
            return {target: msgstream.MsgPack(parts) for target, parts in packs.items()}

        return distribute([message], 3, repack)

    for ids in ([7, 7, 7], [5, 5, 6]):
        with pytest.raises(InvalidArgumentError, match=r"producer 0 2 messages with source_id 3 and id \d,.*id 0"):
            by_rows(ids, [0, 0, 1])
    assert len(by_rows([7, 7, 7], [0, 1, 2])) == 3
    assert len(by_rows([7, 8, 9], [0, 0, 0])[0]) == 3
    assert len(by_rows([0, 0, 0], [0, 0, 0])[0]) == 3


def test_messages_sent_twice_are_repacked_twice() -> None:
    twice = [plain(msgstream.MsgType.FLUSH), plain(msgstream.MsgType.FLUSH)]
    for message in twice:
        message.id = 7
    assert distribute(twice, 1, lambda messages, buckets: {0: msgstream.MsgPack(messages)}) == {0: twice}


@pytest.mark.parametrize("error", [asyncio.CancelledError, StopIteration, StopAsyncIteration])
def test_repack_function_that_exits_is_an_error(error: type[BaseException]) -> None:
    def ending(messages: list[msgstream.TsMsg], buckets: list[list[int]]) -> dict[int, msgstream.MsgPack]:
        raise error

    with pytest.raises(InvalidArgumentError, match=f"the repack function raised {error.__name__}"):
        distribute([msgstream.TimeTickMsg(1)], 2, ending)
