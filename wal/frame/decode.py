"""Decode: turns the bytes of a frame into runs and columns, checked before anything of them is used.

`FrameView.decode` checks the header, the CRC of header and tables, and that all tables agree with each other (`tables`). The body is
fetched and checked block by block, only where needed. No input crashes it or makes it loop: it raises CorruptionError or FormatError, or it
returns what was written.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Iterator, Sequence
from io import BytesIO
from itertools import chain
from struct import unpack_from
from typing import Any

import google_crc32c
import msgspec

from wal.errors import CorruptionError
from wal.frame.codec import decompress
from wal.frame.draft import TERM_START, RunName
from wal.frame.layout import CRC, HEADER_BYTES, FrameHeader, RunKind, SystemRecord
from wal.frame.tables import LazyRunTable, RecordColumns, Rows, RunRow, RunTable, block_bytes

__all__ = ["BodySource", "Columns", "FrameView", "RecordColumns", "StoredColumns", "TermStart", "check_frame"]

BodySource = Callable[[int, int], bytes]
"""Returns the bytes [start, end) of the stored body; only whole blocks are requested. Too few bytes are treated as damage."""


class Columns(msgspec.Struct, frozen=True, gc=False):
    """The records of one run, a list for each field; None if the frame has no such column (all INSERT, no flags, …)."""

    indices: list[int]
    payloads: list[bytes]
    types: list[int] | None
    flags: list[int] | None
    properties: list[bytes] | None
    exts: list[bytes] | None

    @classmethod
    def joined(cls, pieces: Sequence[Columns]) -> Columns:
        """Returns the records of these pieces of one frame, one after the other."""
        if len(pieces) == 1:
            return pieces[0]
        columns: list[Any] = [
            None if column[0] is None else list(chain.from_iterable(column))
            for column in zip(*map(msgspec.structs.astuple, pieces), strict=True)
        ]
        return cls(*columns)

    def part(self, start: int, stop: int) -> Columns:
        """Returns the records [start, stop)."""
        return Columns(
            self.indices[start:stop],
            self.payloads[start:stop],
            None if self.types is None else self.types[start:stop],
            None if self.flags is None else self.flags[start:stop],
            None if self.properties is None else self.properties[start:stop],
            None if self.exts is None else self.exts[start:stop],
        )


class StoredColumns(msgspec.Struct, frozen=True, gc=False):
    """The stored form of the records of one run: their tables, and the checked bytes that contain them from `start` on.

    Of several runs if they are adjacent and have only payloads.
    """

    rows: Rows
    body: bytes
    start: int

    def cut(self) -> Columns:
        """Returns the fields of each record."""
        rows = self.rows
        body = BytesIO(self.body)  # it shares the bytes; reading from it is the cheapest way to cut them
        body.seek(self.start)
        payloads = list(map(body.read, rows.payload_lens))
        properties = exts = None
        if rows.properties_lens is not None:
            properties = list(map(body.read, rows.properties_lens))
        if rows.ext_lens is not None:
            exts = list(map(body.read, rows.ext_lens))
        return Columns(
            list(rows.indices),
            payloads,
            None if rows.types is None else list(rows.types),
            None if rows.flags is None else list(rows.flags),
            properties,
            exts,
        )


class TermStart(msgspec.Struct, frozen=True, gc=False):
    """The record in the first frame of a term: the term before it, and the sequence of that term's last frame."""

    previous_term: int
    previous_last_sequence: int


