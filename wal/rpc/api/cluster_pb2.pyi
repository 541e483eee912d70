from google.protobuf import empty_pb2 as _empty_pb2
from wal.message import wire_pb2 as _wire_pb2
from wal.rpc.api import append_pb2 as _append_pb2
from wal.rpc.api import frames_pb2 as _frames_pb2
from wal.rpc.api import pchannel_pb2 as _pchannel_pb2
from wal.rpc.api import pchannel_calls_pb2 as _pchannel_calls_pb2
from wal.rpc.api import requests_pb2 as _requests_pb2
from wal.rpc.api import result_pb2 as _result_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeLogRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LogDescription(_message.Message):
    __slots__ = ("wal_name", "pchannels", "frame_bytes_max", "settings", "log_id", "judges_expected_last", "saves_cursors")
    WAL_NAME_FIELD_NUMBER: _ClassVar[int]
    PCHANNELS_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    JUDGES_EXPECTED_LAST_FIELD_NUMBER: _ClassVar[int]
    SAVES_CURSORS_FIELD_NUMBER: _ClassVar[int]
    wal_name: str
    pchannels: _containers.RepeatedCompositeFieldContainer[_pchannel_pb2.LogIdentity]
    frame_bytes_max: int
    settings: LogSettings
    log_id: int
    judges_expected_last: bool
    saves_cursors: bool
    def __init__(self, wal_name: _Optional[str] = ..., pchannels: _Optional[_Iterable[_Union[_pchannel_pb2.LogIdentity, _Mapping[str, object]]]] = ..., frame_bytes_max: _Optional[int] = ..., settings: _Optional[_Union[LogSettings, _Mapping[str, object]]] = ..., log_id: _Optional[int] = ..., judges_expected_last: bool = ..., saves_cursors: bool = ...) -> None: ...

class LogSettings(_message.Message):
    __slots__ = ("create_vchannels", "vchannels_max", "message_bytes_max", "txn_bytes_max", "txn_bodies_max", "txn_keepalive", "open_txn_bytes_max", "in_flight_bytes_max", "time_tick_interval_s", "idempotency_window_count", "idempotency_window_by_age", "idempotency_window_s", "producers_max", "broadcast_tasks_max", "broadcast_vchannels_max", "retention_bytes", "retention_s", "cursor_lag_bytes_max", "cursor_age_max_s", "scheduled_max", "scheduled_bytes_max")
    CREATE_VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    VCHANNELS_MAX_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    TXN_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    TXN_BODIES_MAX_FIELD_NUMBER: _ClassVar[int]
    TXN_KEEPALIVE_FIELD_NUMBER: _ClassVar[int]
    OPEN_TXN_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    TIME_TICK_INTERVAL_S_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_WINDOW_COUNT_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_WINDOW_BY_AGE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    PRODUCERS_MAX_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_TASKS_MAX_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_VCHANNELS_MAX_FIELD_NUMBER: _ClassVar[int]
    RETENTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    RETENTION_S_FIELD_NUMBER: _ClassVar[int]
    CURSOR_LAG_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    CURSOR_AGE_MAX_S_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_MAX_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    create_vchannels: bool
    vchannels_max: int
    message_bytes_max: int
    txn_bytes_max: int
    txn_bodies_max: int
    txn_keepalive: float
    open_txn_bytes_max: int
    in_flight_bytes_max: int
    time_tick_interval_s: float
    idempotency_window_count: int
    idempotency_window_by_age: bool
    idempotency_window_s: float
    producers_max: int
    broadcast_tasks_max: int
    broadcast_vchannels_max: int
    retention_bytes: int
    retention_s: float
    cursor_lag_bytes_max: int
    cursor_age_max_s: float
    scheduled_max: int
    scheduled_bytes_max: int
    def __init__(self, create_vchannels: bool = ..., vchannels_max: _Optional[int] = ..., message_bytes_max: _Optional[int] = ..., txn_bytes_max: _Optional[int] = ..., txn_bodies_max: _Optional[int] = ..., txn_keepalive: _Optional[float] = ..., open_txn_bytes_max: _Optional[int] = ..., in_flight_bytes_max: _Optional[int] = ..., time_tick_interval_s: _Optional[float] = ..., idempotency_window_count: _Optional[int] = ..., idempotency_window_by_age: bool = ..., idempotency_window_s: _Optional[float] = ..., producers_max: _Optional[int] = ..., broadcast_tasks_max: _Optional[int] = ..., broadcast_vchannels_max: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., retention_s: _Optional[float] = ..., cursor_lag_bytes_max: _Optional[int] = ..., cursor_age_max_s: _Optional[float] = ..., scheduled_max: _Optional[int] = ..., scheduled_bytes_max: _Optional[int] = ...) -> None: ...

