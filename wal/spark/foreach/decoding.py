"""Decoding: turns the payloads of a DataFrame of messages into columns, by a schema (JSON) or by the user's function.

Owns the column that replaces the payload, and the conversion of a dict, a tuple or an object into the fields of a struct. An error names
the message that cannot be decoded. It adds no job: the result is a DataFrame, of a batch or of a stream. A function runs in Spark's
workers, on one batch of rows per call (`PayloadDecoder`, which is pickled to them and needs no JVM). The extra `spark` is enough, without
pandas: the function is an Arrow function of Spark's, while `mapInArrow` and `pandas_udf` require pandas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from wal.errors import InvalidArgumentError
from wal.message import MessageID
from wal.runtime.user_code import described

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


Decode = Callable[[bytes], Any]
"""A function from a payload to a dict (of fields by name), a tuple or list (in their order), an object (its attributes), or None."""
ON_ERROR: Final = ("raise", "null")
_PARSED: Final = "_wal_parsed"
_MALFORMED: Final = "_wal_malformed"
"""A column that, like `_PARSED`, is only in the plan."""


def decoded(
    df: DataFrame,
    schema: str | StructType,
    *,
    decode: Decode | None = None,
    into: str = "value",
    keep_payload: bool = False,
    on_error: str = "raise",
) -> DataFrame:
    """Returns `df`, of a batch or a stream, with a struct column `into` instead of `payload` (after it with `keep_payload=True`).

    `schema` names the fields of the struct, as DDL (`"dest string, dep_delay int"`) or a StructType; each may be null. Without `decode`,
    payloads are JSON objects. With it, each payload is passed to this function, in Spark's workers. The function returns a dict, a tuple or
    list in the order of the fields, an object with attributes of their names, or None. A payload that cannot be decoded fails the job with
    an error that names the message; with `on_error="null"` its value is null.
    """
    return Decoding.of(schema, decode=decode, into=into, keep_payload=keep_payload, on_error=on_error).apply(df)


class Decoding:
    """A checked way to decode; picklable."""

    def __init__(self, schema: StructType, decode: Decode | None, *, into: str, keep_payload: bool, on_error: str) -> None:
        self._schema = schema
        self._decode = decode
        self._into = into
        self._keep_payload = keep_payload
        self._on_error = on_error

    @classmethod
    def of(cls, schema: object, *, decode: object = None, into: str = "value", keep_payload: bool = False, on_error: str) -> Decoding:
        """Checks the arguments of `decoded`; DDL needs a session."""
        if decode is not None and not callable(decode):
            raise TypeError(f"decode must be a function of one payload, not {type(decode).__name__}")
        if on_error not in ON_ERROR:
            raise InvalidArgumentError(f"on_error={on_error!r} is not one of {', '.join(map(repr, ON_ERROR))}")
        return cls(_struct(schema), decode, into=into, keep_payload=keep_payload, on_error=on_error)

    def apply(self, df: DataFrame) -> DataFrame:
        """Returns `df` with its payloads decoded; InvalidArgumentError when it has no payloads, or already has a column of that name."""
        if "payload" not in df.columns:
            raise InvalidArgumentError(f"no column payload to decode among {', '.join(df.columns)}: read the log with it")
        if self._into in df.columns:
            raise InvalidArgumentError(f"there is a column {self._into!r} already: name another one by into=…")
        return self._json(df) if self._decode is None else self._in_arrow(df, self._decode)

    def _json(self, df: DataFrame) -> DataFrame:
        """Decodes by `from_json`, with an error that names the message: Spark itself turns bad payloads into nulls, or prints `[null]`."""
        from pyspark.sql import functions as f
        from pyspark.sql.types import StringType, StructField, StructType

        fields = StructType([*self._schema.fields, StructField(_MALFORMED, StringType(), nullable=True)])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MALFORMED}
        parsed = df.withColumn(_PARSED, f.from_json(f.col("payload").cast("string"), fields, options))
        column = f.col(_PARSED)
        bad = f.col("payload").isNotNull() & (column.isNull() | column[_MALFORMED].isNotNull())
        named = []
        if "vchannel" in df.columns:
            named.append(f.format_string(" of vchannel '%s'", f.col("vchannel")))
        if "time_tick" in df.columns:
            named.append(f.format_string(" at tick %d", f.col("time_tick")))
        text = f.concat(
            f.lit("the payload of a message"),
            *named,
            f.lit(f" is not a JSON object of {self._schema.simpleString()}: "),
            f.substring(f.col("payload").cast("string"), 1, 200),
            f.lit("; decode it otherwise, or give on_error='null' to have null in its place"),
        )
        value = f.when(f.col("payload").isNotNull(), f.struct(*(column[one.name].alias(one.name) for one in self._schema)))
        value = f.when(bad, f.raise_error(text) if self._on_error == "raise" else f.lit(None)).otherwise(value)
        return parsed.select(*self._columns(df, value))

    def _in_arrow(self, df: DataFrame, decode: Decode) -> DataFrame:
        """Decodes by the user's function. It counts as nondeterministic, so that the optimizer never calls it twice for a payload."""
        from pyspark.sql import functions as f
        from pyspark.sql.pandas.functions import arrow_udf
        from pyspark.sql.pandas.types import to_arrow_type

        naming = tuple(name for name in PayloadDecoder.NAMING if name in df.columns)
        struct = to_arrow_type(self._schema, timezone="UTC")
        decoder = PayloadDecoder(decode, struct, naming=naming, on_error=self._on_error)
        # Spark takes a lambda, which has no type hints, for a function from arrays to an array; it cannot resolve the hints of `__call__`.
        make: Any = arrow_udf  # its stub has no struct as a result type
        values = make(lambda *columns: decoder(*columns), self._schema).asNondeterministic()
        value = values(f.col("payload"), *(f.col(name) for name in naming))
        return df.select(*self._columns(df, value))

    def _columns(self, df: DataFrame, value: Column) -> list[Column]:
        """Returns the columns of `df`, with this value instead of the payload, or after it."""
        from pyspark.sql import functions as f

        columns: list[Column] = []
        for name in df.columns:
            if name != "payload" or self._keep_payload:
                columns.append(f.col(f"`{name}`"))
            if name == "payload":
                columns.append(value.alias(self._into))
        return columns


