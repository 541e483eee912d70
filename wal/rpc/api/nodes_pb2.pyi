from google.protobuf import empty_pb2 as _empty_pb2
from wal.rpc.api import append_pb2 as _append_pb2
from wal.rpc.api import pchannel_pb2 as _pchannel_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ManagerCall(_message.Message):
    __slots__ = ("server_id", "leader")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    server_id: int
    leader: int
    def __init__(self, server_id: _Optional[int] = ..., leader: _Optional[int] = ...) -> None: ...

class HostedPChannel(_message.Message):
    __slots__ = ("pchannel", "available", "progress", "vchannels", "failed")
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    pchannel: _pchannel_pb2.PChannelInfo
    available: bool
    progress: int
    vchannels: int
    failed: bool
    def __init__(self, pchannel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ..., available: bool = ..., progress: _Optional[int] = ..., vchannels: _Optional[int] = ..., failed: bool = ...) -> None: ...

class EndVChannelsRequest(_message.Message):
    __slots__ = ("call", "pchannel", "vchannels")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    call: ManagerCall
    pchannel: _pchannel_pb2.PChannelInfo
    vchannels: _containers.RepeatedCompositeFieldContainer[_pchannel_pb2.VChannelState]
    def __init__(self, call: _Optional[_Union[ManagerCall, _Mapping[str, object]]] = ..., pchannel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ..., vchannels: _Optional[_Iterable[_Union[_pchannel_pb2.VChannelState, _Mapping[str, object]]]] = ...) -> None: ...

class AppendCopiesRequest(_message.Message):
    __slots__ = ("call", "pchannel", "vchannels", "header", "payload", "message_type", "properties", "aborts")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    ABORTS_FIELD_NUMBER: _ClassVar[int]
    call: ManagerCall
    pchannel: _pchannel_pb2.PChannelInfo
    vchannels: _containers.RepeatedScalarFieldContainer[str]
    header: bytes
    payload: bytes
    message_type: int
    properties: bytes
    aborts: bool
    def __init__(self, call: _Optional[_Union[ManagerCall, _Mapping[str, object]]] = ..., pchannel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ..., vchannels: _Optional[_Iterable[str]] = ..., header: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., message_type: _Optional[int] = ..., properties: _Optional[bytes] = ..., aborts: bool = ...) -> None: ...

class ListCopiesRequest(_message.Message):
    __slots__ = ("call", "pchannel")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    call: ManagerCall
    pchannel: _pchannel_pb2.PChannelInfo
    def __init__(self, call: _Optional[_Union[ManagerCall, _Mapping[str, object]]] = ..., pchannel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ...) -> None: ...

class ListedCopies(_message.Message):
    __slots__ = ("broadcasts",)
    BROADCASTS_FIELD_NUMBER: _ClassVar[int]
    broadcasts: _containers.RepeatedCompositeFieldContainer[ListedBroadcast]
    def __init__(self, broadcasts: _Optional[_Iterable[_Union[ListedBroadcast, _Mapping[str, object]]]] = ...) -> None: ...

class ListedBroadcast(_message.Message):
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

class ReadCopyRequest(_message.Message):
    __slots__ = ("call", "pchannel", "broadcast_id")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_ID_FIELD_NUMBER: _ClassVar[int]
    call: ManagerCall
    pchannel: _pchannel_pb2.PChannelInfo
    broadcast_id: int
    def __init__(self, call: _Optional[_Union[ManagerCall, _Mapping[str, object]]] = ..., pchannel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ..., broadcast_id: _Optional[int] = ...) -> None: ...

class CopyContent(_message.Message):
    __slots__ = ("payload", "message_type", "properties")
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_TYPE_FIELD_NUMBER: _ClassVar[int]
    PROPERTIES_FIELD_NUMBER: _ClassVar[int]
    payload: bytes
    message_type: int
    properties: bytes
    def __init__(self, payload: _Optional[bytes] = ..., message_type: _Optional[int] = ..., properties: _Optional[bytes] = ...) -> None: ...

class ForgetBroadcastsRequest(_message.Message):
    __slots__ = ("call", "pchannel", "broadcast_ids", "checkpoint")
    CALL_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    BROADCAST_IDS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    call: ManagerCall
    pchannel: _pchannel_pb2.PChannelInfo
    broadcast_ids: _containers.RepeatedScalarFieldContainer[int]
    checkpoint: bool
    def __init__(self, call: _Optional[_Union[ManagerCall, _Mapping[str, object]]] = ..., pchannel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ..., broadcast_ids: _Optional[_Iterable[int]] = ..., checkpoint: bool = ...) -> None: ...

class ForgottenBroadcasts(_message.Message):
    __slots__ = ("broadcast_ids",)
    BROADCAST_IDS_FIELD_NUMBER: _ClassVar[int]
    broadcast_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, broadcast_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class GetClusterStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

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
    __slots__ = ("pchannel", "state", "server_id", "address", "histories", "trouble", "since_s")
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    HISTORIES_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    SINCE_S_FIELD_NUMBER: _ClassVar[int]
    pchannel: _pchannel_pb2.PChannelInfo
    state: int
    server_id: int
    address: str
    histories: int
    trouble: str
    since_s: float
    def __init__(self, pchannel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ..., state: _Optional[int] = ..., server_id: _Optional[int] = ..., address: _Optional[str] = ..., histories: _Optional[int] = ..., trouble: _Optional[str] = ..., since_s: _Optional[float] = ...) -> None: ...

class DrainNodeRequest(_message.Message):
    __slots__ = ("server_id", "drain")
    SERVER_ID_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    server_id: int
    drain: bool
    def __init__(self, server_id: _Optional[int] = ..., drain: bool = ...) -> None: ...

class PauseBalancerRequest(_message.Message):
    __slots__ = ("pause",)
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    pause: bool
    def __init__(self, pause: bool = ...) -> None: ...
