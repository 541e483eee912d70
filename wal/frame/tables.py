"""Tables: the runs and columns of a frame, checked against each other before anything of them is used.

Parses the part between header and body. Checks here that names, rows and bytes add up; `events` checks the events of the rows. The checks
run over whole columns, and a row object is created only for a run that is accessed, since a reader wants few of many.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate, compress, islice, pairwise, repeat
from operator import add, ge
from struct import unpack_from
from typing import Any, Final, TypeGuard, overload

import msgspec

from wal.errors import FormatError
from wal.frame.events import check_events, check_run, inconsistent
from wal.frame.layout import CODEC_ZSTD, COLUMN_EXT, COLUMN_FLAGS, COLUMN_INDEX, COLUMN_PROPERTIES, COLUMN_TYPE, FrameHeader, RunKind

_SEARCHED_MAX: Final = 4
"""Up to this many vchannels are searched for in a frame of many runs; for more of them, the name of each run is looked up."""
_SEARCHED_RUNS_MIN: Final = 32
"""With fewer runs than this, looking at all names is cheaper."""


def is_few(names: Container[str]) -> TypeGuard[frozenset[str] | set[str] | dict[str, Any]]:
    """Returns whether these names are so few that each is searched for in a frame of many runs."""
    return isinstance(names, frozenset | set | dict) and len(names) <= _SEARCHED_MAX


class RunRow(msgspec.Struct, frozen=True, gc=False):
    """One run: its kind, its vchannel (name, incarnation), its record rows [first, end), its body [body_start, body_end).

    A COPY run has no rows: `shared` is the ordinal of its SHARED run and `index` the index of this copy. For other runs `index` is that of
    the first record, -1 without records.
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


class Rows(msgspec.Struct, frozen=True, gc=False):
    """The columns of one run's records; None if the frame has no such column."""

    indices: Sequence[int]
    payload_lens: Sequence[int]
    types: Sequence[int] | None
    flags: bytes | None
    properties_lens: Sequence[int] | None
    ext_lens: Sequence[int] | None


class RecordColumns(msgspec.Struct, frozen=True, gc=False):
    """The stored records of a whole frame, without a Python object for each; a `RunRow` has the range of its own.

    Little-endian, 4 bytes an entry, except 2 for types and 1 for flags; None if the frame has no such column.
    """

    indices: bytes | None
    payload_lens: bytes
    types: bytes | None
    flags: bytes | None
    properties_lens: bytes | None
    ext_lens: bytes | None


