"""ParquetFile: the file of `wal cat --to-parquet`, written by messages or, from one journal, by columns.

Owns the columns of the file and the open writer. It never holds more than a batch of rows. Ids are text there, as `str(message_id)`, so
that every program can pass one back. A column of ids is built from the few positions of its frames, not id by id. pyarrow is imported when
a file is opened.
"""

from __future__ import annotations

import contextlib
import sys
from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from wal.message import ImmutableMessage, MessageID
from wal.runtime.installation import Needed

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Final = ("vchannel", "message_id", "time_tick", "append_time", "message_type", "payload", "properties")
"""The columns of a read that are written, in their order; the file names the type `type`."""
_ROWS: Final = 4096
_INDEX_BYTES: Final = 4


class ParquetFile:
    """An open file; `stack` closes it. Raises ImportError, with the remedy, without pyarrow."""

    def __init__(self, path: str, stack: contextlib.ExitStack) -> None:
        with Needed("--to-parquet needs", "arrow"):
            import pyarrow as pa
            import pyarrow.compute
            import pyarrow.parquet as pq
        self._pa: Any = pa
        self._schema = pa.schema(
            [
                ("vchannel", pa.string()),
                ("message_id", pa.string()),
                ("time_tick", pa.int64()),
                ("append_time", pa.timestamp("us", tz="UTC")),
                ("type", pa.string()),
                ("payload", pa.binary()),
                ("properties", pa.map_(pa.string(), pa.string())),
            ]
        )
        self._file: Any = stack.enter_context(pq.ParquetWriter(path, self._schema))
        self._rows: list[dict[str, Any]] = []
        stack.callback(self._flush)

    def __call__(self, body: ImmutableMessage) -> None:
        """Writes a message, at the latest when the file is closed."""
        self._rows.append(
            {
                "vchannel": body.vchannel,
                "message_id": str(body.message_id),
                "time_tick": body.time_tick,
                "append_time": body.append_time,
                "type": body.message_type.name,
                "payload": body.payload,
                "properties": list(body.properties.items()),
            }
        )
        if len(self._rows) == _ROWS:
            self._flush()

    def copy(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Writes these batches of `COLUMNS`, which are of one pchannel."""
        for batch in batches:
            columns = batch.columns
            columns[1] = self._text(columns[1])
            self._file.write_batch(self._pa.RecordBatch.from_arrays(columns, schema=self._schema))

    def _text(self, ids: Any) -> Any:
        """Returns the text of these ids, which are of one width: its frame's part, then its index."""
        pa, pc = self._pa, self._pa.compute
        places = pc.binary_slice(ids, 0, -_INDEX_BYTES).dictionary_encode()
        texts = [str(MessageID.from_bytes(place + bytes(_INDEX_BYTES))).removesuffix("0") for place in places.dictionary.to_pylist()]
        last_bytes = pc.binary_slice(ids, -_INDEX_BYTES).cast(pa.binary(_INDEX_BYTES))
        indices = array("I")
        indices.frombytes(last_bytes.buffers()[1].slice(_INDEX_BYTES * last_bytes.offset, _INDEX_BYTES * len(ids)).to_pybytes())
        if sys.byteorder == "little":
            indices.byteswap()
        numbers = pa.Array.from_buffers(pa.uint32(), len(ids), [None, pa.py_buffer(indices)]).cast(pa.string())
        return pc.binary_join_element_wise(pa.array(texts, pa.string()).take(places.indices), numbers, "")

    def _flush(self) -> None:
        if self._rows:
            self._file.write_table(self._pa.Table.from_pylist(self._rows, schema=self._schema))
            self._rows.clear()
