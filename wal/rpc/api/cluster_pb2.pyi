from wal.rpc.api import append_pb2 as _append_pb2
from wal.rpc.api import frames_pb2 as _frames_pb2
from wal.rpc.api import pchannel_pb2 as _pchannel_pb2
from wal.rpc.api import requests_pb2 as _requests_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WatchVChannelsRequest(_message.Message):
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
