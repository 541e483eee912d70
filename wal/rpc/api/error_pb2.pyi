from google.protobuf import any_pb2 as _any_pb2
from wal.message import wire_pb2 as _wire_pb2
from wal.rpc.api import result_pb2 as _result_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StreamingCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STREAMING_CODE_OK: _ClassVar[StreamingCode]
    STREAMING_CODE_CHANNEL_EXIST: _ClassVar[StreamingCode]
    STREAMING_CODE_CHANNEL_NOT_EXIST: _ClassVar[StreamingCode]
    STREAMING_CODE_CHANNEL_FENCED: _ClassVar[StreamingCode]
    STREAMING_CODE_ON_SHUTDOWN: _ClassVar[StreamingCode]
    STREAMING_CODE_INVALID_REQUEST_SEQ: _ClassVar[StreamingCode]
    STREAMING_CODE_UNMATCHED_CHANNEL_TERM: _ClassVar[StreamingCode]
    STREAMING_CODE_IGNORED_OPERATION: _ClassVar[StreamingCode]
    STREAMING_CODE_INNER: _ClassVar[StreamingCode]
    STREAMING_CODE_EOF: _ClassVar[StreamingCode]
    STREAMING_CODE_INVAILD_ARGUMENT: _ClassVar[StreamingCode]
    STREAMING_CODE_TRANSACTION_EXPIRED: _ClassVar[StreamingCode]
    STREAMING_CODE_INVALID_TRANSACTION_STATE: _ClassVar[StreamingCode]
    STREAMING_CODE_UNRECOVERABLE: _ClassVar[StreamingCode]
    STREAMING_CODE_RESOURCE_ACQUIRED: _ClassVar[StreamingCode]
    STREAMING_CODE_UNKNOWN_OUTCOME: _ClassVar[StreamingCode]
    STREAMING_CODE_TRUNCATED: _ClassVar[StreamingCode]
    STREAMING_CODE_CORRUPTION: _ClassVar[StreamingCode]
    STREAMING_CODE_STORAGE: _ClassVar[StreamingCode]
    STREAMING_CODE_WOULD_BLOCK: _ClassVar[StreamingCode]
    STREAMING_CODE_NO_SPACE: _ClassVar[StreamingCode]
    STREAMING_CODE_LOCKED: _ClassVar[StreamingCode]
    STREAMING_CODE_FORMAT: _ClassVar[StreamingCode]
    STREAMING_CODE_NOT_LOCAL: _ClassVar[StreamingCode]
    STREAMING_CODE_UNAVAILABLE: _ClassVar[StreamingCode]
    STREAMING_CODE_SESSION_LOST: _ClassVar[StreamingCode]
    STREAMING_CODE_CONFLICT: _ClassVar[StreamingCode]
    STREAMING_CODE_UNAUTHENTICATED: _ClassVar[StreamingCode]
    STREAMING_CODE_LOG_WENT_BACK: _ClassVar[StreamingCode]
    STREAMING_CODE_NOT_LEADER: _ClassVar[StreamingCode]
    STREAMING_CODE_UNKNOWN: _ClassVar[StreamingCode]
STREAMING_CODE_OK: StreamingCode
STREAMING_CODE_CHANNEL_EXIST: StreamingCode
STREAMING_CODE_CHANNEL_NOT_EXIST: StreamingCode
STREAMING_CODE_CHANNEL_FENCED: StreamingCode
STREAMING_CODE_ON_SHUTDOWN: StreamingCode
STREAMING_CODE_INVALID_REQUEST_SEQ: StreamingCode
STREAMING_CODE_UNMATCHED_CHANNEL_TERM: StreamingCode
STREAMING_CODE_IGNORED_OPERATION: StreamingCode
STREAMING_CODE_INNER: StreamingCode
STREAMING_CODE_EOF: StreamingCode
STREAMING_CODE_INVAILD_ARGUMENT: StreamingCode
STREAMING_CODE_TRANSACTION_EXPIRED: StreamingCode
STREAMING_CODE_INVALID_TRANSACTION_STATE: StreamingCode
STREAMING_CODE_UNRECOVERABLE: StreamingCode
STREAMING_CODE_RESOURCE_ACQUIRED: StreamingCode
STREAMING_CODE_UNKNOWN_OUTCOME: StreamingCode
STREAMING_CODE_TRUNCATED: StreamingCode
STREAMING_CODE_CORRUPTION: StreamingCode
STREAMING_CODE_STORAGE: StreamingCode
STREAMING_CODE_WOULD_BLOCK: StreamingCode
STREAMING_CODE_NO_SPACE: StreamingCode
STREAMING_CODE_LOCKED: StreamingCode
STREAMING_CODE_FORMAT: StreamingCode
STREAMING_CODE_NOT_LOCAL: StreamingCode
STREAMING_CODE_UNAVAILABLE: StreamingCode
STREAMING_CODE_SESSION_LOST: StreamingCode
STREAMING_CODE_CONFLICT: StreamingCode
STREAMING_CODE_UNAUTHENTICATED: StreamingCode
STREAMING_CODE_LOG_WENT_BACK: StreamingCode
STREAMING_CODE_NOT_LEADER: StreamingCode
STREAMING_CODE_UNKNOWN: StreamingCode

class StreamingError(_message.Message):
    __slots__ = ("code", "cause", "fields")
    CODE_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    code: StreamingCode
    cause: str
    fields: ErrorFields
    def __init__(self, code: _Optional[_Union[StreamingCode, str]] = ..., cause: _Optional[str] = ..., fields: _Optional[_Union[ErrorFields, _Mapping[str, object]]] = ...) -> None: ...

class ErrorFields(_message.Message):
    __slots__ = ("outcome_unknown", "key", "keys", "holder", "earliest", "path", "offset", "expected", "pid", "bulk", "last_common", "last", "leader", "vchannel", "term")
    OUTCOME_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    BULK_FIELD_NUMBER: _ClassVar[int]
    LAST_COMMON_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    VCHANNEL_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    outcome_unknown: bool
    key: str
    keys: _containers.RepeatedCompositeFieldContainer[_wire_pb2.ResourceKey]
    holder: int
    earliest: bytes
    path: str
    offset: int
    expected: str
    pid: int
    bulk: BulkResults
    last_common: _containers.RepeatedScalarFieldContainer[bytes]
    last: bytes
    leader: str
    vchannel: str
    term: int
    def __init__(self, outcome_unknown: bool = ..., key: _Optional[str] = ..., keys: _Optional[_Iterable[_Union[_wire_pb2.ResourceKey, _Mapping[str, object]]]] = ..., holder: _Optional[int] = ..., earliest: _Optional[bytes] = ..., path: _Optional[str] = ..., offset: _Optional[int] = ..., expected: _Optional[str] = ..., pid: _Optional[int] = ..., bulk: _Optional[_Union[BulkResults, _Mapping[str, object]]] = ..., last_common: _Optional[_Iterable[bytes]] = ..., last: _Optional[bytes] = ..., leader: _Optional[str] = ..., vchannel: _Optional[str] = ..., term: _Optional[int] = ...) -> None: ...

class BulkResults(_message.Message):
    __slots__ = ("appended",)
    APPENDED_FIELD_NUMBER: _ClassVar[int]
    appended: _containers.RepeatedCompositeFieldContainer[_result_pb2.AppendedRange]
    def __init__(self, appended: _Optional[_Iterable[_Union[_result_pb2.AppendedRange, _Mapping[str, object]]]] = ...) -> None: ...

class Status(_message.Message):
    __slots__ = ("code", "message", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    details: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping[str, object]]]] = ...) -> None: ...
