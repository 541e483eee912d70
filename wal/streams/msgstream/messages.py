"""The classes of stream messages: rows, deleted keys, ticks, changes of collections and partitions, and OpaqueMsg for all other types.

Milvus names the types and defines no fields; these are the minimum that rows and their collections need.

A constructor checks every value. Values that protobuf has parsed have the right types and widths. So of a received message only its type
and the lengths of its rows are checked, and the fields are converted when they are first read (`ts_msg.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import Any, ClassVar, Final, Self

import msgspec
from google.protobuf.message import DecodeError

from wal.errors import InvalidArgumentError
from wal.streams.msgstream import msg_pb2 as wire
from wal.streams.msgstream.checks import check_integer, check_integers
from wal.streams.msgstream.ts_msg import BASE, TsMsg, other_type, split, undecodable
from wal.streams.msgstream.types import MsgType

_NAMED: Final = {int(named): named for named in MsgType}


class _Parts(msgspec.Struct, gc=False):
    """A message on the wire of which the base alone is parsed."""

    base: wire.MsgBase
    body: bytes


class OpaqueMsg(TsMsg):
    """A message of any type whose fields stay bytes."""

    msg_type: int
    """Above 0, 31 bits; a MsgType if its number has a name there."""
    body: bytes = b""
    """The fields that follow the base, as they are on the wire."""

    _READERS = TsMsg._READERS | {"body": lambda message: message._parsed.body}
    _parse = staticmethod(lambda data: _Parts(*split(data)))

    def check(self) -> None:
        super().check()
        if not isinstance(self.msg_type, int):
            raise TypeError(f"msg_type must be a MsgType, not {self.msg_type!r}")
        if not 0 < self.msg_type < 1 << 31:
            raise InvalidArgumentError(f"msg_type={int(self.msg_type)} is not a type: give a MsgType above 0, or another number of 31 bits")
        if type(self.body) is not bytes:
            raise TypeError(f"body must be bytes, not {self.body!r}")

    def marshal_body(self) -> bytes:
        return self.body

    @classmethod
    def unmarshal(cls, data: bytes) -> Self:
        base = split(data)[0]
        message = cls._received(data)
        message.timestamp = base.timestamp
        message.msg_type = _NAMED.get(base.msg_type, base.msg_type)
        return message

    @classmethod
    @cache
    def _blank(cls) -> Self:
        return cls(1)


class RowsMsg(TsMsg, kw_only=True):
    """The base of messages of rows: the collection, and a timestamp for each row.

    `begin_ts` and `end_ts` are the smallest and largest timestamp of the rows, unless `set_ts` set one for the whole message. `hash_keys`
    is empty or has one key for each row.
    """

    columns: ClassVar[tuple[str, ...]]
    """The names of the fields, beside `timestamps`, that have a value for each row."""

    timestamps: Sequence[int]
    """A timestamp for each row: 64 bits, unsigned."""
    collection_id: int = 0
    partition_id: int = 0

    _READERS = TsMsg._READERS | {
        "collection_id": lambda message: message._parsed.collection_id,
        "partition_id": lambda message: message._parsed.partition_id,
    }

    @property
    def begin_ts(self) -> int:
        return self.timestamp or min(self.timestamps)

    @property
    def end_ts(self) -> int:
        return self.timestamp or max(self.timestamps)

    def check(self) -> None:
        super().check()
        check_integers("collection_id and partition_id", [self.collection_id, self.partition_id], "q")
        check_integers("timestamps", self.timestamps, "Q")

    def check_lengths(self) -> None:
        """Raises InvalidArgumentError, which names the field, unless each field has one value for each row."""
        rows = len(self.timestamps)
        if not rows:
            raise InvalidArgumentError("the message has no rows: give at least one")
        for name in self.columns:
            count = len(getattr(self, name))
            if count != rows and (count or name != "hash_keys"):
                raise InvalidArgumentError(f"{name} has {count} values, and timestamps {rows}: give one a row")

    @classmethod
    def unmarshal(cls, data: bytes) -> Self:
        if type(data) is not bytes or data[:1] != BASE:
            split(data)  # raises the error with the reason
        try:
            fields = cls._parse(data)
        except DecodeError as error:
            raise undecodable(data, f"a {cls.__name__}: {error}") from error
        base = fields.base
        if base.msg_type != cls.msg_type:
            raise other_type(cls, cls.msg_type, base)
        message = cls._received(data)
        message.timestamp = base.timestamp
        message.timestamps = timestamps = fields.timestamps[:]  # every stream needs them at once
        if not cls._has_rows(len(timestamps), fields, base):
            message.check_lengths()
        return message

    @classmethod
    def _has_rows(cls, rows: int, fields: Any, base: wire.MsgBase) -> bool:
        """Returns whether `check_lengths` would return; the check in protobuf is faster."""
        raise NotImplementedError


class InsertMsg(RowsMsg):
    """Rows to insert. Value i of `timestamps`, `row_ids` and `row_data` belongs to row i."""

    msg_type: ClassVar[MsgType] = MsgType.INSERT
    columns = ("hash_keys", "row_ids", "row_data")
    _parse = staticmethod(wire.InsertMsg.FromString)
    timestamps: Sequence[int]
    row_ids: Sequence[int]
    """64 bits, signed."""
    row_data: Sequence[bytes]

    _READERS = RowsMsg._READERS | {
        "row_ids": lambda message: message._parsed.row_ids[:],
        "row_data": lambda message: message._parsed.row_data[:],
    }

    def check(self) -> None:
        super().check()
        check_integers("row_ids", self.row_ids, "q")
        if type(self.row_data) is not list and not isinstance(self.row_data, Sequence):
            raise TypeError(f"row_data must be a sequence of bytes, not {self.row_data!r}")
        for data in self.row_data:
            if type(data) is not bytes:
                raise TypeError(f"row_data must be a sequence of bytes, not of {data!r}")
        self.check_lengths()

    def marshal_body(self) -> bytes:
        fields = wire.InsertMsg()
        fields.collection_id = self.collection_id
        fields.partition_id = self.partition_id
        fields.timestamps.extend(self.timestamps)
        fields.row_ids.extend(self.row_ids)
        fields.row_data.extend(self.row_data)
        return fields.SerializeToString()

    @classmethod
    def _has_rows(cls, rows: int, fields: wire.InsertMsg, base: wire.MsgBase) -> bool:
        return 0 < rows == len(fields.row_ids) == len(fields.row_data) and len(base.hash_keys) in (0, rows)

    @classmethod
    @cache
    def _blank(cls) -> Self:
        return cls([0], [0], [b""])


class DeleteMsg(RowsMsg):
    """Primary keys whose rows are to be deleted. Value i of `timestamps` and `primary_keys` belongs to row i."""

    msg_type: ClassVar[MsgType] = MsgType.DELETE
    columns = ("hash_keys", "primary_keys")
    _parse = staticmethod(wire.DeleteMsg.FromString)
    timestamps: Sequence[int]
    primary_keys: Sequence[int]
    """64 bits, signed."""

    _READERS = RowsMsg._READERS | {"primary_keys": lambda message: message._parsed.primary_keys[:]}

    def check(self) -> None:
        super().check()
        check_integers("primary_keys", self.primary_keys, "q")
        self.check_lengths()

    def marshal_body(self) -> bytes:
        fields = wire.DeleteMsg()
        fields.collection_id = self.collection_id
        fields.partition_id = self.partition_id
        fields.timestamps.extend(self.timestamps)
        fields.primary_keys.extend(self.primary_keys)
        return fields.SerializeToString()

    @classmethod
    def _has_rows(cls, rows: int, fields: wire.DeleteMsg, base: wire.MsgBase) -> bool:
        return 0 < rows == len(fields.primary_keys) and len(base.hash_keys) in (0, rows)

    @classmethod
    @cache
    def _blank(cls) -> Self:
        return cls([0], [0])


class TimeTickMsg(TsMsg):
    """A promise of its producer: all messages with a timestamp at or below this one were sent before."""

    msg_type: ClassVar[MsgType] = MsgType.TIME_TICK
    timestamp: int

    def marshal_body(self) -> bytes:
        return b""

    @classmethod
    def unmarshal_body(cls, msg_type: int, body: bytes) -> Self:
        if body:
            wire.TimeTickMsg.FromString(body)
        return copy(cls._blank())

    @classmethod
    @cache
    def _blank(cls) -> Self:
        return cls(0)


class _CollectionMsg(TsMsg):
    """The base of changes of collections and partitions. The fields of a class have the names of those of its protobuf."""

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
    """In any form that the producers and consumers agree upon."""


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
