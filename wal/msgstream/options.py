"""The options of streams over a ready-made medium, as MsgStream and TtMsgStream explain them."""

from __future__ import annotations

from typing import TypedDict

from wal.msgstream.page import Decoder
from wal.msgstream.refused import OnRefused

__all__ = ["StreamOptions", "TtStreamOptions"]


class StreamOptions(TypedDict, total=False):
    """The keywords of every stream; the defaults are those of MsgStream."""

    buffer_size: int
    dispatcher: Decoder | None
    on_refused: OnRefused | None
    auto_ack: bool


class TtStreamOptions(StreamOptions, total=False):
    """The keywords of every stream with time ticks; the defaults are those of TtMsgStream."""

    tick_bytes_max: int
