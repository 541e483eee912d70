"""FrameLogs: the logs of a Spark read, open in one process, and LogSource, the recipe that opens them.

A recipe is small and picklable, with nothing open. The driver sends it to every task; a task opens it once per process and thread
(`opened`). The open logs block, need no event loop, and serve a single thread. They use the interface of every blocking read
(`wal.read.read_only_core`), so a journal, a log on Pulsar and a log on the network are read alike; each implements searches in its own way.

A process keeps a few sources open, so that the tasks of a worker share their state. Workers are forked: a child reopens the sources of its
parent. A source that no longer fits is dropped without a close, because a read may still hold it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from wal.api.factory import make_source
from wal.channels.vchannel_map import VChannelView
from wal.errors import ClosedError, CorruptionError, FormatError, InvalidArgumentError, LogWentBackError, WALError
from wal.location import parse_location
from wal.message import LogPosition
from wal.read.cursors.store import SavedCursors
from wal.read.read_only_core import ReadOnlyCore
from wal.settings import Settings
from wal.spark.location import SparkLocation
from wal.spark.options import ChannelChoice
from wal.storage.base import FramePage, FrameWeight, LogSnapshot, RowsPage, RowsRequest
from wal.storage.read_only import ReadOnlyPChannelLog, VChannelChoice

PATIENCE_S: Final = 30.0
"""The time that opening a log on the network waits for a server, as an append does (`wal.client.producer`)."""
_COSTS: Final = 20
"""The answer whether a process writes is reused for this many times its own duration: Pulsar's brokers take milliseconds."""
_OPEN_MAX: Final = 4
_T = TypeVar("_T")


class LogSource(msgspec.Struct, frozen=True):
    """The recipe: the location of the log, as `open_wal` takes it, with an absolute path if any, and its settings.

    It is equal to other recipes of the same log.
    """

    location: str
    settings: Settings = Settings()

    def open(self) -> FrameLogs:
        """Opens the logs in this process. Blocks; raises FormatError, StorageError or UnavailableError if the log cannot be read."""
        return FrameLogs(self)

    def __repr__(self) -> str:
        return f"LogSource({self.location!r})"