class RunTable(Sequence[RunRow]):
    """The runs of a frame in their order, and the columns of its records (None if the frame has no such column)."""

    __slots__ = (
        "_by_name", "_columns_at", "_copies", "_counts", "_head", "_incarnations", "_kinds", "_mask", "_names", "_offsets", "_records",
        "_starts", "block_crcs", "block_ends", "body_bytes", "ext_lens", "flags", "indices", "payload_lens", "properties_lens",
        "stored_ends", "types",
    )  # fmt: skip

    indices: tuple[int, ...] | None
    payload_lens: tuple[int, ...]
    types: tuple[int, ...] | None
    flags: bytes | None
    properties_lens: tuple[int, ...] | None
    ext_lens: tuple[int, ...] | None
    body_bytes: int
    """The length of the body before it was compressed."""
    block_ends: tuple[int, ...]
    """Where the blocks end in the body before it was compressed; so all offsets of runs count."""
    block_crcs: tuple[int, ...]
    """The CRCs of the stored blocks."""
    stored_ends: tuple[int, ...]
    """Where the blocks end in the stored body."""

    def __init__(self, header: FrameHeader, head: bytes, at: int) -> None:
        """Parses and checks the tables at `at` of `head`, which contains all of them. Raises CorruptionError or FormatError."""
        self._read_runs(header, head, at)
        records, blocks, mask, at = header.records, header.blocks, self._mask, self._columns_at
        self.indices = self.types = self.flags = self.properties_lens = self.ext_lens = None
        if mask & COLUMN_INDEX:
            self.indices = unpack_from(f"<{records}I", head, at)
            at += records * 4
        self.payload_lens = unpack_from(f"<{records}I", head, at)
        at += records * 4
        if mask & COLUMN_TYPE:
            self.types = unpack_from(f"<{records}H", head, at)
            at += records * 2
        if mask & COLUMN_FLAGS:
            self.flags = head[at : at + records]
            at += records
        if mask & COLUMN_PROPERTIES:
            self.properties_lens = unpack_from(f"<{records}I", head, at)
            at += records * 4
        if mask & COLUMN_EXT:
            self.ext_lens = unpack_from(f"<{records}I", head, at)
            at += records * 4
        self._read_blocks(header, head, at)
        at += blocks * block_bytes(mask)
        names = head[at : at + header.names_len]
        runs_at, runs = self._columns_at - header.runs * _RUN_BYTES, header.runs
        self._by_name: dict[str, int] | None = None
        """See `_ordinals`."""
        self._names = read_names(self._kinds, head[runs_at + runs : runs_at + 7 * runs], names)
        self._check_rows(header)
        self._check_blocks(header.body_len)
        self._copies = check_events(self._kinds, self._counts, self._starts, self.flags, self.indices, header.indices)

    def _read_runs(self, header: FrameHeader, head: bytes, at: int) -> tuple[int, ...]:
        """Reads the columns of the runs; returns the lengths of their names."""
        runs, records, blocks, mask = header.runs, header.records, header.blocks, header.incompatible
        width = runs * _RUN_BYTES + records * _record_bytes(mask) + blocks * block_bytes(mask) + header.names_len
        if width != header.tables_len:
            raise inconsistent(f"tables are {header.tables_len} bytes long", f"{width} from the counts in the header")
        if header.first_tick + header.indices > 1 << 64:
            raise inconsistent(f"{header.indices} ticks from {header.first_tick} on", "ticks of 64 bits")
        self.body_bytes = header.body_len
        if mask & CODEC_ZSTD and blocks:
            (self.body_bytes,) = unpack_from("<I", head, at + width - header.names_len - 8 * blocks - 4)
        self._kinds = head[at : at + runs]
        name_lens = unpack_from(f"<{runs}H", head, at + runs)
        self._incarnations = unpack_from(f"<{runs}I", head, at + 3 * runs)
        self._counts = unpack_from(f"<{runs}I", head, at + 7 * runs)
        self._offsets = (*unpack_from(f"<{runs}I", head, at + 11 * runs), self.body_bytes)
        self._head, self._columns_at, self._mask, self._records = head, at + runs * _RUN_BYTES, mask, records
        return name_lens

    def __len__(self) -> int:
        return len(self._kinds)

    @overload
    def __getitem__(self, ordinal: int) -> RunRow: ...
    @overload
    def __getitem__(self, ordinal: slice) -> list[RunRow]: ...
    def __getitem__(self, ordinal: int | slice) -> RunRow | list[RunRow]:
        if isinstance(ordinal, slice):
            return [self[at] for at in range(*ordinal.indices(len(self)))]
        kind = self._kinds[ordinal]
        ordinal %= len(self._kinds)
        first, end = self._starts[ordinal], self._starts[ordinal + 1]
        shared = index = -1
        if kind == RunKind.COPY:
            shared, index = self._counts[ordinal], self._copies[ordinal]
        elif end > first and kind != RunKind.SYSTEM:
            index = first if self.indices is None else self.indices[first]
        return RunRow(
            kind,
            self._names[ordinal],
            self._incarnations[ordinal],
            first,
            end,
            self._offsets[ordinal],
            self._offsets[ordinal + 1],
            shared,
            index,
        )

    def columns(self) -> RecordColumns:
        """Returns the stored columns of all records. They are checked (in a lazy table, only those of the runs accessed so far)."""
        at, records, mask, head = self._columns_at, self._records, self._mask, self._head
        columns: list[Any] = []
        for column, _, width in RECORD_COLUMNS:
            if not column or mask & column:
                columns.append(head[at : at + records * width])
                at += records * width
            else:
                columns.append(None)
        return RecordColumns(*columns)

    def rows(self, first: int, end: int) -> Rows:
        """Returns the columns of the records of a run, or of several adjacent runs."""
        return Rows(
            range(first, end) if self.indices is None else self.indices[first:end],
            self.payload_lens[first:end],
            None if self.types is None else self.types[first:end],
            None if self.flags is None else self.flags[first:end],
            None if self.properties_lens is None else self.properties_lens[first:end],
            None if self.ext_lens is None else self.ext_lens[first:end],
        )

    @property
    def has_payloads_only(self) -> bool:
        """Whether no record has properties or an ext, so that the payloads of adjacent runs follow each other in the body."""
        return not self._mask & (COLUMN_PROPERTIES | COLUMN_EXT)

    def has_flags(self, run: RunRow) -> bool:
        """Returns whether a record of this run is of a transaction, or the payload of a broadcast."""
        return self.flags is not None and any(self.flags[run.first : run.end])

    def find(self, names: Container[str] | None) -> list[RunRow]:
        """Returns the runs of these vchannels (None: all; of any incarnation), and the runs for every reader (PCHANNEL)."""
        kinds = self._kinds
        if names is not None and len(kinds) >= _SEARCHED_RUNS_MIN and is_few(names) and (places := self._ordinals()) is not None:
            return [self[ordinal] for ordinal in sorted([places[name] for name in names if name in places])]
        if kinds.strip(_VCHANNEL):
            return [
                self[ordinal]
                for ordinal, name in enumerate(self._names)
                if ((names is None or name in names) if name else kinds[ordinal] == RunKind.PCHANNEL)
            ]
        indices, starts, offsets = self.indices, self._starts, self._offsets
        if names is None:
            firsts = [-1 if first == end else first if indices is None else indices[first] for first, end in pairwise(starts)]
            columns = (self._names, self._incarnations, starts, starts[1:], offsets, offsets[1:], repeat(-1), firsts)
            return list(map(RunRow, kinds, *columns))
        return [
            RunRow(0, name, incarnation, first, end, start, stop, -1, first if indices is None else indices[first])
            if end > first
            else RunRow(0, name, incarnation, first, end, start, stop)
            for name, incarnation, first, end, start, stop in zip(
                self._names, self._incarnations, starts[:-1], starts[1:], offsets[:-1], offsets[1:], strict=True
            )
            if name in names
        ]

    def _ordinals(self) -> Mapping[str, int] | None:
        """Returns the ordinal of each vchannel's run; None if a vchannel has several runs, or if a run is for every reader."""
        ordinals = self._by_name
        if ordinals is None:
            names = self._names
            ordinals = self._by_name = {name: ordinal for ordinal, name in enumerate(names) if name}
            if len(ordinals) + names.count("") < len(names) or RunKind.PCHANNEL in self._kinds:
                ordinals.clear()
        return ordinals or None

    def exts(self, body: bytes) -> list[tuple[str, int, int, int, bytes]]:
        """Returns (name, incarnation, index, flags, ext) of each record of a vchannel that has an ext in this body, run after run."""
        lens = self.ext_lens
        if lens is None:
            return []
        exts = []
        indices, flags, starts = self.indices, self.flags or bytes(len(lens)), self._starts
        for kind, name, incarnation, first, end, stop in zip(
            self._kinds, self._names, self._incarnations, starts[:-1], starts[1:], self._offsets[1:], strict=True
        ):
            if kind != RunKind.VCHANNEL:
                continue
            if end - first == 1:  # nearly always, in frames of many callers
                if length := lens[first]:
                    index = first if indices is None else indices[first]
                    exts.append((name, incarnation, index, flags[first], body[stop - length : stop]))
                continue
            at = stop - sum(lens[first:end])
            for row in range(first, end):
                if length := lens[row]:
                    index = row if indices is None else indices[row]
                    exts.append((name, incarnation, index, flags[row], body[at : at + length]))
                    at += length
        return exts

    def copies(self) -> list[tuple[int, RunRow, list[tuple[str, int]]]]:
        """Returns, for each SHARED run, its ordinal, the run, and (name, incarnation) of its copies; their indices start at the run's."""
        kinds = self._kinds
        if _COPY not in kinds:
            return []
        copies: dict[int, list[tuple[str, int]]] = {}
        for kind, shared, name, incarnation in zip(kinds, self._counts, self._names, self._incarnations, strict=True):
            if kind == RunKind.COPY:
                copies.setdefault(shared, []).append((name, incarnation))
        return [(ordinal, self[ordinal], names) for ordinal, names in copies.items()]

    def of_kind(self, kind: RunKind) -> list[RunRow]:
        """Returns the runs of this kind."""
        return [self[ordinal] for ordinal, own in enumerate(self._kinds) if own == kind]

    def _check_rows(self, header: FrameHeader) -> None:
        """Checks that the runs follow each other, cover all rows and bytes, and are as long as their records."""
        rows: Iterable[int] = self._counts
        if _COPY in self._kinds:
            rows = [0 if kind == RunKind.COPY else count for kind, count in zip(self._kinds, self._counts, strict=True)]
        self._starts = starts = list(accumulate(rows, initial=0))
        if starts[-1] != header.records:
            raise inconsistent(f"the runs hold {starts[-1]} of {header.records} records", "all of them")
        sizes: Iterable[int] = self.payload_lens
        for more in (self.properties_lens, self.ext_lens):
            if more is not None:
                sizes = map(add, sizes, more)
        if len(starts) == 2:  # one run: the ends of the records do not matter
            offsets = [0, sum(sizes)]
        elif _LONG_RUN * len(starts) <= starts[-1]:  # few long runs: nor here
            columns = [lens for lens in (self.payload_lens, self.properties_lens, self.ext_lens) if lens is not None]
            offsets = [0, *accumulate(sum([sum(lens[start:end]) for lens in columns]) for start, end in pairwise(starts))]
        else:
            ends = list(accumulate(sizes, initial=0))
            offsets = [ends[start] for start in starts]
        if offsets != [*self._offsets]:
            raise inconsistent("the body offsets of the runs are not where their records end", f"{offsets[-1]} bytes of body in all")

    def _read_blocks(self, header: FrameHeader, head: bytes, at: int) -> None:
        """Reads the columns of the blocks."""
        blocks = header.blocks
        self.block_ends = self.stored_ends = unpack_from(f"<{blocks}I", head, at)
        self.block_crcs = unpack_from(f"<{blocks}I", head, at + blocks * 4)
        if self._mask & CODEC_ZSTD:
            self.stored_ends = unpack_from(f"<{blocks}I", head, at + blocks * 8)

    def _check_blocks(self, body_len: int) -> None:
        ends, stored = self.block_ends, self.stored_ends
        if (ends[-1] if ends else 0) != self.body_bytes or any(map(ge, (0, *ends), ends)):
            raise inconsistent("block ends do not ascend to the end of the body", str(self.body_bytes))
        if stored is not ends and ((stored[-1] if stored else 0) != body_len or any(map(ge, (0, *stored), stored))):
            raise inconsistent("the stored ends of the blocks do not ascend to the end of the body", str(body_len))


