"""Assembly: builds the messages for a reader, in tick order, from the runs of a frame.

Pure and synchronous; the scanner, the bridge and Spark use it. A transaction over several runs becomes one message here. A commit whose
bodies are not all present is damage, never a smaller transaction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import repeat
from operator import attrgetter, setitem
from typing import Any, Final, overload

import msgspec

from wal.errors import CorruptionError
from wal.frame import (
    DEFAULT_TYPE,
    FLAG_BODY,
    FLAG_COMMIT,
    Columns,
    ExtTag,
    FrameView,
    RunKind,
    RunName,
    RunRow,
    StoredColumns,
    decode_ext,
    decode_txn,
)
from wal.message import BroadcastHeader, ImmutableMessage, ImmutableTxnMessage, LogPosition, MessageID, MessageType, Origin, TxnContext
from wal.read.options import EventFilter, Selection
from wal.storage.base import StoredFrame


class MessagePage(Sequence[ImmutableMessage]):
    """Messages in tick order: a list that does not change, also column by column. Columns of a page cost less than its messages.

    A page that scanners share, or that several threads read, has the same messages for all of them.
    """

    __slots__ = ("_messages",)

    def __init__(self, messages: list[ImmutableMessage]) -> None:
        self._messages = messages

    @property
    def payloads(self) -> list[bytes]:
        """The payload of each message, a new list at each access. Raises NoPayloadError if one of them is a transaction."""
        return [message.payload for message in self._messages]

    @property
    def ticks(self) -> Sequence[int]:
        """The tick of each message."""
        return [message.time_tick for message in self._messages]

    @property
    def message_ids(self) -> list[MessageID | None]:
        """The id of each message, a new list at each access; None for a TimeTick before the first event."""
        return [message.message_id for message in self._messages]

    def tick(self, index: int) -> int:
        """Returns the tick of a message."""
        return self._messages[index].time_tick

    def position(self, index: int) -> LogPosition:
        """Returns the log position of a message."""
        message = self._messages[index]
        return message._origin.position, message._index

    def part(self, start: int, stop: int) -> MessagePage:
        """Returns these messages as a page, for a reader that has not seen this one."""
        return MessagePage(self._messages[start:stop])

    def build(self) -> list[ImmutableMessage]:
        """Returns the messages as a list that must not be changed."""
        return self._messages

    @property
    def is_built(self) -> bool:
        """Whether there is an object for each message already."""
        return True

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> ImmutableMessage: ...
    @overload
    def __getitem__(self, index: slice) -> MessagePage: ...
    def __getitem__(self, index: int | slice) -> ImmutableMessage | MessagePage:
        messages = self.build()
        return MessagePage(messages[index]) if isinstance(index, slice) else messages[index]

    def __iter__(self) -> Iterator[ImmutableMessage]:
        return iter(self.build())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | MessagePage):
            return NotImplemented
        return len(self) == len(other) and self.build() == list(other)

    def __add__(self, other: Iterable[Any]) -> list[Any]:
        return [*self, *other]

    def __radd__(self, other: Iterable[Any]) -> list[Any]:
        return [*other, *self]

    def __repr__(self) -> str:
        return f"{self.build()!r}"

    def __reduce__(self) -> tuple[type[MessagePage], tuple[list[ImmutableMessage]]]:
        return MessagePage, (self.build(),)


class RunMessages(MessagePage):
    """The messages of one run of a frame, or of several in tick order, no transactions or copies of broadcasts.

    They are created when the first of them is accessed. `names` are their vchannels, or the only one.
    """

    __slots__ = ("_built", "_columns", "_indices", "first_tick", "names", "origin")

    def __init__(self, names: str | Sequence[str], columns: StoredColumns | Columns, origin: Origin, first_tick: int) -> None:
        self._built: list[list[ImmutableMessage]] = []
        """The list of messages, once there is one. Two threads may create one at the same time: the first in here counts."""
        self.names: str | Sequence[str] = names
        self._columns = columns
        self._indices = columns.rows.indices if isinstance(columns, StoredColumns) else columns.indices
        self.origin: Origin = origin
        self.first_tick: int = first_tick

    def columns(self) -> Columns:
        """Returns the fields of all messages."""
        columns = self._columns
        if isinstance(columns, StoredColumns):
            columns = self._columns = columns.cut()
        return columns

    @property
    def payloads(self) -> list[bytes]:
        return self.columns().payloads.copy()

    @property
    def ticks(self) -> Sequence[int]:
        first_tick, indices = self.first_tick, self._indices
        if indices and (first := indices[0]) + len(indices) - 1 == indices[-1]:  # they ascend, so they are consecutive
            return range(first_tick + first, first_tick + first + len(indices))
        return [first_tick + index for index in indices]

    @property
    def message_ids(self) -> list[MessageID | None]:
        return list(map(self.origin.message_id, self._indices))

    def tick(self, index: int) -> int:
        return self.first_tick + self._indices[index]

    def position(self, index: int) -> LogPosition:
        return self.origin.position, self._indices[index]

    def part(self, start: int, stop: int) -> MessagePage:
        if self._built:
            return MessagePage(self._built[0][start:stop])
        names = self.names if isinstance(self.names, str) else self.names[start:stop]
        return RunMessages(names, self.columns().part(start, stop), self.origin, self.first_tick)

    def build(self) -> list[ImmutableMessage]:
        built = self._built
        if not built:
            columns = self.columns()
            built.append(
                list(
                    map(
                        ImmutableMessage,
                        repeat(self.origin),
                        columns.indices,
                        self.ticks,
                        repeat(self.names) if isinstance(self.names, str) else self.names,
                        columns.payloads,
                        columns.types or repeat(_INSERT),
                        columns.properties or repeat(b""),
                    )
                )
            )
        return built[0]

    @property
    def is_built(self) -> bool:
        return bool(self._built)

    def __len__(self) -> int:
        return len(self._indices)


class PlainMessages(RunMessages):
    """Messages that have payloads and nothing else: no properties, no bodies, no broadcast."""

    __slots__ = ("payload_bytes",)

    payload_bytes: int

    def detach(self) -> None:
        """Keeps no more than the bytes of these messages, for a page that waits: a frame may have other vchannels beside a few of them."""
        columns = self._columns
        if isinstance(columns, StoredColumns) and len(columns.body) > 2 * self.payload_bytes:
            self.columns()


NO_MESSAGES: Final = MessagePage([])


def assemble(frame: StoredFrame, origin: Origin, selection: Selection, event_filter: EventFilter) -> MessagePage:
    """Returns the messages of `frame` for this selection that pass the filter, in tick order.

    Raises CorruptionError for a damaged block or transaction.
    """
    header = frame.view.header
    if header.first_tick + header.indices <= event_filter.tick_min:
        return NO_MESSAGES
    return assemble_runs(frame.view, selection.runs(frame.view), origin, event_filter)


def assemble_runs(view: FrameView, runs: list[RunRow], origin: Origin, event_filter: EventFilter) -> MessagePage:
    """Does the work of `assemble` for the runs that a selection has found."""
    first_tick = view.header.first_tick
    if len(runs) == 1 and runs[0].kind != RunKind.COPY and not view.runs.has_flags(runs[0]):
        return _plain(runs[0], view.stored_columns(runs[0]), origin, first_tick, event_filter)
    return _mixed(view, runs, origin, first_tick, event_filter)


def event_indices(view: FrameView) -> list[int]:
    """Returns the indices of all events of a frame, ascending: its rows other than bodies, and its copies of broadcasts."""
    indices: set[int] = set()
    for run in view.runs:
        if run.kind == RunKind.COPY:
            indices.add(run.index)
        elif run.kind in (RunKind.VCHANNEL, RunKind.PCHANNEL):
            columns = view.columns(run)
            flags = columns.flags or repeat(0)
            indices.update(index for index, flag in zip(columns.indices, flags, strict=False) if not flag & FLAG_BODY)
    return sorted(indices)


def _plain(run: RunRow, columns: StoredColumns, origin: Origin, first_tick: int, event_filter: EventFilter) -> MessagePage:
    """Returns the messages of a run without transactions."""
    rows = columns.rows
    if first_tick + run.index >= event_filter.tick_min and event_filter.types is None:
        if rows.properties_lens is not None or rows.ext_lens is not None:
            return RunMessages(run.name, columns, origin, first_tick)
        page = PlainMessages(run.name, columns, origin, first_tick)
        page.payload_bytes = run.body_end - run.body_start
        return page
    return _passing(RunMessages(run.name, columns, origin, first_tick), event_filter)


def _together(view: FrameView, runs: list[RunRow], origin: Origin, first_tick: int) -> RunMessages:
    """Returns the messages of several runs without transactions, in tick order."""
    stored = list(view.stored_together(runs))
    columns = Columns.joined([each.cut() for each in stored])
    names: list[str] = []
    for run in runs:
        names += [run.name] * (run.end - run.first)
    if names and not isinstance(stored[0].rows.indices, range):
        indices, in_order = _order(columns.indices)
        names, payloads = in_order(names), in_order(columns.payloads)
        types = None if columns.types is None else in_order(columns.types)
        properties = None if columns.properties is None else in_order(columns.properties)
        columns = Columns(indices, payloads, types, None, properties, None)
    return RunMessages(names, columns, origin, first_tick)


def _order(indices: list[int]) -> tuple[list[int], Callable[[list[Any]], list[Any]]]:
    """Returns these indices in ascending order, and a function that sorts a column of their rows alike, without a step for each row."""
    count = len(indices)
    if max(indices) >= count:  # some vchannels of the frame are not read
        ascending = sorted(indices)
        return ascending, lambda column: list(map(dict(zip(indices, column, strict=True)).__getitem__, ascending))

    def in_order(column: list[Any]) -> list[Any]:
        places: list[Any] = [None] * count
        deque(map(setitem, repeat(places), indices, column), maxlen=0)
        return places

    return list(range(count)), in_order


def _passing(page: MessagePage, event_filter: EventFilter) -> MessagePage:
    """Returns those of these messages that pass the filter."""
    return MessagePage([message for message in page if _passes(message, event_filter)])


class _TxnPart(msgspec.Struct, gc=False):
    """A transaction as found so far: its context, the number of its bodies over all runs, and the bodies of the runs seen."""

    context: TxnContext
    bodies_total: int
    vchannels: list[str]
    bodies: list[ImmutableMessage]


def _mixed(view: FrameView, runs: list[RunRow], origin: Origin, first_tick: int, event_filter: EventFilter) -> MessagePage:
    """Returns the messages of any mix of runs: plain messages, transactions over one or several runs, copies of broadcasts."""
    plain: list[RunRow] = []
    messages: list[ImmutableMessage] = []
    txns: dict[int, _TxnPart] = {}
    for run in runs:
        if run.kind == RunKind.COPY:
            messages.append(_copy(view, run, origin, first_tick))
        elif view.runs.has_flags(run):
            _split(run, view.columns(run), origin, first_tick, messages, txns)
        else:
            plain.append(run)
    messages += [_txn(index, part, origin, first_tick, event_filter) for index, part in txns.items()]
    page: MessagePage = _together(view, plain, origin, first_tick) if plain else NO_MESSAGES
    if messages:
        page = MessagePage(sorted([*page, *messages], key=_BY_TICK))
    return page if event_filter.types is None and first_tick >= event_filter.tick_min else _passing(page, event_filter)


def _split(
    run: RunRow, columns: Columns, origin: Origin, first_tick: int, messages: list[ImmutableMessage], txns: dict[int, _TxnPart]
) -> None:
    """Sorts the rows of a run into plain messages and parts of transactions."""
    assert columns.flags is not None
    types = columns.types or repeat(_INSERT)
    properties = columns.properties or repeat(b"")
    exts = columns.exts or repeat(b"")
    waiting: list[tuple[int, bytes, int, bytes]] = []
    for index, payload, kind, flags, stored, ext in zip(
        columns.indices, columns.payloads, types, columns.flags, properties, exts, strict=False
    ):
        if flags & FLAG_BODY:
            waiting.append((index, payload, kind, stored))
        elif flags & FLAG_COMMIT:
            txn_id, keepalive_ms, count, total = decode_txn(decode_ext(ext))
            if count != len(waiting):
                raise CorruptionError(
                    f"the transaction {txn_id} has {len(waiting)} bodies on vchannel {run.name!r}", expected=f"{count} bodies"
                )
            part = txns.get(index)
            if part is None:
                part = txns[index] = _TxnPart(TxnContext(txn_id, keepalive_ms / 1000), total, [], [])
            elif part.context.txn_id != txn_id:
                raise CorruptionError(f"two transactions, {txn_id} and {part.context.txn_id}, share the index {index}")
            part.vchannels.append(run.name)
            tick = first_tick + index
            part.bodies += [
                ImmutableMessage(origin, at, tick, run.name, payload, kind, stored, part.context) for at, payload, kind, stored in waiting
            ]
            waiting = []
        else:
            messages.append(ImmutableMessage(origin, index, first_tick + index, run.name, payload, kind, stored))
    if waiting:
        raise CorruptionError(f"{len(waiting)} bodies on vchannel {run.name!r} have no commit", expected="a commit row after them")


def _txn(index: int, part: _TxnPart, origin: Origin, first_tick: int, event_filter: EventFilter) -> ImmutableTxnMessage:
    """Builds the message of a transaction from its parts."""
    bodies = part.bodies
    if len(part.vchannels) > 1:
        bodies.sort(key=_BY_INDEX)
    if event_filter.types is not None:
        bodies = [body for body in bodies if body._type in event_filter.types]
    return ImmutableTxnMessage(
        origin,
        index,
        first_tick + index,
        part.vchannels[0] if len(part.vchannels) == 1 else "",
        b"",
        _TXN,
        b"",
        part.context,
        messages=tuple(bodies),
        vchannels=tuple(part.vchannels),
        _first_index=index - part.bodies_total,
    )


def _copy(view: FrameView, run: RunRow, origin: Origin, first_tick: int) -> ImmutableMessage:
    """Builds one vchannel's copy of a broadcast from the payload and the header that all copies share."""
    shared = shared_by(view, run.shared)
    return ImmutableMessage(
        origin, run.index, first_tick + run.index, run.name, shared.payload, shared.message_type, shared.properties, None, shared.header
    )


