"""ServerFrames: a log that servers on the network serve, as a source of frames.

Implements `FrameLogs` with the calls of PChannelService: the servers weigh frames and find positions, and the tasks fetch the frames that
they read, the next page while the current one becomes rows. Servers push nothing: each moment is one request. Every call waits for a
server that is being restarted (`PATIENCE_S`), and a read continues at the frame where it was interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import msgspec

from wal.channels.vchannel_map import VChannelView
from wal.client.blocking import PATIENCE_S, BlockingCursors, BlockingLog, BlockingRemote
from wal.errors import ClosedError, CorruptionError, FormatError, LogWentBackError
from wal.location import ServerLocation
from wal.message import FORM_JOURNAL
from wal.network import Method
from wal.read.cursors.store import SavedCursors
from wal.rpc.api import cluster_pb2, frames_pb2
from wal.rpc.api import pchannel_calls_pb2 as proto
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.methods import (
    COUNT_BYTES,
    FIND_EVENT_BELOW,
    FIND_TICK,
    GET_MOMENT,
    LIST_VCHANNELS,
    WEIGH_FRAMES,
)
from wal.rpc.positions import (
    event_from_proto,
    event_to_proto,
    position_from_proto,
    position_to_proto,
    vchannel_from_proto,
)
from wal.secret import Secret
from wal.settings import Settings
from wal.spark.frame_source import LogMoment, ViewedVChannels
from wal.spark.offsets import LogPosition
from wal.spark.options import ChannelChoice
from wal.spark.planning import FrameWeight
from wal.storage.base import FramePage

__all__ = ["ServerFrames", "ServerSource"]

Answer = TypeVar("Answer")

_VCHANNELS_AGE_S: Final = 0.2
"""The maximum age of cached knowledge about vchannels."""
_COSTS: Final = 20
"""An answer about the vchannels is reused for `_COSTS` times as long as it took, if that is longer: there may be tens of thousands."""
_NAMES_MAX: Final = 16_384
"""If a pattern matches more vchannels than this, whole frames are fetched: the names alone would make requests of half a megabyte."""


class ServerSource(msgspec.Struct, frozen=True):
    """The servers of a log, and the token that they ask for."""

    servers: ServerLocation
    token: Secret | None = None

    def open(self) -> ServerFrames:
        """Connects. Raises UnavailableError if no server answers in time, InvalidArgumentError if it refuses the token."""
        return ServerFrames(self.servers, self.token)

    def __repr__(self) -> str:
        return f"ServerSource({str(self.servers)!r})"


class ServerFrames:
    """See `FrameLogs`."""

    def __init__(self, servers: ServerLocation, token: Secret | None) -> None:
        self._servers = servers
        self._settings = Settings(token=token)
        self._connect()

    def _connect(self) -> None:
        self._remote = BlockingRemote(self._servers, self._settings, wait_s=PATIENCE_S)
        self._logs: dict[str, BlockingLog] = {}
        self._ends: dict[str, int] = {}
        self._cursors = BlockingCursors(self._remote, lambda: self._ends)
        self._view = VChannelView({}, {})
        self._view_until = 0.0

    def pchannels(self) -> Sequence[str]:
        return list(self._remote.log.pchannels)

    def moment(self, pchannel: str) -> LogMoment:
        try:
            state = self._log(pchannel).reach()
        except (FormatError, LogWentBackError):  # another log is there now: a reader that continues sees another origin
            self._remote.close()
            self._connect()
            state = self._log(pchannel).reach()
        last_truncated, origin = self._log(pchannel).last_truncated, self._remote.log.pchannels[pchannel].origin()
        self._ends[pchannel] = state.durable_end
        lineage = self._log(pchannel).lineage
        return LogMoment(
            origin, state.earliest, state.durable_end, state.promised_tick, state.closed, last_truncated, lineage
        )

    def vchannels(self) -> ViewedVChannels:
        if time.monotonic() >= self._view_until:
            self._look()
        return ViewedVChannels(self._view)

    def names(self, pchannel: str, start: int, end: int, choice: ChannelChoice) -> frozenset[str] | None:
        if choice.everything or choice.names is not None:
            return None if choice.names is None else frozenset(choice.names)
        # A vchannel is listed before its first frame is durable, so the current list has every vchannel with a frame below a durable end.
        self._look()
        found = choice.among(ViewedVChannels(self._view).on(pchannel))
        return found if len(found) <= _NAMES_MAX else None

    def log_position_after(self, pchannel: str, tick: int, start: int, end: int) -> LogPosition:
        request = proto.FindTickRequest(
            pchannel=_named(pchannel), time_tick=tick, start=position_to_proto(start), end=position_to_proto(end)
        )
        return event_from_proto(self._ask(FIND_TICK, request, f"finding tick {tick}", pchannel=pchannel))

    def newest_tick(self, pchannel: str) -> int:
        return self._moment(pchannel).newest_time_tick

    def weights(
        self,
        pchannel: str,
        start: int,
        end: int,
        choice: ChannelChoice,
        *,
        rows_max: int | None = None,
        bytes_max: int | None = None,
    ) -> list[FrameWeight]:
        names = self.names(pchannel, start, end, choice)
        request = proto.WeighFramesRequest(
            pchannel=_named(pchannel),
            end=position_to_proto(end),
            names=None if names is None else frames_pb2.VChannelNames(names=sorted(names)),
        )
        found: list[FrameWeight] = []
        rows = size = 0
        while start < end:
            request.start.CopyFrom(position_to_proto(start))
            if rows_max is not None:
                request.rows_max = rows_max - rows
            if bytes_max is not None:
                request.bytes_max = bytes_max - size
            answer = self._ask(WEIGH_FRAMES, request, "weighing frames", pchannel=pchannel)
            found += (_weight(weight, end) for weight in answer.weights)
            rows += sum(weight.rows for weight in answer.weights)
            size += sum(weight.bytes for weight in answer.weights)
            start = position_from_proto(answer.next_position)
            if (rows_max is not None and rows > rows_max) or (bytes_max is not None and size > bytes_max):
                break
        return found

    def event_below(self, pchannel: str, since: LogPosition, place: LogPosition) -> LogPosition | None:
        if place[1]:
            return place[0], place[1] - 1
        below = min(place, (self.moment(pchannel).durable_end, 0))
        if since >= below:
            return None
        request = proto.FindEventBelowRequest(
            pchannel=_named(pchannel), since=event_to_proto(since), below=event_to_proto(below)
        )
        answer = self._ask(FIND_EVENT_BELOW, request, "finding an event", pchannel=pchannel)
        return event_from_proto(answer.event) if answer.HasField("event") else None

    def bytes_between(self, pchannel: str, start: int, end: int) -> int:
        if self._log(pchannel).form == FORM_JOURNAL:
            return end - start
        request = proto.ExtentRequest(
            pchannel=_named(pchannel), start=position_to_proto(start), end=position_to_proto(end)
        )
        return self._ask(COUNT_BYTES, request, "counting bytes", pchannel=pchannel).bytes

    def pages(
        self, pchannel: str, start: int, end: int, names: frozenset[str] | None, bytes_max: int
    ) -> Generator[FramePage, None, None]:
        log = self._log(pchannel)
        durable = self._ends.get(pchannel, 0)
        if durable < end and (durable := self.moment(pchannel).durable_end) < end:
            raise CorruptionError(
                f"pchannel {pchannel!r} at {self._remote.log.place} is durable up to position {durable} only, and {end} was planned "
                "from: this server has an older copy of the log, or another one",
                path=self._remote.log.place,
                offset=durable,
                expected=f"a log that is durable up to position {end}",
            )
        while start < end:
            with self._this_log():
                page = log.page(start, end, names, bytes_max)
            yield page
            start = page.next_position

    @property
    def cursors(self) -> SavedCursors:
        return self._cursors

    def is_current(self) -> bool:
        return self._remote.log.supervision.failure is None

    def writer_is_gone(self) -> bool:
        return False  # a server that answers has the log open for writing

    def close(self) -> None:
        self._remote.close()

    def _log(self, pchannel: str) -> BlockingLog:
        if pchannel not in self._remote.log.pchannels:
            raise ClosedError(
                f"the log at {self._remote.log.place} has no pchannel {pchannel!r}: another log is served there now, or the address is "
                "wrong"
            )
        if pchannel not in self._logs:
            self._logs[pchannel] = BlockingLog(self._remote, pchannel)
        return self._logs[pchannel]

    def _ask(self, method: Method[Any, Answer], request: object, what: str, *, pchannel: str) -> Answer:
        with self._this_log():
            return self._remote.ask(method, request, what, pchannel=pchannel)

    @contextmanager
    def _this_log(self) -> Iterator[None]:
        """Raises ClosedError for a call that a server refused because it has another log now."""
        try:
            yield
        except (FormatError, LogWentBackError) as error:
            if self.is_current():
                raise
            raise ClosedError(
                f"the log at {self._remote.log.place} was recreated, so begin with a new checkpoint or a new query: {error}"
            ) from error

    def _moment(self, pchannel: str) -> proto.Moment:
        request = proto.PChannelRequest(pchannel=_named(pchannel))
        return self._ask(GET_MOMENT, request, "looking at the log", pchannel=pchannel)

    def _look(self) -> None:
        """Asks a server for the current vchannels."""
        began = time.monotonic()
        pchannel = self.pchannels()[0]
        answer = self._ask(
            LIST_VCHANNELS, cluster_pb2.ListVChannelsRequest(), "listing the vchannels", pchannel=pchannel
        )
        infos = {info.name: info for info in map(vchannel_from_proto, answer.vchannels)}
        if new := {info.pchannel for info in infos.values()} - set(self.pchannels()):
            self._remote.call(lambda: self._remote.log.use(new), "looking at new pchannels")
        self._view = self._remote.view(infos, answer.floors)
        now = time.monotonic()
        self._view_until = now + max(_VCHANNELS_AGE_S, _COSTS * (now - began))


def _named(pchannel: str) -> PChannelInfo:
    return PChannelInfo(name=pchannel)


def _weight(weight: proto.FrameWeight, end: int) -> FrameWeight:
    return FrameWeight(
        position_from_proto(weight.position),
        # The smallest position of a frame after the last one may be above the end of the log, where blocks are aligned.
        min(position_from_proto(weight.next_position), end),
        weight.first_tick,
        weight.promised_tick,
        weight.rows,
        weight.bytes,
    )