class LocateVChannelsRequest(_message.Message):
    __slots__ = ("names", "create", "together")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    TOGETHER_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    create: bool
    together: bool
    def __init__(self, names: _Optional[_Iterable[str]] = ..., create: bool = ..., together: bool = ...) -> None: ...

class LocateVChannelsResponse(_message.Message):
    __slots__ = ("vchannels",)
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    vchannels: _containers.RepeatedCompositeFieldContainer[_pchannel_pb2.VChannelState]
    def __init__(self, vchannels: _Optional[_Iterable[_Union[_pchannel_pb2.VChannelState, _Mapping[str, object]]]] = ...) -> None: ...

class CreateVChannelRequest(_message.Message):
    __slots__ = ("name", "pchannel")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    pchannel: str
    def __init__(self, name: _Optional[str] = ..., pchannel: _Optional[str] = ...) -> None: ...

class DropVChannelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ListVChannelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VChannelStates(_message.Message):
    __slots__ = ("vchannels", "floors")
    class FloorsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    FLOORS_FIELD_NUMBER: _ClassVar[int]
    vchannels: _containers.RepeatedCompositeFieldContainer[_pchannel_pb2.VChannelState]
    floors: _containers.ScalarMap[str, int]
    def __init__(self, vchannels: _Optional[_Iterable[_Union[_pchannel_pb2.VChannelState, _Mapping[str, object]]]] = ..., floors: _Optional[_Mapping[str, int]] = ...) -> None: ...

class WatchVChannelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreateChannelsRequest(_message.Message):
    __slots__ = ("owner", "count")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    owner: _pchannel_pb2.OwnerDescription
    count: int
    def __init__(self, owner: _Optional[_Union[_pchannel_pb2.OwnerDescription, _Mapping[str, object]]] = ..., count: _Optional[int] = ...) -> None: ...