def _passes(message: ImmutableMessage, event_filter: EventFilter) -> bool:
    if message.time_tick < event_filter.tick_min:
        return False
    if event_filter.types is None:
        return True
    if message._type == _TXN:
        return bool(message.bodies())
    return message._type in event_filter.types


_INSERT: Final = int(MessageType.INSERT)
_TXN: Final = int(MessageType.TXN)
_BY_TICK: Final = attrgetter("time_tick")
_BY_INDEX: Final = attrgetter("_index")


class SharedCopies(msgspec.Struct, frozen=True, gc=False):
    """The copies of a broadcast in one frame, and the payload and header that they share. Pure.

    Decodes a SHARED run and its COPY runs. A reader builds the message of each vchannel from them, recovery the broadcast's record that it
    keeps; both see the same, or raise the same CorruptionError. A reader fetches only the broadcasts that it has a copy of, so only the
    readers of a damaged broadcast see the damage.

    The fields that the copies of a broadcast in a frame share, and `names`, the (name, incarnation) of each copy.

    The copies have the indices from `index` on. `ordinal` is that of the SHARED run.
    """

    ordinal: int
    header: BroadcastHeader
    payload: bytes
    message_type: int
    properties: bytes
    index: int
    names: tuple[RunName, ...]


def shared_copies(view: FrameView) -> list[SharedCopies]:
    """Returns all copies of broadcasts in a frame. Raises CorruptionError for a damaged SHARED run."""
    return [_decode(view, ordinal, run, names) for ordinal, run, names in view.runs.copies()]


def shared_by(view: FrameView, ordinal: int) -> SharedCopies:
    """Returns the copies of the SHARED run with this ordinal, decoded once for all readers of the view. Damage raises CorruptionError."""
    known = view.memo.get(ordinal)
    if known is None:
        for each, run, names in view.runs.copies():
            view.memo.setdefault(each, (run, names))
        known = view.memo[ordinal]
    if not isinstance(known, SharedCopies):
        known = view.memo[ordinal] = _decode(view, ordinal, *known)
    return known


def _decode(view: FrameView, ordinal: int, run: RunRow, names: list[RunName]) -> SharedCopies:
    columns = view.columns(run)
    fields = decode_ext(columns.exts[0]) if columns.exts else {}
    if ExtTag.BROADCAST not in fields:
        raise CorruptionError(f"the copies of a broadcast for {len(names)} vchannels carry no header", expected="a header")
    return SharedCopies(
        ordinal,
        BroadcastHeader.from_bytes(fields[ExtTag.BROADCAST], [name for name, _ in names]),
        columns.payloads[0],
        columns.types[0] if columns.types else DEFAULT_TYPE,
        columns.properties[0] if columns.properties else b"",
        run.index,
        tuple(names),
    )
