from google.protobuf import any_pb2 as _any_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from wal.message import wire_pb2 as _wire_pb2
from wal.rpc.api import component_pb2 as _component_pb2
from wal.rpc.api import error_pb2 as _error_pb2
from wal.rpc.api import nodes_pb2 as _nodes_pb2
from wal.rpc.api import pchannel_pb2 as _pchannel_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PChannelMetaState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PCHANNEL_META_STATE_UNKNOWN: _ClassVar[PChannelMetaState]
    PCHANNEL_META_STATE_UNINITIALIZED: _ClassVar[PChannelMetaState]
    PCHANNEL_META_STATE_ASSIGNING: _ClassVar[PChannelMetaState]
    PCHANNEL_META_STATE_ASSIGNED: _ClassVar[PChannelMetaState]
    PCHANNEL_META_STATE_UNAVAILABLE: _ClassVar[PChannelMetaState]
PCHANNEL_META_STATE_UNKNOWN: PChannelMetaState
PCHANNEL_META_STATE_UNINITIALIZED: PChannelMetaState
PCHANNEL_META_STATE_ASSIGNING: PChannelMetaState
PCHANNEL_META_STATE_ASSIGNED: PChannelMetaState
PCHANNEL_META_STATE_UNAVAILABLE: PChannelMetaState

class PChannelMetaHistory(_message.Message):
    __slots__ = ("term", "node")
    TERM_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    term: int
    node: StreamingNodeInfo
    def __init__(self, term: _Optional[int] = ..., node: _Optional[_Union[StreamingNodeInfo, _Mapping[str, object]]] = ...) -> None: ...

class PChannelMeta(_message.Message):
    __slots__ = ("channel", "node", "state", "histories")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HISTORIES_FIELD_NUMBER: _ClassVar[int]
    channel: _pchannel_pb2.PChannelInfo
    node: StreamingNodeInfo
    state: PChannelMetaState
    histories: _containers.RepeatedCompositeFieldContainer[PChannelMetaHistory]
    def __init__(self, channel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ..., node: _Optional[_Union[StreamingNodeInfo, _Mapping[str, object]]] = ..., state: _Optional[_Union[PChannelMetaState, str]] = ..., histories: _Optional[_Iterable[_Union[PChannelMetaHistory, _Mapping[str, object]]]] = ...) -> None: ...

class VersionPair(_message.Message):
    __slots__ = ("local",)
    GLOBAL_FIELD_NUMBER: _ClassVar[int]
    LOCAL_FIELD_NUMBER: _ClassVar[int]
    local: int
    def __init__(self, local: _Optional[int] = ..., **kwargs) -> None: ...

class AssignmentDiscoverRequest(_message.Message):
    __slots__ = ("report_error", "close")
    REPORT_ERROR_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    report_error: ReportAssignmentErrorRequest
    close: CloseAssignmentDiscoverRequest
    def __init__(self, report_error: _Optional[_Union[ReportAssignmentErrorRequest, _Mapping[str, object]]] = ..., close: _Optional[_Union[CloseAssignmentDiscoverRequest, _Mapping[str, object]]] = ...) -> None: ...

class ReportAssignmentErrorRequest(_message.Message):
    __slots__ = ("pchannel", "err")
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    ERR_FIELD_NUMBER: _ClassVar[int]
    pchannel: _pchannel_pb2.PChannelInfo
    err: _error_pb2.StreamingError
    def __init__(self, pchannel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ..., err: _Optional[_Union[_error_pb2.StreamingError, _Mapping[str, object]]] = ...) -> None: ...

class CloseAssignmentDiscoverRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AssignmentDiscoverResponse(_message.Message):
    __slots__ = ("full_assignment", "close")
    FULL_ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    full_assignment: FullStreamingNodeAssignmentWithVersion
    close: CloseAssignmentDiscoverResponse
    def __init__(self, full_assignment: _Optional[_Union[FullStreamingNodeAssignmentWithVersion, _Mapping[str, object]]] = ..., close: _Optional[_Union[CloseAssignmentDiscoverResponse, _Mapping[str, object]]] = ...) -> None: ...

