from wal.message import wire_pb2 as _wire_pb2
from wal.rpc.api import cursors_pb2 as _cursors_pb2
from wal.rpc.api import error_pb2 as _error_pb2
from wal.rpc.api import frames_pb2 as _frames_pb2
from wal.rpc.api import nodes_pb2 as _nodes_pb2
from wal.rpc.api import pchannel_pb2 as _pchannel_pb2
from wal.rpc.api import result_pb2 as _result_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitRequest(_message.Message):
    __slots__ = ("pchannel", "call", "latest_tick", "last_event", "truncate", "retention", "statistics", "list_producers", "forget_producer", "load_cursor", "save_cursor", "list_cursors", "delete_cursors", "name_cursor_home", "claim_cursor", "keep_cursor", "schedule_message", "list_scheduled", "cancel_message", "join_cursor", "take_work", "settle_work", "keep_member", "leave_cursor", "list_members", "get_moment", "newest_tick", "weigh_frames", "find_tick", "find_event_below", "count_bytes", "describe_log", "locate_vchannels", "create_vchannel", "drop_vchannel", "list_vchannels", "create_channels", "destroy_channels", "describe_channels", "allocate_time_ticks", "allocate_ids", "append_broadcast", "ack_broadcast", "await_resource_key", "list_broadcasts", "abort_broadcast", "broadcast_counts", "get_cluster_status", "drain_node", "pause_balancer", "end_vchannels", "copy_broadcast", "list_copies", "read_copy", "forget_broadcasts")
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    LATEST_TICK_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    LIST_PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    FORGET_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    LOAD_CURSOR_FIELD_NUMBER: _ClassVar[int]
    SAVE_CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIST_CURSORS_FIELD_NUMBER: _ClassVar[int]
    DELETE_CURSORS_FIELD_NUMBER: _ClassVar[int]
    NAME_CURSOR_HOME_FIELD_NUMBER: _ClassVar[int]
    CLAIM_CURSOR_FIELD_NUMBER: _ClassVar[int]
    KEEP_CURSOR_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LIST_SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    CANCEL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    JOIN_CURSOR_FIELD_NUMBER: _ClassVar[int]
    TAKE_WORK_FIELD_NUMBER: _ClassVar[int]
    SETTLE_WORK_FIELD_NUMBER: _ClassVar[int]
    KEEP_MEMBER_FIELD_NUMBER: _ClassVar[int]
    LEAVE_CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIST_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    GET_MOMENT_FIELD_NUMBER: _ClassVar[int]
    NEWEST_TICK_FIELD_NUMBER: _ClassVar[int]
    WEIGH_FRAMES_FIELD_NUMBER: _ClassVar[int]
    FIND_TICK_FIELD_NUMBER: _ClassVar[int]
    FIND_EVENT_BELOW_FIELD_NUMBER: _ClassVar[int]
    COUNT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_LOG_FIELD_NUMBER: _ClassVar[int]
    LOCATE_VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    CREATE_VCHANNEL_FIELD_NUMBER: _ClassVar[int]
    DROP_VCHANNEL_FIELD_NUMBER: _ClassVar[int]
    LIST_VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    CREATE_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    DESTROY_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATE_TIME_TICKS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATE_IDS_FIELD_NUMBER: _ClassVar[int]
    APPEND_BROADCAST_FIELD_NUMBER: _ClassVar[int]
    ACK_BROADCAST_FIELD_NUMBER: _ClassVar[int]
    AWAIT_RESOURCE_KEY_FIELD_NUMBER: _ClassVar[int]
    LIST_BROADCASTS_FIELD_NUMBER: _ClassVar[int]
    ABORT_BROADCAST_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_COUNTS_FIELD_NUMBER: _ClassVar[int]
    GET_CLUSTER_STATUS_FIELD_NUMBER: _ClassVar[int]
    DRAIN_NODE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_BALANCER_FIELD_NUMBER: _ClassVar[int]
    END_VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    COPY_BROADCAST_FIELD_NUMBER: _ClassVar[int]
    LIST_COPIES_FIELD_NUMBER: _ClassVar[int]
    READ_COPY_FIELD_NUMBER: _ClassVar[int]
    FORGET_BROADCASTS_FIELD_NUMBER: _ClassVar[int]
    pchannel: _pchannel_pb2.PChannelInfo
    call: _nodes_pb2.ManagerCall
    latest_tick: LatestTick
    last_event: LastEvent
    truncate: Truncate
    retention: Retention
    statistics: Statistics
    list_producers: ListProducers
    forget_producer: ForgetProducer
    load_cursor: LoadCursor
    save_cursor: SaveCursor
    list_cursors: ListCursors
    delete_cursors: DeleteCursors
    name_cursor_home: NameCursorHome
    claim_cursor: ClaimCursor
    keep_cursor: KeepCursor
    schedule_message: ScheduleMessage
    list_scheduled: ListScheduled
    cancel_message: CancelMessage
    join_cursor: JoinCursor
    take_work: TakeWork
    settle_work: SettleWork
    keep_member: KeepMember
    leave_cursor: LeaveCursor
    list_members: ListMembers
    get_moment: GetMoment
    newest_tick: NewestTick
    weigh_frames: WeighFrames
    find_tick: FindTick
    find_event_below: FindEventBelow
    count_bytes: CountBytes
    describe_log: DescribeLog
    locate_vchannels: LocateVChannels
    create_vchannel: CreateVChannel
    drop_vchannel: DropVChannel
    list_vchannels: ListVChannels
    create_channels: CreateChannels
    destroy_channels: DestroyChannels
    describe_channels: DescribeChannels
    allocate_time_ticks: AllocateTimeTicks
    allocate_ids: AllocateIds
    append_broadcast: AppendBroadcast
    ack_broadcast: AckBroadcast
    await_resource_key: AwaitResourceKey
    list_broadcasts: ListBroadcasts
    abort_broadcast: AbortBroadcast
    broadcast_counts: BroadcastCounts
    get_cluster_status: GetClusterStatus
    drain_node: DrainNode
    pause_balancer: PauseBalancer
    end_vchannels: EndVChannels
    copy_broadcast: CopyBroadcast
    list_copies: ListCopies
    read_copy: ReadCopy
    forget_broadcasts: ForgetBroadcasts
    def __init__(self, pchannel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ..., call: _Optional[_Union[_nodes_pb2.ManagerCall, _Mapping[str, object]]] = ..., latest_tick: _Optional[_Union[LatestTick, _Mapping[str, object]]] = ..., last_event: _Optional[_Union[LastEvent, _Mapping[str, object]]] = ..., truncate: _Optional[_Union[Truncate, _Mapping[str, object]]] = ..., retention: _Optional[_Union[Retention, _Mapping[str, object]]] = ..., statistics: _Optional[_Union[Statistics, _Mapping[str, object]]] = ..., list_producers: _Optional[_Union[ListProducers, _Mapping[str, object]]] = ..., forget_producer: _Optional[_Union[ForgetProducer, _Mapping[str, object]]] = ..., load_cursor: _Optional[_Union[LoadCursor, _Mapping[str, object]]] = ..., save_cursor: _Optional[_Union[SaveCursor, _Mapping[str, object]]] = ..., list_cursors: _Optional[_Union[ListCursors, _Mapping[str, object]]] = ..., delete_cursors: _Optional[_Union[DeleteCursors, _Mapping[str, object]]] = ..., name_cursor_home: _Optional[_Union[NameCursorHome, _Mapping[str, object]]] = ..., claim_cursor: _Optional[_Union[ClaimCursor, _Mapping[str, object]]] = ..., keep_cursor: _Optional[_Union[KeepCursor, _Mapping[str, object]]] = ..., schedule_message: _Optional[_Union[ScheduleMessage, _Mapping[str, object]]] = ..., list_scheduled: _Optional[_Union[ListScheduled, _Mapping[str, object]]] = ..., cancel_message: _Optional[_Union[CancelMessage, _Mapping[str, object]]] = ..., join_cursor: _Optional[_Union[JoinCursor, _Mapping[str, object]]] = ..., take_work: _Optional[_Union[TakeWork, _Mapping[str, object]]] = ..., settle_work: _Optional[_Union[SettleWork, _Mapping[str, object]]] = ..., keep_member: _Optional[_Union[KeepMember, _Mapping[str, object]]] = ..., leave_cursor: _Optional[_Union[LeaveCursor, _Mapping[str, object]]] = ..., list_members: _Optional[_Union[ListMembers, _Mapping[str, object]]] = ..., get_moment: _Optional[_Union[GetMoment, _Mapping[str, object]]] = ..., newest_tick: _Optional[_Union[NewestTick, _Mapping[str, object]]] = ..., weigh_frames: _Optional[_Union[WeighFrames, _Mapping[str, object]]] = ..., find_tick: _Optional[_Union[FindTick, _Mapping[str, object]]] = ..., find_event_below: _Optional[_Union[FindEventBelow, _Mapping[str, object]]] = ..., count_bytes: _Optional[_Union[CountBytes, _Mapping[str, object]]] = ..., describe_log: _Optional[_Union[DescribeLog, _Mapping[str, object]]] = ..., locate_vchannels: _Optional[_Union[LocateVChannels, _Mapping[str, object]]] = ..., create_vchannel: _Optional[_Union[CreateVChannel, _Mapping[str, object]]] = ..., drop_vchannel: _Optional[_Union[DropVChannel, _Mapping[str, object]]] = ..., list_vchannels: _Optional[_Union[ListVChannels, _Mapping[str, object]]] = ..., create_channels: _Optional[_Union[CreateChannels, _Mapping[str, object]]] = ..., destroy_channels: _Optional[_Union[DestroyChannels, _Mapping[str, object]]] = ..., describe_channels: _Optional[_Union[DescribeChannels, _Mapping[str, object]]] = ..., allocate_time_ticks: _Optional[_Union[AllocateTimeTicks, _Mapping[str, object]]] = ..., allocate_ids: _Optional[_Union[AllocateIds, _Mapping[str, object]]] = ..., append_broadcast: _Optional[_Union[AppendBroadcast, _Mapping[str, object]]] = ..., ack_broadcast: _Optional[_Union[AckBroadcast, _Mapping[str, object]]] = ..., await_resource_key: _Optional[_Union[AwaitResourceKey, _Mapping[str, object]]] = ..., list_broadcasts: _Optional[_Union[ListBroadcasts, _Mapping[str, object]]] = ..., abort_broadcast: _Optional[_Union[AbortBroadcast, _Mapping[str, object]]] = ..., broadcast_counts: _Optional[_Union[BroadcastCounts, _Mapping[str, object]]] = ..., get_cluster_status: _Optional[_Union[GetClusterStatus, _Mapping[str, object]]] = ..., drain_node: _Optional[_Union[DrainNode, _Mapping[str, object]]] = ..., pause_balancer: _Optional[_Union[PauseBalancer, _Mapping[str, object]]] = ..., end_vchannels: _Optional[_Union[EndVChannels, _Mapping[str, object]]] = ..., copy_broadcast: _Optional[_Union[CopyBroadcast, _Mapping[str, object]]] = ..., list_copies: _Optional[_Union[ListCopies, _Mapping[str, object]]] = ..., read_copy: _Optional[_Union[ReadCopy, _Mapping[str, object]]] = ..., forget_broadcasts: _Optional[_Union[ForgetBroadcasts, _Mapping[str, object]]] = ...) -> None: ...

