"""RowColumns: the rows that a reader delivers, column by column, packed so that Arrow can take them as they are.

Owns: the columns of a batch while it is built, one row for each plain message and each body. The rows of a frame are added as they
are stored, without a Python object per row: plain messages, transactions and copies of broadcasts alike. Messages can be added too; both
ways give the same rows. Unwanted columns are not gathered. It does not import Arrow: `wal.bridge` and Spark build the batches.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.frame import DEFAULT_TYPE, RecordColumns, RunKind, RunRow
from wal.message import ImmutableMessage, MessageType, Origin, TimeTickMessage
from wal.read.assembly import RunMessages, shared_by
from wal.read.frame_rows import NO_TXN, FrameRows, RunRows, counting, index_column, of_types, txn_columns
from wal.storage.base import Memory, RowsPage

__all__ = ["COLUMNS", "NO_TXN", "RowColumns"]

COLUMNS: Final = ("vchannel", "message_id", "time_tick", "message_type", "txn_id", "payload", "properties", "append_time")
"""The columns of a row, in the order in which a batch has them."""

Piece = bytes | bytearray | memoryview | Memory


class PageFields(msgspec.Struct, frozen=True, gc=False):
    """The payloads and properties of a page of rows, and the length of each, 4 bytes little-endian; in pieces, to be joined.

    Without any properties both of theirs are empty. `payload_offsets` are where each payload begins, and the last one ends, 4 bytes each.
    `order` is an array of the slots in the order of their events; None if they are in order.
    """

    payload_lens: list[Piece]
    payloads: list[Piece]
    properties_lens: list[Piece]
    properties: list[Piece]
    payload_offsets: Memory | None = None
    order: object = None


class RowColumns:
    """Little-endian columns, each in pieces to be joined: growing a buffer piece by piece would copy it many times over.

    Each column has `slots` entries, of which `rows` are rows: `keep` has a byte for each slot, 0 for an entry that is not a row (a commit,
    or a type outside the selection). Without `keep` all entries are rows. If `in_order` is False the rows are in the order of the runs, and
    have to be sorted by the rank.

    first_ticks          the first tick of a frame, and in `tick_counts` of how many slots it is: with `indices`, the rank of a row
                         among all others; with `events`, its tick (that of its transaction's commit)
    indices, events 4 B  the index of the row in its frame, and that of its event; a piece for each first tick, and a number n instead of
                         the numbers from 0 to n
    ids                  the bytes of MessageIDs, all of the width `id_width`; slots listed in `without_id` have none
    types 2 B            empty while all are INSERT
    vchannels 4 B        indices into `names`
    txn_ids 8 B          NO_TXN for a row without a transaction; empty while all are
    payload_lens 4 B     `payloads` are `payload_bytes` long together
    properties_lens 4 B  `properties` are `properties_bytes` long together: MessagePack maps, not decoded here; empty while no row has any

    `columns` are the wanted ones (some of `COLUMNS`, None for all); a column that only the others need is left empty.
    """

    __slots__ = (
        "_codes", "_ids", "_payloads", "_properties", "_txn_ids", "_types", "_vchannels", "columns", "events", "first_ticks",
        "id_width", "ids", "in_order", "indices", "keep", "names", "order", "payload_bytes", "payload_lens", "payload_offsets", "payloads",
        "properties", "properties_bytes", "properties_lens", "rows", "slots", "tick_counts", "txn_ids", "types", "vchannels", "without_id",
    )  # fmt: skip

    def __init__(self, columns: Collection[str] | None = None) -> None:
        chosen = COLUMNS if columns is None else columns
        check_columns(chosen)
        self.columns: tuple[str, ...] = tuple(chosen)
        self._ids = "message_id" in chosen
        self._payloads = "payload" in chosen
        self._properties = "properties" in chosen
        self._txn_ids = "txn_id" in chosen
        self._types = "message_type" in chosen
        self._vchannels = "vchannel" in chosen
        self._codes: dict[str, bytes] = {}
        self.slots: int = 0
        self.rows: int = 0
        self.payload_bytes: int = 0
        self.properties_bytes: int = 0
        self.id_width: int = 0
        self.in_order: bool = True
        self.names: list[str] = []
        self.without_id: list[int] = []
        self.keep: list[bytes] = []
        self.first_ticks: list[int] = []
        self.tick_counts: list[int] = []
        self.indices: list[bytes | int] = []
        self.events: list[bytes | int] = []
        self.ids: list[Piece] = []
        self.vchannels: list[bytes] = []
        self.types: list[bytes] = []
        self.txn_ids: list[bytes] = []
        self.payload_lens: list[Piece] = []
        self.payloads: list[Piece] = []
        self.order: tuple[int, object] | None = None
        """The first so many slots in the order of the rows, as an array, if it was needed before the batch is built."""
        self.payload_offsets: tuple[int, Memory] | None = None
        """The offsets of the payloads of the first so many slots, if they were needed before the column is built."""
        self.properties_lens: list[Piece] = []
        self.properties: list[Piece] = []

    @property
    def size(self) -> int:
        """The approximate size of the rows in bytes."""
        return self.payload_bytes + self.properties_bytes + (self.id_width + 32) * self.rows

    def add_frame(self, rows: FrameRows) -> None:
        """Adds the rows of a frame. Raises CorruptionError for a damaged block or transaction; then nothing more may be added."""
        runs = rows.runs
        columns = rows.view.runs.columns()
        if len(runs) > 1 and (columns.indices is not None or any(run.kind == RunKind.COPY for run, _, _ in runs)):
            self.in_order = False
        commits: dict[int, int] = {}
        at, count = 0, len(runs)
        while at < count:
            run, first, end = runs[at]
            start = at
            at += 1
            if run.kind == RunKind.COPY:
                while at < count and runs[at][0].kind == RunKind.COPY and runs[at][0].shared == run.shared:
                    at += 1
                self._add_copies(rows, [run for run, _, _ in runs[start:at]])
                continue
            while at < count and runs[at][1] == end and runs[at][0].kind != RunKind.COPY:
                end = runs[at][2]
                at += 1
            if first < end:
                self._add_range(rows, columns, runs[start:at], first, end, commits)

    def add_page(self, page: RowsPage, fields: PageFields, origin: Callable[[int], Origin], types: frozenset[int] | None) -> None:
        """Adds the rows of a page of these types (None: all). `origin` returns the origin of the frame at a position."""
        slots = self.slots
        runs: object = None
        codes = b""
        for frame in page.frames:
            head = frame.head
            count = head.records
            keep = None if types is None or head.types is None else of_types(head.types, types)
            if head.indices is not None:
                self.in_order = False
            indices = head.indices or count
            self.first_ticks.append(head.first_tick)
            self.tick_counts.append(count)
            self.indices.append(indices)
            self.events.append(indices)
            if self._ids:
                self._add_ids(origin(frame.position), head.indices or counting(count), count, below=count)
            if self._vchannels:
                if head.runs is not runs:  # the same runs are the same object
                    runs, codes = head.runs, b"".join([self._code(run.name) * run.records for run in head.runs])
                self.vchannels.append(codes)
            if self._types:
                self._add_types(head.types, count)
            self._added(count, keep)
        if not slots and fields.order is not None:
            self.order = self.slots, fields.order
        if self.txn_ids:
            self.txn_ids.append(_NO_TXN * (self.slots - slots))
        if self._payloads:
            if not slots and fields.payload_offsets is not None:
                self.payload_offsets = self.slots, fields.payload_offsets
            self.payload_lens += fields.payload_lens
            self.payloads += fields.payloads
            self.payload_bytes += sum(map(len, fields.payloads))
        if self._properties:
            if fields.properties:
                if not self.properties_lens:
                    self.properties_lens.append(bytes(4 * slots))
                self.properties_lens += fields.properties_lens
                self.properties += fields.properties
                self.properties_bytes += sum(map(len, fields.properties))
            elif self.properties_lens:
                self.properties_lens.append(bytes(4 * (self.slots - slots)))

    def add_messages(self, messages: Sequence[ImmutableMessage]) -> None:
        """Adds messages of any kind, each with all its bodies."""
        if isinstance(messages, RunMessages):
            self._add_run(messages)
            return
        for message in messages:
            for body in message.bodies():
                self._add(body)

    # -- a frame

    def _add_range(
        self, rows: FrameRows, columns: RecordColumns, runs: list[RunRows], first: int, end: int, commits: dict[int, int]
    ) -> None:
        """Adds the rows [first, end), which are adjacent in the tables of a frame, of one run or several."""
        view = rows.view
        count = end - first
        types = None if columns.types is None else columns.types[2 * first : 2 * end]
        keep: bytes | None = None
        if rows.types is not None:
            if types is None and DEFAULT_TYPE not in rows.types:
                return
            keep = None if types is None else of_types(types, rows.types)
        indices = index_column(columns, first, end)
        flags = columns.flags is not None and columns.flags[first:end].strip(b"\0")
        body = view.whole_body()
        bodies = [view.body(run) if body is None else body[run.body_start : run.body_end] for run, _, _ in runs]
        events, txn_ids = indices, _NO_TXN * count
        if flags:
            events, txn_ids, keep = txn_columns(columns, runs, bodies, indices, commits, keep)
        if keep is not None and not keep.strip(b"\0"):
            return  # no row among them; otherwise a log full of other types would be gathered for nothing
        self._add_positions(rows.origin, indices, count, view.header.first_tick, below=view.header.indices)
        self.events.append(events)
        if flags and self._txn_ids and not self.txn_ids:
            self.txn_ids.append(_NO_TXN * self.slots)
        if self.txn_ids:
            self.txn_ids.append(txn_ids)
        if self._vchannels:
            for run, row, past in runs:
                self._add_vchannel(run.name, past - row)
        self._add_types(types, count)
        if self._payloads or self._properties:
            self._add_bodies(columns, runs, bodies)
        self._added(count, keep)

    def _add_bodies(self, columns: RecordColumns, runs: list[RunRows], bodies: list[memoryview]) -> None:
        """Adds the payloads and properties of these rows: a body is the payloads of its run, then its properties, then its exts."""
        lens = memoryview(columns.payload_lens).cast("I")
        stored = None if columns.properties_lens is None else memoryview(columns.properties_lens).cast("I")
        exts = None if columns.ext_lens is None else memoryview(columns.ext_lens).cast("I")
        first, end = runs[0][1], runs[-1][2]
        any_properties = False
        for (run, row, past), body in zip(runs, bodies, strict=True):
            properties_end = len(body) - (0 if exts is None else sum(exts[run.first : run.end]))
            properties_at = properties_end if stored is None else properties_end - sum(stored[run.first : run.end])
            start, stop, properties_start = 0, properties_at, properties_at
            if row > run.first:
                start = sum(lens[run.first : row])
                properties_start += 0 if stored is None else sum(stored[run.first : row])
            if past < run.end:
                stop = start + sum(lens[row:past])
                properties_end = properties_start if stored is None else properties_start + sum(stored[row:past])
            if self._payloads and start < stop:
                self._add_payload(body[start:stop])
            if self._properties and properties_start < properties_end:
                any_properties = True
                self.properties.append(body[properties_start:properties_end])
                self.properties_bytes += properties_end - properties_start
        if self._payloads:
            self.payload_lens.append(columns.payload_lens[4 * first : 4 * end])
        if any_properties:
            assert columns.properties_lens is not None
            self._add_properties_lens(columns.properties_lens[4 * first : 4 * end])
        elif self.properties_lens:
            self.properties_lens.append(bytes(4 * (end - first)))

    def _add_copies(self, rows: FrameRows, runs: list[RunRow]) -> None:
        """Adds copies of one broadcast: payload, type and properties are the same for all of them."""
        shared = shared_by(rows.view, runs[0].shared)
        if rows.types is not None and shared.message_type not in rows.types:
            return
        count = len(runs)
        header = rows.view.header
        indices = array("I", [run.index for run in runs]).tobytes()
        self._add_positions(rows.origin, indices, count, header.first_tick, below=header.indices)
        self.events.append(indices)
        if self.txn_ids:
            self.txn_ids.append(_NO_TXN * count)
        if self._vchannels:
            for run in runs:
                self._add_vchannel(run.name, 1)
        self._add_types(_TYPE.pack(shared.message_type) * count, count)
        if self._payloads:
            self.payload_lens.append(_NUMBER.pack(len(shared.payload)) * count)
            for _ in runs:
                self._add_payload(shared.payload)
        if self._properties:
            stored = shared.properties
            self._add_properties(stored * count, _NUMBER.pack(len(stored)) * count, count)
        self._added(count, None)

    # -- messages

    def _add_run(self, messages: RunMessages) -> None:
        """Adds messages that are columns already."""
        columns, names, count = messages.columns(), messages.names, len(messages)
        indices = array("I", columns.indices).tobytes()
        self._add_positions(messages.origin, indices, count, messages.first_tick, below=1 << 32)
        self.events.append(indices)
        if self.txn_ids:
            self.txn_ids.append(_NO_TXN * count)
        if self._vchannels and isinstance(names, str):
            self._add_vchannel(names, count)
        elif self._vchannels:
            self.vchannels.append(b"".join(map({name: self._code(name) for name in dict.fromkeys(names)}.__getitem__, names)))
        self._add_types(None if columns.types is None else array("H", columns.types).tobytes(), count)
        if self._payloads:
            self.payload_lens.append(_lens(columns.payloads))
            self._add_payload(b"".join(columns.payloads))
        if self._properties:
            stored = columns.properties or []
            self._add_properties(b"".join(stored), _lens(stored), count)
        self._added(count, None)

    def _add(self, body: ImmutableMessage) -> None:
        if isinstance(body, TimeTickMessage) and not body.has_event:
            self.without_id.append(self.slots)
        index = _NUMBER.pack(body._index)
        self._add_positions(body._origin, index, 1, body.time_tick - body._index, below=1 << 32)
        self.events.append(index)
        if self._vchannels:
            self._add_vchannel(body.vchannel, 1)
        self._add_types(_TYPE.pack(body._type), 1)
        if self._txn_ids:
            if body.txn_context is not None:
                if not self.txn_ids:
                    self.txn_ids.append(_NO_TXN * self.slots)
                self.txn_ids.append(_TICK.pack(body.txn_context.txn_id))
            elif self.txn_ids:
                self.txn_ids.append(_NO_TXN)
        if self._payloads:
            self.payload_lens.append(_NUMBER.pack(len(body.payload)))
            self._add_payload(body.payload)
        if self._properties:
            stored = body._properties
            self._add_properties(stored, _NUMBER.pack(len(stored)), 1)
        self._added(1, None)

    # -- columns

    def _added(self, count: int, keep: bytes | None) -> None:
        """Counts slots that were added to all columns."""
        if keep is not None:
            if not self.keep:
                self.keep.append(b"\1" * self.slots)
            self.keep.append(keep)
            self.rows += count - keep.count(0)
        else:
            if self.keep:
                self.keep.append(b"\1" * count)
            self.rows += count
        self.slots += count

    def _add_positions(self, origin: Origin, indices: bytes, count: int, first_tick: int, *, below: int) -> None:
        """Adds the log positions of these slots, and their ids."""
        self.first_ticks.append(first_tick)
        self.tick_counts.append(count)
        self.indices.append(indices)
        if self._ids:
            self._add_ids(origin, indices, count, below=below)

    def _add_ids(self, origin: Origin, indices: bytes, count: int, *, below: int) -> None:
        """Adds the bytes of ids that differ only in their index: copies of one id, each with its own index."""
        pattern = bytes(origin.message_id(0))
        width = len(pattern)
        if not self.id_width:
            self.id_width = width
        elif width != self.id_width:
            raise AssertionError(f"ids of {width} bytes among ids of {self.id_width}: a batch holds rows of one log")
        ids = bytearray(pattern * count)
        ids[width - 1 :: width] = indices[::4]  # big-endian in an id
        if below > 1 << 8:
            ids[width - 2 :: width] = indices[1::4]
        if below > 1 << 16:
            ids[width - 3 :: width] = indices[2::4]
            ids[width - 4 :: width] = indices[3::4]
        self.ids.append(ids)

    def _add_vchannel(self, vchannel: str, count: int) -> None:
        """Adds the name for `count` slots. Call it before they are counted."""
        self.vchannels.append(self._code(vchannel) * count)

    def _code(self, vchannel: str) -> bytes:
        """Returns the index of this name in `names`, 4 bytes."""
        code = self._codes.get(vchannel)
        if code is None:
            number = len(self.names)
            code = self._codes[vchannel] = _NUMBER.pack(number)
            self.names.append(vchannel)
        return code

    def _add_types(self, types: bytes | None, count: int) -> None:
        if not self._types:
            return
        if types is not None:
            if not self.types:
                if types == _INSERT * count:
                    return
                self.types.append(_INSERT * self.slots)
            self.types.append(types)
        elif self.types:
            self.types.append(_INSERT * count)

    def _add_payload(self, payload: Piece) -> None:
        self.payloads.append(payload)
        self.payload_bytes += len(payload)

    def _add_properties(self, stored: Piece, lengths: bytes | None, count: int) -> None:
        if lengths is not None and stored:
            self.properties.append(stored)
            self.properties_bytes += len(stored)
            self._add_properties_lens(lengths)
        elif self.properties_lens:
            self.properties_lens.append(bytes(4 * count))

    def _add_properties_lens(self, lengths: bytes) -> None:
        if not self.properties_lens:
            self.properties_lens.append(bytes(4 * self.slots))
        self.properties_lens.append(lengths)


def check_columns(columns: Collection[str]) -> None:
    """Raises InvalidArgumentError, with the names of all columns, unless these are some of them."""
    if isinstance(columns, str):
        raise TypeError(f"columns must be a list of names, not the text {columns!r}")
    if not columns:
        raise InvalidArgumentError(f"no column is asked for: name some of {', '.join(COLUMNS)}")
    for name in columns:
        if name not in COLUMNS:
            raise InvalidArgumentError(f"no column {name!r}: name some of {', '.join(COLUMNS)}")
    if len(set(columns)) != len(columns):
        raise InvalidArgumentError(f"a column is asked for twice in {', '.join(columns)}: name each once")


def _lens(fields: list[bytes]) -> bytes:
    """Returns the lengths of these fields, 4 bytes each."""
    return array("I", map(len, fields)).tobytes()


_NUMBER: Final = struct.Struct("<I")
_TICK: Final = struct.Struct("<Q")
_TYPE: Final = struct.Struct("<H")
_INSERT: Final = _TYPE.pack(MessageType.INSERT)
_NO_TXN: Final = NO_TXN.to_bytes(8, "little", signed=True)