class FullStreamingNodeAssignmentWithVersion(_message.Message):
    __slots__ = ("version", "assignments", "answered_by")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    ANSWERED_BY_FIELD_NUMBER: _ClassVar[int]
    version: VersionPair
    assignments: _containers.RepeatedCompositeFieldContainer[StreamingNodeAssignment]
    answered_by: StreamingNodeInfo
    def __init__(self, version: _Optional[_Union[VersionPair, _Mapping[str, object]]] = ..., assignments: _Optional[_Iterable[_Union[StreamingNodeAssignment, _Mapping[str, object]]]] = ..., answered_by: _Optional[_Union[StreamingNodeInfo, _Mapping[str, object]]] = ...) -> None: ...

class CloseAssignmentDiscoverResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StreamingNodeInfo(_message.Message):
    __slots__ = ("server_id", "address")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    server_id: int
    address: str
    def __init__(self, server_id: _Optional[int] = ..., address: _Optional[str] = ...) -> None: ...

class StreamingNodeAssignment(_message.Message):
    __slots__ = ("node", "channels")
    NODE_FIELD_NUMBER: _ClassVar[int]
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    node: StreamingNodeInfo
    channels: _containers.RepeatedCompositeFieldContainer[_pchannel_pb2.PChannelInfo]
    def __init__(self, node: _Optional[_Union[StreamingNodeInfo, _Mapping[str, object]]] = ..., channels: _Optional[_Iterable[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]]] = ...) -> None: ...

class DeliverPolicy(_message.Message):
    __slots__ = ("all", "latest", "start_from", "start_after")
    ALL_FIELD_NUMBER: _ClassVar[int]
    LATEST_FIELD_NUMBER: _ClassVar[int]
    START_FROM_FIELD_NUMBER: _ClassVar[int]
    START_AFTER_FIELD_NUMBER: _ClassVar[int]
    all: _empty_pb2.Empty
    latest: _empty_pb2.Empty
    start_from: _wire_pb2.MessageID
    start_after: _wire_pb2.MessageID
    def __init__(self, all: _Optional[_Union[_empty_pb2.Empty, _Mapping[str, object]]] = ..., latest: _Optional[_Union[_empty_pb2.Empty, _Mapping[str, object]]] = ..., start_from: _Optional[_Union[_wire_pb2.MessageID, _Mapping[str, object]]] = ..., start_after: _Optional[_Union[_wire_pb2.MessageID, _Mapping[str, object]]] = ...) -> None: ...

class DeliverFilter(_message.Message):
    __slots__ = ("time_tick_gt", "time_tick_gte", "vchannel", "message_types")
    TIME_TICK_GT_FIELD_NUMBER: _ClassVar[int]
    TIME_TICK_GTE_FIELD_NUMBER: _ClassVar[int]
    VCHANNEL_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPES_FIELD_NUMBER: _ClassVar[int]
    time_tick_gt: DeliverFilterTimeTickGT
    time_tick_gte: DeliverFilterTimeTickGTE
    vchannel: DeliverFilterVChannel
    message_types: DeliverFilterMessageTypes
    def __init__(self, time_tick_gt: _Optional[_Union[DeliverFilterTimeTickGT, _Mapping[str, object]]] = ..., time_tick_gte: _Optional[_Union[DeliverFilterTimeTickGTE, _Mapping[str, object]]] = ..., vchannel: _Optional[_Union[DeliverFilterVChannel, _Mapping[str, object]]] = ..., message_types: _Optional[_Union[DeliverFilterMessageTypes, _Mapping[str, object]]] = ...) -> None: ...

class DeliverFilterTimeTickGT(_message.Message):
    __slots__ = ("time_tick",)
    TIME_TICK_FIELD_NUMBER: _ClassVar[int]
    time_tick: int
    def __init__(self, time_tick: _Optional[int] = ...) -> None: ...

class DeliverFilterTimeTickGTE(_message.Message):
    __slots__ = ("time_tick",)
    TIME_TICK_FIELD_NUMBER: _ClassVar[int]
    time_tick: int
    def __init__(self, time_tick: _Optional[int] = ...) -> None: ...

