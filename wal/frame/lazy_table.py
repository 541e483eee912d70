"""LazyRunTable: the tables of a frame for a reader that wants few of its many runs; a run is checked when it is first accessed.

Each run that it returns is checked as `RunTable` checks it: its rows are where its counts say, it has as many bytes as its records, its
indices ascend below the header's count, and no body is without its commit. Checking that no two runs share an index needs all runs, and is
left to those that decode the whole frame: the writer's own readers, and recovery. The CRC finds random damage in any case. It is only for
frames of vchannel runs: other runs refer to each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container, Iterable
from itertools import accumulate, islice
from operator import ge
from struct import unpack_from
from typing import Final

from wal.frame.events import check_run, inconsistent
from wal.frame.layout import (
    COLUMN_EXT,
    COLUMN_FLAGS,
    COLUMN_INDEX,
    COLUMN_PROPERTIES,
    COLUMN_TYPE,
    FrameHeader,
    RunKind,
)
from wal.frame.tables import RECORD_COLUMNS, Rows, RunRow, RunTable, is_few

__all__ = ["LazyRunTable"]

_RUNS_MIN: Final = 8
"""With fewer runs than this, most rows are wanted anyway, and one check of all of them is cheaper."""


class LazyRunTable(RunTable):
    """A `RunTable` that at first checks only the extents of the runs and the blocks."""

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
        blocks_at = end - header.names_len - 8 * header.blocks
        self.block_ends: tuple[int, ...] = unpack_from(f"<{header.blocks}I", head, blocks_at)
        self.block_crcs: tuple[int, ...] = unpack_from(f"<{header.blocks}I", head, blocks_at + 4 * header.blocks)
        self._check_blocks(header.body_len)
        self._names_text = head[end - header.names_len : end]
        self._name_ends = list(accumulate(name_lens))
        if self._name_ends[-1] != header.names_len:
            raise inconsistent(f"names are {self._name_ends[-1]} bytes long", str(header.names_len))
        self._copies = {}
        self._found: dict[int, RunRow] = {}
        self._rows: dict[int, Rows] = {}

    @staticmethod
    def suits(header: FrameHeader, head: bytes, at: int, wanted: int) -> bool:
        """Returns whether a frame has many runs, only of vchannels, and `wanted` (a number of vchannels) is small compared to that."""
        runs = header.runs
        return (
            runs >= max(_RUNS_MIN, 4 * wanted) and len(head) >= at + runs and not head[at : at + runs].strip(_VCHANNEL)
        )

    def __getitem__(self, ordinal: int | slice) -> RunRow | list[RunRow]:  # type: ignore[override]
        if isinstance(ordinal, slice):
            return [self._run(at) for at in range(*ordinal.indices(len(self)))]
        count = len(self)
        if not -count <= ordinal < count:
            raise IndexError(f"run {ordinal} of {count}")
        return self._run(ordinal % count)

    def find(self, names: Container[str]) -> list[RunRow]:
        """Returns the runs of these vchannels, of any incarnation."""
        ordinals: Iterable[int]
        if is_few(names):
            ordinals = sorted(
                ordinal for name in names for ordinal in self._search(name.encode(errors="surrogatepass"))
            )
        else:
            ordinals = [ordinal for ordinal in range(len(self)) if self._name(ordinal) in names]
        runs = [self._run(ordinal) for ordinal in ordinals]
        if len(runs) > 1 and len({(run.name, run.incarnation) for run in runs}) != len(runs):
            raise inconsistent("a vchannel has two runs", "one run for each vchannel")
        return runs

    def rows(self, run: RunRow) -> Rows:
        """Returns the columns of this run's records."""
        found = self._rows.get(run.first)
        return self._read_rows(run.first, run.end) if found is None else found

    def _search(self, name: bytes) -> list[int]:
        """Returns the ordinals of the runs of this name."""
        text, ends = self._names_text, self._name_ends
        found = []
        at = text.find(name)
        while at >= 0:
            ordinal = bisect_left(ends, at + len(name))
            if ends[ordinal] == at + len(name) and (ends[ordinal - 1] if ordinal else 0) == at:
                found.append(ordinal)
            at = text.find(name, at + 1)
        return found

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
            raise inconsistent(
                "the body offsets of the runs are not where their records end", f"{size} bytes in run {ordinal}"
            )
        indices = rows.indices
        if indices and (any(map(ge, indices, islice(indices, 1, None))) or indices[-1] >= self._events):
            raise inconsistent(f"the indices of run {ordinal} do not ascend below {self._events}", "ascending in a run")
        if rows.flags is not None:
            check_run(ordinal, rows.flags)
        index = indices[0] if indices else -1
        run = RunRow(
            RunKind.VCHANNEL, self._name(ordinal), self._incarnations[ordinal], first, end, start, stop, -1, index
        )
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


_VCHANNEL: Final = bytes((RunKind.VCHANNEL,))
