"""FrameRows: the rows of a frame for a reader, as ranges of its tables and not as messages. Pure.

Finds the rows of a range of events, of some types, in some runs: a body belongs to the event of its commit, so a range never cuts a
transaction. For the rows of a transaction it also finds the index and the id of their event. It reads the same data as `assembly`,
raises the same errors, and gives the same rows.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Final

import msgspec

from wal.errors import CorruptionError
from wal.frame import FLAG_BODY, FLAG_COMMIT, ExtTag, FrameView, RecordColumns, RunKind, RunRow, decode_ext, decode_txn, encode_txn
from wal.message import Origin
from wal.read.assembly import shared_by

NO_TXN: Final = -1
"""The transaction id of a row that belongs to no transaction."""

RunRows = tuple[RunRow, int, int]
"""A run and its record rows [first, end); for a COPY run, which has no rows, the copy itself."""


class FrameRows(msgspec.Struct, frozen=True, gc=False):
    """The rows of one frame for one reader. `types` are the requested types (None: all); the gatherer of the rows skips the others."""

    view: FrameView
    origin: Origin
    runs: list[RunRows]
    types: frozenset[int] | None

    @property
    def last_event(self) -> int:
        """The index of the last event among the rows, of any type; -1 without rows."""
        last = -1
        indices: Sequence[int] | None = None
        for run, first, end in self.runs:
            if run.kind == RunKind.COPY:
                last = max(last, run.index)
            elif first < end:
                if indices is None:
                    indices = _indices(self.view.runs.columns(), self.view.header.records)
                last = max(last, indices[end - 1])
        return last


def frame_rows(
    view: FrameView, origin: Origin, runs: Sequence[RunRow], *, first: int = 0, end: int | None = None, types: frozenset[int] | None = None
) -> FrameRows:
    """Returns the rows of the events with an index in [first, end) in these runs, which are in the order of the frame.

    The event of a transaction is its commit. Without `end` the rows go to the end of the frame.
    """
    if first <= 0 and (end is None or end >= view.header.indices):
        return FrameRows(view, origin, [(run, run.first, run.end) for run in runs], types)
    stop = view.header.indices if end is None else end
    return FrameRows(view, origin, _between(view, [(run, run.first, run.end) for run in runs], first, stop), types)


def in_parts(rows: FrameRows, *, bytes_max: int) -> Iterator[FrameRows]:
    """Yields the same rows in parts, in the order of their events. A part ends where copies of broadcasts would exceed `bytes_max` bytes.

    Each part has at least one copy. All copies share one payload in the frame, so 16,384 of them fit there, but not in memory as rows.
    """
    copies = sorted((run for run, _, _ in rows.runs if run.kind == RunKind.COPY), key=_BY_INDEX)
    stops: list[int] = []
    size = 0
    for run in copies:
        shared = shared_by(rows.view, run.shared)
        own = len(shared.payload) + len(shared.properties)
        if size and size + own > bytes_max:
            stops.append(run.index)
            size = 0
        size += own
    if not stops:
        yield rows
        return
    first = 0
    for stop in (*stops, rows.view.header.indices):
        if runs := _between(rows.view, rows.runs, first, stop):
            yield FrameRows(rows.view, rows.origin, runs, rows.types)
        first = stop


def _between(view: FrameView, runs: Sequence[RunRows], first: int, stop: int) -> list[RunRows]:
    """Returns the rows whose events have an index in [first, stop)."""
    columns = view.runs.columns()
    indices = _indices(columns, view.header.records)
    between: list[RunRows] = []
    for run, begin, end in runs:
        if run.kind == RunKind.COPY:
            if first <= run.index < stop:
                between.append((run, begin, end))
            continue
        row = bisect_left(indices, first, begin, end)
        past = bisect_left(indices, stop, begin, end)
        if columns.flags is not None:
            # Bodies are directly before their commit, and are taken or left with it.
            row = begin + len(columns.flags[begin:row].rstrip(_BODY))
            past = begin + len(columns.flags[begin:past].rstrip(_BODY))
        if row < past:
            between.append((run, row, past))
    return between


def txn_columns(
    columns: RecordColumns,
    runs: Sequence[RunRows],
    bodies: Sequence[memoryview],
    indices: bytes,
    commits: dict[int, int],
    keep: bytes | None,
) -> tuple[bytes, bytes, bytes]:
    """Returns columns from the flags and exts of these rows: event index (4 bytes), transaction id (8), and `keep` without commits.

    The rows are adjacent; `indices` are theirs, `bodies` those of their runs. `keep` has 1 for each wanted row (None: all), else 0.
    `commits` maps the index of each commit seen in this frame to its transaction, and is extended. Damage raises CorruptionError as in
    `assembly`.
    """
    assert columns.flags is not None
    first, end = runs[0][1], runs[-1][2]
    events: list[bytes] = []
    txn_ids: list[bytes] = []
    for rows, body in zip(runs, bodies, strict=True):
        _add_txns(columns, rows, body, indices[4 * (rows[1] - first) : 4 * (rows[2] - first)], commits, events, txn_ids)
    kept = columns.flags[first:end].translate(_KEPT)
    if keep is not None:
        kept = (int.from_bytes(kept, "little") & int.from_bytes(keep, "little")).to_bytes(len(kept), "little")
    return b"".join(events), b"".join(txn_ids), kept


def _add_txns(
    columns: RecordColumns,
    rows: RunRows,
    body: memoryview,
    indices: bytes,
    commits: dict[int, int],
    events: list[bytes],
    txn_ids: list[bytes],
) -> None:
    """Adds the events and transactions of the rows of one run."""
    run, first, end = rows
    assert columns.flags is not None
    flags = columns.flags[first:end]
    ext_lens: Sequence[int] = () if columns.ext_lens is None else memoryview(columns.ext_lens).cast("I")[run.first : run.end]
    ext_ends = list(accumulate(ext_lens, initial=len(body) - sum(ext_lens)))
    skipped = first - run.first
    at = 0
    while (commit := flags.find(_COMMIT, at)) >= 0:
        plain = at + len(flags[at:commit].rstrip(_BODY))
        ext = bytes(body[ext_ends[skipped + commit] : ext_ends[skipped + commit + 1]]) if ext_lens else b""
        if len(ext) == len(_EXT_HEAD) + _TXN.size and ext.startswith(_EXT_HEAD):
            txn_id, _, count, total = _TXN.unpack_from(ext, len(_EXT_HEAD))
            if count > total:
                decode_txn(decode_ext(ext))  # raises
        else:
            txn_id, _, count, _ = decode_txn(decode_ext(ext))
        if count != commit - plain:
            raise CorruptionError(
                f"the transaction {txn_id} has {commit - plain} bodies on vchannel {run.name!r}", expected=f"{count} bodies"
            )
        event = indices[4 * commit : 4 * commit + 4]
        if commits.setdefault(index := int.from_bytes(event, "little"), txn_id) != txn_id:
            raise CorruptionError(f"two transactions, {txn_id} and {commits[index]}, share the index {index}")
        if at < plain:
            events.append(indices[4 * at : 4 * plain])
            txn_ids.append(_NO_TXN * (plain - at))
        events.append(event * (count + 1))
        txn_ids.append(txn_id.to_bytes(8, "little") * (count + 1))
        at = commit + 1
    events.append(indices[4 * at :])
    txn_ids.append(_NO_TXN * (end - first - at))


def of_types(types: bytes, chosen: frozenset[int]) -> bytes | None:
    """Returns 1 for each of these types (2 bytes each) that is wanted and 0 for the others; None if all are."""
    low, high = types[::2], types[1::2]
    if not high.strip(b"\0"):
        kept = low.translate(bytes(number in chosen for number in range(256)))
    else:
        kept = bytes(number in chosen for number in memoryview(types).cast("H"))
    return None if 0 not in kept else kept


def index_column(columns: RecordColumns, first: int, end: int) -> bytes:
    """Returns the indices of the records [first, end), 4 bytes each."""
    if columns.indices is not None:
        return columns.indices[4 * first : 4 * end]
    return counting(end, first)


def counting(end: int, first: int = 0) -> bytes:
    """Returns the numbers from `first` to `end`, 4 bytes each."""
    if end <= _COUNTED:
        return _COUNTING[4 * first : 4 * end]
    return array("I", range(first, end)).tobytes()


def _indices(columns: RecordColumns, records: int) -> Sequence[int]:
    """Returns the index of each record of the frame."""
    return range(records) if columns.indices is None else memoryview(columns.indices).cast("I")


_COUNTED: Final = 1 << 13
_COUNTING: Final = array("I", range(_COUNTED)).tobytes()
_BY_INDEX: Final = attrgetter("index")
_BODY: Final = bytes((FLAG_BODY,))
_COMMIT: Final = bytes((FLAG_COMMIT,))
_KEPT: Final = bytes(not flags & FLAG_COMMIT for flags in range(256))
_NO_TXN: Final = NO_TXN.to_bytes(8, "little", signed=True)
# The ext of a commit without an idempotency key, which nearly all commits are: unpacked without reading its tags.
_TXN: Final = struct.Struct("<QQII")
_EXT_HEAD: Final = encode_txn(txn_id=0, keepalive_ms=0, bodies=0, bodies_total=0)[: -_TXN.size]
assert _EXT_HEAD[:2] == int(ExtTag.TXN).to_bytes(2, "little")