class FrameView:
    """A decoded frame. `header` and `runs` are checked; `columns(run)` fetches and checks the blocks of the body that it needs."""

    __slots__ = ("_body", "_checked", "_head", "_own", "header", "memo", "runs")

    header: FrameHeader
    runs: RunTable
    """The runs in their order. A row is created when it is accessed, so prefer `find` to a loop over all of them."""
    memo: dict[int, Any]
    """A cache for the readers of this view, by the ordinal of a run: all of them share the objects built from the run."""
    _body: BodySource
    _head: tuple[bytes, int]
    """Bytes that contain the header and the tables, and where they begin."""
    _own: bool
    _checked: dict[tuple[int, int], bytes]
    """The bytes that were fetched and checked, by their first and last block."""

    @classmethod
    def decode(
        cls, head: bytes, body: BodySource, *, offset: int = 0, lazy: int = 0, header: FrameHeader | None = None, own: bool = False
    ) -> FrameView:
        """Returns the frame whose header and tables are in `head` at `offset`.

        Raises CorruptionError for a wrong CRC, tables that contradict each other, or a `head` that is too short; FormatError for a newer
        format. `lazy` is the largest number of vchannels that the reader wants, or 0 for all: if these are few of many runs, each run is
        checked when it is accessed (see `LazyRunTable`). `header` is the header if it was unpacked before. `own` is for a frame that this
        process has just encoded: no CRC is computed again.
        """
        header = header or FrameHeader.unpack(head, offset)
        tables_end = offset + header.head_bytes
        if len(head) < tables_end:
            raise CorruptionError("the tables of a frame are cut short", expected=f"{header.tables_len} bytes of tables")
        if not own:
            crc = google_crc32c.value(head[offset : offset + HEADER_BYTES - CRC.size])
            crc = google_crc32c.extend(crc, head[offset + HEADER_BYTES : tables_end])
            (stored,) = CRC.unpack_from(head, offset + HEADER_BYTES - CRC.size)
            if crc != stored:
                raise CorruptionError(f"header and tables of a frame have CRC32C {crc:#010x}", expected=f"{stored:#010x}")
            header.check_known(head, offset)
        kind = CompressedView if header.codec else cls
        view = kind.__new__(kind)
        view.header = header
        table = LazyRunTable if lazy and LazyRunTable.suits(header, head, offset + HEADER_BYTES, lazy) else RunTable
        view.runs = table(header, head, offset + HEADER_BYTES)
        view._body = body
        view._head = head, offset
        view._checked = {}
        view._own = own
        view.memo = {}
        if isinstance(view, CompressedView):
            view._sound = set()
        return view

    @property
    def head(self) -> bytes:
        """The header and the tables, as they are stored."""
        head, offset = self._head
        return head[offset : offset + self.header.head_bytes]

    def stored(self, start: int, end: int) -> bytes:
        """Returns the bytes [start, end) of the stored body, whole blocks. It fetches missing blocks, and checks nothing."""
        ends = self.runs.stored_ends
        data = self._checked.get((bisect_right(ends, start), bisect_left(ends, end)))
        if data is not None:
            return data
        # Block by block: a page of some vchannels may have fetched adjacent blocks one by one.
        blocks = []
        for block in range(bisect_right(ends, start), bisect_left(ends, end) + 1):
            blocks.append(self._body(start, ends[block]))
            start = ends[block]
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)

    def columns(self, run: RunRow) -> Columns:
        """Returns the records of this run, checked against the CRCs of their blocks."""
        return self.stored_columns(run).cut()

    def stored_columns(self, run: RunRow) -> StoredColumns:
        """Returns the records of this run without an object for each, checked against the CRCs of their blocks."""
        data, base = self._fetch(run.body_start, run.body_end)
        return StoredColumns(self.runs.rows(run.first, run.end), data, run.body_start - base)

    def stored_together(self, runs: Sequence[RunRow]) -> Iterator[StoredColumns]:
        """Yields the records of these runs, as many runs at a time as one `StoredColumns` can have."""
        if len(runs) > 1 and self.needs_all(runs):
            self._fetch(0, self.runs.body_bytes)
        at, count = 0, len(runs)
        while at < count:
            first = runs[at]
            data, base = self._fetch(first.body_start, first.body_end)
            end, limit = first.end, base + len(data) if self.runs.has_payloads_only else 0
            at += 1
            while at < count and (run := runs[at]).first == end and run.body_end <= limit:
                end = run.end
                at += 1
            yield StoredColumns(self.runs.rows(first.first, end), data, first.body_start - base)

    def body(self, run: RunRow) -> memoryview:
        """Returns the payloads of this run, then its properties, then its exts, checked against the CRCs of their blocks."""
        data, base = self._fetch(run.body_start, run.body_end)
        return memoryview(data)[run.body_start - base : run.body_end - base]

    def whole_body(self) -> memoryview | None:
        """Returns the body if all of it was fetched in one piece before, else None."""
        blocks = len(self.runs.block_ends)
        data = self._checked.get((0, blocks - 1)) if blocks else b""
        return None if data is None else memoryview(data)

    def exts(self) -> list[tuple[str, int, int, int, bytes]]:
        """Returns (name, incarnation, index, flags, ext) of each record of a vchannel that has an ext, run after run.

        This is several times faster than `runs` and `columns` for a caller that needs nothing else of many runs.
        """
        if self.runs.ext_lens is None:
            return []
        body, _ = self._fetch(0, self.runs.body_bytes)
        return self.runs.exts(body)

    def last_events(self, names: Container[str] | None = None) -> dict[RunName, int]:
        """Returns the index of the newest event of each vchannel in this frame, or of these names (any incarnation). Needs no body."""
        runs = self.runs if names is None else self.runs.find(names)
        events: dict[RunName, int] = {}
        for run in runs:
            if run.kind == RunKind.COPY:
                index = run.index
            elif run.kind == RunKind.VCHANNEL and run.end > run.first:
                index = self.runs.rows(run.first, run.end).indices[-1]
            else:
                continue
            name = (run.name, run.incarnation)
            events[name] = max(index, events.get(name, -1))
        return events

    def term_start(self) -> TermStart | None:
        """Returns the term-start record of this frame if it is the first of its term, else None."""
        for kind, payload in self.system_records():
            if kind == SystemRecord.TERM_START:
                if len(payload) != TERM_START.size:
                    raise CorruptionError(
                        "a term-start record has the wrong length", expected=f"{TERM_START.size} bytes, not {len(payload)}"
                    )
                return TermStart(*TERM_START.unpack(payload))
        return None

    def system_records(self) -> Iterator[tuple[int, bytes]]:
        """Yields the kind (see `SystemRecord`) and the payload of each record that the log wrote for itself, in their order."""
        for run in self.runs.of_kind(RunKind.SYSTEM):
            columns = self.columns(run)
            yield from zip(columns.types or (), columns.payloads, strict=False)

    def fetch(self, run: RunRow) -> None:
        """Fetches and checks the blocks of this run, so that its columns need nothing more of the body."""
        self._fetch(run.body_start, run.body_end)

    def needs_all(self, runs: Sequence[RunRow]) -> bool:
        """Returns whether these runs (each once) are the whole body, so that one `check_body` fetches all of them at once."""
        return sum(run.body_end - run.body_start for run in runs) == self.runs.body_bytes

    def check_body(self) -> None:
        """Fetches and checks every block of the body."""
        if self.header.body_len:
            self._fetch(0, self.runs.body_bytes)

    def _fetch(self, start: int, end: int) -> tuple[bytes, int]:
        """Returns the checked blocks that cover [start, end), in one piece, and their start in the body."""
        if start == end:
            return b"", start
        ends = self.runs.block_ends
        first, last = bisect_right(ends, start), bisect_left(ends, end)
        base = ends[first - 1] if first else 0
        data = self._checked.get((first, last))
        if data is None:
            if (whole := self._checked.get((0, len(ends) - 1))) is not None:
                return whole, 0
            data = self._read_checked(first, last)
            self._checked[first, last] = data
        return data, base

    def _read_checked(self, first: int, last: int) -> bytes:
        """Returns these blocks of the body, checked, in one piece."""
        ends = self.runs.stored_ends
        base = ends[first - 1] if first else 0
        data = self._read(base, ends[last])
        if not self._own:
            self._check_blocks(first, last, base, data)
        return data

    def _read(self, start: int, end: int) -> bytes:
        data = self._body(start, end)
        if len(data) != end - start:
            raise CorruptionError(f"the body of a frame is cut short: {len(data)} bytes from {start} on", expected=f"{end - start} bytes")
        return data

    def _check_blocks(self, first: int, last: int, base: int, data: bytes) -> None:
        """Checks these blocks, which begin at `base` of the stored body, against their CRCs."""
        ends, crcs = self.runs.stored_ends, self.runs.block_crcs
        at = 0
        for block in range(first, last + 1):
            end = ends[block] - base
            crc = google_crc32c.value(data if first == last else data[at:end])
            if crc != crcs[block]:
                raise CorruptionError(f"block {block} of a frame has CRC32C {crc:#010x}", expected=f"{crcs[block]:#010x}")
            at = end


