from wal.rpc.api import pchannel_pb2 as _pchannel_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FollowTailRequest(_message.Message):
    __slots__ = ("pchannel", "incarnation", "await_tick")
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    AWAIT_TICK_FIELD_NUMBER: _ClassVar[int]
    pchannel: _pchannel_pb2.PChannelInfo
    incarnation: int
    await_tick: int
    def __init__(self, pchannel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ..., incarnation: _Optional[int] = ..., await_tick: _Optional[int] = ...) -> None: ...

class TailUpdate(_message.Message):
    __slots__ = ("log", "tail")
    LOG_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    log: _pchannel_pb2.LogIdentity
    tail: _pchannel_pb2.TailState
    def __init__(self, log: _Optional[_Union[_pchannel_pb2.LogIdentity, _Mapping[str, object]]] = ..., tail: _Optional[_Union[_pchannel_pb2.TailState, _Mapping[str, object]]] = ...) -> None: ...

class VChannelNames(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class ReadFramesRequest(_message.Message):
    __slots__ = ("pchannel", "incarnation", "start", "end", "names", "page_bytes", "pages_max", "pattern")
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAGES_MAX_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    pchannel: _pchannel_pb2.PChannelInfo
    incarnation: int
    start: _pchannel_pb2.Position
    end: _pchannel_pb2.Position
    names: VChannelNames
    page_bytes: int
    pages_max: int
    pattern: str
    def __init__(self, pchannel: _Optional[_Union[_pchannel_pb2.PChannelInfo, _Mapping[str, object]]] = ..., incarnation: _Optional[int] = ..., start: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ..., end: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ..., names: _Optional[_Union[VChannelNames, _Mapping[str, object]]] = ..., page_bytes: _Optional[int] = ..., pages_max: _Optional[int] = ..., pattern: _Optional[str] = ...) -> None: ...

class FramePage(_message.Message):
    __slots__ = ("frames", "start", "next_position", "last_event", "promised_tick")
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    NEXT_POSITION_FIELD_NUMBER: _ClassVar[int]
    LAST_EVENT_FIELD_NUMBER: _ClassVar[int]
    PROMISED_TICK_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    start: _pchannel_pb2.Position
    next_position: _pchannel_pb2.Position
    last_event: _pchannel_pb2.EventPosition
    promised_tick: int
    def __init__(self, frames: _Optional[_Iterable[_Union[Frame, _Mapping[str, object]]]] = ..., start: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ..., next_position: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ..., last_event: _Optional[_Union[_pchannel_pb2.EventPosition, _Mapping[str, object]]] = ..., promised_tick: _Optional[int] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("position", "next_position", "head", "body")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    NEXT_POSITION_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    position: _pchannel_pb2.Position
    next_position: _pchannel_pb2.Position
    head: bytes
    body: _containers.RepeatedCompositeFieldContainer[BodyPart]
    def __init__(self, position: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ..., next_position: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ..., head: _Optional[bytes] = ..., body: _Optional[_Iterable[_Union[BodyPart, _Mapping[str, object]]]] = ...) -> None: ...

class BodyPart(_message.Message):
    __slots__ = ("start", "data")
    START_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    start: int
    data: bytes
    def __init__(self, start: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...