class DeliverFilterVChannel(_message.Message):
    __slots__ = ("vchannel",)
    VCHANNEL_FIELD_NUMBER: _ClassVar[int]
    vchannel: str
    def __init__(self, vchannel: _Optional[str] = ...) -> None: ...

class DeliverFilterMessageTypes(_message.Message):
    __slots__ = ("types",)
    TYPES_FIELD_NUMBER: _ClassVar[int]
    types: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, types: _Optional[_Iterable[int]] = ...) -> None: ...

class ProduceRequest(_message.Message):
    __slots__ = ("produce", "close")
    PRODUCE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    produce: ProduceMessageRequest
    close: CloseProducerRequest
    def __init__(self, produce: _Optional[_Union[ProduceMessageRequest, _Mapping[str, object]]] = ..., close: _Optional[_Union[CloseProducerRequest, _Mapping[str, object]]] = ...) -> None: ...

class CreateProducerRequest(_message.Message):
    __slots__ = ("pchannel",)
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    pchannel: _pchannel_pb2.PChannelInfo
    def __init__(self, pchannel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ...) -> None: ...

class ProduceMessageRequest(_message.Message):
    __slots__ = ("request_id", "message")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    message: _wire_pb2.Message
    def __init__(self, request_id: _Optional[int] = ..., message: _Optional[_Union[_wire_pb2.Message, _Mapping[str, object]]] = ...) -> None: ...

class CloseProducerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ProduceResponse(_message.Message):
    __slots__ = ("create", "produce", "close")
    CREATE_FIELD_NUMBER: _ClassVar[int]
    PRODUCE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    create: CreateProducerResponse
    produce: ProduceMessageResponse
    close: CloseProducerResponse
    def __init__(self, create: _Optional[_Union[CreateProducerResponse, _Mapping[str, object]]] = ..., produce: _Optional[_Union[ProduceMessageResponse, _Mapping[str, object]]] = ..., close: _Optional[_Union[CloseProducerResponse, _Mapping[str, object]]] = ...) -> None: ...

class CreateProducerResponse(_message.Message):
    __slots__ = ("producer_id",)
    PRODUCER_ID_FIELD_NUMBER: _ClassVar[int]
    producer_id: int
    def __init__(self, producer_id: _Optional[int] = ...) -> None: ...