def _struct(schema: object) -> StructType:
    """Returns the fields, all of them nullable: a field that a payload lacks is null, whatever the schema declares."""
    from pyspark.sql.types import StructField, StructType

    if isinstance(schema, str):
        parsed: object = StructType.fromDDL(schema)
    else:
        parsed = schema
    if not isinstance(parsed, StructType):
        raise TypeError(f"schema must be DDL such as 'dest string, dep_delay int' or a StructType, not {schema!r}")
    if not parsed.fields:
        raise InvalidArgumentError("schema has no fields: name the fields of the payloads")
    return StructType([StructField(field.name, field.dataType, True, field.metadata) for field in parsed.fields])


class PayloadDecoder:
    """The function that Spark's workers call: it maps an Arrow array of payloads to the struct array of their values.

    `naming` lists the columns that follow the payloads in a call. An error names the message of a row by these columns.
    """

    NAMING: Final = ("message_id", "vchannel")

    def __init__(self, decode: Decode, struct: pa.StructType, *, naming: Sequence[str] = (), on_error: str = "raise") -> None:
        self._decode = decode
        self._struct = struct
        self._naming = naming
        self._on_error = on_error

    def __call__(self, payloads: pa.Array, *naming: pa.Array) -> pa.StructArray:
        """Returns the struct of each payload, null for a null payload. InvalidArgumentError names the message that cannot be decoded."""
        import pyarrow as pa

        decode, null_on_error = self._decode, self._on_error == "null"
        decoded: list[Any] = []
        for row, payload in enumerate(payloads.to_pylist()):
            try:
                decoded.append(None if payload is None else decode(payload))
            except Exception as error:
                if not null_on_error:
                    raise self._failed(naming, row, described(error)) from error
                decoded.append(None)
        try:
            return self._array(decoded)
        except (pa.ArrowException, InvalidArgumentError, TypeError, ValueError, OverflowError):
            pass  # at least one row does not fit: determine which ones
        for row, value in enumerate(decoded):
            try:
                self._array([value])
            except (pa.ArrowException, InvalidArgumentError, TypeError, ValueError, OverflowError) as error:
                if not null_on_error:
                    raise self._failed(naming, row, f"{error}; it was decoded to {_shown(value)}") from error
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
                raise InvalidArgumentError(f"field {field.name!r} is not a {field.type}: {error}") from error
        missing = pa.array([value is None for value in decoded], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=missing)

    def _failed(self, naming: Sequence[pa.Array], row: int, why: str) -> InvalidArgumentError:
        names = dict(zip(self._naming, naming, strict=True))
        named = "a message"
        if "message_id" in names:
            named = f"message {MessageID.from_bytes(names['message_id'][row].as_py())}"
        if "vchannel" in names:
            named += f" of vchannel {names['vchannel'][row].as_py()!r}"
        return InvalidArgumentError(
            f"the payload of {named} cannot be decoded: {why}; decode it otherwise, or give on_error='null' to have null in its place"
        )


def _columns(names: Sequence[str], decoded: Sequence[Any]) -> list[list[Any]]:
    """Returns a list for each field, with None for missing values."""
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
