from wal.rpc.api import pchannel_pb2 as _pchannel_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
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
