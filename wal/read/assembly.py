"""Assembly: builds the messages for a reader, in tick order, from the runs of a frame.

Pure and synchronous; the scanner, the bridge and Spark use it. A transaction over several runs becomes one message here. A commit whose
bodies are not all present is damage, never a smaller transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat
from operator import attrgetter
from typing import Final

import msgspec

from wal.errors import CorruptionError
from wal.frame import DEFAULT_TYPE, FLAG_BODY, FLAG_COMMIT, Columns, ExtTag, FrameView, RunKind, RunName, RunRow, decode_ext, decode_txn
from wal.message import BroadcastHeader, ImmutableMessage, ImmutableTxnMessage, MessageType, Origin, TxnContext
from wal.read.options import EventFilter, Selection
from wal.storage.base import StoredFrame


def assemble(frame: StoredFrame, origin: Origin, selection: Selection, event_filter: EventFilter) -> list[ImmutableMessage]:
    """Returns the messages of `frame` for this selection that pass the filter, in tick order.

    Raises CorruptionError for a damaged block or transaction.
    """
    header = frame.view.header
    if header.first_tick + header.indices <= event_filter.tick_min:
        return []
    return assemble_runs(frame.view, selection.runs(frame.view), origin, event_filter)


def assemble_runs(view: FrameView, runs: list[RunRow], origin: Origin, event_filter: EventFilter) -> list[ImmutableMessage]:
    """Does the work of `assemble` for the runs that a selection has found."""
    first_tick = view.header.first_tick
    if len(runs) == 1 and runs[0].kind != RunKind.COPY:
        run = runs[0]
        columns = view.columns(run)
        if columns.flags is None or not any(columns.flags):
            return _plain(run, columns, origin, first_tick, event_filter)
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


def _plain(run: RunRow, columns: Columns, origin: Origin, first_tick: int, event_filter: EventFilter) -> list[ImmutableMessage]:
    """Builds the messages of a run without transactions, column by column."""
    indices = columns.indices
    first, last = indices[0], indices[-1]
    ticks: Iterable[int]
    if last - first == len(indices) - 1:  # they ascend, so they are consecutive
        ticks = range(first_tick + first, first_tick + last + 1)
    else:
        ticks = [first_tick + index for index in indices]
    messages = map(
        ImmutableMessage,
        repeat(origin),
        indices,
        ticks,
        repeat(run.name),
        columns.payloads,
        columns.types or repeat(_INSERT),
        columns.properties or repeat(b""),
    )
    if first_tick + first >= event_filter.tick_min and event_filter.types is None:
        if columns.properties is None and columns.exts is None:
            return PlainMessages(messages, run.body_end - run.body_start)
        return list(messages)
    return [message for message in messages if _passes(message, event_filter)]


class PlainMessages(list[ImmutableMessage]):
    """Messages of one run of a frame that have payloads and nothing else: no properties, no bodies, no broadcast."""

    __slots__ = ("payload_bytes",)

    def __init__(self, messages: Iterable[ImmutableMessage], payload_bytes: int) -> None:
        super().__init__(messages)
        self.payload_bytes: int = payload_bytes


class _TxnPart(msgspec.Struct, gc=False):
    """A transaction as found so far: its context, the number of its bodies over all runs, and the bodies of the runs seen."""

    context: TxnContext
    bodies_total: int
    vchannels: list[str]
    bodies: list[ImmutableMessage]


def _mixed(view: FrameView, runs: list[RunRow], origin: Origin, first_tick: int, event_filter: EventFilter) -> list[ImmutableMessage]:
    """Builds the messages of any mix of runs: plain messages, transactions over one or several runs, copies of broadcasts."""
    messages: list[ImmutableMessage] = []
    txns: dict[int, _TxnPart] = {}
    for run in runs:
        if run.kind == RunKind.COPY:
            messages.append(_copy(view, run, origin, first_tick))
            continue
        columns = view.columns(run)
        if columns.flags is None or not any(columns.flags):
            messages += _plain(run, columns, origin, first_tick, _EVERYTHING)
        else:
            _split(run, columns, origin, first_tick, messages, txns)
    for index, part in txns.items():
        messages.append(_txn(index, part, origin, first_tick, event_filter))
    messages = [message for message in messages if _passes(message, event_filter)]
    messages.sort(key=_BY_TICK)
    return messages


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
_EVERYTHING: Final = EventFilter()
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
