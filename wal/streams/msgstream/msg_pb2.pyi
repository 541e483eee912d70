from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MsgBase(_message.Message):
    __slots__ = ("msg_type", "msg_id", "timestamp", "source_id", "target_id", "properties", "hash_keys")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MSG_TYPE_FIELD_NUMBER: _ClassVar[int]
    MSG_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    SOURCE_ID_FIELD_NUMBER: _ClassVar[int]
    TARGET_ID_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    HASH_KEYS_FIELD_NUMBER: _ClassVar[int]
    msg_type: int
    msg_id: int
    timestamp: int
    source_id: int
    target_id: int
    properties: _containers.ScalarMap[str, str]
    hash_keys: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, msg_type: _Optional[int] = ..., msg_id: _Optional[int] = ..., timestamp: _Optional[int] = ..., source_id: _Optional[int] = ..., target_id: _Optional[int] = ..., properties: _Optional[_Mapping[str, str]] = ..., hash_keys: _Optional[_Iterable[int]] = ...) -> None: ...

class InsertMsg(_message.Message):
    __slots__ = ("base", "collection_id", "partition_id", "timestamps", "row_ids", "row_data")
    BASE_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMPS_FIELD_NUMBER: _ClassVar[int]
    ROW_IDS_FIELD_NUMBER: _ClassVar[int]
    ROW_DATA_FIELD_NUMBER: _ClassVar[int]
    base: MsgBase
    collection_id: int
    partition_id: int
    timestamps: _containers.RepeatedScalarFieldContainer[int]
    row_ids: _containers.RepeatedScalarFieldContainer[int]
    row_data: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, base: _Optional[_Union[MsgBase, _Mapping[str, object]]] = ..., collection_id: _Optional[int] = ..., partition_id: _Optional[int] = ..., timestamps: _Optional[_Iterable[int]] = ..., row_ids: _Optional[_Iterable[int]] = ..., row_data: _Optional[_Iterable[bytes]] = ...) -> None: ...

class DeleteMsg(_message.Message):
    __slots__ = ("base", "collection_id", "partition_id", "timestamps", "primary_keys")
    BASE_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMPS_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEYS_FIELD_NUMBER: _ClassVar[int]
    base: MsgBase
    collection_id: int
    partition_id: int
    timestamps: _containers.RepeatedScalarFieldContainer[int]
    primary_keys: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, base: _Optional[_Union[MsgBase, _Mapping[str, object]]] = ..., collection_id: _Optional[int] = ..., partition_id: _Optional[int] = ..., timestamps: _Optional[_Iterable[int]] = ..., primary_keys: _Optional[_Iterable[int]] = ...) -> None: ...

class TimeTickMsg(_message.Message):
    __slots__ = ("base",)
    BASE_FIELD_NUMBER: _ClassVar[int]
    base: MsgBase
    def __init__(self, base: _Optional[_Union[MsgBase, _Mapping[str, object]]] = ...) -> None: ...

class CreateCollectionMsg(_message.Message):
    __slots__ = ("base", "collection_id", "collection_name", "schema")
    BASE_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_ID_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FIELD_NUMBER: _ClassVar[int]
    base: MsgBase
    collection_id: int
    collection_name: str
    schema: bytes
    def __init__(self, base: _Optional[_Union[MsgBase, _Mapping[str, object]]] = ..., collection_id: _Optional[int] = ..., collection_name: _Optional[str] = ..., schema: _Optional[bytes] = ...) -> None: ...

class DropCollectionMsg(_message.Message):
    __slots__ = ("base", "collection_id", "collection_name")
    BASE_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_ID_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    base: MsgBase
    collection_id: int
    collection_name: str
    def __init__(self, base: _Optional[_Union[MsgBase, _Mapping[str, object]]] = ..., collection_id: _Optional[int] = ..., collection_name: _Optional[str] = ...) -> None: ...

class CreatePartitionMsg(_message.Message):
    __slots__ = ("base", "collection_id", "collection_name", "partition_id", "partition_name")
    BASE_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_ID_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_NAME_FIELD_NUMBER: _ClassVar[int]
    base: MsgBase
    collection_id: int
    collection_name: str
    partition_id: int
    partition_name: str
    def __init__(self, base: _Optional[_Union[MsgBase, _Mapping[str, object]]] = ..., collection_id: _Optional[int] = ..., collection_name: _Optional[str] = ..., partition_id: _Optional[int] = ..., partition_name: _Optional[str] = ...) -> None: ...

class DropPartitionMsg(_message.Message):
    __slots__ = ("base", "collection_id", "collection_name", "partition_id", "partition_name")
    BASE_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_ID_FIELD_NUMBER: _ClassVar[int]
    COLLECTION_NAME_FIELD_NUMBER: _ClassVar[int]
    PARTITION_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_NAME_FIELD_NUMBER: _ClassVar[int]
    base: MsgBase
    collection_id: int
    collection_name: str
    partition_id: int
    partition_name: str
    def __init__(self, base: _Optional[_Union[MsgBase, _Mapping[str, object]]] = ..., collection_id: _Optional[int] = ..., collection_name: _Optional[str] = ..., partition_id: _Optional[int] = ..., partition_name: _Optional[str] = ...) -> None: ...
