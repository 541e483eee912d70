"""Requests about what a log holds: its end, and what is in a part of it. Pages of frames are a stream of their own (ReadFrames)."""

from __future__ import annotations

from typing import ClassVar

from wal.message import LogPosition
from wal.requests.request import Answer, Request, Where
from wal.storage.base import LogSnapshot
from wal.storage.search import Weighed


class OnePChannelRequest(Request[Answer], frozen=True):
    """A request about the log of one pchannel. The parts of it that a request names end at or below its durable end."""

    where: ClassVar[Where] = Where.PCHANNEL

    pchannel: str

    @property
    def target(self) -> str:
        return self.pchannel


class GetMoment(OnePChannelRequest[LogSnapshot], frozen=True):
    """Asks for the log as it is now."""

    saying: ClassVar[str] = "looking at pchannel {0.pchannel}"


class NewestTick(OnePChannelRequest[int], frozen=True):
    """Asks for the tick of the newest event; 0 if every event is truncated, or none was written."""

    saying: ClassVar[str] = "asking for the newest tick of pchannel {0.pchannel}"


class WeighFrames(OnePChannelRequest[Weighed], frozen=True):
    """Asks for the weights of the frames in [start, end) that hold rows of these vchannels, or (None) of all.

    With a limit the weights are those of single frames, and end after the frame that exceeds it, or where a call has read enough of the
    log: a client that needs more continues at `upto`. Without a limit adjacent frames share one weight, of which only the positions and
    the bytes are known, and the bytes are those of all vchannels.
    """

    saying: ClassVar[str] = "weighing frames of pchannel {0.pchannel}"

    start: int
    end: int
    names: frozenset[str] | None = None
    rows_max: int | None = None
    bytes_max: int | None = None


class FindTick(OnePChannelRequest[LogPosition], frozen=True):
    """Asks for the position in [start, end) after all events with a tick up to this one."""

    saying: ClassVar[str] = "finding tick {0.time_tick} of pchannel {0.pchannel}"

    time_tick: int
    start: int
    end: int


class FindEventBelow(OnePChannelRequest[LogPosition | None], frozen=True):
    """Asks for the newest event in [since, below); None if none is known."""

    saying: ClassVar[str] = "finding an event of pchannel {0.pchannel}"

    since: LogPosition
    below: LogPosition


class CountBytes(OnePChannelRequest[int], frozen=True):
    """Asks for the bytes of log in [start, end)."""

    saying: ClassVar[str] = "counting bytes of pchannel {0.pchannel}"

    start: int
    end: int
