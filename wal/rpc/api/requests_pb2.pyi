from wal.rpc.api import pchannel_pb2 as _pchannel_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitRequest(_message.Message):
    __slots__ = ("pchannel", "latest_tick", "last_event", "truncate", "retention", "statistics", "list_producers", "forget_producer")
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    LATEST_TICK_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    LIST_PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    FORGET_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    pchannel: _pchannel_pb2.PChannelInfo
    latest_tick: LatestTick
    last_event: LastEvent
    truncate: Truncate
    retention: Retention
    statistics: Statistics
    list_producers: ListProducers
    forget_producer: ForgetProducer
    def __init__(self, pchannel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ..., latest_tick: _Optional[_Union[LatestTick, _Mapping[str, object]]] = ..., last_event: _Optional[_Union[LastEvent, _Mapping[str, object]]] = ..., truncate: _Optional[_Union[Truncate, _Mapping[str, object]]] = ..., retention: _Optional[_Union[Retention, _Mapping[str, object]]] = ..., statistics: _Optional[_Union[Statistics, _Mapping[str, object]]] = ..., list_producers: _Optional[_Union[ListProducers, _Mapping[str, object]]] = ..., forget_producer: _Optional[_Union[ForgetProducer, _Mapping[str, object]]] = ...) -> None: ...

class SubmitResponse(_message.Message):
    __slots__ = ("latest_tick", "last_event", "truncate", "retention", "statistics", "list_producers", "forget_producer")
    LATEST_TICK_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    LIST_PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    FORGET_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    latest_tick: LatestTickAnswer
    last_event: LastEventAnswer
    truncate: TruncateAnswer
    retention: RetentionAnswer
    statistics: StatisticsAnswer
    list_producers: ListProducersAnswer
    forget_producer: ForgetProducerAnswer
    def __init__(self, latest_tick: _Optional[_Union[LatestTickAnswer, _Mapping[str, object]]] = ..., last_event: _Optional[_Union[LastEventAnswer, _Mapping[str, object]]] = ..., truncate: _Optional[_Union[TruncateAnswer, _Mapping[str, object]]] = ..., retention: _Optional[_Union[RetentionAnswer, _Mapping[str, object]]] = ..., statistics: _Optional[_Union[StatisticsAnswer, _Mapping[str, object]]] = ..., list_producers: _Optional[_Union[ListProducersAnswer, _Mapping[str, object]]] = ..., forget_producer: _Optional[_Union[ForgetProducerAnswer, _Mapping[str, object]]] = ...) -> None: ...

class LatestTick(_message.Message):
    __slots__ = ("vchannel", "local")
    VCHANNEL_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    vchannel: str
    local: bool
    def __init__(self, vchannel: _Optional[str] = ..., local: bool = ...) -> None: ...

class LatestTickAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: int
    def __init__(self, value: _Optional[int] = ...) -> None: ...

class LastEvent(_message.Message):
    __slots__ = ("vchannel",)
    VCHANNEL_FIELD_NUMBER: _ClassVar[int]
    vchannel: str
    def __init__(self, vchannel: _Optional[str] = ...) -> None: ...

class LastEventAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    def __init__(self, value: _Optional[bytes] = ...) -> None: ...

class Truncate(_message.Message):
    __slots__ = ("up_to",)
    UP_TO_FIELD_NUMBER: _ClassVar[int]
    up_to: bytes
    def __init__(self, up_to: _Optional[bytes] = ...) -> None: ...

