"""Assembly of random frames is compared with a list of the events that were put into them."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.read.frames import FIRST_TICK, NAMES, ORIGIN, STEPS, Row, build, expected, record, seen, stored
from wal.errors import CorruptionError, NoPayloadError
from wal.frame import FLAG_BODY, FLAG_COMMIT, FrameDraft, RunKind, RunName, encode_frame, encode_txn
from wal.frame.draft import Record, Run
from wal.message import ImmutableTxnMessage, MessageType
from wal.read.assembly import assemble, event_indices
from wal.read.options import EventFilter, MessageTypes, Selection, TimeTickGTE

Steps = list[tuple[str, list[Row], tuple[RunName, ...]]]
BOUND = st.dictionaries(st.sampled_from(["a", "b", "ü", "z"]), st.integers(1, 4), min_size=1)
EVERYTHING = EventFilter()


@given(STEPS, BOUND)
def test_reader_gets_its_incarnations_in_tick_order(steps: Steps, bound: dict[str, int]) -> None:
    frame, events = build(steps)
    messages = assemble(frame, ORIGIN, Selection(bound, floor=99), EVERYTHING)
    assert [seen(message) for message in messages] == expected(events, bound)
    ticks = [message.time_tick for message in messages]
    assert ticks == sorted(set(ticks))


@given(STEPS, BOUND, st.integers(0, 25), st.none() | st.sets(st.sampled_from([2, 3, 11]), min_size=1))
def test_filters_drop_messages_bodies_and_emptied_transactions(
    steps: Steps, bound: dict[str, int], above: int, types: set[int] | None
) -> None:
    frame, events = build(steps)
    tick_min = FIRST_TICK + above
    filters: list[TimeTickGTE | MessageTypes] = [TimeTickGTE(tick_min), *([MessageTypes(*map(MessageType, types))] if types else [])]
    messages = assemble(frame, ORIGIN, Selection(bound, floor=99), EventFilter.of(filters))
    wanted = frozenset(types) if types else None
    assert [seen(message) for message in messages] == expected(events, bound, tick_min, wanted)


@given(STEPS, BOUND, st.none() | st.tuples(st.integers(0, 25), st.integers(0, 25)), st.booleans())
def test_page_has_the_columns_of_its_messages(steps: Steps, bound: dict[str, int], part: tuple[int, int] | None, is_built: bool) -> None:
    """Whether they are asked for before or after the messages."""
    frame, _ = build(steps)
    selection = Selection(bound, floor=99)
    messages = assemble(frame, ORIGIN, selection, EVERYTHING).build()
    page = assemble(frame, ORIGIN, selection, EVERYTHING)
    if part is not None:
        page, messages = page.part(*part), messages[slice(*part)]
    if is_built:
        page.build()
    assert len(page) == len(messages)
    assert [*page.ticks] == [message.time_tick for message in messages]
    assert page.message_ids == [message.message_id for message in messages]
    if any(isinstance(message, ImmutableTxnMessage) for message in messages):
        with pytest.raises(NoPayloadError):
            _ = page.payloads
    else:
        assert page.payloads == [message.payload for message in messages]
    assert [seen(message) for message in page] == [seen(message) for message in messages]


def test_page_behaves_as_a_list_that_nobody_changes() -> None:
    rows = [Row(("a", 1), bytes((number,)), 2, {}) for number in range(5)]
    page = assemble(build([("plain", rows, ())])[0], ORIGIN, Selection({"a": 1}, floor=99), EVERYTHING)
    page.payloads.clear()
    assert [len(page.payloads), len(page.ticks), page.is_built] == [5, 5, False]
    messages = list(page)
    assert page == messages == page[:]
    assert [messages == page, page != messages[1:], page != tuple(messages)] == [True, True, True]
    assert (page[1:3] == messages[1:3], page[1:3].payloads) == (True, [b"\x01", b"\x02"])
    assert (page[0], page[-1], page.index(messages[2]), messages[3] in page) == (messages[0], messages[4], 2, True)
    assert messages[:2] + page == page[:2] + messages == [*messages[:2], *messages]
    assert pickle.loads(pickle.dumps(page)).payloads == page.payloads
    assert repr(page) == repr(messages)
    with pytest.raises(TypeError, match="unhashable"):
        hash(page)


def test_threads_of_a_page_share_its_messages() -> None:
    rows = [Row(("a", 1), b"1", 2, {})] * 4096
    page = assemble(build([("plain", rows, ())])[0], ORIGIN, Selection({"a": 1}, floor=99), EVERYTHING)
    with ThreadPoolExecutor(4) as threads:
        first, *others = threads.map(lambda _: page.build(), range(4))
    assert all(other is first for other in others)


@given(STEPS)
def test_event_indices_are_those_of_the_events(steps: Steps) -> None:
    frame, events = build(steps)
    assert event_indices(frame.view) == [event.index for event in events]


@given(STEPS)
def test_first_index_of_a_transaction_is_its_body(steps: Steps) -> None:
    frame, events = build(steps)
    bound = dict(NAMES)
    firsts = {event.index: min([at for at, _ in event.rows], default=event.index) for event in events}
    for message in assemble(frame, ORIGIN, Selection(bound, floor=99), EVERYTHING):
        if isinstance(message, ImmutableTxnMessage):
            assert message._first_index == firsts[message._index]


def test_empty_transaction_passes_no_filter_by_type() -> None:
    frame, _ = build([("txn", [], (("a", 1), ("b", 2)))])
    (message,) = assemble(frame, ORIGIN, Selection({"a": 1, "b": 2}, floor=9), EVERYTHING)
    assert message.bodies() == ()
    assert message.vchannel == ""
    assert message.estimate_size() == 0
    by_type = EventFilter.of(MessageTypes(MessageType.INSERT))
    assert assemble(frame, ORIGIN, Selection({"a": 1}, floor=9), by_type) == []


def test_bodies_keep_ids_and_get_the_commit_tick() -> None:
    some = [Row(("a", 1), b"1", 2, {"k": "v"}), Row(("b", 2), b"2", 3, {})]
    frame, _ = build([("plain", [Row(("a", 1), b"0", 2, {})], ()), ("txn", some, (("a", 1), ("b", 2)))])
    _, message = assemble(frame, ORIGIN, Selection({"a": 1, "b": 2}, floor=9), EVERYTHING)
    assert message.message_id == message.last_confirmed == ORIGIN.message_id(3)
    assert [(body.message_id, body.time_tick, body.vchannel) for body in message.bodies()] == [
        (ORIGIN.message_id(1), message.time_tick, "a"),
        (ORIGIN.message_id(2), message.time_tick, "b"),
    ]
    assert message.estimate_size() == 4


def test_run_of_plain_messages_of_both_kinds() -> None:
    some = [Row(("a", 1), b"%d" % number, 2, {}) for number in range(50)]
    frame, events = build([("plain", some, ())])
    messages = assemble(frame, ORIGIN, Selection({"a": 1}, floor=9), EVERYTHING)
    assert [seen(message) for message in messages] == expected(events, {"a": 1})


@pytest.mark.parametrize("promised", [0, 2])
def test_commit_with_missing_bodies_is_damage(promised: int) -> None:
    def damaged(records: list[tuple[int, Record]]) -> FrameDraft:
        """A draft with one run of these (index, record) pairs, which may break the laws."""
        draft = FrameDraft()
        run = Run(RunKind.VCHANNEL, "a", 1, [one for _, one in records], [index for index, _ in records])
        draft.runs.append(run)
        draft.by_name["a", 1] = run
        draft.indices = max(index for index, _ in records) + 1
        draft.in_order = False
        draft.has_flags = True
        return draft

    ext = encode_txn(txn_id=5, keepalive_ms=1, bodies=promised, bodies_total=promised)
    body = record(Row(("a", 1), b"1", 2, {}))
    body.flags = FLAG_BODY
    draft = damaged([(0, body), (1, Record(b"", 2, FLAG_COMMIT, b"", ext))])
    frame = stored(encode_frame(draft, incarnation=7, term=1, sequence=0, first_tick=FIRST_TICK))
    with pytest.raises(CorruptionError, match="transaction 5"):
        assemble(frame, ORIGIN, Selection({"a": 1}, floor=9), EVERYTHING)


def test_damaged_block_fails_its_readers_only() -> None:
    rows = [Row(("a", 1), bytes(20_000), 2, {}), Row(("b", 2), b"whole", 2, {})]
    draft = FrameDraft()
    for row in rows:
        draft.append(row.name, [record(row)])
    encoded = encode_frame(draft, incarnation=7, term=1, sequence=0, first_tick=FIRST_TICK)
    head, *blocks = encoded.buffers
    torn = stored(type(encoded)(encoded.header, [head, b"\1" + b"".join(blocks)[1:]], encoded.length, (), False))
    with pytest.raises(CorruptionError):
        assemble(torn, ORIGIN, Selection({"a": 1}, floor=9), EVERYTHING)
    (message,) = assemble(torn, ORIGIN, Selection({"b": 2}, floor=9), EVERYTHING)
    assert message.payload == b"whole"
