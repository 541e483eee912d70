"""Payloads to values: what a decoder of the user's makes of the payloads of a batch, as an Arrow column. Needs no JVM.

Owns: how a dict, a tuple or an object becomes the fields of a struct, and the error that names the message that cannot. Runs in
Spark's workers, a batch of rows at a time; an instance is pickled to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from wal.errors import InvalidArgumentError
from wal.message import MessageID

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Decode", "PayloadDecoder"]

Decode = Callable[[bytes], Any]
"""One payload to a dict (by the names of fields), a tuple or list (by their order), an object (its attributes), or None (no value)."""
ON_ERROR: Final = ("raise", "null")


class PayloadDecoder:
    """What `mapInArrow` runs: batches with a column `payload` → batches with a struct column `into` behind it, or in its place."""

    def __init__(
        self, decode: Decode, struct: pa.StructType, *, into: str, keep_payload: bool = False, on_error: str = "raise"
    ) -> None:
        self._decode = decode
        self._struct = struct
        self._into = into
        self._keep_payload = keep_payload
        self._on_error = on_error

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in batches:
            names: list[str] = []
            columns: list[pa.Array] = []
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if name != "payload" or self._keep_payload:
                    names.append(name)
                    columns.append(column)
                if name == "payload":
                    names.append(self._into)
                    columns.append(self.values(column, batch))
            yield pa.RecordBatch.from_arrays(columns, names)

    def values(self, payloads: pa.Array, batch: pa.RecordBatch) -> pa.StructArray:
        """The struct of each payload; a payload that is null has none. `batch` is what errors name the message by."""
        import pyarrow as pa

        decode, null_on_error = self._decode, self._on_error == "null"
        decoded: list[Any] = []
        for row, payload in enumerate(payloads.to_pylist()):
            try:
                decoded.append(None if payload is None else decode(payload))
            except Exception as error:
                if not null_on_error:
                    raise self._failed(batch, row, f"{type(error).__name__}: {error}") from error
                decoded.append(None)
        try:
            return self._array(decoded)
        except (pa.ArrowException, InvalidArgumentError, TypeError, ValueError, OverflowError):
            pass  # one row or more do not fit: which ones is only looked for now
        for row, value in enumerate(decoded):
            try:
                self._array([value])
            except (pa.ArrowException, InvalidArgumentError, TypeError, ValueError, OverflowError) as error:
                if not null_on_error:
                    raise self._failed(batch, row, f"{error}; it was decoded to {_shown(value)}") from error
                decoded[row] = None
        return self._array(decoded)

    def _array(self, decoded: Sequence[Any]) -> pa.StructArray:
        import pyarrow as pa

        fields = list(self._struct)
        columns = _columns([field.name for field in fields], decoded)
        arrays = []
        for field, column in zip(fields, columns, strict=True):
            try:
                arrays.append(pa.array(column, field.type, from_pandas=False))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise InvalidArgumentError(f"field {field.name!r} is no {field.type}: {error}") from error
        missing = pa.array([value is None for value in decoded], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=missing)

    def _failed(self, batch: pa.RecordBatch, row: int, why: str) -> InvalidArgumentError:
        named = "a message"
        columns = batch.schema.names
        if "message_id" in columns:
            named = f"message {MessageID.from_bytes(batch.column('message_id')[row].as_py())}"
        if "vchannel" in columns:
            named += f" of vchannel {batch.column('vchannel')[row].as_py()!r}"
        return InvalidArgumentError(
            f"the payload of {named} cannot be decoded: {why}; decode it otherwise, or give on_error='null' to have null in its place"
        )


def _columns(names: Sequence[str], decoded: Sequence[Any]) -> list[list[Any]]:
    """A list for each field, None where there is no value."""
    kind = next((type(value) for value in decoded if value is not None), None)
    if kind is None:
        return [[None] * len(decoded) for _ in names]
    if kind is dict and all(type(value) is dict for value in decoded):  # the common case, without a call for each value
        return [[value.get(name) for value in decoded] for name in names]
    rows = [_row(names, value) for value in decoded]
    return [list(column) for column in zip(*rows, strict=True)]


def _row(names: Sequence[str], value: Any) -> Sequence[Any]:
    if value is None:
        return (None,) * len(names)
    if isinstance(value, Mapping):
        return [value.get(name) for name in names]
    if isinstance(value, tuple | list):
        if len(value) != len(names):
            raise InvalidArgumentError(f"{len(value)} values for {len(names)} fields ({', '.join(names)})")
        return value
    absent = [name for name in names if not hasattr(value, name)]
    if absent:
        raise InvalidArgumentError(
            f"a {type(value).__name__} has no {', '.join(absent)}: decode to a dict, a tuple or an object with the fields of the schema"
        )
    return [getattr(value, name) for name in names]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
