"""Arrow: rows as `pyarrow.RecordBatch`, without a Python object for a row where the columns lie packed already.

pyarrow is imported when the first batch is made, never by importing the bridge.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from wal.message import MessageType
from wal.reading import NO_TXN, RowColumns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["load_pyarrow", "record_batch", "schema"]


def load_pyarrow() -> Any:
    """The module; without it an ImportError that says what to install."""
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError as error:
        raise ImportError(
            "Arrow batches need pyarrow, which is not installed: pip install 'wal-runtime[spark]'", name="pyarrow"
        ) from error
    return pyarrow


def schema() -> pa.Schema:
    """The columns of every batch."""
    pa = load_pyarrow()
    return pa.schema(
        [
            ("vchannel", pa.string()),
            ("message_id", pa.binary()),
            ("time_tick", pa.int64()),
            ("message_type", pa.string()),
            ("txn_id", pa.int64()),
            ("payload", pa.binary()),
            ("properties", pa.map_(pa.string(), pa.string())),
            ("append_time", pa.timestamp("us", tz="UTC")),
        ]
    )


def record_batch(rows: RowColumns) -> pa.RecordBatch:
    """A batch of these rows; it takes their memory over, so that nothing may be added to them afterwards."""
    pa = load_pyarrow()
    count = rows.rows
    ticks = _ticks(pa, rows)
    return pa.RecordBatch.from_arrays(
        [
            _vchannels(pa, rows),
            _ids(pa, rows),
            ticks,
            _types(pa, rows),
            _txn_ids(pa, rows),
            pa.Array.from_buffers(
                pa.binary(),
                count,
                [None, _offsets(pa, [bytes(4), *rows.payload_lens]), _joined(pa, rows.payloads, rows.payload_bytes)],
            ),
            _properties(pa, rows),
            _times(pa, ticks),
        ],
        schema=schema(),
    )


def _joined(pa: Any, pieces: Sequence[bytes | bytearray | memoryview], size: int) -> Any:
    """The pieces in one buffer of Arrow's own memory, which it uses again and again."""
    buffer = pa.allocate_buffer(size)
    into, at = memoryview(buffer).cast("B"), 0
    for piece in pieces:
        into[at : at + len(piece)] = piece
        at += len(piece)
    return buffer


def _fixed(pa: Any, kind: Any, count: int, data: Any) -> Any:
    return pa.Array.from_buffers(kind, count, [None, pa.py_buffer(data)])


def _pieces(pa: Any, kind: Any, count: int, width: int, pieces: Sequence[bytes | bytearray]) -> Any:
    return pa.Array.from_buffers(kind, count, [None, _joined(pa, pieces, count * width)])


def _offsets(pa: Any, lengths: Sequence[bytes | bytearray]) -> Any:
    """The buffer of offsets that these lengths add up to; the first is 0."""
    count = sum(map(len, lengths)) // 4
    return pa.compute.cumulative_sum(_pieces(pa, pa.int32(), count, 4, lengths)).buffers()[1]


def _repeated(text: str, count: int) -> Any:
    """A column of one text; batches share it."""
    found = _columns(text)
    return found.slice(0, count) if count <= len(found) else load_pyarrow().repeat(found[0], count)


@lru_cache(maxsize=16)
def _columns(text: str) -> Any:
    pa = load_pyarrow()
    return pa.repeat(pa.scalar(text, pa.string()), _REPEATED_ROWS)


def _ticks(pa: Any, rows: RowColumns) -> Any:
    indices = _pieces(pa, pa.uint32(), rows.rows, 4, rows.indices).cast(pa.int64())
    return pa.compute.add(_pieces(pa, pa.int64(), rows.rows, 8, rows.tick_bases), indices)


def _vchannels(pa: Any, rows: RowColumns) -> Any:
    if not rows.vchannels:
        return _repeated(rows.names[0], rows.rows)
    codes = _fixed(pa, pa.int32(), rows.rows, rows.vchannels)
    return pa.DictionaryArray.from_arrays(codes, pa.array(rows.names, pa.string())).dictionary_decode()


def _ids(pa: Any, rows: RowColumns) -> Any:
    ids = _pieces(pa, pa.binary(rows.id_width), rows.rows, rows.id_width, rows.ids).cast(pa.binary())
    if rows.without_id:
        missing = bytearray(rows.rows)
        for row in rows.without_id:
            missing[row] = 1
        mask = _fixed(pa, pa.uint8(), rows.rows, missing).cast(pa.bool_())
        ids = pa.compute.if_else(mask, pa.scalar(None, pa.binary()), ids)
    return ids


def _types(pa: Any, rows: RowColumns) -> Any:
    if not rows.types:
        return _repeated(MessageType.INSERT.name, rows.rows)
    numbers = _fixed(pa, pa.uint16(), rows.rows, rows.types)
    coded = numbers.dictionary_encode()
    names = [_TYPE_NAMES.get(number, MessageType.UNKNOWN.name) for number in coded.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(coded.indices, pa.array(names, pa.string())).dictionary_decode()


def _txn_ids(pa: Any, rows: RowColumns) -> Any:
    if not rows.txn_ids:
        return pa.nulls(rows.rows, pa.int64())
    ids = _fixed(pa, pa.int64(), rows.rows, rows.txn_ids)
    return pa.compute.if_else(pa.compute.equal(ids, NO_TXN), pa.scalar(None, pa.int64()), ids)


def _properties(pa: Any, rows: RowColumns) -> Any:
    counts = rows.properties_counts
    offsets = _fixed(
        pa, pa.int32(), rows.rows + 1, _offsets(pa, [bytes(4), counts]) if counts else bytes(4 * rows.rows + 4)
    )
    return pa.MapArray.from_arrays(offsets, pa.array(rows.keys, pa.string()), pa.array(rows.values, pa.string()))


def _times(pa: Any, ticks: Any) -> Any:
    """The milliseconds of the ticks, as microseconds."""
    milliseconds = pa.compute.shift_right(ticks, pa.scalar(18, pa.int64()))
    return pa.compute.multiply(milliseconds, pa.scalar(1000, pa.int64())).cast(pa.timestamp("us", tz="UTC"))


_REPEATED_ROWS: Final = 1 << 17
_TYPE_NAMES: Final = {int(kind): kind.name for kind in MessageType}
