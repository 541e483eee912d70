"""The columns of a row, and which of them a read was asked for.

Owns: the schema that Spark sees, and the check of one that a user gave: any of these columns in any order, each of its own type. Fewer
columns are fewer bytes on the way to Spark, the only projection that a Python source has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wal.errors import InvalidArgumentError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["COLUMNS", "DDL", "arrow_schema", "check_schema"]

COLUMNS: Final = {
    "vchannel": "string",
    "message_id": "binary",
    "time_tick": "bigint",
    "message_type": "string",
    "txn_id": "bigint",
    "payload": "binary",
    "properties": "map<string,string>",
    "append_time": "timestamp",
}
DDL: Final = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
"""The schema of a read that asks for no other, as DDL."""
_NULLABLE: Final = "txn_id"


def check_schema(schema: StructType) -> tuple[str, ...]:
    """The names of the columns of this schema; InvalidArgumentError, with what is accepted, when one is not ours or of another type."""
    names: list[str] = []
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if COLUMNS.get(field.name) != kind:
            raise InvalidArgumentError(f"the format 'wal' has no column {field.name} {kind}: its columns are {DDL}")
        if field.name in names:
            raise InvalidArgumentError(f"the column {field.name} is asked for twice: name it once")
        if field.name == _NULLABLE and not field.nullable:
            raise InvalidArgumentError(f"{_NULLABLE} is null for messages outside transactions: it cannot be NOT NULL")
        names.append(field.name)
    if not names:
        raise InvalidArgumentError(f"the schema names no column: choose some of {DDL}")
    return tuple(names)


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark expects the batches to be, which it compares field by field, nullability included."""
    from pyspark.sql.pandas.types import to_arrow_schema

    found: Any = to_arrow_schema(schema, timezone="UTC")
    return found
