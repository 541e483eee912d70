"""The options of streams, as MsgStream and TtMsgStream explain them: their types, and what they may be."""

from __future__ import annotations

from typing import TypedDict

from wal.errors import InvalidArgumentError
from wal.msgstream.page import Decoder, OnRefused


class StreamOptions(TypedDict, total=False):
    """The keywords of every stream; the defaults are those of MsgStream."""

    buffer_size: int
    dispatcher: Decoder | None
    on_refused: OnRefused | None
    auto_ack: bool


class TtStreamOptions(StreamOptions, total=False):
    """The keywords of every stream with time ticks; the defaults are those of TtMsgStream."""

    tick_bytes_max: int


def check_options(medium: object, *, buffer_size: object, dispatcher: object, on_refused: object, auto_ack: object) -> None:
    """Raises TypeError or InvalidArgumentError unless a stream can be created over this medium with these options."""
    if not callable(getattr(medium, "consumer", None)):
        raise TypeError(f"a message stream is over a medium, such as MemoryMedium(), not over {medium!r}")
    if dispatcher is not None and not callable(getattr(dispatcher, "unmarshal", None)):
        raise TypeError(f"dispatcher must be an UnmarshalDispatcher or None, not {dispatcher!r}")
    if on_refused is not None and not callable(on_refused):
        raise TypeError(f"on_refused must be a function(refused) or None, not {on_refused!r}")
    if not isinstance(auto_ack, bool):
        raise TypeError(f"auto_ack must be a bool, not {auto_ack!r}")
    if not isinstance(buffer_size, int) or buffer_size < 1:
        raise InvalidArgumentError(f"buffer_size={buffer_size!r} is out of range: give at least 1 pack")
