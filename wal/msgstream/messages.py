"""The classes of stream messages: rows, deleted keys, ticks, changes of collections and partitions, and OpaqueMsg for all other types.

The seeds name the types and give no fields; these are the fewest that rows and their collections need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Final, Self

from wal.errors import InvalidArgumentError
from wal.msgstream import msg_pb2 as wire
from wal.msgstream.integers import check_integer, check_integers
from wal.msgstream.ts_msg import TsMsg
from wal.msgstream.types import MsgType

__all__ = [
    "CreateCollectionMsg",
    "CreatePartitionMsg",
    "DeleteMsg",
    "DropCollectionMsg",
    "DropPartitionMsg",
    "InsertMsg",
    "OpaqueMsg",
    "RowsMsg",
    "TimeTickMsg",
]

_NAMED: Final = {int(named): named for named in MsgType}


class OpaqueMsg(TsMsg):
    """A message of any type whose fields stay bytes."""

    msg_type: int
    """Above 0, 31 bits; a MsgType if its number has a name there."""
    body: bytes = b""
    """The fields that follow the base, as they are on the wire."""

    def check(self) -> None:
        super().check()
        if not isinstance(self.msg_type, int):
            raise TypeError(f"msg_type must be a MsgType, not {self.msg_type!r}")
        if not 0 < self.msg_type < 1 << 31:
            raise InvalidArgumentError(
                f"msg_type={int(self.msg_type)} is no type: give a MsgType above 0, or another number of 31 bits"
            )
        if type(self.body) is not bytes:
            raise TypeError(f"body must be bytes, not {self.body!r}")

    def marshal_body(self) -> bytes:
        return self.body

    @classmethod
    def unmarshal_body(cls, msg_type: int, body: bytes) -> Self:
        return cls(_NAMED.get(msg_type, msg_type), body)


class RowsMsg(TsMsg, kw_only=True):
    """What messages of rows have: the collection, and a timestamp for each row.

    `begin_ts` and `end_ts` are the smallest and largest timestamp of the rows, unless `set_ts` gave the whole message one.
    `hash_keys` is empty or has one key for each row.
    """

    timestamps: Sequence[int]
    """Of each row: 64 bits, unsigned."""
    collection_id: int = 0
    partition_id: int = 0

    @property
    def begin_ts(self) -> int:
        return self.timestamp or min(self.timestamps)

    @property
    def end_ts(self) -> int:
        return self.timestamp or max(self.timestamps)

    def check(self) -> None:
        super().check()
        check_integers("collection_id and partition_id", (self.collection_id, self.partition_id), "q")
        check_integers("timestamps", self.timestamps, "Q")
        if not self.timestamps:
            raise InvalidArgumentError("the message has no rows: give at least one")
        if self.hash_keys:
            self.check_rows("hash_keys", len(self.hash_keys))

    @classmethod
    def from_parts(cls, base: wire.MsgBase, body: bytes) -> Self:
        message = super().from_parts(base, body)
        if message.hash_keys:
            message.check_rows("hash_keys", len(message.hash_keys))
        return message

    def check_rows(self, name: str, count: int) -> None:
        """Raises InvalidArgumentError if so many values are not one a row."""
        if count != len(self.timestamps):
            raise InvalidArgumentError(
                f"{name} has {count} values, and timestamps {len(self.timestamps)}: give one a row"
            )


class InsertMsg(RowsMsg):
    """Rows to insert. Value i of `timestamps`, `row_ids` and `row_data` belongs to row i."""

    msg_type: ClassVar[MsgType] = MsgType.INSERT
    timestamps: Sequence[int]
    row_ids: Sequence[int]
    """64 bits, signed."""
    row_data: Sequence[bytes]

    def check(self) -> None:
        super().check()
        check_integers("row_ids", self.row_ids, "q")
        self.check_rows("row_ids", len(self.row_ids))
        if type(self.row_data) is not list and not isinstance(self.row_data, Sequence):
            raise TypeError(f"row_data must be a sequence of bytes, not {self.row_data!r}")
        for data in self.row_data:
            if type(data) is not bytes:
                raise TypeError(f"row_data must be a sequence of bytes, not of {data!r}")
        self.check_rows("row_data", len(self.row_data))

    def marshal_body(self) -> bytes:
        return wire.InsertMsg(
            collection_id=self.collection_id,
            partition_id=self.partition_id,
            timestamps=self.timestamps,
            row_ids=self.row_ids,
            row_data=self.row_data,
        ).SerializeToString()

    @classmethod
    def unmarshal_body(cls, msg_type: int, body: bytes) -> Self:
        fields = wire.InsertMsg.FromString(body)
        return cls(
            fields.timestamps[:],
            fields.row_ids[:],
            fields.row_data[:],
            collection_id=fields.collection_id,
            partition_id=fields.partition_id,
        )


class DeleteMsg(RowsMsg):
    """Primary keys whose rows are to be deleted. Value i of `timestamps` and `primary_keys` belongs to row i."""

    msg_type: ClassVar[MsgType] = MsgType.DELETE
    timestamps: Sequence[int]
    primary_keys: Sequence[int]
    """64 bits, signed."""

    def check(self) -> None:
        super().check()
        check_integers("primary_keys", self.primary_keys, "q")
        self.check_rows("primary_keys", len(self.primary_keys))

    def marshal_body(self) -> bytes:
        return wire.DeleteMsg(
            collection_id=self.collection_id,
            partition_id=self.partition_id,
            timestamps=self.timestamps,
            primary_keys=self.primary_keys,
        ).SerializeToString()

    @classmethod
    def unmarshal_body(cls, msg_type: int, body: bytes) -> Self:
        fields = wire.DeleteMsg.FromString(body)
        return cls(
            fields.timestamps[:],
            fields.primary_keys[:],
            collection_id=fields.collection_id,
            partition_id=fields.partition_id,
        )


class TimeTickMsg(TsMsg):
    """A promise of its producer: all messages with a timestamp at or below this one were sent before."""

    msg_type: ClassVar[MsgType] = MsgType.TIME_TICK
    timestamp: int

    def marshal_body(self) -> bytes:
        return b""

    @classmethod
    def unmarshal_body(cls, msg_type: int, body: bytes) -> Self:
        wire.TimeTickMsg.FromString(body)
        return cls(0)


class _CollectionMsg(TsMsg):
    """What the changes of collections and partitions have in common. The fields of a class have the names of those of its protobuf."""

    wire_class: ClassVar[type[Any]]

    collection_id: int
    """64 bits, signed."""
    collection_name: str

    def check(self) -> None:
        super().check()
        for name in self._names():
            value = getattr(self, name)
            kind = str if name.endswith("_name") else bytes
            if name.endswith("_id"):
                check_integer(name, value, bits=64, signed=True)
            elif type(value) is not kind:
                raise TypeError(f"{name} must be {kind.__name__}, not {value!r}")
            elif not value and kind is str:
                raise InvalidArgumentError(f"{name} is empty: give the name")

    def marshal_body(self) -> bytes:
        fields: bytes = self.wire_class(**{name: getattr(self, name) for name in self._names()}).SerializeToString()
        return fields

    @classmethod
    def unmarshal_body(cls, msg_type: int, body: bytes) -> Self:
        fields = cls.wire_class.FromString(body)
        return cls(*(getattr(fields, name) for name in cls._names()))

    @classmethod
    def _names(cls) -> list[str]:
        return [field.name for field in cls.wire_class.DESCRIPTOR.fields if field.name != "base"]


class CreateCollectionMsg(_CollectionMsg):
    """A collection was created."""

    msg_type: ClassVar[MsgType] = MsgType.CREATE_COLLECTION
    wire_class = wire.CreateCollectionMsg
    schema: bytes = b""
    """In whatever form the producers and consumers agree upon."""


class DropCollectionMsg(_CollectionMsg):
    """A collection was dropped."""

    msg_type: ClassVar[MsgType] = MsgType.DROP_COLLECTION
    wire_class = wire.DropCollectionMsg


class CreatePartitionMsg(_CollectionMsg):
    """A partition of a collection was created."""

    msg_type: ClassVar[MsgType] = MsgType.CREATE_PARTITION
    wire_class = wire.CreatePartitionMsg
    partition_id: int
    partition_name: str


class DropPartitionMsg(_CollectionMsg):
    """A partition of a collection was dropped."""

    msg_type: ClassVar[MsgType] = MsgType.DROP_PARTITION
    wire_class = wire.DropPartitionMsg
    partition_id: int
    partition_name: str
