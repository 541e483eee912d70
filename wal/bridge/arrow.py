"""Arrow: rows as a `pyarrow.RecordBatch`, built column by column, without a Python object per row.

Packed columns become Arrow's columns here: Arrow's kernels compute order, ticks, times, names and types, and the payloads are copied into
its memory. pyarrow is imported when the first batch is built, never by importing the bridge.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Final

from wal.bridge.arrow_properties import properties_column
from wal.installation import install_hint
from wal.message import MessageType
from wal.reading.columns import COLUMNS, NO_TXN, RowColumns

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["load_pyarrow", "record_batch", "schema"]


def load_pyarrow() -> Any:
    """Returns the module pyarrow; raises an ImportError that says what to install if it is missing."""
    try:
        import pyarrow
        import pyarrow.compute
    except ImportError as error:
        raise ImportError(
            f"Arrow batches need pyarrow, which is not installed: {install_hint('arrow')}", name="pyarrow"
        ) from error
    return pyarrow


def schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """Returns the schema of a batch with these columns, in this order; None for all of them."""
    return _schema(COLUMNS if columns is None else tuple(columns))


def record_batch(rows: RowColumns, columns: Sequence[str] | None = None) -> pa.RecordBatch:
    """Returns a batch of these rows. It takes over their memory, so nothing may be added to them afterwards.

    `columns` names some of the gathered columns, in the wanted order; None means all of them. Raises CorruptionError if requested
    properties are damaged.
    """
    pa = load_pyarrow()
    wanted = tuple(rows.columns if columns is None else columns)
    making = _Making(pa, rows)
    return pa.RecordBatch.from_arrays([_COLUMNS[name](making) for name in wanted], schema=_schema(wanted))


class _Making:
    """A batch under construction, with the parts that several of its columns share."""

    def __init__(self, pa: Any, rows: RowColumns) -> None:
        self.pa = pa
        self.rows = rows
        self.picked = _picked(pa, rows)
        self._ticks: Any = None

    def of_rows(self, entries: Any) -> Any:
        """Returns the entries of the rows, in the rows' order."""
        return entries if self.picked is None else entries.take(self.picked)

    def fixed(self, kind: Any, width: int, pieces: Sequence[bytes | bytearray | memoryview]) -> Any:
        """Returns a column of entries of this width."""
        return self.of_rows(_pieces(self.pa, kind, self.rows.slots, width, pieces))

    @property
    def ticks(self) -> Any:
        if self._ticks is None:
            self._ticks = self.of_rows(_sum(self.pa, self.rows, self.rows.events))
        return self._ticks


def _picked(pa: Any, rows: RowColumns) -> Any:
    """Returns the slots that are rows, in the rows' order; None if all slots are rows and in order."""
    kept = None
    if rows.keep:
        kept = pa.compute.indices_nonzero(_pieces(pa, pa.uint8(), rows.slots, 1, rows.keep))
    if rows.in_order:
        return kept
    places = _sum(pa, rows, rows.indices)
    if kept is None:
        return pa.compute.array_sort_indices(places)
    return kept.take(pa.compute.array_sort_indices(places.take(kept)))


def _sum(pa: Any, rows: RowColumns, parts: Sequence[bytes]) -> Any:
    """Returns the ticks: the frames' first ticks plus these indices."""
    indices = _pieces(pa, pa.uint32(), rows.slots, 4, parts).cast(pa.int64())
    return pa.compute.add(_pieces(pa, pa.int64(), rows.slots, 8, rows.tick_bases), indices)


# -- the columns


def _vchannels(making: _Making) -> Any:
    pa, rows = making.pa, making.rows
    if len(rows.names) == 1:
        return _repeated(rows.names[0], rows.rows)
    codes = making.fixed(pa.int32(), 4, rows.vchannels)
    return _named(pa, codes, rows.names)


def _ids(making: _Making) -> Any:
    pa, rows = making.pa, making.rows
    ids = making.fixed(pa.binary(rows.id_width), rows.id_width, rows.ids).cast(pa.binary())
    if rows.without_id:
        missing = bytearray(rows.slots)
        for slot in rows.without_id:
            missing[slot] = 1
        mask = making.fixed(pa.uint8(), 1, [missing]).cast(pa.bool_())
        ids = pa.compute.if_else(mask, pa.scalar(None, pa.binary()), ids)
    return ids


def _ticks(making: _Making) -> Any:
    return making.ticks


