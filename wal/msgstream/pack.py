"""MsgPack: the messages that are produced or consumed together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from wal.errors import InvalidArgumentError
from wal.msgstream.checks import check_integer
from wal.msgstream.position import MsgPosition
from wal.msgstream.ts_msg import TsMsg

_UNKNOWN = -1


class MsgPack(msgspec.Struct):
    """Messages, the interval of time ticks that they lie in, and where the pack begins and ends in each channel.

    `MsgPack(messages)` is enough to produce. A pack of a time-ticked stream has the messages with `begin_ts` < their `end_ts` ≤ `end_ts`. A
    wrong type raises TypeError, a wrong value InvalidArgumentError.
    """

    msgs: Sequence[TsMsg]
    """A list or a tuple."""
    begin_ts: int = _UNKNOWN
    """If it is not given, the smallest `begin_ts` of the messages; 0 if there are none."""
    end_ts: int = _UNKNOWN
    """If it is not given, the largest `end_ts` of the messages; 0 if there are none."""
    start_positions: list[MsgPosition] = []
    """Where the pack begins: one position a channel. `seek(*start_positions)` gives it again; a stream without time ticks needs
    `inclusive=True` for that."""
    end_positions: list[MsgPosition] = []
    """`seek(*end_positions)` continues exactly after the pack."""
    trace_ctx: Mapping[str, str] = {}
    """The context of the trace that produced or consumed the pack."""

    def __post_init__(self) -> None:
        if not isinstance(self.msgs, list | tuple):
            raise TypeError(f"msgs must be a list or a tuple of TsMsg, not {self.msgs!r}")
        if self.begin_ts == _UNKNOWN or self.end_ts == _UNKNOWN:
            for message in self.msgs:
                if not isinstance(message, TsMsg):
                    raise TypeError(f"msgs must be a list or a tuple of TsMsg, not of {message!r}")
            if self.begin_ts == _UNKNOWN:
                self.begin_ts = min((message.begin_ts for message in self.msgs), default=0)
            if self.end_ts == _UNKNOWN:
                self.end_ts = max((message.end_ts for message in self.msgs), default=0)
        check_integer("begin_ts", self.begin_ts, bits=64)
        check_integer("end_ts", self.end_ts, bits=64)
        if self.begin_ts > self.end_ts:
            raise InvalidArgumentError(f"begin_ts={self.begin_ts} is above end_ts={self.end_ts}: a pack begins at or before its end")
