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
    vchannels: _containers.RepeatedCompositeFieldContainer[_pchannel_pb2.VChannelInfo]
    def __init__(self, call: _Optional[_Union[ManagerCall, _Mapping[str, object]]] = ..., pchannel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ..., vchannels: _Optional[_Iterable[_Union[_pchannel_pb2.VChannelInfo, _Mapping[str, object]]]] = ...) -> None: ...

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
