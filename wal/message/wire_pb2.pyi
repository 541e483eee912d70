from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class MessageID(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    def __init__(self, id: _Optional[bytes] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("payload", "properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    properties: _containers.ScalarMap[str, str]
    def __init__(self, payload: _Optional[bytes] = ..., properties: _Optional[_Mapping[str, str]] = ...) -> None: ...

class TxnContext(_message.Message):
    __slots__ = ("txn_id", "keepalive_milliseconds")
    TXN_ID_FIELD_NUMBER: _ClassVar[int]
    KEEPALIVE_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    txn_id: int
    keepalive_milliseconds: int
    def __init__(self, txn_id: _Optional[int] = ..., keepalive_milliseconds: _Optional[int] = ...) -> None: ...

class ResourceKey(_message.Message):
    __slots__ = ("domain", "key", "shared")
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SHARED_FIELD_NUMBER: _ClassVar[int]
    domain: str
    key: str
    shared: bool
    def __init__(self, domain: _Optional[str] = ..., key: _Optional[str] = ..., shared: bool = ...) -> None: ...

class BroadcastHeader(_message.Message):
    __slots__ = ("broadcast_id", "vchannels", "resource_keys", "ack_sync_up")
    BROADCAST_ID_FIELD_NUMBER: _ClassVar[int]
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_KEYS_FIELD_NUMBER: _ClassVar[int]
    ACK_SYNC_UP_FIELD_NUMBER: _ClassVar[int]
    broadcast_id: int
    vchannels: _containers.RepeatedScalarFieldContainer[str]
    resource_keys: _containers.RepeatedCompositeFieldContainer[ResourceKey]
    ack_sync_up: bool
    def __init__(self, broadcast_id: _Optional[int] = ..., vchannels: _Optional[_Iterable[str]] = ..., resource_keys: _Optional[_Iterable[_Union[ResourceKey, _Mapping[str, object]]]] = ..., ack_sync_up: bool = ...) -> None: ...

class BeginTxnHeader(_message.Message):
    __slots__ = ("keepalive_milliseconds",)
    KEEPALIVE_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    keepalive_milliseconds: int
    def __init__(self, keepalive_milliseconds: _Optional[int] = ...) -> None: ...

class CommitTxnHeader(_message.Message):
    __slots__ = ("vchannels",)
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    vchannels: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, vchannels: _Optional[_Iterable[str]] = ...) -> None: ...