def _types(making: _Making) -> Any:
    pa, rows = making.pa, making.rows
    if not rows.types:
        return _repeated(MessageType.INSERT.name, rows.rows)
    coded = making.fixed(pa.uint16(), 2, rows.types).dictionary_encode()
    names = [_TYPE_NAMES.get(number, MessageType.UNKNOWN.name) for number in coded.dictionary.to_pylist()]
    return _named(pa, coded.indices, names)


def _txn_ids(making: _Making) -> Any:
    pa, rows = making.pa, making.rows
    if not rows.txn_ids:
        return pa.nulls(rows.rows, pa.int64())
    ids = making.fixed(pa.int64(), 8, rows.txn_ids)
    return pa.compute.if_else(pa.compute.equal(ids, NO_TXN), pa.scalar(None, pa.int64()), ids)


def _payloads(making: _Making) -> Any:
    pa, rows = making.pa, making.rows
    return making.of_rows(_binary(pa, rows.slots, rows.payload_lens, rows.payloads, rows.payload_bytes))


def _properties(making: _Making) -> Any:
    pa, rows = making.pa, making.rows
    if not rows.properties_lens:
        return properties_column(pa, None, rows.rows)
    stored = _binary(pa, rows.slots, rows.properties_lens, rows.properties, rows.properties_bytes)
    return properties_column(pa, making.of_rows(stored), rows.rows)


def _times(making: _Making) -> Any:
    """Returns the ticks' milliseconds, as timestamps in microseconds."""
    pa = making.pa
    milliseconds = pa.compute.shift_right(making.ticks, pa.scalar(18, pa.int64()))
    return pa.compute.multiply(milliseconds, pa.scalar(1000, pa.int64())).cast(pa.timestamp("us", tz="UTC"))


_COLUMNS: Final[dict[str, Callable[[_Making], Any]]] = dict(
    zip(COLUMNS, (_vchannels, _ids, _ticks, _types, _txn_ids, _payloads, _properties, _times), strict=True)
)


# -- buffers


def _joined(pa: Any, pieces: Sequence[bytes | bytearray | memoryview], size: int) -> Any:
    """Returns the pieces in one buffer of Arrow's own memory, which Arrow reuses."""
    buffer = pa.allocate_buffer(size)
    into, at = memoryview(buffer).cast("B"), 0
    for piece in pieces:
        into[at : at + len(piece)] = piece
        at += len(piece)
    return buffer


def _pieces(pa: Any, kind: Any, count: int, width: int, pieces: Sequence[bytes | bytearray | memoryview]) -> Any:
    return pa.Array.from_buffers(kind, count, [None, _joined(pa, pieces, count * width)])


def _binary(pa: Any, count: int, lengths: Sequence[bytes], pieces: Sequence[Any], size: int) -> Any:
    """Returns a column of byte strings, built from the joined bytes and the length of each string."""
    offsets = pa.compute.cumulative_sum(_pieces(pa, pa.int32(), count + 1, 4, [bytes(4), *lengths])).buffers()[1]
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets, _joined(pa, pieces, size)])


def _named(pa: Any, codes: Any, names: Sequence[str]) -> Any:
    return pa.DictionaryArray.from_arrays(codes, pa.array(names, pa.string())).dictionary_decode()


def _repeated(text: str, count: int) -> Any:
    """Returns a column that repeats one text. Batches share its memory."""
    found = _columns(text)
    return found.slice(0, count) if count <= len(found) else load_pyarrow().repeat(found[0], count)


@lru_cache(maxsize=16)
def _columns(text: str) -> Any:
    pa = load_pyarrow()
    return pa.repeat(pa.scalar(text, pa.string()), _REPEATED_ROWS)


@cache
def _schema(columns: tuple[str, ...]) -> Any:
    pa = load_pyarrow()
    kinds = {
        "vchannel": pa.string(),
        "message_id": pa.binary(),
        "time_tick": pa.int64(),
        "message_type": pa.string(),
        "txn_id": pa.int64(),
        "payload": pa.binary(),
        "properties": pa.map_(pa.string(), pa.string()),
        "append_time": pa.timestamp("us", tz="UTC"),
    }
    return pa.schema([(name, kinds[name]) for name in columns])


_REPEATED_ROWS: Final = 1 << 17
_TYPE_NAMES: Final = {int(kind): kind.name for kind in MessageType}