class ProduceMessageResponse(_message.Message):
    __slots__ = ("request_id", "result", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    result: ProduceMessageResponseResult
    error: _error_pb2.StreamingError
    def __init__(self, request_id: _Optional[int] = ..., result: _Optional[_Union[ProduceMessageResponseResult, _Mapping[str, object]]] = ..., error: _Optional[_Union[_error_pb2.StreamingError, _Mapping[str, object]]] = ...) -> None: ...

class ProduceMessageResponseResult(_message.Message):
    __slots__ = ("id", "time_tick", "txn_context", "extra")
    ID_FIELD_NUMBER: _ClassVar[int]
    TIME_TICK_FIELD_NUMBER: _ClassVar[int]
    TXN_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    id: _wire_pb2.MessageID
    time_tick: int
    txn_context: _wire_pb2.TxnContext
    extra: _any_pb2.Any
    def __init__(self, id: _Optional[_Union[_wire_pb2.MessageID, _Mapping[str, object]]] = ..., time_tick: _Optional[int] = ..., txn_context: _Optional[_Union[_wire_pb2.TxnContext, _Mapping[str, object]]] = ..., extra: _Optional[_Union[_any_pb2.Any, _Mapping[str, object]]] = ...) -> None: ...

class CloseProducerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConsumeRequest(_message.Message):
    __slots__ = ("close",)
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    close: CloseConsumerRequest
    def __init__(self, close: _Optional[_Union[CloseConsumerRequest, _Mapping[str, object]]] = ...) -> None: ...

class CloseConsumerRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CreateConsumerRequest(_message.Message):
    __slots__ = ("pchannel", "deliver_policy", "deliver_filters")
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    DELIVER_POLICY_FIELD_NUMBER: _ClassVar[int]
    DELIVER_FILTERS_FIELD_NUMBER: _ClassVar[int]
    pchannel: _pchannel_pb2.PChannelInfo
    deliver_policy: DeliverPolicy
    deliver_filters: _containers.RepeatedCompositeFieldContainer[DeliverFilter]
    def __init__(self, pchannel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ..., deliver_policy: _Optional[_Union[DeliverPolicy, _Mapping[str, object]]] = ..., deliver_filters: _Optional[_Iterable[_Union[DeliverFilter, _Mapping[str, object]]]] = ...) -> None: ...

class ConsumeResponse(_message.Message):
    __slots__ = ("create", "consume", "close")
    CREATE_FIELD_NUMBER: _ClassVar[int]
    CONSUME_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    create: CreateConsumerResponse
    consume: ConsumeMessageReponse
    close: CloseConsumerResponse
    def __init__(self, create: _Optional[_Union[CreateConsumerResponse, _Mapping[str, object]]] = ..., consume: _Optional[_Union[ConsumeMessageReponse, _Mapping[str, object]]] = ..., close: _Optional[_Union[CloseConsumerResponse, _Mapping[str, object]]] = ...) -> None: ...

class CreateConsumerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConsumeMessageReponse(_message.Message):
    __slots__ = ("id", "message")
    ID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    id: _wire_pb2.MessageID
    message: _wire_pb2.Message
    def __init__(self, id: _Optional[_Union[_wire_pb2.MessageID, _Mapping[str, object]]] = ..., message: _Optional[_Union[_wire_pb2.Message, _Mapping[str, object]]] = ...) -> None: ...

class CloseConsumerResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StreamingNodeManagerAssignRequest(_message.Message):
    __slots__ = ("pchannel", "call", "floor")
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    pchannel: _pchannel_pb2.PChannelInfo
    call: _nodes_pb2.ManagerCall
    floor: int
    def __init__(self, pchannel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ..., call: _Optional[_Union[_nodes_pb2.ManagerCall, _Mapping[str, object]]] = ..., floor: _Optional[int] = ...) -> None: ...

class StreamingNodeManagerAssignResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StreamingNodeManagerRemoveRequest(_message.Message):
    __slots__ = ("pchannel", "call")
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    pchannel: _pchannel_pb2.PChannelInfo
    call: _nodes_pb2.ManagerCall
    def __init__(self, pchannel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ..., call: _Optional[_Union[_nodes_pb2.ManagerCall, _Mapping[str, object]]] = ...) -> None: ...

class StreamingNodeManagerRemoveResponse(_message.Message):
    __slots__ = ("floor",)
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    floor: int
    def __init__(self, floor: _Optional[int] = ...) -> None: ...

class StreamingNodeManagerCollectStatusRequest(_message.Message):
    __slots__ = ("call",)
    CALL_FIELD_NUMBER: _ClassVar[int]
    call: _nodes_pb2.ManagerCall
    def __init__(self, call: _Optional[_Union[_nodes_pb2.ManagerCall, _Mapping[str, object]]] = ...) -> None: ...

class StreamingNodeBalanceAttributes(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StreamingNodeManagerCollectStatusResponse(_message.Message):
    __slots__ = ("balance_attributes", "pchannels", "wall_s", "stopping")
    BALANCE_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    PCHANNELS_FIELD_NUMBER: _ClassVar[int]
    WALL_S_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    balance_attributes: StreamingNodeBalanceAttributes
    pchannels: _containers.RepeatedCompositeFieldContainer[_nodes_pb2.HostedPChannel]
    wall_s: float
    stopping: bool
    def __init__(self, balance_attributes: _Optional[_Union[StreamingNodeBalanceAttributes, _Mapping[str, object]]] = ..., pchannels: _Optional[_Iterable[_Union[_nodes_pb2.HostedPChannel, _Mapping[str, object]]]] = ..., wall_s: _Optional[float] = ..., stopping: bool = ...) -> None: ...