def read_names(kinds: bytes, columns: bytes, names: bytes) -> tuple[str, ...]:
    """Returns the names of the runs of these kinds, checked. `columns` are the lengths of the names, then the incarnations.

    Most frames have the same runs, so the results are cached, unless they are large. Raises CorruptionError or FormatError.
    """
    read = _cached_names if len(names) <= _NAMES_KEPT_BYTES else _cached_names.__wrapped__
    return read(kinds, columns, names)


@lru_cache(maxsize=64)
def _cached_names(kinds: bytes, columns: bytes, names: bytes) -> tuple[str, ...]:
    runs = len(kinds)
    lengths = unpack_from(f"<{runs}H", columns)
    if unknown := kinds.translate(None, _KINDS):
        raise FormatError(f"a run has kind {unknown[0]}, which this version does not know: upgrade to read it")
    if sum(lengths) != len(names):
        raise inconsistent(f"names are {sum(lengths)} bytes long", str(len(names)))
    if bytes(map(bool, lengths)) != kinds.translate(_NAMED):
        raise inconsistent("a run has a name its kind does not have, or none", "names for VCHANNEL and COPY only")
    cuts = pairwise(accumulate(lengths, initial=0))
    try:
        if names.isascii():
            text = names.decode()
            texts = tuple([text[start:end] for start, end in cuts])
        else:
            texts = tuple([names[start:end].decode() for start, end in cuts])
    except UnicodeDecodeError as error:
        raise inconsistent(f"the names of the runs are not UTF-8: {error}", "UTF-8") from error
    if runs > 1:
        incarnations = unpack_from(f"<{runs}I", columns, 2 * runs)
        vchannels = list(compress(zip(texts, incarnations, strict=True), kinds.translate(_IS_VCHANNEL)))
        if len(set(vchannels)) != len(vchannels):
            raise inconsistent("a vchannel has two runs", "one run for each vchannel")
    return texts


