"""SinkRows: turns the rows of a task into columns that a chunk can hold, or rejects them with the number of the wrong row.

Owns the columns that the sink accepts and every check of a row: the log accepts every row that passes here. A row is identified by its
number within its task, from 0, and the Spark partition. No Python runs per row, except in a batch that has properties.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from wal.channels.vchannels import check_vchannel
from wal.errors import InvalidArgumentError
from wal.message import MessageType
from wal.spark.sink.chunking import ROW_OVERHEAD, ChunkBounds, first_too_large, with_names

ACCEPTED: Final = (
    "vchannel string (or the option vchannel), payload binary or string, and optionally message_type string, properties map<string,string>"
)
"""The columns of the sink, as errors name them."""
MESSAGE_TYPES: Final = {"INSERT": MessageType.INSERT, "DELETE": MessageType.DELETE}
"""The message types that a transaction, and therefore a row, may have."""
_KINDS: Final = {
    "vchannel": ("string",),
    "payload": ("binary", "string"),
    "message_type": ("string",),
    "properties": ("map<string,string>",),
}
_ENTRIES: Final = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())]))
_ENTRY_OVERHEAD: Final = 10
"""The maximum overhead of a property in a stored record beside its key and value: two heads of MessagePack."""
_MAP_OVERHEAD: Final = 5


def check_columns(fields: Sequence[tuple[str, str]], *, vchannel: str | None) -> None:
    """Raises InvalidArgumentError unless rows of these columns (name, Spark's simple name of the type) can be written."""
    names = [name for name, _ in fields]
    for name, kind in fields:
        if name not in _KINDS:
            raise InvalidArgumentError(f"column {name!r} cannot be written to a log; accepted are: {ACCEPTED}; select those")
        if names.count(name) > 1:
            raise InvalidArgumentError(f"column {name!r} is given {names.count(name)} times: select it once")
        plain = "string" if kind.startswith(("string", "varchar", "char")) else kind
        if plain not in _KINDS[name]:
            raise InvalidArgumentError(
                f"column {name!r} is of type {kind}; accepted are: {ACCEPTED}; cast it to {' or '.join(_KINDS[name])}"
            )
    if "payload" not in names:
        raise InvalidArgumentError(f"no column 'payload'; accepted are: {ACCEPTED}")
    if "vchannel" not in names and vchannel is None:
        raise InvalidArgumentError(
            "there is neither a column 'vchannel' nor the option vchannel: name the destination of the rows with one of them"
        )


class SinkRows(msgspec.Struct, frozen=True):
    """Checked rows.

    `table` has the columns vchannel (dictionary of string), payload (binary) and, unless all rows have the default, message_type (uint16)
    and properties (list of entries). `counted` and `stored` are the bytes of each row, see `ChunkBounds`.
    """

    table: pa.RecordBatch
    counted: list[int]
    stored: list[int]


class RowReader:
    """Reads the batches of one task, in their order. `vchannel` is the target of all rows, overriding the column."""

    def __init__(self, bounds: ChunkBounds, *, vchannel: str | None, partition_id: int) -> None:
        self._bounds = bounds
        self._vchannel = vchannel
        self._partition_id = partition_id
        self._seen = 0

    def read(self, batch: pa.RecordBatch) -> SinkRows:
        """Returns the rows of the next batch; raises InvalidArgumentError, which names the first wrong row of a column."""
        columns = {name: batch.column(index) for index, name in enumerate(batch.schema.names)}
        names = self._names(columns.get("vchannel"), batch.num_rows)
        payload = self._payload(columns["payload"])
        sizes: list[int] = pc.binary_length(payload).to_pylist()
        columns_out = {"vchannel": names, "payload": payload}
        types = self._types(columns.get("message_type"))
        if types is not None:
            columns_out["message_type"] = types
        extra = None
        if (properties := columns.get("properties")) is not None:
            extra = self._properties(properties)
        stored = [size + ROW_OVERHEAD for size in sizes]
        if extra is not None:
            entries, bytes_of, lengths = extra
            columns_out["properties"] = entries
            sizes = [size + more for size, more in zip(sizes, bytes_of, strict=True)]
            stored = [
                size + ROW_OVERHEAD + (_ENTRY_OVERHEAD * count + _MAP_OVERHEAD if count else 0)
                for size, count in zip(sizes, lengths, strict=True)
            ]
        self._check_sizes(sizes)
        counted = [size + ROW_OVERHEAD for size in sizes]
        stored = with_names(stored, names.dictionary.to_pylist(), names.indices.to_pylist)
        self._check_chunk(counted, stored)
        self._seen += batch.num_rows
        return SinkRows(pa.record_batch(columns_out), counted, stored)

    def _names(self, column: Any, rows: int) -> Any:
        if self._vchannel is not None:
            codes = pa.repeat(pa.scalar(0, pa.int32()), rows)
            return pa.DictionaryArray.from_arrays(codes, pa.array([self._vchannel], pa.string()))
        column = column.cast(pa.string())
        self._refuse_null(column, "vchannel", "every row names the vchannel it goes to")
        encoded = column.dictionary_encode()
        for code, name in enumerate(encoded.dictionary.to_pylist()):
            try:
                check_vchannel(name)
            except InvalidArgumentError as error:
                row = pc.index(encoded.indices, pa.scalar(code, encoded.indices.type)).as_py()
                raise self._wrong(row, str(error)) from error
        return encoded

    def _payload(self, column: Any) -> Any:
        self._refuse_null(column, "payload", "filter such rows, or write an empty payload")
        return column.cast(pa.binary())

    def _types(self, column: Any) -> Any:
        """Returns the numbers of the types; None when all rows are INSERTs."""
        if column is None:
            return None
        column = column.cast(pa.string())
        encoded = column.dictionary_encode()
        numbers = []
        for code, name in enumerate(encoded.dictionary.to_pylist()):
            kind = MESSAGE_TYPES.get(name)
            if kind is None:
                row = pc.index(encoded.indices, pa.scalar(code, encoded.indices.type)).as_py()
                raise self._wrong(
                    row,
                    f"message_type {name!r} cannot stand in a transaction; accepted are: {', '.join(MESSAGE_TYPES)}, and null for INSERT",
                )
            numbers.append(int(kind))
        if all(number == MessageType.INSERT for number in numbers):
            return None
        return pa.array(numbers, pa.uint16()).take(encoded.indices).fill_null(int(MessageType.INSERT))

    def _properties(self, column: Any) -> tuple[Any, list[int], list[int]] | None:
        """Returns the entries, bytes and number of entries of each row; None when no row has any."""
        entries = column.cast(_ENTRIES)
        flat = pc.list_flatten(entries)
        if not len(flat):
            return None
        keys, values = flat.field(0), flat.field(1)
        lengths: list[int] = pc.list_value_length(entries).fill_null(0).to_pylist()
        if values.null_count:
            at = pc.index(values.is_null(), True).as_py()
            raise self._wrong(_row_of(at, lengths), f"property {keys[at].as_py()!r} is null: leave it out, or write a text")
        reserved = pc.starts_with(keys, "_")
        if pc.any(reserved).as_py():
            at = pc.index(reserved, True).as_py()
            raise self._wrong(
                _row_of(at, lengths),
                f"property key {keys[at].as_py()!r} is reserved: keys that start with '_' belong to the system; rename it",
            )
        sums = list(accumulate(pc.add(pc.binary_length(keys), pc.binary_length(values)).to_pylist(), initial=0))
        ends = list(accumulate(lengths))
        return entries, [sums[end] - sums[end - length] for end, length in zip(ends, lengths, strict=True)], lengths

    def _check_sizes(self, sizes: list[int]) -> None:
        limit = self._bounds.message_bytes_max
        if (row := first_too_large(sizes, limit)) is not None:
            raise self._wrong(
                row,
                f"{sizes[row]} bytes (payload and properties) exceed message_bytes_max={limit}: split the row, store the payload "
                "elsewhere and write a reference, or raise the setting in the file that the option settings names",
            )

    def _check_chunk(self, counted: list[int], stored: list[int]) -> None:
        """Rejects a row that is too large for any transaction."""
        limits = self._bounds
        for sizes, limit, setting in (
            (counted, limits.counted_max, "txn_bytes_max (or half of open_txn_bytes_max)"),
            (stored, limits.stored_max, "bytes of one frame"),
        ):
            if (row := first_too_large(sizes, limit)) is not None:
                raise self._wrong(
                    row,
                    f"it takes {sizes[row]} bytes in a transaction, over the {limit} of {setting}: split the row, or raise the setting in "
                    "the file that the option settings names",
                )

    def _refuse_null(self, column: Any, name: str, remedy: str) -> None:
        if column.null_count:
            raise self._wrong(pc.index(column.is_null(), True).as_py(), f"{name} is null: {remedy}")

    def _wrong(self, row: int, text: str) -> InvalidArgumentError:
        return InvalidArgumentError(f"row {self._seen + row} of Spark partition {self._partition_id}: {text}")


def _row_of(entry: int, lengths: list[int]) -> int:
    """Returns the row that owns this entry of the properties of all rows."""
    return next(row for row, end in enumerate(accumulate(lengths)) if entry < end)