class CompressedView(FrameView):
    """A frame with compressed blocks. `fetch` and `check_body` check the stored bytes; a block is decompressed when its records are read.

    So a server that only passes frames on decompresses nothing.
    """

    __slots__ = ("_sound",)

    _sound: set[int]
    """The blocks that were fetched and checked in their stored form; the source has their bytes."""

    def stored(self, start: int, end: int) -> bytes:
        """Returns the bytes [start, end) of the stored body, whole blocks."""
        ends = self.runs.stored_ends
        first, last = bisect_right(ends, start), bisect_left(ends, end)
        return b"".join([self._body(ends[block - 1] if block else 0, ends[block]) for block in range(first, last + 1)])

    def fetch(self, run: RunRow) -> None:
        """Fetches and checks the blocks of this run, so that its columns need nothing more of the body."""
        if run.body_start < run.body_end:
            ends = self.runs.block_ends
            self._check_stored(bisect_right(ends, run.body_start), bisect_left(ends, run.body_end))

    def check_body(self) -> None:
        """Fetches and checks every block of the body."""
        if self.header.body_len:
            self._check_stored(0, self.header.blocks - 1)

    def whole_body(self) -> memoryview | None:
        """Returns the body if all of it was fetched before, else None."""
        if self.header.body_len and len(self._sound) < self.header.blocks:
            return None
        return memoryview(self._fetch(0, self.runs.body_bytes)[0])

    def _check_stored(self, first: int, last: int) -> bytes:
        """Returns the stored form of these blocks, checked."""
        ends = self.runs.stored_ends
        base = ends[first - 1] if first else 0
        data = self._read(base, ends[last])
        if not self._own and not self._sound.issuperset(range(first, last + 1)):
            self._check_blocks(first, last, base, data)
            self._sound.update(range(first, last + 1))
        return data

    def _read_checked(self, first: int, last: int) -> bytes:
        data, ends, stored_ends = self._check_stored(first, last), self.runs.block_ends, self.runs.stored_ends
        base = stored_ends[first - 1] if first else 0
        start, at, blocks = ends[first - 1] if first else 0, 0, []
        for block in range(first, last + 1):
            stop = stored_ends[block] - base
            blocks.append(decompress(data[at:stop], ends[block] - start))
            start, at = ends[block], stop
        return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def check_frame(data: bytes, at: int) -> FrameHeader:
    """Returns the header of the frame at `at`, each CRC of which matches its bytes. Tables are not parsed.

    Raises CorruptionError, or FormatError for a newer format.
    """
    header = FrameHeader.unpack(data, at)
    tables_at, body_at, end = at + HEADER_BYTES, at + header.head_bytes, at + header.frame_bytes
    crc = google_crc32c.extend(google_crc32c.value(data[at : tables_at - CRC.size]), data[tables_at:body_at])
    if len(data) < end or CRC.unpack_from(data, tables_at - CRC.size) != (crc,):
        raise CorruptionError(f"header and tables of a frame have CRC32C {crc:#010x}", expected="the stored one")
    header.check_known(data, at)
    blocks, width = header.blocks, block_bytes(header.incompatible)
    columns = unpack_from(f"<{blocks * width // 4}I", data, body_at - header.names_len - blocks * width)
    stored_ends = columns[2 * blocks :] or columns[:blocks]
    for stored_end, expected in zip(stored_ends, columns[blocks : 2 * blocks], strict=True):
        stop = at + header.head_bytes + stored_end
        if (crc := google_crc32c.value(data[body_at:stop])) != expected:
            raise CorruptionError(f"a block of a frame has CRC32C {crc:#010x}", expected=f"{expected:#010x}")
        body_at = stop
    if body_at != end:
        raise CorruptionError(f"the blocks of a frame have {body_at - at - header.head_bytes} bytes", expected=f"{header.body_len}")
    return header
