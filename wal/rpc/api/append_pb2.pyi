from google.protobuf import empty_pb2 as _empty_pb2
from wal.message import wire_pb2 as _wire_pb2
from wal.rpc.api import cursors_pb2 as _cursors_pb2
from wal.rpc.api import error_pb2 as _error_pb2
from wal.rpc.api import pchannel_pb2 as _pchannel_pb2
from wal.rpc.api import result_pb2 as _result_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OpenProducer(_message.Message):
    __slots__ = ("pchannel", "session")
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    pchannel: _pchannel_pb2.PChannelInfo
    session: bytes
    def __init__(self, pchannel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ..., session: _Optional[bytes] = ...) -> None: ...

class ProducerRequest(_message.Message):
    __slots__ = ("request_id", "seen_time_tick", "close", "append", "append_txn", "begin_txn", "keep_txn", "commit_txn", "rollback_txn", "withdraw", "open")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SEEN_TIME_TICK_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    APPEND_TXN_FIELD_NUMBER: _ClassVar[int]
    BEGIN_TXN_FIELD_NUMBER: _ClassVar[int]
    KEEP_TXN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TXN_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_TXN_FIELD_NUMBER: _ClassVar[int]
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    seen_time_tick: int
    close: _empty_pb2.Empty
    append: Append
    append_txn: AppendTxn
    begin_txn: BeginTxn
    keep_txn: KeepTxn
    commit_txn: CommitTxn
    rollback_txn: RollbackTxn
    withdraw: Withdraw
    open: OpenProducer
    def __init__(self, request_id: _Optional[int] = ..., seen_time_tick: _Optional[int] = ..., close: _Optional[_Union[_empty_pb2.Empty, _Mapping[str, object]]] = ..., append: _Optional[_Union[Append, _Mapping[str, object]]] = ..., append_txn: _Optional[_Union[AppendTxn, _Mapping[str, object]]] = ..., begin_txn: _Optional[_Union[BeginTxn, _Mapping[str, object]]] = ..., keep_txn: _Optional[_Union[KeepTxn, _Mapping[str, object]]] = ..., commit_txn: _Optional[_Union[CommitTxn, _Mapping[str, object]]] = ..., rollback_txn: _Optional[_Union[RollbackTxn, _Mapping[str, object]]] = ..., withdraw: _Optional[_Union[Withdraw, _Mapping[str, object]]] = ..., open: _Optional[_Union[OpenProducer, _Mapping[str, object]]] = ...) -> None: ...

class ProducerResponse(_message.Message):
    __slots__ = ("opened", "outcomes", "close")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    opened: ProducerOpened
    outcomes: Outcomes
    close: _empty_pb2.Empty
    def __init__(self, opened: _Optional[_Union[ProducerOpened, _Mapping[str, object]]] = ..., outcomes: _Optional[_Union[Outcomes, _Mapping[str, object]]] = ..., close: _Optional[_Union[_empty_pb2.Empty, _Mapping[str, object]]] = ...) -> None: ...

class ProducerOpened(_message.Message):
    __slots__ = ("log", "tail")
    LOG_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    log: _pchannel_pb2.LogIdentity
    tail: _pchannel_pb2.TailState
    def __init__(self, log: _Optional[_Union[_pchannel_pb2.LogIdentity, _Mapping[str, object]]] = ..., tail: _Optional[_Union[_pchannel_pb2.TailState, _Mapping[str, object]]] = ...) -> None: ...

class MessageColumns(_message.Message):
    __slots__ = ("vchannels", "vchannel_numbers", "payload_lengths", "payloads", "types", "properties_lengths", "properties")
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    VCHANNEL_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    vchannels: _containers.RepeatedScalarFieldContainer[str]
    vchannel_numbers: bytes
    payload_lengths: bytes
    payloads: bytes
    types: bytes
    properties_lengths: bytes
    properties: bytes
    def __init__(self, vchannels: _Optional[_Iterable[str]] = ..., vchannel_numbers: _Optional[bytes] = ..., payload_lengths: _Optional[bytes] = ..., payloads: _Optional[bytes] = ..., types: _Optional[bytes] = ..., properties_lengths: _Optional[bytes] = ..., properties: _Optional[bytes] = ...) -> None: ...

class Append(_message.Message):
    __slots__ = ("messages", "key_lengths", "keys", "barrier_time_ticks", "expected_lengths", "expected")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    KEY_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    BARRIER_TIME_TICKS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    messages: MessageColumns
    key_lengths: bytes
    keys: bytes
    barrier_time_ticks: bytes
    expected_lengths: bytes
    expected: bytes
    def __init__(self, messages: _Optional[_Union[MessageColumns, _Mapping[str, object]]] = ..., key_lengths: _Optional[bytes] = ..., keys: _Optional[bytes] = ..., barrier_time_ticks: _Optional[bytes] = ..., expected_lengths: _Optional[bytes] = ..., expected: _Optional[bytes] = ...) -> None: ...

