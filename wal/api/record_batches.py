"""RecordBatches: a log as Arrow batches, read in the caller's thread, in whole frames."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from wal.api.arrow import load_pyarrow, record_batch, schema
from wal.api.blocking_read import BlockingRead
from wal.api.row_pages import RowPages
from wal.message.matching import Matching
from wal.read.columns import RowColumns
from wal.read.frame_rows import FrameRows, in_parts
from wal.read.options import Reached
from wal.read.progress import Need

if TYPE_CHECKING:
    import pyarrow as pa

    from wal.message import ImmutableMessage


_PIECE_BYTES: Final = 1 << 20
"""A frame over `bytes_max` is cut, but not into parts smaller than this: positions are between frames, and have to advance."""


class RecordBatches(BlockingRead):
    """Batches in the order of the log; an iterator and, like `Iteration`, a context manager with `position`, `save` and `close`.

    `position` is the position after the delivered batches. Rows come from whole frames; only the one or two frames that a position
    or a tick cuts are turned into messages.
    """

    def __init__(
        self,
        location: str | os.PathLike[str],
        vchannel: str | Sequence[str] | Matching,
        rows_max: int,
        bytes_max: int,
        columns: Sequence[str] | None,
        **read: Any,
    ) -> None:
        self._rows = RowColumns(columns)  # first, because it checks its argument
        super().__init__(location, vchannel, **read)
        self._rows_max = rows_max
        self._bytes_max = bytes_max
        self._columns = columns
        self._batches: deque[pa.RecordBatch] = deque()
        self._parts: deque[FrameRows | ImmutableMessage] = deque()  # of the current frame, not yet added to the rows
        self._row_pages = RowPages(lambda request: self._log.rows_page(request))  # the log is another one when the vchannel is created
        self._is_whole = False
        """Whether the rows are one page, whose payloads are in one piece: with more rows, all would have to be copied."""
        self._delivered_end: Reached | None = None  # the end of the delivered batches, while some rows are undelivered

    @property
    def schema(self) -> pa.Schema:
        """The schema of every batch, even if the read yields none."""
        return schema(self._columns)

    def to_table(self) -> pa.Table:
        """Returns the rest of the read as one table, which has the schema also without rows. Needs `follow=False` or a last tick."""
        return load_pyarrow().Table.from_batches(self, self.schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Returns the read as a stream of Arrow's C interface, which pyarrow, DuckDB and Polars read batch by batch.

        The read begins here, so that its first errors are raised as they are, and not as errors of Arrow.
        """
        self.__enter__()
        reader = load_pyarrow().RecordBatchReader.from_batches(self.schema, self)
        return reader.__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        while True:
            with self._lock:
                if self._batches:
                    return self._batches.popleft()
            if not self._fill():
                raise StopIteration

    def _ready(self) -> bool:
        return bool(self._batches)

    def _step(self) -> Need:
        """Takes frames as rows until they fill a batch, or until there is nothing more to read at the moment."""
        progress, rows = self._progress, self._rows
        if not rows.rows and not self._parts:
            self._delivered_end = progress.reached
        while True:
            need = Need.FRAME if self._parts else progress.step(self._tail)
            if need is Need.FRAME and not self._parts:
                frame_rows = progress.rows()
                if frame_rows is not None:
                    self._parts.extend(in_parts(frame_rows, bytes_max=max(self._bytes_max, _PIECE_BYTES)))
                else:
                    progress.assemble()
            self._parts.extend(progress.coming or progress.open())
            if self._parts:
                part = self._parts.popleft()
                if isinstance(part, FrameRows):
                    rows.add_frame(part)
                else:
                    rows.add_messages([part])
            full = self._is_whole or rows.rows >= self._rows_max or rows.size >= self._bytes_max
            if rows.rows and (full or need is Need.TAIL or need is Need.OVER):
                self._cut()
                return Need.MESSAGES
            if need is not Need.FRAME and need is not Need.MESSAGES:
                return need

    def _fetch_page(self) -> None:
        rows = self._rows
        empty = not rows.rows
        rows_max, bytes_max = self._rows_max - rows.rows, self._bytes_max - rows.size
        if not self._row_pages.take(self._progress, rows, rows_max=rows_max, bytes_max=bytes_max):
            super()._fetch_page()
        elif empty and rows.payload_bytes >= _PIECE_BYTES:
            self._is_whole = True

    def _flush(self) -> bool:
        if self._rows.rows:
            self._cut()
        return bool(self._batches)

    def _reached(self) -> Reached:
        if self._delivered_end is not None and (self._batches or self._rows.rows or self._parts):
            return self._delivered_end
        return super()._reached()

    def _cut(self) -> None:
        """Turns the rows into batches; several if one frame holds more than a batch should."""
        rows, self._rows, self._is_whole = self._rows, RowColumns(self._columns), False
        batch = record_batch(rows)
        step = self._rows_max
        size_max = max(self._bytes_max, _PIECE_BYTES)
        if rows.size > 2 * size_max:
            step = min(step, max(1, rows.rows * size_max // rows.size))
        for first in range(0, rows.rows, step):
            self._batches.append(batch.slice(first, step))