class TruncateAnswer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Retention(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RetentionAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _containers.RepeatedCompositeFieldContainer[PChannelRetention]
    def __init__(self, value: _Optional[_Iterable[_Union[PChannelRetention, _Mapping[str, object]]]] = ...) -> None: ...

class PChannelRetention(_message.Message):
    __slots__ = ("pchannel", "earliest", "oldest_time", "bytes", "bytes_max", "age_max_s", "holders", "clock_drift_s")
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    OLDEST_TIME_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    AGE_MAX_S_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    CLOCK_DRIFT_S_FIELD_NUMBER: _ClassVar[int]
    pchannel: str
    earliest: bytes
    oldest_time: int
    bytes: int
    bytes_max: int
    age_max_s: float
    holders: _containers.RepeatedCompositeFieldContainer[RetentionHolder]
    clock_drift_s: float
    def __init__(self, pchannel: _Optional[str] = ..., earliest: _Optional[bytes] = ..., oldest_time: _Optional[int] = ..., bytes: _Optional[int] = ..., bytes_max: _Optional[int] = ..., age_max_s: _Optional[float] = ..., holders: _Optional[_Iterable[_Union[RetentionHolder, _Mapping[str, object]]]] = ..., clock_drift_s: _Optional[float] = ...) -> None: ...

class RetentionHolder(_message.Message):
    __slots__ = ("kind", "name", "vchannels", "position", "bytes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    vchannels: _containers.RepeatedScalarFieldContainer[str]
    position: _pchannel_pb2.Position
    bytes: int
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., vchannels: _Optional[_Iterable[str]] = ..., position: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ..., bytes: _Optional[int] = ...) -> None: ...

class Statistics(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatisticsAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _containers.RepeatedCompositeFieldContainer[PChannelStatistics]
    def __init__(self, value: _Optional[_Iterable[_Union[PChannelStatistics, _Mapping[str, object]]]] = ...) -> None: ...

class PChannelStatistics(_message.Message):
    __slots__ = ("name", "term", "events", "bytes", "frames", "frame_events", "append_s", "sync_s", "unsynced_s", "waiting", "barriers", "frames_in_flight", "bytes_in_flight", "committed_transactions", "rolled_back_transactions", "expired_transactions", "failed_transactions", "refused_transactions", "open_transactions", "open_transaction_bytes", "duplicates", "idempotency_keys", "idempotency_reach_s", "scheduled", "scheduled_bytes", "delivered", "durable_end", "promise", "readers", "segments", "log_bytes", "checkpoint_age_s", "checkpoint_failures", "opening_s", "replayed_events", "failure", "write_path", "write_path_reason", "page_reads", "shared_pages", "shared_page_bytes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    FRAME_EVENTS_FIELD_NUMBER: _ClassVar[int]
    APPEND_S_FIELD_NUMBER: _ClassVar[int]
    SYNC_S_FIELD_NUMBER: _ClassVar[int]
    UNSYNCED_S_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    BARRIERS_FIELD_NUMBER: _ClassVar[int]
    FRAMES_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    BYTES_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    FAILED_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    OPEN_TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    OPEN_TRANSACTION_BYTES_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEYS_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_REACH_S_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    DURABLE_END_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_AGE_S_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FAILURES_FIELD_NUMBER: _ClassVar[int]
    OPENING_S_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_EVENTS_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    WRITE_PATH_FIELD_NUMBER: _ClassVar[int]
    WRITE_PATH_REASON_FIELD_NUMBER: _ClassVar[int]
    PAGE_READS_FIELD_NUMBER: _ClassVar[int]
    SHARED_PAGES_FIELD_NUMBER: _ClassVar[int]
    SHARED_PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    name: str
    term: int
    events: int
    bytes: int
    frames: int
    frame_events: Histogram
    append_s: Histogram
    sync_s: Histogram
    unsynced_s: float
    waiting: int
    barriers: int
    frames_in_flight: int
    bytes_in_flight: int
    committed_transactions: int
    rolled_back_transactions: int
    expired_transactions: int
    failed_transactions: int
    refused_transactions: int
    open_transactions: int
    open_transaction_bytes: int
    duplicates: int
    idempotency_keys: int
    idempotency_reach_s: float
    scheduled: int
    scheduled_bytes: int
    delivered: int
    durable_end: _pchannel_pb2.Position
    promise: int
    readers: int
    segments: int
    log_bytes: int
    checkpoint_age_s: float
    checkpoint_failures: int
    opening_s: float
    replayed_events: int
    failure: str
    write_path: str
    write_path_reason: str
    page_reads: int
    shared_pages: int
    shared_page_bytes: int
    def __init__(self, name: _Optional[str] = ..., term: _Optional[int] = ..., events: _Optional[int] = ..., bytes: _Optional[int] = ..., frames: _Optional[int] = ..., frame_events: _Optional[_Union[Histogram, _Mapping[str, object]]] = ..., append_s: _Optional[_Union[Histogram, _Mapping[str, object]]] = ..., sync_s: _Optional[_Union[Histogram, _Mapping[str, object]]] = ..., unsynced_s: _Optional[float] = ..., waiting: _Optional[int] = ..., barriers: _Optional[int] = ..., frames_in_flight: _Optional[int] = ..., bytes_in_flight: _Optional[int] = ..., committed_transactions: _Optional[int] = ..., rolled_back_transactions: _Optional[int] = ..., expired_transactions: _Optional[int] = ..., failed_transactions: _Optional[int] = ..., refused_transactions: _Optional[int] = ..., open_transactions: _Optional[int] = ..., open_transaction_bytes: _Optional[int] = ..., duplicates: _Optional[int] = ..., idempotency_keys: _Optional[int] = ..., idempotency_reach_s: _Optional[float] = ..., scheduled: _Optional[int] = ..., scheduled_bytes: _Optional[int] = ..., delivered: _Optional[int] = ..., durable_end: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ..., promise: _Optional[int] = ..., readers: _Optional[int] = ..., segments: _Optional[int] = ..., log_bytes: _Optional[int] = ..., checkpoint_age_s: _Optional[float] = ..., checkpoint_failures: _Optional[int] = ..., opening_s: _Optional[float] = ..., replayed_events: _Optional[int] = ..., failure: _Optional[str] = ..., write_path: _Optional[str] = ..., write_path_reason: _Optional[str] = ..., page_reads: _Optional[int] = ..., shared_pages: _Optional[int] = ..., shared_page_bytes: _Optional[int] = ...) -> None: ...

class Histogram(_message.Message):
    __slots__ = ("bounds", "counts", "total")
    BOUNDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    bounds: _containers.RepeatedScalarFieldContainer[float]
    counts: _containers.RepeatedScalarFieldContainer[int]
    total: float
    def __init__(self, bounds: _Optional[_Iterable[float]] = ..., counts: _Optional[_Iterable[int]] = ..., total: _Optional[float] = ...) -> None: ...

class ListProducers(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListProducersAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _containers.RepeatedCompositeFieldContainer[ProducerInfo]
    def __init__(self, value: _Optional[_Iterable[_Union[ProducerInfo, _Mapping[str, object]]]] = ...) -> None: ...

class ProducerInfo(_message.Message):
    __slots__ = ("name", "vchannels", "last_sequence")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    vchannels: _containers.RepeatedScalarFieldContainer[str]
    last_sequence: int
    def __init__(self, name: _Optional[str] = ..., vchannels: _Optional[_Iterable[str]] = ..., last_sequence: _Optional[int] = ...) -> None: ...

class ForgetProducer(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ForgetProducerAnswer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
