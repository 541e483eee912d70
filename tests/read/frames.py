"""Random frames, and the events of each as a plain list of what a reader should see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from wal.frame import EncodedFrame, FrameDraft, FrameView, Record, RunName, encode_frame
from wal.message import BroadcastHeader, ImmutableMessage, ImmutableTxnMessage, MessageID, MessageType, Origin, encode_properties
from wal.storage.base import StoredFrame

NAMES: list[RunName] = [("a", 1), ("b", 2), ("a", 3), ("ü", 4)]
"""`a` has two incarnations."""
FIRST_TICK = 1000
ORIGIN = Origin("p0", 7, 4096)
HEADER = BroadcastHeader(9, ("a", "b"), (), True)


class Row(msgspec.Struct, frozen=True):
    """A message as it was appended."""

    name: RunName
    payload: bytes
    kind: int
    properties: dict[str, str]


class Event(msgspec.Struct):
    """An event of the frame: a plain message, a transaction, a copy of a broadcast, or a message for every reader (name `""`)."""

    index: int
    form: str
    rows: list[tuple[int, Row]]
    names: tuple[RunName, ...] = ()
    txn_id: int = 0


KINDS = st.sampled_from([MessageType.INSERT, MessageType.DELETE, MessageType.IMPORT]).map(int)
PROPERTIES = st.dictionaries(st.sampled_from(["k", "l"]), st.text(max_size=3), max_size=2)
PAYLOADS = st.one_of(st.binary(max_size=6), st.just(bytes(20_000)))


def rows(names: Sequence[RunName]) -> st.SearchStrategy[Row]:
    return st.builds(Row, st.sampled_from(list(names)), PAYLOADS, KINDS, PROPERTIES)


PLAIN = st.lists(rows(NAMES), min_size=1, max_size=4).map(lambda some: ("plain", some, ()))
TXN = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).flatmap(
    lambda names: st.lists(rows(names), max_size=5).map(lambda some: ("txn", some, tuple(names)))
)
BROADCAST = st.tuples(
    st.just("broadcast"),
    rows(NAMES).map(lambda row: [row]),
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True).map(tuple),
)
WIDE = rows([("", 0)]).map(lambda row: ("pchannel", [row], ()))
STEPS = st.lists(st.one_of(PLAIN, TXN, BROADCAST, WIDE), max_size=8)


def record(row: Row) -> Record:
    return Record(row.payload, row.kind, properties=encode_properties(row.properties) if row.properties else b"")


def build(
    steps: list[tuple[str, list[Row], tuple[RunName, ...]]],
    *,
    position: int = ORIGIN.position,
    first_tick: int = FIRST_TICK,
    sequence: int = 0,
) -> tuple[StoredFrame, list[Event]]:
    """Returns the frame of these steps as a backend would return it, and its events in order."""
    draft = FrameDraft()
    events: list[Event] = []
    at = 0
    for number, (form, some, names) in enumerate(steps):
        if form == "plain":
            for row in some:
                assert draft.append(row.name, [record(row)]) == at
                events.append(Event(at, form, [(at, row)]))
                at += 1
        elif form == "txn":
            bodies = [(at + offset, row) for offset, row in enumerate(some)]
            at += len(some)
            txn_id = 500 + number
            taken = draft.commit([(row.name, record(row)) for row in some], names=names, txn_id=txn_id, keepalive_ms=250)
            assert taken == at
            events.append(Event(at, form, bodies, names, txn_id))
            at += 1
        elif form == "broadcast":
            assert draft.broadcast(names, record(some[0]), header=HEADER.to_bytes()) == at
            for name in names:
                events.append(Event(at, form, [(at, msgspec.structs.replace(some[0], name=name))]))
                at += 1
        else:
            assert draft.pchannel(record(some[0])) == at
            events.append(Event(at, form, [(at, some[0])]))
            at += 1
    frame = encode_frame(
        draft, incarnation=7, term=1, sequence=sequence, first_tick=first_tick, promised_tick=None if draft.indices else first_tick
    )
    return stored(frame, position), events


def stored(frame: EncodedFrame, position: int = ORIGIN.position) -> StoredFrame:
    head, *blocks = frame.buffers
    body = b"".join(blocks)
    return StoredFrame(position, position + frame.length, FrameView.decode(head, lambda start, end: body[start:end]))


def seen(message: ImmutableMessage) -> tuple[Any, ...]:
    """Returns everything that a reader can see of a message."""
    shared = (message.message_id, message.time_tick, message.vchannel, int(message.message_type))
    if isinstance(message, ImmutableTxnMessage):
        assert message.txn_context is not None
        assert all(body.txn_context == message.txn_context for body in message.messages)
        return (*shared, message.txn_context.txn_id, set(message.vchannels), [seen(body) for body in message.bodies()])
    assert message.bodies() == (message,)
    return (*shared, message.payload, message.properties, message.broadcast)


def expected(
    events: list[Event],
    bound: dict[str, int],
    tick_min: int = 0,
    types: frozenset[int] | None = None,
    *,
    origin: Origin = ORIGIN,
    first_tick: int = FIRST_TICK,
) -> list[tuple[Any, ...]]:
    """Returns what a reader of these vchannels, in these incarnations, with these filters, should see."""
    messages: list[tuple[Any, ...]] = []
    for event in events:
        tick = first_tick + event.index
        wanted = [(at, row) for at, row in event.rows if row.name == ("", 0) or bound.get(row.name[0]) == row.name[1]]
        if types is not None:
            wanted = [(at, row) for at, row in wanted if row.kind in types]
        if tick < tick_min:
            continue
        if event.form != "txn":
            header = HEADER if event.form == "broadcast" else None
            messages += [row_seen(origin.message_id(at), tick, row, header) for at, row in wanted]
            continue
        names = {name for name, life in event.names if bound.get(name) == life}
        if names and (wanted or types is None):
            bodies = [row_seen(origin.message_id(at), tick, row, None) for at, row in wanted]
            name = next(iter(names)) if len(names) == 1 else ""
            messages.append((origin.message_id(event.index), tick, name, 999, event.txn_id, names, bodies))
    return messages


def row_seen(message_id: MessageID, tick: int, row: Row, header: BroadcastHeader | None) -> tuple[Any, ...]:
    return (message_id, tick, row.name[0], row.kind, row.payload, row.properties, header)