class FrameLogs:
    """The open logs of a source.

    Errors are those of `wal.errors`: TruncatedError for a truncated start, CorruptionError for damage, ClosedError for logs that were
    recreated. Logs that are garbage-collected without `close` release their resources themselves.
    """

    def __init__(self, source: LogSource) -> None:
        self._source = source
        self._gone: tuple[bool, float] = False, 0.0
        self._core = self._opened()

    def pchannels(self) -> Sequence[str]:
        """Returns the names of the pchannels. Their number may grow, never shrink."""
        self._core.look()
        return list(self._core.logs)

    def moment(self, pchannel: str) -> LogSnapshot:
        """Returns a snapshot of the log's current state. Called about sixty times a second; takes microseconds, or one request to a server.

        A log that was recreated is opened again: a reader that continues gets another origin.
        """
        try:
            return self._log(pchannel).moment()
        except (ClosedError, FormatError, LogWentBackError):
            if self._core.source.is_current():
                raise
            self._core.close()
            self._core = self._opened()
            return self._log(pchannel).moment()

    def vchannels(self) -> VChannelView:
        """Returns the vchannels that currently exist."""
        return self._core.look()

    def names(self, pchannel: str, start: int, end: int, choice: ChannelChoice) -> frozenset[str] | None:
        """Returns the names of this choice among those in the frames in [start, end); None for all of them."""
        selected = _selected(choice)
        return None if selected is None else self._ask(lambda: self._log(pchannel).names(start, end, selected))

    def position_after(self, pchannel: str, tick: int, start: int, end: int) -> LogPosition:
        """Returns the log position in [start, end) after all events with a tick up to this one; (end, 0) if none has a larger one."""
        return self._ask(lambda: self._log(pchannel).position_after(tick, start, end))

    def newest_tick(self, pchannel: str) -> int:
        """Returns the tick of the newest durable event, or 0 when there is none."""
        return self._ask(self._log(pchannel).newest_tick)

    def weights(
        self, pchannel: str, start: int, end: int, choice: ChannelChoice, *, rows_max: int | None = None, bytes_max: int | None = None
    ) -> list[FrameWeight]:
        """Returns the weights of the frames in [start, end) that hold rows of this choice; see `ReadOnlyPChannelLog.weights`."""
        selected = _selected(choice)
        return self._ask(lambda: self._log(pchannel).weights(start, end, selected, rows_max=rows_max, bytes_max=bytes_max))

    def event_below(self, pchannel: str, since: LogPosition, below: LogPosition) -> LogPosition | None:
        """Returns the newest event below `below`, or None if no known event is at or above `since`. Reads few or no frames."""
        return self._ask(lambda: self._log(pchannel).event_below(since, below))

    def bytes_between(self, pchannel: str, start: int, end: int) -> int:
        """Returns the approximate size of the log in [start, end), for all vchannels."""
        return self._ask(lambda: self._log(pchannel).bytes_for(None, (start, 0), end))

    def check_durable(self, pchannel: str, end: int) -> None:
        """Raises CorruptionError unless the log is durable up to this position, which a plan has named."""
        log = self._log(pchannel)
        if log.refresh().durable_end >= end:
            return
        self._core.source.catch_up()
        if (durable := log.reach().durable_end) < end:
            place = self._core.source.location
            raise CorruptionError(
                f"pchannel {pchannel!r} of {place} is durable up to position {durable} only, and {end} was planned from: this is an older "
                "copy of the log, or another one",
                path=place,
                offset=durable,
                expected=f"a log that is durable up to position {end}",
            )

    def page(self, pchannel: str, start: int, end: int, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """Returns the first frames in [start, end) that hold one of these names, about `bytes_max` bytes of them; `end` is durable."""
        return self._ask(lambda: self._log(pchannel).page(start, end, names, bytes_max))

    def rows_page(self, pchannel: str, request: RowsRequest) -> RowsPage | None:
        """Returns the first frames of a request as rows; None if they do not fit, see `ReadOnlyPChannelLog.rows_page`."""
        return self._ask(lambda: self._log(pchannel).rows_page(request))

    @property
    def cursors(self) -> SavedCursors:
        """The cursors of this log, for a process other than its writer."""
        return self._core.source.cursors

    @property
    def may_lag(self) -> bool:
        """Whether the source is an archive, which may end below the offset of a query that has read the log at another location."""
        return self._core.source.may_lag

    def is_current(self, *, newest: bool = False) -> bool:
        """Returns whether these are still the logs at this location; False when another log has replaced them.

        This is cheap, unless the newest state is asked for: then an archive is read as of its newest manifest from here on.
        """
        if newest:
            self._core.source.catch_up()
        return self._core.source.is_current()

    def writer_is_gone(self) -> bool:
        """Returns whether no process writes, so that promised ticks stop until a process opens the log. False when that is unknown."""
        is_gone, until = self._gone
        began = time.monotonic()
        if began >= until:
            try:
                is_gone = self.has_writer() is False
            except WALError:
                is_gone = False
            ended = time.monotonic()
            self._gone = is_gone, ended + _COSTS * (ended - began)
        return is_gone

    def has_writer(self) -> bool | None:
        """Returns whether a process writes; None when that is unknown."""
        self._core.look()
        return self._core.source.has_writer()

    def close(self) -> None:
        """Releases all resources. Idempotent."""
        self._core.close()

    def _opened(self) -> ReadOnlyCore:
        source = self._source
        core = ReadOnlyCore(make_source(parse_location(source.location), source.settings, wait_s=PATIENCE_S, follow=False))
        core.open()
        return core

    def _log(self, pchannel: str) -> ReadOnlyPChannelLog:
        if pchannel not in self._core.logs:
            self._core.look()
        log = self._core.logs.get(pchannel)
        if log is None:
            raise ClosedError(
                f"{self._core.source.location} holds no log of pchannel {pchannel!r}: another log is there now, or the location is "
                "another one"
            )
        return log

    def _ask(self, call: Callable[[], _T]) -> _T:
        """Returns the result of a call. Raises ClosedError if the server rejected it because the log was replaced."""
        try:
            return call()
        except FormatError as error:
            raise ClosedError(
                f"the log at {self._core.source.location} was recreated, so begin with a new checkpoint or a new query: {error}"
            ) from error


def source_of(location: SparkLocation) -> LogSource:
    """Returns the source that reads the log at this location. Raises InvalidArgumentError for a location that Spark cannot read."""
    place, settings = location.opening()
    if location.kind == "service.url" and location.is_kv_file:
        raise InvalidArgumentError(
            f"kv={str(location.kv)!r} is a file, which one process has for itself, and Spark reads in several beside the writer: keep "
            "the metadata of a log that Spark reads in etcd (kv=etcd://host:port/root)"
        )
    return LogSource(str(place), Settings(**settings))


def opened(source: LogSource, *, newest: bool = False) -> FrameLogs:
    """Returns the logs of this source for this thread of this process. Opens them unless they are open and still at their location.

    With `newest` an archive is as of its newest manifest. A stream that goes on looks for one every `archive_poll_s` only.
    """
    key = (os.getpid(), threading.get_ident(), source)
    with _lock:
        logs = _logs.get(key)
        if logs is None or not logs.is_current(newest=newest):
            logs = _logs[key] = source.open()
            while len(_logs) > _OPEN_MAX:
                _logs.popitem(last=False)
        _logs.move_to_end(key)
        return logs


_lock: Final = threading.RLock()
_logs: Final[OrderedDict[tuple[int, int, LogSource], FrameLogs]] = OrderedDict()


def _selected(choice: ChannelChoice) -> VChannelChoice | None:
    """Returns the choice in the form that logs accept: a set of names, a pattern, or None for all."""
    if choice.names is not None:
        return frozenset(choice.names)
    return None if choice.everything else choice