@cache
def _record_bytes(mask: int) -> int:
    """Returns the width in bytes of a record over all columns of this mask."""
    return sum(width for column, _, width in RECORD_COLUMNS if not column or mask & column)


def block_bytes(mask: int) -> int:
    """Returns the width in bytes of a block over its columns."""
    return 12 if mask & CODEC_ZSTD else 8


_RUN_BYTES: Final = 15
_LONG_RUN: Final = 16
"""From this many records per run on, summing the lengths by run is faster than accumulating those of all records."""
_NAMES_KEPT_BYTES: Final = 4096
"""Names of more bytes than this are not cached, so that the cache has a bound."""
RECORD_COLUMNS: Final = (
    (COLUMN_INDEX, "I", 4),
    (0, "I", 4),
    (COLUMN_TYPE, "H", 2),
    (COLUMN_FLAGS, "B", 1),
    (COLUMN_PROPERTIES, "I", 4),
    (COLUMN_EXT, "I", 4),
)
"""The columns of the records in their order: bit (0 if the column is always there), form and width of an entry."""

# Tables of bytes, so that one call checks the whole column of kinds.
_KINDS: Final = bytes(RunKind)
_VCHANNEL: Final = bytes((RunKind.VCHANNEL,))
_COPY: Final = bytes((RunKind.COPY,))
_NAMED: Final = bytes(kind in (RunKind.VCHANNEL, RunKind.COPY) for kind in range(256))
_IS_VCHANNEL: Final = bytes(kind == RunKind.VCHANNEL for kind in range(256))


