"""Decode: the bytes of a frame become runs and columns, checked before anything of them is believed.

`FrameView.decode` checks the header, the CRC of header and tables, and that all tables agree with each other; the body is fetched
and checked block by block, only where it is asked for. No input crashes it or makes it loop: it raises CorruptionError or
FormatError, or what it answers was written.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container
from itertools import accumulate, pairwise
from struct import unpack_from
from typing import Final

import google_crc32c
import msgspec

from wal.errors import CorruptionError, FormatError
from wal.frame.draft import TERM_START
from wal.frame.layout import (
    COLUMN_EXT,
    COLUMN_FLAGS,
    COLUMN_INDEX,
    COLUMN_PROPERTIES,
    COLUMN_TYPE,
    CRC,
    DEFAULT_TYPE,
    FLAG_COPY,
    FLAGS_KNOWN,
    HEADER_BYTES,
    FrameHeader,
    RunKind,
    SystemRecord,
)

__all__ = ["BodySource", "Columns", "FrameView", "RunRow", "TermStart"]

BodySource = Callable[[int, int], bytes]
"""Gives the bytes [start, end) of the body; it is asked for whole blocks only. A short answer is treated as damage."""


class RunRow(msgspec.Struct, frozen=True, gc=False):
    """One run: its kind, its vchannel (name, incarnation), its record rows [first, end), its body [body_start, body_end).

    A COPY run has no rows; `shared` is the ordinal of its SHARED run and `index` the index of this copy.
    """

    kind: int
    name: str
    incarnation: int
    first: int
    end: int
    body_start: int
    body_end: int
    shared: int = -1
    index: int = -1


class Columns(msgspec.Struct, frozen=True, gc=False):
    """The records of one run, a list for each field; None where the frame has no such column (all INSERT, no flags, …)."""

    indices: list[int]
    payloads: list[bytes]
    types: list[int] | None
    flags: list[int] | None
    properties: list[bytes] | None
    exts: list[bytes] | None


class TermStart(msgspec.Struct, frozen=True, gc=False):
    """What the first frame of a term says of the term before it."""

    previous_term: int
    previous_last_sequence: int


_Column = tuple[int, ...] | None


class FrameView:
    """A decoded frame. `header` and `runs` are checked; `columns(run)` fetches and checks what it needs of the body."""

    __slots__ = ("_block_crcs", "_block_ends", "_body", "_checked", "_columns", "header", "runs")

    header: FrameHeader
    runs: list[RunRow]
    _body: BodySource
    _checked: dict[int, bytes]
    _columns: tuple[_Column, tuple[int, ...], _Column, _Column, _Column, _Column]
    _block_ends: tuple[int, ...]
    _block_crcs: tuple[int, ...]

    @classmethod
    def decode(cls, head: bytes, body: BodySource, *, offset: int = 0) -> FrameView:
        """The frame whose header and tables lie in `head` at `offset`.

        CorruptionError when the CRC or the tables do not hold, or `head` is too short; FormatError for a newer format.
        """
        header = FrameHeader.unpack(head, offset)
        tables_end = offset + header.head_bytes
        if len(head) < tables_end:
            raise CorruptionError(
                "the tables of a frame are cut short", expected=f"{header.tables_len} bytes of tables"
            )
        crc = google_crc32c.value(head[offset : offset + HEADER_BYTES - CRC.size])
        crc = google_crc32c.extend(crc, head[offset + HEADER_BYTES : tables_end])
        (stored,) = CRC.unpack_from(head, offset + HEADER_BYTES - CRC.size)
        if crc != stored:
            raise CorruptionError(f"header and tables of a frame have CRC32C {crc:#010x}", expected=f"{stored:#010x}")
        view = cls.__new__(cls)
        view.header = header
        view._body = body
        view._checked = {}
        view._parse_tables(head, offset + HEADER_BYTES)
        return view

    def columns(self, run: RunRow) -> Columns:
        """The records of this run, checked against their blocks' CRCs."""
        all_indices, payload_lens, types, flags, properties_lens, ext_lens = self._columns
        rows = slice(run.first, run.end)
        indices = list(range(run.first, run.end)) if all_indices is None else list(all_indices[rows])
        data, base = self._fetch(run.body_start, run.body_end)
        at = run.body_start - base
        payloads, at = _slices(data, at, payload_lens[rows])
        properties = exts = None
        if properties_lens is not None:
            properties, at = _slices(data, at, properties_lens[rows])
        if ext_lens is not None:
            exts, at = _slices(data, at, ext_lens[rows])
        return Columns(
            indices,
            payloads,
            None if types is None else list(types[rows]),
            None if flags is None else list(flags[rows]),
            properties,
            exts,
        )

    def find(self, names: Container[tuple[str, int]]) -> list[RunRow]:
        """The runs of these (name, incarnation), and those that every reader sees (PCHANNEL)."""
        return [run for run in self.runs if run.kind == RunKind.PCHANNEL or (run.name, run.incarnation) in names]

    def term_start(self) -> TermStart | None:
        """What this frame says as the first of its term, None for every other frame."""
        for run in self.runs:
            if run.kind == RunKind.SYSTEM:
                columns = self.columns(run)
                for kind, payload in zip(columns.types or (), columns.payloads, strict=True):
                    if kind == SystemRecord.TERM_START:
                        if len(payload) != TERM_START.size:
                            raise CorruptionError(
                                "a term-start record has the wrong length",
                                expected=f"{TERM_START.size} bytes",
                            )
                        return TermStart(*TERM_START.unpack(payload))
        return None

    def check_body(self) -> None:
        """Fetches and checks every block of the body."""
        if self.header.body_len:
            self._fetch(0, self.header.body_len)

    def _parse_tables(self, head: bytes, at: int) -> None:
        header = self.header
        runs, records, blocks = header.runs, header.records, header.blocks
        mask = header.incompatible
        record_form = "".join(form for column, form in _RECORD_COLUMNS if column == 0 or mask & column)
        width = runs * 15 + records * sum(_WIDTHS[form] for form in record_form) + blocks * 8 + header.names_len
        if width != header.tables_len:
            raise _inconsistent(f"tables are {header.tables_len} bytes long", f"{width} from the counts in the header")
        kinds, name_lens, incarnations, counts, offsets = (
            unpack_from(f"<{runs}{form}", head, at + runs * skip)
            for form, skip in (("B", 0), ("H", 1), ("I", 3), ("I", 7), ("I", 11))
        )
        at += runs * 15
        columns: dict[int, tuple[int, ...] | None] = {}
        for column, form in _RECORD_COLUMNS:
            if column and not mask & column:
                columns[column] = None
                continue
            columns[column] = unpack_from(f"<{records}{form}", head, at)
            at += records * _WIDTHS[form]
        payload_lens = columns[0]
        assert payload_lens is not None
        indices, types, flags = columns[COLUMN_INDEX], columns[COLUMN_TYPE], columns[COLUMN_FLAGS]
        properties_lens, ext_lens = columns[COLUMN_PROPERTIES], columns[COLUMN_EXT]
        if flags is not None and records and max(flags) > FLAGS_KNOWN:
            raise FormatError(f"a record has flags {max(flags):#x} that this version does not know: upgrade to read it")
        self._block_ends = unpack_from(f"<{blocks}I", head, at)
        self._block_crcs = unpack_from(f"<{blocks}I", head, at + blocks * 4)
        at += blocks * 8
        ends = self._block_ends
        if (ends[-1] if ends else 0) != header.body_len or any(a >= b for a, b in pairwise((0, *ends))):
            raise _inconsistent("block ends do not ascend to the end of the body", str(header.body_len))
        names = head[at : at + header.names_len]
        if sum(name_lens) != header.names_len:
            raise _inconsistent(f"names are {sum(name_lens)} bytes long", str(header.names_len))
        self._columns = (indices, payload_lens, types, flags, properties_lens, ext_lens)

        rows: list[RunRow] = []
        row = name_at = 0
        copies: dict[int, int] = {}
        for ordinal, (kind, name_len, incarnation, count, start) in enumerate(
            zip(kinds, name_lens, incarnations, counts, offsets, strict=True)
        ):
            try:
                name = names[name_at : name_at + name_len].decode()
            except UnicodeDecodeError as error:
                raise _inconsistent(f"the name of run {ordinal} is not UTF-8", "UTF-8") from error
            name_at += name_len
            end = offsets[ordinal + 1] if ordinal + 1 < runs else header.body_len
            if kind not in _KINDS:
                raise FormatError(f"a run has kind {kind}, which this version does not know: upgrade to read it")
            if (kind in _NAMED) != (name_len > 0):
                raise _inconsistent(
                    f"run {ordinal} of kind {kind} is named {name!r}", "a name for a vchannel, none otherwise"
                )
            if kind == RunKind.COPY:
                if count >= ordinal or rows[count].kind != RunKind.SHARED or start != end:
                    raise _inconsistent(
                        f"copy run {ordinal} names run {count}", "the ordinal of a SHARED run before it"
                    )
                index = rows[count].index + copies.setdefault(count, 0)
                copies[count] += 1
                if index >= header.indices:
                    raise _inconsistent(f"copy run {ordinal} has index {index}", f"below {header.indices}")
                rows.append(RunRow(kind, name, incarnation, row, row, start, end, count, index))
                continue
            last = row + count
            if last > records or not start <= end <= header.body_len:
                raise _inconsistent(
                    f"run {ordinal} has rows up to {last} and body [{start}, {end})",
                    "rows and body of this frame",
                )
            size = sum(payload_lens[row:last])
            if properties_lens is not None:
                size += sum(properties_lens[row:last])
            if ext_lens is not None:
                size += sum(ext_lens[row:last])
            if size != end - start:
                raise _inconsistent(f"run {ordinal} has {end - start} bytes of body", f"{size} from its records")
            index = -1
            if kind != RunKind.SYSTEM and count:
                taken = range(row, last) if indices is None else indices[row:last]
                if taken[-1] >= header.indices or any(a >= b for a, b in pairwise(taken)):
                    raise _inconsistent(f"the indices of run {ordinal} do not ascend", f"below {header.indices}")
                index = taken[0]
            if kind == RunKind.SHARED and (count != 1 or flags is None or flags[row] != FLAG_COPY):
                raise _inconsistent(f"shared run {ordinal} has {count} records", "one, flagged as a copy")
            rows.append(RunRow(kind, name, incarnation, row, last, start, end, -1, index))
            row = last
        if row != records or (offsets and offsets[0] != 0) or (not runs and header.body_len):
            raise _inconsistent(f"the runs hold {row} of {records} records", "all of them, from the start of the body")
        self.runs = rows

    def _fetch(self, start: int, end: int) -> tuple[bytes, int]:
        """The checked blocks that cover [start, end), joined, and where in the body they begin."""
        if start == end:
            return b"", start
        ends = self._block_ends
        first, last = bisect_right(ends, start), bisect_left(ends, end)
        base = ends[first - 1] if first else 0
        if first == last:
            return self._block(first, base), base
        blocks = []
        at = base
        for block in range(first, last + 1):
            blocks.append(self._block(block, at))
            at = ends[block]
        return b"".join(blocks), base

    def _block(self, block: int, start: int) -> bytes:
        data = self._checked.get(block)
        if data is None:
            end = self._block_ends[block]
            data = self._body(start, end)
            crc = google_crc32c.value(data)
            if len(data) != end - start or crc != self._block_crcs[block]:
                raise CorruptionError(
                    f"block {block} of a frame (body bytes {start} to {end}) has CRC32C {crc:#010x}",
                    expected=f"{self._block_crcs[block]:#010x}",
                )
            self._checked[block] = data
        return data


_RECORD_COLUMNS: Final = (
    (COLUMN_INDEX, "I"),
    (0, "I"),
    (COLUMN_TYPE, "H"),
    (COLUMN_FLAGS, "B"),
    (COLUMN_PROPERTIES, "I"),
    (COLUMN_EXT, "I"),
)
_WIDTHS: Final = {"B": 1, "H": 2, "I": 4}
_KINDS: Final = frozenset(int(kind) for kind in RunKind)
_NAMED: Final = frozenset((int(RunKind.VCHANNEL), int(RunKind.COPY)))
assert DEFAULT_TYPE == 2


def _slices(data: bytes, at: int, lengths: tuple[int, ...]) -> tuple[list[bytes], int]:
    """Consecutive slices of these lengths from `at`, and where the last one ends."""
    if len(lengths) == 1:
        end = at + lengths[0]
        return [data[at:end]], end
    offsets = list(accumulate(lengths, initial=at))
    return [data[a:b] for a, b in pairwise(offsets)], offsets[-1]


def _inconsistent(found: str, expected: str) -> CorruptionError:
    return CorruptionError(f"the tables of a frame contradict each other: {found}", expected=expected)
