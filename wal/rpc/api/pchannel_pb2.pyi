from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PChannelInfo(_message.Message):
    __slots__ = ("name", "term")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    name: str
    term: int
    def __init__(self, name: _Optional[str] = ..., term: _Optional[int] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("low", "high")
    LOW_FIELD_NUMBER: _ClassVar[int]
    HIGH_FIELD_NUMBER: _ClassVar[int]
    low: int
    high: int
    def __init__(self, low: _Optional[int] = ..., high: _Optional[int] = ...) -> None: ...

class EventPosition(_message.Message):
    __slots__ = ("frame", "index")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    frame: Position
    index: int
    def __init__(self, frame: _Optional[_Union[Position, _Mapping[str, object]]] = ..., index: _Optional[int] = ...) -> None: ...

class LogIdentity(_message.Message):
    __slots__ = ("pchannel", "incarnation", "form", "restores")
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    RESTORES_FIELD_NUMBER: _ClassVar[int]
    pchannel: PChannelInfo
    incarnation: int
    form: int
    restores: _containers.RepeatedCompositeFieldContainer[LogRestore]
    def __init__(self, pchannel: _Optional[_Union[PChannelInfo, _Mapping[str, object]]] = ..., incarnation: _Optional[int] = ..., form: _Optional[int] = ..., restores: _Optional[_Iterable[_Union[LogRestore, _Mapping[str, object]]]] = ...) -> None: ...

class LogRestore(_message.Message):
    __slots__ = ("parent", "fork", "newest")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    FORK_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    parent: int
    fork: Position
    newest: EventPosition
    def __init__(self, parent: _Optional[int] = ..., fork: _Optional[_Union[Position, _Mapping[str, object]]] = ..., newest: _Optional[_Union[EventPosition, _Mapping[str, object]]] = ...) -> None: ...

class TailState(_message.Message):
    __slots__ = ("durable_end", "promised_tick", "newest", "earliest", "last_truncated", "truncated_tick")
    DURABLE_END_FIELD_NUMBER: _ClassVar[int]
    PROMISED_TICK_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    EARLIEST_FIELD_NUMBER: _ClassVar[int]
    LAST_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_TICK_FIELD_NUMBER: _ClassVar[int]
    durable_end: Position
    promised_tick: int
    newest: EventPosition
    earliest: EventPosition
    last_truncated: EventPosition
    truncated_tick: int
    def __init__(self, durable_end: _Optional[_Union[Position, _Mapping[str, object]]] = ..., promised_tick: _Optional[int] = ..., newest: _Optional[_Union[EventPosition, _Mapping[str, object]]] = ..., earliest: _Optional[_Union[EventPosition, _Mapping[str, object]]] = ..., last_truncated: _Optional[_Union[EventPosition, _Mapping[str, object]]] = ..., truncated_tick: _Optional[int] = ...) -> None: ...

class LogState(_message.Message):
    __slots__ = ("log", "tail")
    LOG_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    log: LogIdentity
    tail: TailState
    def __init__(self, log: _Optional[_Union[LogIdentity, _Mapping[str, object]]] = ..., tail: _Optional[_Union[TailState, _Mapping[str, object]]] = ...) -> None: ...

class OwnerDescription(_message.Message):
    __slots__ = ("role", "address", "description_text")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_TEXT_FIELD_NUMBER: _ClassVar[int]
    role: str
    address: str
    description_text: str
    def __init__(self, role: _Optional[str] = ..., address: _Optional[str] = ..., description_text: _Optional[str] = ...) -> None: ...

class VChannelInfo(_message.Message):
    __slots__ = ("name", "pchannel", "incarnation", "owner")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PCHANNEL_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    name: str
    pchannel: str
    incarnation: int
    owner: OwnerDescription
    def __init__(self, name: _Optional[str] = ..., pchannel: _Optional[str] = ..., incarnation: _Optional[int] = ..., owner: _Optional[_Union[OwnerDescription, _Mapping[str, object]]] = ...) -> None: ...

class VChannelState(_message.Message):
    __slots__ = ("info", "state")
    INFO_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    info: VChannelInfo
    state: int
    def __init__(self, info: _Optional[_Union[VChannelInfo, _Mapping[str, object]]] = ..., state: _Optional[int] = ...) -> None: ...