class SubmitResponse(_message.Message):
    __slots__ = ("latest_tick", "last_event", "truncate", "retention", "statistics", "list_producers", "forget_producer", "load_cursor", "save_cursor", "list_cursors", "delete_cursors", "name_cursor_home", "claim_cursor", "keep_cursor", "schedule_message", "list_scheduled", "cancel_message", "join_cursor", "take_work", "settle_work", "keep_member", "leave_cursor", "list_members", "get_moment", "newest_tick", "weigh_frames", "find_tick", "find_event_below", "count_bytes", "describe_log", "locate_vchannels", "create_vchannel", "drop_vchannel", "list_vchannels", "create_channels", "destroy_channels", "describe_channels", "allocate_time_ticks", "allocate_ids", "append_broadcast", "ack_broadcast", "await_resource_key", "list_broadcasts", "abort_broadcast", "broadcast_counts", "get_cluster_status", "drain_node", "pause_balancer", "end_vchannels", "copy_broadcast", "list_copies", "read_copy", "forget_broadcasts")
    LATEST_TICK_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATE_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    LIST_PRODUCERS_FIELD_NUMBER: _ClassVar[int]
    FORGET_PRODUCER_FIELD_NUMBER: _ClassVar[int]
    LOAD_CURSOR_FIELD_NUMBER: _ClassVar[int]
    SAVE_CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIST_CURSORS_FIELD_NUMBER: _ClassVar[int]
    DELETE_CURSORS_FIELD_NUMBER: _ClassVar[int]
    NAME_CURSOR_HOME_FIELD_NUMBER: _ClassVar[int]
    CLAIM_CURSOR_FIELD_NUMBER: _ClassVar[int]
    KEEP_CURSOR_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    LIST_SCHEDULED_FIELD_NUMBER: _ClassVar[int]
    CANCEL_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    JOIN_CURSOR_FIELD_NUMBER: _ClassVar[int]
    TAKE_WORK_FIELD_NUMBER: _ClassVar[int]
    SETTLE_WORK_FIELD_NUMBER: _ClassVar[int]
    KEEP_MEMBER_FIELD_NUMBER: _ClassVar[int]
    LEAVE_CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIST_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    GET_MOMENT_FIELD_NUMBER: _ClassVar[int]
    NEWEST_TICK_FIELD_NUMBER: _ClassVar[int]
    WEIGH_FRAMES_FIELD_NUMBER: _ClassVar[int]
    FIND_TICK_FIELD_NUMBER: _ClassVar[int]
    FIND_EVENT_BELOW_FIELD_NUMBER: _ClassVar[int]
    COUNT_BYTES_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_LOG_FIELD_NUMBER: _ClassVar[int]
    LOCATE_VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    CREATE_VCHANNEL_FIELD_NUMBER: _ClassVar[int]
    DROP_VCHANNEL_FIELD_NUMBER: _ClassVar[int]
    LIST_VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    CREATE_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    DESTROY_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    DESCRIBE_CHANNELS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATE_TIME_TICKS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATE_IDS_FIELD_NUMBER: _ClassVar[int]
    APPEND_BROADCAST_FIELD_NUMBER: _ClassVar[int]
    ACK_BROADCAST_FIELD_NUMBER: _ClassVar[int]
    AWAIT_RESOURCE_KEY_FIELD_NUMBER: _ClassVar[int]
    LIST_BROADCASTS_FIELD_NUMBER: _ClassVar[int]
    ABORT_BROADCAST_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_COUNTS_FIELD_NUMBER: _ClassVar[int]
    GET_CLUSTER_STATUS_FIELD_NUMBER: _ClassVar[int]
    DRAIN_NODE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_BALANCER_FIELD_NUMBER: _ClassVar[int]
    END_VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    COPY_BROADCAST_FIELD_NUMBER: _ClassVar[int]
    LIST_COPIES_FIELD_NUMBER: _ClassVar[int]
    READ_COPY_FIELD_NUMBER: _ClassVar[int]
    FORGET_BROADCASTS_FIELD_NUMBER: _ClassVar[int]
    latest_tick: LatestTickAnswer
    last_event: LastEventAnswer
    truncate: TruncateAnswer
    retention: RetentionAnswer
    statistics: StatisticsAnswer
    list_producers: ListProducersAnswer
    forget_producer: ForgetProducerAnswer
    load_cursor: LoadCursorAnswer
    save_cursor: SaveCursorAnswer
    list_cursors: ListCursorsAnswer
    delete_cursors: DeleteCursorsAnswer
    name_cursor_home: NameCursorHomeAnswer
    claim_cursor: ClaimCursorAnswer
    keep_cursor: KeepCursorAnswer
    schedule_message: ScheduleMessageAnswer
    list_scheduled: ListScheduledAnswer
    cancel_message: CancelMessageAnswer
    join_cursor: JoinCursorAnswer
    take_work: TakeWorkAnswer
    settle_work: SettleWorkAnswer
    keep_member: KeepMemberAnswer
    leave_cursor: LeaveCursorAnswer
    list_members: ListMembersAnswer
    get_moment: GetMomentAnswer
    newest_tick: NewestTickAnswer
    weigh_frames: WeighFramesAnswer
    find_tick: FindTickAnswer
    find_event_below: FindEventBelowAnswer
    count_bytes: CountBytesAnswer
    describe_log: DescribeLogAnswer
    locate_vchannels: LocateVChannelsAnswer
    create_vchannel: CreateVChannelAnswer
    drop_vchannel: DropVChannelAnswer
    list_vchannels: ListVChannelsAnswer
    create_channels: CreateChannelsAnswer
    destroy_channels: DestroyChannelsAnswer
    describe_channels: DescribeChannelsAnswer
    allocate_time_ticks: AllocateTimeTicksAnswer
    allocate_ids: AllocateIdsAnswer
    append_broadcast: AppendBroadcastAnswer
    ack_broadcast: AckBroadcastAnswer
    await_resource_key: AwaitResourceKeyAnswer
    list_broadcasts: ListBroadcastsAnswer
    abort_broadcast: AbortBroadcastAnswer
    broadcast_counts: BroadcastCountsAnswer
    get_cluster_status: GetClusterStatusAnswer
    drain_node: DrainNodeAnswer
    pause_balancer: PauseBalancerAnswer
    end_vchannels: EndVChannelsAnswer
    copy_broadcast: CopyBroadcastAnswer
    list_copies: ListCopiesAnswer
    read_copy: ReadCopyAnswer
    forget_broadcasts: ForgetBroadcastsAnswer
    def __init__(self, latest_tick: _Optional[_Union[LatestTickAnswer, _Mapping[str, object]]] = ..., last_event: _Optional[_Union[LastEventAnswer, _Mapping[str, object]]] = ..., truncate: _Optional[_Union[TruncateAnswer, _Mapping[str, object]]] = ..., retention: _Optional[_Union[RetentionAnswer, _Mapping[str, object]]] = ..., statistics: _Optional[_Union[StatisticsAnswer, _Mapping[str, object]]] = ..., list_producers: _Optional[_Union[ListProducersAnswer, _Mapping[str, object]]] = ..., forget_producer: _Optional[_Union[ForgetProducerAnswer, _Mapping[str, object]]] = ..., load_cursor: _Optional[_Union[LoadCursorAnswer, _Mapping[str, object]]] = ..., save_cursor: _Optional[_Union[SaveCursorAnswer, _Mapping[str, object]]] = ..., list_cursors: _Optional[_Union[ListCursorsAnswer, _Mapping[str, object]]] = ..., delete_cursors: _Optional[_Union[DeleteCursorsAnswer, _Mapping[str, object]]] = ..., name_cursor_home: _Optional[_Union[NameCursorHomeAnswer, _Mapping[str, object]]] = ..., claim_cursor: _Optional[_Union[ClaimCursorAnswer, _Mapping[str, object]]] = ..., keep_cursor: _Optional[_Union[KeepCursorAnswer, _Mapping[str, object]]] = ..., schedule_message: _Optional[_Union[ScheduleMessageAnswer, _Mapping[str, object]]] = ..., list_scheduled: _Optional[_Union[ListScheduledAnswer, _Mapping[str, object]]] = ..., cancel_message: _Optional[_Union[CancelMessageAnswer, _Mapping[str, object]]] = ..., join_cursor: _Optional[_Union[JoinCursorAnswer, _Mapping[str, object]]] = ..., take_work: _Optional[_Union[TakeWorkAnswer, _Mapping[str, object]]] = ..., settle_work: _Optional[_Union[SettleWorkAnswer, _Mapping[str, object]]] = ..., keep_member: _Optional[_Union[KeepMemberAnswer, _Mapping[str, object]]] = ..., leave_cursor: _Optional[_Union[LeaveCursorAnswer, _Mapping[str, object]]] = ..., list_members: _Optional[_Union[ListMembersAnswer, _Mapping[str, object]]] = ..., get_moment: _Optional[_Union[GetMomentAnswer, _Mapping[str, object]]] = ..., newest_tick: _Optional[_Union[NewestTickAnswer, _Mapping[str, object]]] = ..., weigh_frames: _Optional[_Union[WeighFramesAnswer, _Mapping[str, object]]] = ..., find_tick: _Optional[_Union[FindTickAnswer, _Mapping[str, object]]] = ..., find_event_below: _Optional[_Union[FindEventBelowAnswer, _Mapping[str, object]]] = ..., count_bytes: _Optional[_Union[CountBytesAnswer, _Mapping[str, object]]] = ..., describe_log: _Optional[_Union[DescribeLogAnswer, _Mapping[str, object]]] = ..., locate_vchannels: _Optional[_Union[LocateVChannelsAnswer, _Mapping[str, object]]] = ..., create_vchannel: _Optional[_Union[CreateVChannelAnswer, _Mapping[str, object]]] = ..., drop_vchannel: _Optional[_Union[DropVChannelAnswer, _Mapping[str, object]]] = ..., list_vchannels: _Optional[_Union[ListVChannelsAnswer, _Mapping[str, object]]] = ..., create_channels: _Optional[_Union[CreateChannelsAnswer, _Mapping[str, object]]] = ..., destroy_channels: _Optional[_Union[DestroyChannelsAnswer, _Mapping[str, object]]] = ..., describe_channels: _Optional[_Union[DescribeChannelsAnswer, _Mapping[str, object]]] = ..., allocate_time_ticks: _Optional[_Union[AllocateTimeTicksAnswer, _Mapping[str, object]]] = ..., allocate_ids: _Optional[_Union[AllocateIdsAnswer, _Mapping[str, object]]] = ..., append_broadcast: _Optional[_Union[AppendBroadcastAnswer, _Mapping[str, object]]] = ..., ack_broadcast: _Optional[_Union[AckBroadcastAnswer, _Mapping[str, object]]] = ..., await_resource_key: _Optional[_Union[AwaitResourceKeyAnswer, _Mapping[str, object]]] = ..., list_broadcasts: _Optional[_Union[ListBroadcastsAnswer, _Mapping[str, object]]] = ..., abort_broadcast: _Optional[_Union[AbortBroadcastAnswer, _Mapping[str, object]]] = ..., broadcast_counts: _Optional[_Union[BroadcastCountsAnswer, _Mapping[str, object]]] = ..., get_cluster_status: _Optional[_Union[GetClusterStatusAnswer, _Mapping[str, object]]] = ..., drain_node: _Optional[_Union[DrainNodeAnswer, _Mapping[str, object]]] = ..., pause_balancer: _Optional[_Union[PauseBalancerAnswer, _Mapping[str, object]]] = ..., end_vchannels: _Optional[_Union[EndVChannelsAnswer, _Mapping[str, object]]] = ..., copy_broadcast: _Optional[_Union[CopyBroadcastAnswer, _Mapping[str, object]]] = ..., list_copies: _Optional[_Union[ListCopiesAnswer, _Mapping[str, object]]] = ..., read_copy: _Optional[_Union[ReadCopyAnswer, _Mapping[str, object]]] = ..., forget_broadcasts: _Optional[_Union[ForgetBroadcastsAnswer, _Mapping[str, object]]] = ...) -> None: ...

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

