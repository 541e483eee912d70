from wal.rpc.api import pchannel_pb2 as _pchannel_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CursorKey(_message.Message):
    __slots__ = ("name", "vchannels", "pattern")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VCHANNELS_FIELD_NUMBER: _ClassVar[int]
    PATTERN_FIELD_NUMBER: _ClassVar[int]
    name: str
    vchannels: _containers.RepeatedScalarFieldContainer[str]
    pattern: str
    def __init__(self, name: _Optional[str] = ..., vchannels: _Optional[_Iterable[str]] = ..., pattern: _Optional[str] = ...) -> None: ...

class Cursor(_message.Message):
    __slots__ = ("key", "incarnations", "pchannel", "incarnation", "form", "start", "event", "time_tick", "saved_at", "stale", "moved_at", "moving", "begun")
    KEY_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    EVENT_FIELD_NUMBER: _ClassVar[int]
    TIME_TICK_FIELD_NUMBER: _ClassVar[int]
    SAVED_AT_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    MOVED_AT_FIELD_NUMBER: _ClassVar[int]
    MOVING_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    key: CursorKey
    incarnations: _containers.RepeatedCompositeFieldContainer[CursorIncarnation]
    pchannel: str
    incarnation: int
    form: int
    start: _pchannel_pb2.EventPosition
    event: _pchannel_pb2.EventPosition
    time_tick: int
    saved_at: float
    stale: str
    moved_at: float
    moving: bool
    begun: _containers.RepeatedCompositeFieldContainer[BegunPChannel]
    def __init__(self, key: _Optional[_Union[CursorKey, _Mapping[str, object]]] = ..., incarnations: _Optional[_Iterable[_Union[CursorIncarnation, _Mapping[str, object]]]] = ..., pchannel: _Optional[str] = ..., incarnation: _Optional[int] = ..., form: _Optional[int] = ..., start: _Optional[_Union[_pchannel_pb2.EventPosition, _Mapping[str, object]]] = ..., event: _Optional[_Union[_pchannel_pb2.EventPosition, _Mapping[str, object]]] = ..., time_tick: _Optional[int] = ..., saved_at: _Optional[float] = ..., stale: _Optional[str] = ..., moved_at: _Optional[float] = ..., moving: bool = ..., begun: _Optional[_Iterable[_Union[BegunPChannel, _Mapping[str, object]]]] = ...) -> None: ...

class BegunPChannel(_message.Message):
    __slots__ = ("pchannel", "position", "index")
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    pchannel: str
    position: _pchannel_pb2.Position
    index: int
    def __init__(self, pchannel: _Optional[str] = ..., position: _Optional[_Union[_pchannel_pb2.Position, _Mapping[str, object]]] = ..., index: _Optional[int] = ...) -> None: ...

class CursorIncarnation(_message.Message):
    __slots__ = ("incarnation",)
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    def __init__(self, incarnation: _Optional[int] = ...) -> None: ...

class CursorSave(_message.Message):
    __slots__ = ("key", "cursor", "fence", "number", "state", "after")
    KEY_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    key: CursorKey
    cursor: Cursor
    fence: int
    number: int
    state: bytes
    after: _pchannel_pb2.EventPosition
    def __init__(self, key: _Optional[_Union[CursorKey, _Mapping[str, object]]] = ..., cursor: _Optional[_Union[Cursor, _Mapping[str, object]]] = ..., fence: _Optional[int] = ..., number: _Optional[int] = ..., state: _Optional[bytes] = ..., after: _Optional[_Union[_pchannel_pb2.EventPosition, _Mapping[str, object]]] = ...) -> None: ...