class ChannelNames(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class ChannelDescription(_message.Message):
    __slots__ = ("name", "owner")
    NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    name: str
    owner: _pchannel_pb2.OwnerDescription
    def __init__(self, name: _Optional[str] = ..., owner: _Optional[_Union[_pchannel_pb2.OwnerDescription, _Mapping[str, object]]] = ...) -> None: ...

class ChannelDescriptions(_message.Message):
    __slots__ = ("channels",)
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    channels: _containers.RepeatedCompositeFieldContainer[ChannelDescription]
    def __init__(self, channels: _Optional[_Iterable[_Union[ChannelDescription, _Mapping[str, object]]]] = ...) -> None: ...

class AllocateRequest(_message.Message):
    __slots__ = ("count", "seen_time_tick")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SEEN_TIME_TICK_FIELD_NUMBER: _ClassVar[int]
    count: int
    seen_time_tick: int
    def __init__(self, count: _Optional[int] = ..., seen_time_tick: _Optional[int] = ...) -> None: ...

class AllocatedRange(_message.Message):
    __slots__ = ("first", "count")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first: int
    count: int
    def __init__(self, first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class AppendBroadcastRequest(_message.Message):
    __slots__ = ("vchannels", "payload", "message_type", "properties", "resource_keys", "needs_ack", "wait", "seen_time_tick")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_KEYS_FIELD_NUMBER: _ClassVar[int]
    NEEDS_ACK_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    SEEN_TIME_TICK_FIELD_NUMBER: _ClassVar[int]
    vchannels: _containers.RepeatedScalarFieldContainer[str]
    payload: bytes
    message_type: int
    properties: _containers.ScalarMap[str, str]
    resource_keys: _containers.RepeatedCompositeFieldContainer[_wire_pb2.ResourceKey]
    needs_ack: bool
    wait: bool
    seen_time_tick: int
    def __init__(self, vchannels: _Optional[_Iterable[str]] = ..., payload: _Optional[bytes] = ..., message_type: _Optional[int] = ..., properties: _Optional[_Mapping[str, str]] = ..., resource_keys: _Optional[_Iterable[_Union[_wire_pb2.ResourceKey, _Mapping[str, object]]]] = ..., needs_ack: bool = ..., wait: bool = ..., seen_time_tick: _Optional[int] = ...) -> None: ...

class AppendBroadcastResponse(_message.Message):
    __slots__ = ("broadcast_id", "results")
    BROADCAST_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    broadcast_id: int
    results: _containers.RepeatedCompositeFieldContainer[_result_pb2.AppendedRange]
    def __init__(self, broadcast_id: _Optional[int] = ..., results: _Optional[_Iterable[_Union[_result_pb2.AppendedRange, _Mapping[str, object]]]] = ...) -> None: ...

class AckBroadcastRequest(_message.Message):
    __slots__ = ("broadcast_id", "vchannel")
    BROADCAST_ID_FIELD_NUMBER: _ClassVar[int]
    VCHANNEL_FIELD_NUMBER: _ClassVar[int]
    broadcast_id: int
    vchannel: str
    def __init__(self, broadcast_id: _Optional[int] = ..., vchannel: _Optional[str] = ...) -> None: ...

class AwaitResourceKeyRequest(_message.Message):
    __slots__ = ("key", "all")
    KEY_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    key: _wire_pb2.ResourceKey
    all: bool
    def __init__(self, key: _Optional[_Union[_wire_pb2.ResourceKey, _Mapping[str, object]]] = ..., all: bool = ...) -> None: ...

class ListBroadcastsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BroadcastTasks(_message.Message):
    __slots__ = ("tasks",)
    TASKS_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[BroadcastTaskState]
    def __init__(self, tasks: _Optional[_Iterable[_Union[BroadcastTaskState, _Mapping[str, object]]]] = ...) -> None: ...

class BroadcastTaskState(_message.Message):
    __slots__ = ("broadcast_id", "state", "resource_keys", "missing_appends", "missing_acks", "age_s", "last_error")
    BROADCAST_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_KEYS_FIELD_NUMBER: _ClassVar[int]
    MISSING_APPENDS_FIELD_NUMBER: _ClassVar[int]
    MISSING_ACKS_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    broadcast_id: int
    state: int
    resource_keys: _containers.RepeatedCompositeFieldContainer[_wire_pb2.ResourceKey]
    missing_appends: _containers.RepeatedScalarFieldContainer[str]
    missing_acks: _containers.RepeatedScalarFieldContainer[str]
    age_s: float
    last_error: str
    def __init__(self, broadcast_id: _Optional[int] = ..., state: _Optional[int] = ..., resource_keys: _Optional[_Iterable[_Union[_wire_pb2.ResourceKey, _Mapping[str, object]]]] = ..., missing_appends: _Optional[_Iterable[str]] = ..., missing_acks: _Optional[_Iterable[str]] = ..., age_s: _Optional[float] = ..., last_error: _Optional[str] = ...) -> None: ...

class AbortBroadcastRequest(_message.Message):
    __slots__ = ("broadcast_id", "reason")
    BROADCAST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    broadcast_id: int
    reason: str
    def __init__(self, broadcast_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class BroadcastStatistics(_message.Message):
    __slots__ = ("tasks", "waiting", "frames", "bytes_held", "tombstones", "done_marks", "appended", "finished", "saves", "pending", "waiting_acks", "stuck", "aborting", "oldest_s")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    BYTES_HELD_FIELD_NUMBER: _ClassVar[int]
    TOMBSTONES_FIELD_NUMBER: _ClassVar[int]
    DONE_MARKS_FIELD_NUMBER: _ClassVar[int]
    APPENDED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    SAVES_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    WAITING_ACKS_FIELD_NUMBER: _ClassVar[int]
    STUCK_FIELD_NUMBER: _ClassVar[int]
    ABORTING_FIELD_NUMBER: _ClassVar[int]
    OLDEST_S_FIELD_NUMBER: _ClassVar[int]
    tasks: int
    waiting: int
    frames: int
    bytes_held: int
    tombstones: int
    done_marks: int
    appended: int
    finished: int
    saves: int
    pending: int
    waiting_acks: int
    stuck: int
    aborting: int
    oldest_s: float
    def __init__(self, tasks: _Optional[int] = ..., waiting: _Optional[int] = ..., frames: _Optional[int] = ..., bytes_held: _Optional[int] = ..., tombstones: _Optional[int] = ..., done_marks: _Optional[int] = ..., appended: _Optional[int] = ..., finished: _Optional[int] = ..., saves: _Optional[int] = ..., pending: _Optional[int] = ..., waiting_acks: _Optional[int] = ..., stuck: _Optional[int] = ..., aborting: _Optional[int] = ..., oldest_s: _Optional[float] = ...) -> None: ...