class DescribeLog(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class DescribeLogAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: LogDescription
    def __init__(self, value: _Optional[_Union[LogDescription, _Mapping[str, object]]] = ...) -> None: ...

class LogDescription(_message.Message):
    __slots__ = ("version", "wal_name", "pchannels", "frame_bytes_max", "settings", "log_id")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WAL_NAME_FIELD_NUMBER: _ClassVar[int]
    PCHANNELS_FIELD_NUMBER: _ClassVar[int]
    FRAME_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    LOG_ID_FIELD_NUMBER: _ClassVar[int]
    version: int
    wal_name: str
    pchannels: _containers.RepeatedCompositeFieldContainer[PChannelIdentity]
    frame_bytes_max: int
    settings: LogSettings
    log_id: int
    def __init__(self, version: _Optional[int] = ..., wal_name: _Optional[str] = ..., pchannels: _Optional[_Iterable[_Union[PChannelIdentity, _Mapping[str, object]]]] = ..., frame_bytes_max: _Optional[int] = ..., settings: _Optional[_Union[LogSettings, _Mapping[str, object]]] = ..., log_id: _Optional[int] = ...) -> None: ...

class PChannelIdentity(_message.Message):
    __slots__ = ("name", "term", "incarnation", "form", "restores")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    RESTORES_FIELD_NUMBER: _ClassVar[int]
    name: str
    term: int
    incarnation: int
    form: int
    restores: _containers.RepeatedCompositeFieldContainer[_pchannel_pb2.LogRestore]
    def __init__(self, name: _Optional[str] = ..., term: _Optional[int] = ..., incarnation: _Optional[int] = ..., form: _Optional[int] = ..., restores: _Optional[_Iterable[_Union[_pchannel_pb2.LogRestore, _Mapping[str, object]]]] = ...) -> None: ...

class LogSettings(_message.Message):
    __slots__ = ("create_vchannels", "vchannels_max", "message_bytes_max", "txn_bytes_max", "txn_bodies_max", "txn_keepalive", "open_txn_bytes_max", "in_flight_bytes_max", "time_tick_interval_s", "idempotency_window_count", "idempotency_window_s", "producers_max", "broadcast_tasks_max", "broadcast_vchannels_max", "retention_bytes", "retention_s", "cursor_lag_bytes_max", "cursor_age_max_s", "scheduled_max", "scheduled_bytes_max")
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
    def __init__(self, create_vchannels: bool = ..., vchannels_max: _Optional[int] = ..., message_bytes_max: _Optional[int] = ..., txn_bytes_max: _Optional[int] = ..., txn_bodies_max: _Optional[int] = ..., txn_keepalive: _Optional[float] = ..., open_txn_bytes_max: _Optional[int] = ..., in_flight_bytes_max: _Optional[int] = ..., time_tick_interval_s: _Optional[float] = ..., idempotency_window_count: _Optional[int] = ..., idempotency_window_s: _Optional[float] = ..., producers_max: _Optional[int] = ..., broadcast_tasks_max: _Optional[int] = ..., broadcast_vchannels_max: _Optional[int] = ..., retention_bytes: _Optional[int] = ..., retention_s: _Optional[float] = ..., cursor_lag_bytes_max: _Optional[int] = ..., cursor_age_max_s: _Optional[float] = ..., scheduled_max: _Optional[int] = ..., scheduled_bytes_max: _Optional[int] = ...) -> None: ...

class LocateVChannels(_message.Message):
    __slots__ = ("names", "create", "together")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    TOGETHER_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    create: bool
    together: bool
    def __init__(self, names: _Optional[_Iterable[str]] = ..., create: bool = ..., together: bool = ...) -> None: ...

class LocateVChannelsAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _containers.RepeatedCompositeFieldContainer[_pchannel_pb2.VChannelState]
    def __init__(self, value: _Optional[_Iterable[_Union[_pchannel_pb2.VChannelState, _Mapping[str, object]]]] = ...) -> None: ...

class CreateVChannel(_message.Message):
    __slots__ = ("name", "pchannel")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    pchannel: str
    def __init__(self, name: _Optional[str] = ..., pchannel: _Optional[str] = ...) -> None: ...

class CreateVChannelAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _pchannel_pb2.VChannelInfo
    def __init__(self, value: _Optional[_Union[_pchannel_pb2.VChannelInfo, _Mapping[str, object]]] = ...) -> None: ...

class DropVChannel(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class DropVChannelAnswer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListVChannels(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListVChannelsAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _containers.RepeatedCompositeFieldContainer[_pchannel_pb2.VChannelInfo]
    def __init__(self, value: _Optional[_Iterable[_Union[_pchannel_pb2.VChannelInfo, _Mapping[str, object]]]] = ...) -> None: ...

class CreateChannels(_message.Message):
    __slots__ = ("owner", "count")
    OWNER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    owner: _pchannel_pb2.OwnerDescription
    count: int
    def __init__(self, owner: _Optional[_Union[_pchannel_pb2.OwnerDescription, _Mapping[str, object]]] = ..., count: _Optional[int] = ...) -> None: ...

class CreateChannelsAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, value: _Optional[_Iterable[str]] = ...) -> None: ...

class DestroyChannels(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class DestroyChannelsAnswer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeChannels(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _frames_pb2.VChannelNames
    def __init__(self, names: _Optional[_Union[_frames_pb2.VChannelNames, _Mapping[str, object]]] = ...) -> None: ...

class DescribeChannelsAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _containers.RepeatedCompositeFieldContainer[ChannelDescription]
    def __init__(self, value: _Optional[_Iterable[_Union[ChannelDescription, _Mapping[str, object]]]] = ...) -> None: ...

class ChannelDescription(_message.Message):
    __slots__ = ("channel_name", "owner")
    CHANNEL_NAME_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    channel_name: str
    owner: _pchannel_pb2.OwnerDescription
    def __init__(self, channel_name: _Optional[str] = ..., owner: _Optional[_Union[_pchannel_pb2.OwnerDescription, _Mapping[str, object]]] = ...) -> None: ...

class AllocateTimeTicks(_message.Message):
    __slots__ = ("count", "seen_time_tick")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SEEN_TIME_TICK_FIELD_NUMBER: _ClassVar[int]
    count: int
    seen_time_tick: int
    def __init__(self, count: _Optional[int] = ..., seen_time_tick: _Optional[int] = ...) -> None: ...

class AllocateTimeTicksAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: AllocatedRange
    def __init__(self, value: _Optional[_Union[AllocatedRange, _Mapping[str, object]]] = ...) -> None: ...

class AllocateIds(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class AllocateIdsAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: AllocatedRange
    def __init__(self, value: _Optional[_Union[AllocatedRange, _Mapping[str, object]]] = ...) -> None: ...

class AllocatedRange(_message.Message):
    __slots__ = ("first", "count")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    first: int
    count: int
    def __init__(self, first: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class AppendBroadcast(_message.Message):
    __slots__ = ("message", "wait", "seen_time_tick")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    SEEN_TIME_TICK_FIELD_NUMBER: _ClassVar[int]
    message: BroadcastMessage
    wait: bool
    seen_time_tick: int
    def __init__(self, message: _Optional[_Union[BroadcastMessage, _Mapping[str, object]]] = ..., wait: bool = ..., seen_time_tick: _Optional[int] = ...) -> None: ...

class BroadcastMessage(_message.Message):
    __slots__ = ("vchannels", "payload", "message_type", "properties", "resource_keys", "needs_ack")
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
    vchannels: _containers.RepeatedScalarFieldContainer[str]
    payload: bytes
    message_type: int
    properties: _containers.ScalarMap[str, str]
    resource_keys: _containers.RepeatedCompositeFieldContainer[_wire_pb2.ResourceKey]
    needs_ack: bool
    def __init__(self, vchannels: _Optional[_Iterable[str]] = ..., payload: _Optional[bytes] = ..., message_type: _Optional[int] = ..., properties: _Optional[_Mapping[str, str]] = ..., resource_keys: _Optional[_Iterable[_Union[_wire_pb2.ResourceKey, _Mapping[str, object]]]] = ..., needs_ack: bool = ...) -> None: ...

class AppendBroadcastAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: AppendedBroadcast
    def __init__(self, value: _Optional[_Union[AppendedBroadcast, _Mapping[str, object]]] = ...) -> None: ...

class AppendedBroadcast(_message.Message):
    __slots__ = ("broadcast_id", "copies")
    BROADCAST_ID_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    broadcast_id: int
    copies: _containers.RepeatedCompositeFieldContainer[AppendedCopies]
    def __init__(self, broadcast_id: _Optional[int] = ..., copies: _Optional[_Iterable[_Union[AppendedCopies, _Mapping[str, object]]]] = ...) -> None: ...

class AppendedCopies(_message.Message):
    __slots__ = ("count", "first_id", "first_time_tick")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    FIRST_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_TIME_TICK_FIELD_NUMBER: _ClassVar[int]
    count: int
    first_id: bytes
    first_time_tick: int
    def __init__(self, count: _Optional[int] = ..., first_id: _Optional[bytes] = ..., first_time_tick: _Optional[int] = ...) -> None: ...

class AckBroadcast(_message.Message):
    __slots__ = ("broadcast_id", "vchannel")
    BROADCAST_ID_FIELD_NUMBER: _ClassVar[int]
    VCHANNEL_FIELD_NUMBER: _ClassVar[int]
    broadcast_id: int
    vchannel: str
    def __init__(self, broadcast_id: _Optional[int] = ..., vchannel: _Optional[str] = ...) -> None: ...

class AckBroadcastAnswer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AwaitResourceKey(_message.Message):
    __slots__ = ("key", "everywhere")
    KEY_FIELD_NUMBER: _ClassVar[int]
    EVERYWHERE_FIELD_NUMBER: _ClassVar[int]
    key: _wire_pb2.ResourceKey
    everywhere: bool
    def __init__(self, key: _Optional[_Union[_wire_pb2.ResourceKey, _Mapping[str, object]]] = ..., everywhere: bool = ...) -> None: ...

class AwaitResourceKeyAnswer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBroadcasts(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBroadcastsAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _containers.RepeatedCompositeFieldContainer[BroadcastTask]
    def __init__(self, value: _Optional[_Iterable[_Union[BroadcastTask, _Mapping[str, object]]]] = ...) -> None: ...

class BroadcastTask(_message.Message):
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

class AbortBroadcast(_message.Message):
    __slots__ = ("broadcast_id", "reason")
    BROADCAST_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    broadcast_id: int
    reason: str
    def __init__(self, broadcast_id: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class AbortBroadcastAnswer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BroadcastCounts(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BroadcastCountsAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: BroadcasterStatistics
    def __init__(self, value: _Optional[_Union[BroadcasterStatistics, _Mapping[str, object]]] = ...) -> None: ...

class BroadcasterStatistics(_message.Message):
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

class GetClusterStatus(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetClusterStatusAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: ClusterStatus
    def __init__(self, value: _Optional[_Union[ClusterStatus, _Mapping[str, object]]] = ...) -> None: ...

class ClusterStatus(_message.Message):
    __slots__ = ("leader", "token", "paused", "nodes", "pchannels", "broadcasts")
    LEADER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    PCHANNELS_FIELD_NUMBER: _ClassVar[int]
    BROADCASTS_FIELD_NUMBER: _ClassVar[int]
    leader: str
    token: int
    paused: bool
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    pchannels: _containers.RepeatedCompositeFieldContainer[PlacedPChannel]
    broadcasts: str
    def __init__(self, leader: _Optional[str] = ..., token: _Optional[int] = ..., paused: bool = ..., nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping[str, object]]]] = ..., pchannels: _Optional[_Iterable[_Union[PlacedPChannel, _Mapping[str, object]]]] = ..., broadcasts: _Optional[str] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("server_id", "address", "healthy", "drains", "trouble", "pchannels", "healthy_s")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HEALTHY_FIELD_NUMBER: _ClassVar[int]
    DRAINS_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    PCHANNELS_FIELD_NUMBER: _ClassVar[int]
    HEALTHY_S_FIELD_NUMBER: _ClassVar[int]
    server_id: int
    address: str
    healthy: bool
    drains: bool
    trouble: str
    pchannels: int
    healthy_s: float
    def __init__(self, server_id: _Optional[int] = ..., address: _Optional[str] = ..., healthy: bool = ..., drains: bool = ..., trouble: _Optional[str] = ..., pchannels: _Optional[int] = ..., healthy_s: _Optional[float] = ...) -> None: ...

class PlacedPChannel(_message.Message):
    __slots__ = ("name", "term", "state", "server_id", "address", "histories", "trouble", "since_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HISTORIES_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    term: int
    state: int
    server_id: int
    address: str
    histories: int
    trouble: str
    since_s: float
    def __init__(self, name: _Optional[str] = ..., term: _Optional[int] = ..., state: _Optional[int] = ..., server_id: _Optional[int] = ..., address: _Optional[str] = ..., histories: _Optional[int] = ..., trouble: _Optional[str] = ..., since_s: _Optional[float] = ...) -> None: ...

class DrainNode(_message.Message):
    __slots__ = ("server_id", "drain")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    server_id: int
    drain: bool
    def __init__(self, server_id: _Optional[int] = ..., drain: bool = ...) -> None: ...

class DrainNodeAnswer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PauseBalancer(_message.Message):
    __slots__ = ("pause",)
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    pause: bool
    def __init__(self, pause: bool = ...) -> None: ...

class PauseBalancerAnswer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class EndVChannels(_message.Message):
    __slots__ = ("vchannels",)
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    vchannels: _containers.RepeatedCompositeFieldContainer[_pchannel_pb2.VChannelInfo]
    def __init__(self, vchannels: _Optional[_Iterable[_Union[_pchannel_pb2.VChannelInfo, _Mapping[str, object]]]] = ...) -> None: ...

class EndVChannelsAnswer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CopyBroadcast(_message.Message):
    __slots__ = ("vchannels", "header", "content", "aborts")
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    ABORTS_FIELD_NUMBER: _ClassVar[int]
    vchannels: _containers.RepeatedScalarFieldContainer[str]
    header: bytes
    content: Content
    aborts: bool
    def __init__(self, vchannels: _Optional[_Iterable[str]] = ..., header: _Optional[bytes] = ..., content: _Optional[_Union[Content, _Mapping[str, object]]] = ..., aborts: bool = ...) -> None: ...

class Content(_message.Message):
    __slots__ = ("payload", "message_type", "properties")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    message_type: int
    properties: bytes
    def __init__(self, payload: _Optional[bytes] = ..., message_type: _Optional[int] = ..., properties: _Optional[bytes] = ...) -> None: ...

class CopyBroadcastAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: OutcomesOfCopies
    def __init__(self, value: _Optional[_Union[OutcomesOfCopies, _Mapping[str, object]]] = ...) -> None: ...

class OutcomesOfCopies(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[CopyOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[CopyOutcome, _Mapping[str, object]]]] = ...) -> None: ...

class CopyOutcome(_message.Message):
    __slots__ = ("copies", "error")
    COPIES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    copies: AppendedCopies
    error: _error_pb2.StreamingError
    def __init__(self, copies: _Optional[_Union[AppendedCopies, _Mapping[str, object]]] = ..., error: _Optional[_Union[_error_pb2.StreamingError, _Mapping[str, object]]] = ...) -> None: ...

class ListCopies(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListCopiesAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _containers.RepeatedCompositeFieldContainer[BroadcastInLog]
    def __init__(self, value: _Optional[_Iterable[_Union[BroadcastInLog, _Mapping[str, object]]]] = ...) -> None: ...

class BroadcastInLog(_message.Message):
    __slots__ = ("header", "vchannels", "aborted", "dropped")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    ABORTED_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    header: bytes
    vchannels: _containers.RepeatedScalarFieldContainer[str]
    aborted: _containers.RepeatedScalarFieldContainer[str]
    dropped: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, header: _Optional[bytes] = ..., vchannels: _Optional[_Iterable[str]] = ..., aborted: _Optional[_Iterable[str]] = ..., dropped: _Optional[_Iterable[str]] = ...) -> None: ...

class ReadCopy(_message.Message):
    __slots__ = ("broadcast_id",)
    BROADCAST_ID_FIELD_NUMBER: _ClassVar[int]
    broadcast_id: int
    def __init__(self, broadcast_id: _Optional[int] = ...) -> None: ...

class ReadCopyAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: Content
    def __init__(self, value: _Optional[_Union[Content, _Mapping[str, object]]] = ...) -> None: ...

class ForgetBroadcasts(_message.Message):
    __slots__ = ("broadcast_ids", "checkpoint")
    BROADCAST_IDS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    broadcast_ids: _containers.RepeatedScalarFieldContainer[int]
    checkpoint: bool
    def __init__(self, broadcast_ids: _Optional[_Iterable[int]] = ..., checkpoint: bool = ...) -> None: ...

class ForgetBroadcastsAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, value: _Optional[_Iterable[int]] = ...) -> None: ...

class LoadCursor(_message.Message):
    __slots__ = ("key", "pchannel")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    key: _cursors_pb2.CursorKey
    pchannel: str
    def __init__(self, key: _Optional[_Union[_cursors_pb2.CursorKey, _Mapping[str, object]]] = ..., pchannel: _Optional[str] = ...) -> None: ...

class LoadCursorAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _cursors_pb2.Cursor
    def __init__(self, value: _Optional[_Union[_cursors_pb2.Cursor, _Mapping[str, object]]] = ...) -> None: ...

class SaveCursor(_message.Message):
    __slots__ = ("cursor", "forward_only", "pchannel")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    FORWARD_ONLY_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    cursor: _cursors_pb2.Cursor
    forward_only: bool
    pchannel: str
    def __init__(self, cursor: _Optional[_Union[_cursors_pb2.Cursor, _Mapping[str, object]]] = ..., forward_only: bool = ..., pchannel: _Optional[str] = ...) -> None: ...

class SaveCursorAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: bool
    def __init__(self, value: bool = ...) -> None: ...

class ListCursors(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListCursorsAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _containers.RepeatedCompositeFieldContainer[CursorInfo]
    def __init__(self, value: _Optional[_Iterable[_Union[CursorInfo, _Mapping[str, object]]]] = ...) -> None: ...

class CursorInfo(_message.Message):
    __slots__ = ("name", "vchannels", "position", "lag_bytes", "stale", "held_bytes", "saved_at", "lag_messages", "lag_s", "moved_at", "pattern")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    HELD_BYTES_FIELD_NUMBER: _ClassVar[int]
    SAVED_AT_FIELD_NUMBER: _ClassVar[int]
    LAG_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LAG_S_FIELD_NUMBER: _ClassVar[int]
    MOVED_AT_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    name: str
    vchannels: _containers.RepeatedScalarFieldContainer[str]
    position: ReadPosition
    lag_bytes: int
    stale: bool
    held_bytes: int
    saved_at: float
    lag_messages: int
    lag_s: float
    moved_at: float
    pattern: str
    def __init__(self, name: _Optional[str] = ..., vchannels: _Optional[_Iterable[str]] = ..., position: _Optional[_Union[ReadPosition, _Mapping[str, object]]] = ..., lag_bytes: _Optional[int] = ..., stale: bool = ..., held_bytes: _Optional[int] = ..., saved_at: _Optional[float] = ..., lag_messages: _Optional[int] = ..., lag_s: _Optional[float] = ..., moved_at: _Optional[float] = ..., pattern: _Optional[str] = ...) -> None: ...

class ReadPosition(_message.Message):
    __slots__ = ("message_id", "time_tick")
    MESSAGE_ID_FIELD_NUMBER: _ClassVar[int]
    TIME_TICK_FIELD_NUMBER: _ClassVar[int]
    message_id: bytes
    time_tick: int
    def __init__(self, message_id: _Optional[bytes] = ..., time_tick: _Optional[int] = ...) -> None: ...

class DeleteCursors(_message.Message):
    __slots__ = ("name", "vchannels")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    name: str
    vchannels: _frames_pb2.VChannelNames
    def __init__(self, name: _Optional[str] = ..., vchannels: _Optional[_Union[_frames_pb2.VChannelNames, _Mapping[str, object]]] = ...) -> None: ...

class DeleteCursorsAnswer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class NameCursorHome(_message.Message):
    __slots__ = ("key", "pchannel")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    key: _cursors_pb2.CursorKey
    pchannel: str
    def __init__(self, key: _Optional[_Union[_cursors_pb2.CursorKey, _Mapping[str, object]]] = ..., pchannel: _Optional[str] = ...) -> None: ...

class NameCursorHomeAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: str
    def __init__(self, value: _Optional[str] = ...) -> None: ...

class ClaimCursor(_message.Message):
    __slots__ = ("key", "pchannel", "holder", "lease_ms")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    key: _cursors_pb2.CursorKey
    pchannel: str
    holder: bytes
    lease_ms: int
    def __init__(self, key: _Optional[_Union[_cursors_pb2.CursorKey, _Mapping[str, object]]] = ..., pchannel: _Optional[str] = ..., holder: _Optional[bytes] = ..., lease_ms: _Optional[int] = ...) -> None: ...

class ClaimCursorAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: CursorClaim
    def __init__(self, value: _Optional[_Union[CursorClaim, _Mapping[str, object]]] = ...) -> None: ...

class CursorClaim(_message.Message):
    __slots__ = ("fence", "position", "state")
    FENCE_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    fence: int
    position: _cursors_pb2.Cursor
    state: bytes
    def __init__(self, fence: _Optional[int] = ..., position: _Optional[_Union[_cursors_pb2.Cursor, _Mapping[str, object]]] = ..., state: _Optional[bytes] = ...) -> None: ...

class KeepCursor(_message.Message):
    __slots__ = ("key", "pchannel", "fence", "holder", "release")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    key: _cursors_pb2.CursorKey
    pchannel: str
    fence: int
    holder: bytes
    release: bool
    def __init__(self, key: _Optional[_Union[_cursors_pb2.CursorKey, _Mapping[str, object]]] = ..., pchannel: _Optional[str] = ..., fence: _Optional[int] = ..., holder: _Optional[bytes] = ..., release: bool = ...) -> None: ...

class KeepCursorAnswer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ScheduleMessage(_message.Message):
    __slots__ = ("vchannel", "payload", "properties", "due_ms", "key", "keyed", "seen_time_tick")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VCHANNEL_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    DUE_MS_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    KEYED_FIELD_NUMBER: _ClassVar[int]
    SEEN_TIME_TICK_FIELD_NUMBER: _ClassVar[int]
    vchannel: str
    payload: bytes
    properties: _containers.ScalarMap[str, str]
    due_ms: int
    key: str
    keyed: bool
    seen_time_tick: int
    def __init__(self, vchannel: _Optional[str] = ..., payload: _Optional[bytes] = ..., properties: _Optional[_Mapping[str, str]] = ..., due_ms: _Optional[int] = ..., key: _Optional[str] = ..., keyed: bool = ..., seen_time_tick: _Optional[int] = ...) -> None: ...

class ScheduleMessageAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: ScheduledResult
    def __init__(self, value: _Optional[_Union[ScheduledResult, _Mapping[str, object]]] = ...) -> None: ...

class ScheduledResult(_message.Message):
    __slots__ = ("key", "deliver_at", "appended", "duplicate")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_FIELD_NUMBER: _ClassVar[int]
    APPENDED_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_FIELD_NUMBER: _ClassVar[int]
    key: str
    deliver_at: int
    appended: _result_pb2.AppendedRange
    duplicate: bool
    def __init__(self, key: _Optional[str] = ..., deliver_at: _Optional[int] = ..., appended: _Optional[_Union[_result_pb2.AppendedRange, _Mapping[str, object]]] = ..., duplicate: bool = ...) -> None: ...

class ListScheduled(_message.Message):
    __slots__ = ("vchannel",)
    VCHANNEL_FIELD_NUMBER: _ClassVar[int]
    vchannel: str
    def __init__(self, vchannel: _Optional[str] = ...) -> None: ...

class ListScheduledAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _containers.RepeatedCompositeFieldContainer[ScheduledMessage]
    def __init__(self, value: _Optional[_Iterable[_Union[ScheduledMessage, _Mapping[str, object]]]] = ...) -> None: ...

class ScheduledMessage(_message.Message):
    __slots__ = ("key", "deliver_at", "size")
    KEY_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    key: str
    deliver_at: int
    size: int
    def __init__(self, key: _Optional[str] = ..., deliver_at: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class CancelMessage(_message.Message):
    __slots__ = ("vchannel", "key")
    VCHANNEL_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    vchannel: str
    key: str
    def __init__(self, vchannel: _Optional[str] = ..., key: _Optional[str] = ...) -> None: ...

class CancelMessageAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: bool
    def __init__(self, value: bool = ...) -> None: ...

class JoinCursor(_message.Message):
    __slots__ = ("key", "pchannel", "member", "terms", "concurrency", "batch", "lease_ms", "process", "tripped")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    CONCURRENCY_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    TRIPPED_FIELD_NUMBER: _ClassVar[int]
    key: _cursors_pb2.CursorKey
    pchannel: str
    member: bytes
    terms: WorkTerms
    concurrency: int
    batch: int
    lease_ms: int
    process: str
    tripped: str
    def __init__(self, key: _Optional[_Union[_cursors_pb2.CursorKey, _Mapping[str, object]]] = ..., pchannel: _Optional[str] = ..., member: _Optional[bytes] = ..., terms: _Optional[_Union[WorkTerms, _Mapping[str, object]]] = ..., concurrency: _Optional[int] = ..., batch: _Optional[int] = ..., lease_ms: _Optional[int] = ..., process: _Optional[str] = ..., tripped: _Optional[str] = ...) -> None: ...

class WorkTerms(_message.Message):
    __slots__ = ("order", "key", "attempts", "backoff_s", "blocks", "dead_letter", "trip_after")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_S_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_FIELD_NUMBER: _ClassVar[int]
    TRIP_AFTER_FIELD_NUMBER: _ClassVar[int]
    order: str
    key: str
    attempts: int
    backoff_s: Backoff
    blocks: bool
    dead_letter: str
    trip_after: int
    def __init__(self, order: _Optional[str] = ..., key: _Optional[str] = ..., attempts: _Optional[int] = ..., backoff_s: _Optional[_Union[Backoff, _Mapping[str, object]]] = ..., blocks: bool = ..., dead_letter: _Optional[str] = ..., trip_after: _Optional[int] = ...) -> None: ...

class Backoff(_message.Message):
    __slots__ = ("first", "longest")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LONGEST_FIELD_NUMBER: _ClassVar[int]
    first: float
    longest: float
    def __init__(self, first: _Optional[float] = ..., longest: _Optional[float] = ...) -> None: ...

class JoinCursorAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: int
    def __init__(self, value: _Optional[int] = ...) -> None: ...

class TakeWork(_message.Message):
    __slots__ = ("key", "pchannel", "member", "after", "room", "size", "wait_ms")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    ROOM_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    key: _cursors_pb2.CursorKey
    pchannel: str
    member: bytes
    after: int
    room: int
    size: int
    wait_ms: int
    def __init__(self, key: _Optional[_Union[_cursors_pb2.CursorKey, _Mapping[str, object]]] = ..., pchannel: _Optional[str] = ..., member: _Optional[bytes] = ..., after: _Optional[int] = ..., room: _Optional[int] = ..., size: _Optional[int] = ..., wait_ms: _Optional[int] = ...) -> None: ...

class TakeWorkAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: SentWork
    def __init__(self, value: _Optional[_Union[SentWork, _Mapping[str, object]]] = ...) -> None: ...

class SentWork(_message.Message):
    __slots__ = ("firsts", "sizes", "pchannel", "incarnation", "form", "frames", "frame_numbers", "indexes", "ticks", "vchannels", "vchannel_numbers", "payloads", "types", "properties", "attempts", "txn_ids", "keepalives", "broadcasts", "pchannels", "incarnations", "frame_pchannels")
    FIRSTS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    FRAME_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    INDEXES_FIELD_NUMBER: _ClassVar[int]
    TICKS_FIELD_NUMBER: _ClassVar[int]
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    VCHANNEL_NUMBERS_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    TXN_IDS_FIELD_NUMBER: _ClassVar[int]
    KEEPALIVES_FIELD_NUMBER: _ClassVar[int]
    BROADCASTS_FIELD_NUMBER: _ClassVar[int]
    PCHANNELS_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    FRAME_PCHANNELS_FIELD_NUMBER: _ClassVar[int]
    firsts: _containers.RepeatedScalarFieldContainer[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    pchannel: str
    incarnation: int
    form: int
    frames: _containers.RepeatedCompositeFieldContainer[_pchannel_pb2.Position]
    frame_numbers: _containers.RepeatedScalarFieldContainer[int]
    indexes: _containers.RepeatedScalarFieldContainer[int]
    ticks: _containers.RepeatedScalarFieldContainer[int]
    vchannels: _containers.RepeatedScalarFieldContainer[str]
    vchannel_numbers: _containers.RepeatedScalarFieldContainer[int]
    payloads: _containers.RepeatedScalarFieldContainer[bytes]
    types: _containers.RepeatedScalarFieldContainer[int]
    properties: _containers.RepeatedScalarFieldContainer[bytes]
    attempts: _containers.RepeatedScalarFieldContainer[int]
    txn_ids: _containers.RepeatedScalarFieldContainer[int]
    keepalives: _containers.RepeatedScalarFieldContainer[float]
    broadcasts: _containers.RepeatedScalarFieldContainer[bytes]
    pchannels: _containers.RepeatedScalarFieldContainer[str]
    incarnations: _containers.RepeatedScalarFieldContainer[int]
    frame_pchannels: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, firsts: _Optional[_Iterable[int]] = ..., sizes: _Optional[_Iterable[int]] = ..., pchannel: _Optional[str] = ..., incarnation: _Optional[int] = ..., form: _Optional[int] = ..., frames: _Optional[_Iterable[_Union[_pchannel_pb2.Position, _Mapping[str, object]]]] = ..., frame_numbers: _Optional[_Iterable[int]] = ..., indexes: _Optional[_Iterable[int]] = ..., ticks: _Optional[_Iterable[int]] = ..., vchannels: _Optional[_Iterable[str]] = ..., vchannel_numbers: _Optional[_Iterable[int]] = ..., payloads: _Optional[_Iterable[bytes]] = ..., types: _Optional[_Iterable[int]] = ..., properties: _Optional[_Iterable[bytes]] = ..., attempts: _Optional[_Iterable[int]] = ..., txn_ids: _Optional[_Iterable[int]] = ..., keepalives: _Optional[_Iterable[float]] = ..., broadcasts: _Optional[_Iterable[bytes]] = ..., pchannels: _Optional[_Iterable[str]] = ..., incarnations: _Optional[_Iterable[int]] = ..., frame_pchannels: _Optional[_Iterable[int]] = ...) -> None: ...

class SettleWork(_message.Message):
    __slots__ = ("key", "pchannel", "member", "number", "handled", "outputs", "output_counts", "dead", "failed", "released", "restarted", "exhausted", "exhausted_text")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HANDLED_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_COUNTS_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    RESTARTED_FIELD_NUMBER: _ClassVar[int]
    EXHAUSTED_FIELD_NUMBER: _ClassVar[int]
    EXHAUSTED_TEXT_FIELD_NUMBER: _ClassVar[int]
    key: _cursors_pb2.CursorKey
    pchannel: str
    member: bytes
    number: int
    handled: _containers.RepeatedScalarFieldContainer[int]
    outputs: _containers.RepeatedCompositeFieldContainer[WorkOutput]
    output_counts: _containers.RepeatedScalarFieldContainer[int]
    dead: int
    failed: _containers.RepeatedCompositeFieldContainer[FailedWork]
    released: _containers.RepeatedScalarFieldContainer[int]
    restarted: _containers.RepeatedScalarFieldContainer[int]
    exhausted: int
    exhausted_text: str
    def __init__(self, key: _Optional[_Union[_cursors_pb2.CursorKey, _Mapping[str, object]]] = ..., pchannel: _Optional[str] = ..., member: _Optional[bytes] = ..., number: _Optional[int] = ..., handled: _Optional[_Iterable[int]] = ..., outputs: _Optional[_Iterable[_Union[WorkOutput, _Mapping[str, object]]]] = ..., output_counts: _Optional[_Iterable[int]] = ..., dead: _Optional[int] = ..., failed: _Optional[_Iterable[_Union[FailedWork, _Mapping[str, object]]]] = ..., released: _Optional[_Iterable[int]] = ..., restarted: _Optional[_Iterable[int]] = ..., exhausted: _Optional[int] = ..., exhausted_text: _Optional[str] = ...) -> None: ...

class WorkOutput(_message.Message):
    __slots__ = ("vchannel", "payload", "message_type", "properties")
    class PropertiesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VCHANNEL_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    vchannel: str
    payload: bytes
    message_type: int
    properties: _containers.ScalarMap[str, str]
    def __init__(self, vchannel: _Optional[str] = ..., payload: _Optional[bytes] = ..., message_type: _Optional[int] = ..., properties: _Optional[_Mapping[str, str]] = ...) -> None: ...

class FailedWork(_message.Message):
    __slots__ = ("number", "delay_s")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DELAY_S_FIELD_NUMBER: _ClassVar[int]
    number: int
    delay_s: float
    def __init__(self, number: _Optional[int] = ..., delay_s: _Optional[float] = ...) -> None: ...

class SettleWorkAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: int
    def __init__(self, value: _Optional[int] = ...) -> None: ...

class KeepMember(_message.Message):
    __slots__ = ("key", "pchannel", "member", "wait_ms", "caught_up_to", "trip", "resumes")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    CAUGHT_UP_TO_FIELD_NUMBER: _ClassVar[int]
    TRIP_FIELD_NUMBER: _ClassVar[int]
    RESUMES_FIELD_NUMBER: _ClassVar[int]
    key: _cursors_pb2.CursorKey
    pchannel: str
    member: bytes
    wait_ms: int
    caught_up_to: int
    trip: int
    resumes: bool
    def __init__(self, key: _Optional[_Union[_cursors_pb2.CursorKey, _Mapping[str, object]]] = ..., pchannel: _Optional[str] = ..., member: _Optional[bytes] = ..., wait_ms: _Optional[int] = ..., caught_up_to: _Optional[int] = ..., trip: _Optional[int] = ..., resumes: bool = ...) -> None: ...

class KeepMemberAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: SharedWork
    def __init__(self, value: _Optional[_Union[SharedWork, _Mapping[str, object]]] = ...) -> None: ...

class SharedWork(_message.Message):
    __slots__ = ("members", "pending", "lag_messages", "lag_bytes", "lag_s", "held_by", "is_caught_up", "trip", "tripped")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    LAG_MESSAGES_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_S_FIELD_NUMBER: _ClassVar[int]
    HELD_BY_FIELD_NUMBER: _ClassVar[int]
    IS_CAUGHT_UP_FIELD_NUMBER: _ClassVar[int]
    TRIP_FIELD_NUMBER: _ClassVar[int]
    TRIPPED_FIELD_NUMBER: _ClassVar[int]
    members: _containers.RepeatedCompositeFieldContainer[CursorMember]
    pending: int
    lag_messages: int
    lag_bytes: int
    lag_s: float
    held_by: str
    is_caught_up: bool
    trip: int
    tripped: str
    def __init__(self, members: _Optional[_Iterable[_Union[CursorMember, _Mapping[str, object]]]] = ..., pending: _Optional[int] = ..., lag_messages: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., lag_s: _Optional[float] = ..., held_by: _Optional[str] = ..., is_caught_up: bool = ..., trip: _Optional[int] = ..., tripped: _Optional[str] = ...) -> None: ...

class CursorMember(_message.Message):
    __slots__ = ("name", "client", "in_hand", "handled", "rate", "process", "joined_at", "lease_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    IN_HAND_FIELD_NUMBER: _ClassVar[int]
    HANDLED_FIELD_NUMBER: _ClassVar[int]
    RATE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    JOINED_AT_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    client: str
    in_hand: int
    handled: int
    rate: float
    process: str
    joined_at: int
    lease_s: float
    def __init__(self, name: _Optional[str] = ..., client: _Optional[str] = ..., in_hand: _Optional[int] = ..., handled: _Optional[int] = ..., rate: _Optional[float] = ..., process: _Optional[str] = ..., joined_at: _Optional[int] = ..., lease_s: _Optional[float] = ...) -> None: ...

class ListMembers(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMembersAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _containers.RepeatedCompositeFieldContainer[SharedCursor]
    def __init__(self, value: _Optional[_Iterable[_Union[SharedCursor, _Mapping[str, object]]]] = ...) -> None: ...

class SharedCursor(_message.Message):
    __slots__ = ("key", "fence", "work", "handled", "failed", "retried", "dead_lettered", "idle_s", "tripped_at")
    KEY_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    HANDLED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    RETRIED_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERED_FIELD_NUMBER: _ClassVar[int]
    IDLE_S_FIELD_NUMBER: _ClassVar[int]
    TRIPPED_AT_FIELD_NUMBER: _ClassVar[int]
    key: _cursors_pb2.CursorKey
    fence: int
    work: SharedWork
    handled: int
    failed: int
    retried: int
    dead_lettered: int
    idle_s: float
    tripped_at: int
    def __init__(self, key: _Optional[_Union[_cursors_pb2.CursorKey, _Mapping[str, object]]] = ..., fence: _Optional[int] = ..., work: _Optional[_Union[SharedWork, _Mapping[str, object]]] = ..., handled: _Optional[int] = ..., failed: _Optional[int] = ..., retried: _Optional[int] = ..., dead_lettered: _Optional[int] = ..., idle_s: _Optional[float] = ..., tripped_at: _Optional[int] = ...) -> None: ...

class LeaveCursor(_message.Message):
    __slots__ = ("key", "pchannel", "member")
    KEY_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    key: _cursors_pb2.CursorKey
    pchannel: str
    member: bytes
    def __init__(self, key: _Optional[_Union[_cursors_pb2.CursorKey, _Mapping[str, object]]] = ..., pchannel: _Optional[str] = ..., member: _Optional[bytes] = ...) -> None: ...

class LeaveCursorAnswer(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetMoment(_message.Message):
    __slots__ = ("pchannel",)
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    pchannel: str
    def __init__(self, pchannel: _Optional[str] = ...) -> None: ...

class GetMomentAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _pchannel_pb2.LogState
    def __init__(self, value: _Optional[_Union[_pchannel_pb2.LogState, _Mapping[str, object]]] = ...) -> None: ...

class NewestTick(_message.Message):
    __slots__ = ("pchannel",)
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    pchannel: str
    def __init__(self, pchannel: _Optional[str] = ...) -> None: ...

class NewestTickAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: int
    def __init__(self, value: _Optional[int] = ...) -> None: ...

class WeighFrames(_message.Message):
    __slots__ = ("pchannel", "start", "end", "names", "rows_max", "bytes_max")
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    ROWS_MAX_FIELD_NUMBER: _ClassVar[int]
    BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    pchannel: str
    start: _pchannel_pb2.Position
    end: _pchannel_pb2.Position
    names: _frames_pb2.VChannelNames
    rows_max: int
    bytes_max: int
    def __init__(self, pchannel: _Optional[str] = ..., start: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ..., end: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ..., names: _Optional[_Union[_frames_pb2.VChannelNames, _Mapping[str, object]]] = ..., rows_max: _Optional[int] = ..., bytes_max: _Optional[int] = ...) -> None: ...

class WeighFramesAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: Weighed
    def __init__(self, value: _Optional[_Union[Weighed, _Mapping[str, object]]] = ...) -> None: ...

class Weighed(_message.Message):
    __slots__ = ("weights", "upto")
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    UPTO_FIELD_NUMBER: _ClassVar[int]
    weights: _containers.RepeatedCompositeFieldContainer[FrameWeight]
    upto: _pchannel_pb2.Position
    def __init__(self, weights: _Optional[_Iterable[_Union[FrameWeight, _Mapping[str, object]]]] = ..., upto: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ...) -> None: ...

class FrameWeight(_message.Message):
    __slots__ = ("position", "next_position", "first_tick", "promised_tick", "rows", "size")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_POSITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_TICK_FIELD_NUMBER: _ClassVar[int]
    PROMISED_TICK_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    position: _pchannel_pb2.Position
    next_position: _pchannel_pb2.Position
    first_tick: int
    promised_tick: int
    rows: int
    size: int
    def __init__(self, position: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ..., next_position: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ..., first_tick: _Optional[int] = ..., promised_tick: _Optional[int] = ..., rows: _Optional[int] = ..., size: _Optional[int] = ...) -> None: ...

class FindTick(_message.Message):
    __slots__ = ("pchannel", "time_tick", "start", "end")
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    TIME_TICK_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    pchannel: str
    time_tick: int
    start: _pchannel_pb2.Position
    end: _pchannel_pb2.Position
    def __init__(self, pchannel: _Optional[str] = ..., time_tick: _Optional[int] = ..., start: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ..., end: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ...) -> None: ...

class FindTickAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _pchannel_pb2.EventPosition
    def __init__(self, value: _Optional[_Union[_pchannel_pb2.EventPosition, _Mapping[str, object]]] = ...) -> None: ...

class FindEventBelow(_message.Message):
    __slots__ = ("pchannel", "since", "below")
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    BELOW_FIELD_NUMBER: _ClassVar[int]
    pchannel: str
    since: _pchannel_pb2.EventPosition
    below: _pchannel_pb2.EventPosition
    def __init__(self, pchannel: _Optional[str] = ..., since: _Optional[_Union[_pchannel_pb2.EventPosition, _Mapping[str, object]]] = ..., below: _Optional[_Union[_pchannel_pb2.EventPosition, _Mapping[str, object]]] = ...) -> None: ...

class FindEventBelowAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: _pchannel_pb2.EventPosition
    def __init__(self, value: _Optional[_Union[_pchannel_pb2.EventPosition, _Mapping[str, object]]] = ...) -> None: ...

class CountBytes(_message.Message):
    __slots__ = ("pchannel", "start", "end")
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    pchannel: str
    start: _pchannel_pb2.Position
    end: _pchannel_pb2.Position
    def __init__(self, pchannel: _Optional[str] = ..., start: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ..., end: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ...) -> None: ...

class CountBytesAnswer(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: int
    def __init__(self, value: _Optional[int] = ...) -> None: ...