_RUNS_MIN: Final = 8
"""With fewer runs than this, most rows are wanted anyway, and one check of all of them is cheaper."""


class LazyRunTable(RunTable):
    """The tables of a frame for a reader that wants few of its many runs; a run is checked when it is first accessed.

    Each run that it returns is checked as `RunTable` checks it: its rows are where its counts say, it has as many bytes as its records, its
    indices ascend below the header's count, and no body is without its commit. Checking that no two runs share an index needs all runs, and
    is left to readers that decode the whole frame: the writer's own readers, and recovery. The CRC finds random damage in any case. It is
    only for frames of vchannel runs: other runs refer to each other.

    A `RunTable` that at first checks only the extents of the runs and the blocks.
    """

    __slots__ = ("_events", "_found", "_name_ends", "_names_text", "_rows")

    def __init__(self, header: FrameHeader, head: bytes, at: int) -> None:
        name_lens = self._read_runs(header, head, at)
        if not all(name_lens):
            raise inconsistent("a run has no name", "names for all VCHANNEL runs")
        self._events = header.indices
        self._starts = list(accumulate(self._counts, initial=0))
        if self._starts[-1] != header.records:
            raise inconsistent(f"the runs hold {self._starts[-1]} of {header.records} records", "all of them")
        if not self._mask & COLUMN_INDEX and header.records != header.indices:
            raise inconsistent(f"{header.records} records have {header.indices} indices", "one each")
        end = at + header.tables_len
        self._read_blocks(header, head, end - header.names_len - header.blocks * block_bytes(self._mask))
        self._check_blocks(header.body_len)
        self._names_text = head[end - header.names_len : end]
        self._name_ends = list(accumulate(name_lens))
        if self._name_ends[-1] != header.names_len:
            raise inconsistent(f"names are {self._name_ends[-1]} bytes long", str(header.names_len))
        self._copies = {}
        self._found: dict[int, RunRow] = {}
        self._rows: dict[int, Rows] = {}

    @staticmethod
    def suits(header: FrameHeader, head: bytes, at: int, names: int) -> bool:
        """Returns whether a frame has many runs, only of vchannels, and `names` (a number of vchannels) is small compared to that."""
        runs = header.runs
        return runs >= max(_RUNS_MIN, 4 * names) and len(head) >= at + runs and not head[at : at + runs].strip(_VCHANNEL)

    def __getitem__(self, ordinal: int | slice) -> RunRow | list[RunRow]:  # type: ignore[override]
        if isinstance(ordinal, slice):
            return [self._run(at) for at in range(*ordinal.indices(len(self)))]
        count = len(self)
        if not -count <= ordinal < count:
            raise IndexError(f"run {ordinal} of {count}")
        return self._run(ordinal % count)

    def find(self, names: Container[str] | None) -> list[RunRow]:
        """Returns the runs of these vchannels (None: all), of any incarnation."""
        ordinals: Iterable[int]
        if names is not None and is_few(names):
            ordinals = sorted(ordinal for name in names for ordinal in self._search(name.encode(errors="surrogatepass")))
        else:
            ordinals = [ordinal for ordinal in range(len(self)) if names is None or self._name(ordinal) in names]
        runs = [self._run(ordinal) for ordinal in ordinals]
        if len(runs) > 1 and len({(run.name, run.incarnation) for run in runs}) != len(runs):
            raise inconsistent("a vchannel has two runs", "one run for each vchannel")
        return runs

    def rows(self, first: int, end: int) -> Rows:
        """Returns the columns of the records of a run, or of several adjacent runs."""
        rows = self._rows.get(first)
        return self._read_rows(first, end) if rows is None or len(rows.indices) < end - first else rows

    def has_flags(self, run: RunRow) -> bool:
        """Returns whether a record of this run has flags."""
        return any(self.rows(run.first, run.end).flags or ())

    def _search(self, name: bytes) -> list[int]:
        """Returns the ordinals of the runs of this name."""
        text, ends = self._names_text, self._name_ends
        ordinals = []
        at = text.find(name)
        while at >= 0:
            ordinal = bisect_left(ends, at + len(name))
            if ends[ordinal] == at + len(name) and (ends[ordinal - 1] if ordinal else 0) == at:
                ordinals.append(ordinal)
            at = text.find(name, at + 1)
        return ordinals

    def _name(self, ordinal: int) -> str:
        ends = self._name_ends
        try:
            return self._names_text[ends[ordinal - 1] if ordinal else 0 : ends[ordinal]].decode()
        except UnicodeDecodeError as error:
            raise inconsistent(f"the names of the runs are not UTF-8: {error}", "UTF-8") from error

    def _run(self, ordinal: int) -> RunRow:
        """Returns the run after checking it."""
        run = self._found.get(ordinal)
        if run is not None:
            return run
        first, end = self._starts[ordinal], self._starts[ordinal + 1]
        start, stop = self._offsets[ordinal], self._offsets[ordinal + 1]
        rows = self._read_rows(first, end)
        size = sum(rows.payload_lens) + sum(rows.properties_lens or ()) + sum(rows.ext_lens or ())
        if stop - start != size or stop > self._offsets[-1]:
            raise inconsistent("the body offsets of the runs are not where their records end", f"{size} bytes in run {ordinal}")
        indices = rows.indices
        if indices and (any(map(ge, indices, islice(indices, 1, None))) or indices[-1] >= self._events):
            raise inconsistent(f"the indices of run {ordinal} do not ascend below {self._events}", "ascending in a run")
        if rows.flags is not None:
            check_run(ordinal, rows.flags)
        index = indices[0] if indices else -1
        run = RunRow(RunKind.VCHANNEL, self._name(ordinal), self._incarnations[ordinal], first, end, start, stop, -1, index)
        self._found[ordinal] = run
        if indices:
            self._rows[first] = rows
        return run

    def _read_rows(self, first: int, end: int) -> Rows:
        columns: dict[int, tuple[int, ...]] = {}
        at, mask, count = self._columns_at, self._mask, end - first
        for column, form, width in RECORD_COLUMNS:
            if not column or mask & column:
                columns[column] = unpack_from(f"<{count}{form}", self._head, at + first * width)
                at += self._records * width
        flags = columns.get(COLUMN_FLAGS)
        return Rows(
            columns.get(COLUMN_INDEX, range(first, end)),
            columns[0],
            columns.get(COLUMN_TYPE),
            None if flags is None else bytes(flags),
            columns.get(COLUMN_PROPERTIES),
            columns.get(COLUMN_EXT),
        )
