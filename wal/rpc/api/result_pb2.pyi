from google.protobuf import any_pb2 as _any_pb2
from wal.message import wire_pb2 as _wire_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AppendedRange(_message.Message):
    __slots__ = ("first_request_id", "count", "first_id", "first_time_tick", "last_confirmed", "txn_context", "extra", "duplicate")
    FIRST_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIME_TICK_FIELD_NUMBER: _ClassVar[int]
    LAST_CONFIRMED_FIELD_NUMBER: _ClassVar[int]
    TXN_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    first_request_id: int
    count: int
    first_id: bytes
    first_time_tick: int
    last_confirmed: bytes
    txn_context: _wire_pb2.TxnContext
    extra: _any_pb2.Any
    duplicate: bool
    def __init__(self, first_request_id: _Optional[int] = ..., count: _Optional[int] = ..., first_id: _Optional[bytes] = ..., first_time_tick: _Optional[int] = ..., last_confirmed: _Optional[bytes] = ..., txn_context: _Optional[_Union[_wire_pb2.TxnContext, _Mapping[str, object]]] = ..., extra: _Optional[_Union[_any_pb2.Any, _Mapping[str, object]]] = ..., duplicate: bool = ...) -> None: ...