class WriteOptions(_message.Message):
    __slots__ = ("barrier_time_tick", "key", "expected_last")
    class ExpectedLastEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: ExpectedLast
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[ExpectedLast, _Mapping[str, object]]] = ...) -> None: ...
    BARRIER_TIME_TICK_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_LAST_FIELD_NUMBER: _ClassVar[int]
    barrier_time_tick: int
    key: bytes
    expected_last: _containers.MessageMap[str, ExpectedLast]
    def __init__(self, barrier_time_tick: _Optional[int] = ..., key: _Optional[bytes] = ..., expected_last: _Optional[_Mapping[str, ExpectedLast]] = ...) -> None: ...

class ExpectedLast(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    def __init__(self, id: _Optional[bytes] = ...) -> None: ...

class AppendTxn(_message.Message):
    __slots__ = ("vchannels", "bodies", "options", "save")
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    vchannels: _containers.RepeatedScalarFieldContainer[str]
    bodies: MessageColumns
    options: WriteOptions
    save: _cursors_pb2.CursorSave
    def __init__(self, vchannels: _Optional[_Iterable[str]] = ..., bodies: _Optional[_Union[MessageColumns, _Mapping[str, object]]] = ..., options: _Optional[_Union[WriteOptions, _Mapping[str, object]]] = ..., save: _Optional[_Union[_cursors_pb2.CursorSave, _Mapping[str, object]]] = ...) -> None: ...

class BeginTxn(_message.Message):
    __slots__ = ("vchannels", "keepalive_s", "options")
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    KEEPALIVE_S_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    vchannels: _containers.RepeatedScalarFieldContainer[str]
    keepalive_s: float
    options: WriteOptions
    def __init__(self, vchannels: _Optional[_Iterable[str]] = ..., keepalive_s: _Optional[float] = ..., options: _Optional[_Union[WriteOptions, _Mapping[str, object]]] = ...) -> None: ...

class KeepTxn(_message.Message):
    __slots__ = ("txn_id", "bodies", "bytes")
    TXN_ID_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    txn_id: int
    bodies: int
    bytes: int
    def __init__(self, txn_id: _Optional[int] = ..., bodies: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class CommitTxn(_message.Message):
    __slots__ = ("txn", "vchannels", "bodies", "options", "save")
    TXN_FIELD_NUMBER: _ClassVar[int]
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    BODIES_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    txn: BegunTxn
    vchannels: _containers.RepeatedScalarFieldContainer[str]
    bodies: MessageColumns
    options: WriteOptions
    save: _cursors_pb2.CursorSave
    def __init__(self, txn: _Optional[_Union[BegunTxn, _Mapping[str, object]]] = ..., vchannels: _Optional[_Iterable[str]] = ..., bodies: _Optional[_Union[MessageColumns, _Mapping[str, object]]] = ..., options: _Optional[_Union[WriteOptions, _Mapping[str, object]]] = ..., save: _Optional[_Union[_cursors_pb2.CursorSave, _Mapping[str, object]]] = ...) -> None: ...

class RollbackTxn(_message.Message):
    __slots__ = ("txn_id",)
    TXN_ID_FIELD_NUMBER: _ClassVar[int]
    txn_id: int
    def __init__(self, txn_id: _Optional[int] = ...) -> None: ...

class Withdraw(_message.Message):
    __slots__ = ("withdrawn_ids",)
    WITHDRAWN_IDS_FIELD_NUMBER: _ClassVar[int]
    withdrawn_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, withdrawn_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Outcomes(_message.Message):
    __slots__ = ("appended", "failed", "begun", "done")
    APPENDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    appended: _containers.RepeatedCompositeFieldContainer[_result_pb2.AppendedRange]
    failed: _containers.RepeatedCompositeFieldContainer[FailedRange]
    begun: _containers.RepeatedCompositeFieldContainer[Began]
    done: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, appended: _Optional[_Iterable[_Union[_result_pb2.AppendedRange, _Mapping[str, object]]]] = ..., failed: _Optional[_Iterable[_Union[FailedRange, _Mapping[str, object]]]] = ..., begun: _Optional[_Iterable[_Union[Began, _Mapping[str, object]]]] = ..., done: _Optional[_Iterable[int]] = ...) -> None: ...

class FailedRange(_message.Message):
    __slots__ = ("first_request_id", "count", "error")
    FIRST_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    first_request_id: int
    count: int
    error: _error_pb2.StreamingError
    def __init__(self, first_request_id: _Optional[int] = ..., count: _Optional[int] = ..., error: _Optional[_Union[_error_pb2.StreamingError, _Mapping[str, object]]] = ...) -> None: ...

class Began(_message.Message):
    __slots__ = ("request_id", "txn")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    txn: BegunTxn
    def __init__(self, request_id: _Optional[int] = ..., txn: _Optional[_Union[BegunTxn, _Mapping[str, object]]] = ...) -> None: ...

class BegunTxn(_message.Message):
    __slots__ = ("context", "term", "begun_at", "incarnations")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    BEGUN_AT_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    context: _wire_pb2.TxnContext
    term: int
    begun_at: _pchannel_pb2.Position
    incarnations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, context: _Optional[_Union[_wire_pb2.TxnContext, _Mapping[str, object]]] = ..., term: _Optional[int] = ..., begun_at: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ..., incarnations: _Optional[_Iterable[int]] = ...) -> None: ...
