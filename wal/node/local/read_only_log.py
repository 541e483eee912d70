"""ReadOnlyLog: the engine for an event loop that reads the log of another process. The counterpart of `LocalLog`.

It owns the threads that the blocking core runs in, a `ReadOnlyPChannel` for each pchannel, and the task that looks for pchannels and
vchannels while there is a reader. It writes nothing but cursors, and takes no lock that could keep a writer out.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeVar

import anyio._backends._asyncio  # noqa: F401 - anyio would import it at the first task group: 40 ms on the loop

from actors import Actor, ActorRef, ActorSystem, Clock, SystemClock
from wal.channels.channels import describe_channels
from wal.engine import LogStatistics
from wal.errors import ChannelNotExistError, ClosedError, NotLocalError, UnknownError, WALError, caused, closed_log
from wal.location import Location
from wal.message.matching import Matching
from wal.node.retention.policy import RetentionBounds, pins_of
from wal.node.retention.report import report_of
from wal.read.cursors.service import CursorService
from wal.read.cursors.status import LogView
from wal.read.options import MatchingSelection, Selection, unmatched
from wal.read.read_only_core import ReadOnlyCore, ReadOnlySource
from wal.read.read_only_pchannel import ReadOnlyPChannel, ThreadedLog
from wal.read.sources import check_source, pauses, source_of
from wal.requests.pchannels import LastEvent, LatestTick, PChannelRetention, Retention
from wal.requests.request import Answer, Request
from wal.requests.vchannels import DescribeChannels, ListVChannels
from wal.runtime.tasks import end_tasks, keep_waiting
from wal.runtime.threads import in_thread
from wal.settings import Settings

_T = TypeVar("_T")
LOOK_S: Final = 0.05
"""The pause in seconds between two looks for pchannels and vchannels while there is a reader."""
_THREADS: Final = 8


class ReadOnlyLog:
    """A log to be read. `open` sets `name`, `core` and `cursors`, and comes before every call but `close` and `abandon`."""

    name: str
    """The name of the backend, as `wal_name` reports it."""
    core: ReadOnlyCore
    cursors: CursorService
    writable: Final = None
    is_waiting: Final = False

    def __init__(self, location: Location, settings: Settings, *, clock: Clock | None = None, wait_s: float = 0.0) -> None:
        """Raises InvalidArgumentError for a location that only its own writer process can read."""
        check_source(location)
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.place: str = str(location if location.path is None else location.path)
        self.released: bool = False
        """Whether the log holds nothing any more: it was closed or abandoned, or its opening failed."""
        self.pchannels: dict[str, ReadOnlyPChannel] = {}
        self.system: ActorSystem = ActorSystem("wal", clock=self.clock)
        self._location = location
        self._wait_s = wait_s
        self._source: ReadOnlySource | None = None
        self._logs: list[ThreadedLog] = []
        self._abandoning = threading.Lock()
        self._looking = asyncio.Lock()
        self._used = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._failing = False
        self._spawned = 0
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="wal-read-only")

    async def open(self) -> None:
        """Opens the log for reading; waits at most `wait_s` seconds for a log that does not exist yet.

        Raises FormatError if there is none; a failure undoes what was done.
        """
        began = self.clock.monotonic()
        try:
            source = self._source = await self._in_thread(lambda: source_of(self._location, self.settings))
            await self._wait_until_present(source)
            self.name = source.name
            self.core = ReadOnlyCore(source, create_vchannels=self.settings.create_vchannels)
            await self._in_thread(self.core.open)
            self.cursors = CursorService(source.cursors, view=self._cursor_view, refresh=self._refresh_logs, wall=self.clock.wall)
            await self.system.start()
            await self.refresh()
            self._watching = keep_waiting(self._watch(), "watch vchannels")
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(self.close()))
            raise
        took_ms = 1000 * (self.clock.monotonic() - began)
        _log.debug("opened the log at %s for reading in %.1f ms: pchannels: %d", self.place, took_ms, len(self.pchannels))

    async def close(self) -> None:
        """Ends the readers and releases everything."""
        await end_tasks(self._watching)
        if hasattr(self, "cursors"):
            await self.cursors.close()
        cause = _closed()
        await asyncio.gather(*(pchannel.close(cause) for pchannel in self.pchannels.values()))
        await self.system.stop()
        await in_thread(self._release)
        self.released = True

    def abandon(self) -> None:
        """Releases files and threads once the event loop has ended. Blocks; idempotent, from any thread."""
        with self._abandoning:
            if self.released:
                return
            self._pool.shutdown(wait=True)
            if hasattr(self, "cursors"):
                self.cursors.abandon()
            for pchannel in self.pchannels.values():
                pchannel.tail.failure = pchannel.tail.failure or _closed()
            for log in self._logs:
                log.abandon()
            self._release()
            self.released = True

    def spawn(self, actor: Actor, name: str) -> ActorRef:
        """Starts an actor, which ends with the log at the latest. A number is added to make its name unique."""
        self._spawned += 1
        return self.system.spawn(actor, name=f"{name} #{self._spawned}")

    async def submit(self, request: Request[Answer]) -> Answer:
        """Returns the answer to a request. Raises NotLocalError for a request that only the writing process can answer."""
        answer: Any
        match request:
            case LastEvent():
                answer = await self._in_thread(partial(self.core.last_event, request.vchannel))
            case Retention():
                answer = await self._retention()
            case ListVChannels():
                await self.refresh(newest=True)
                answer = tuple(self.core.view.records.values())
            case DescribeChannels():
                await self.refresh(newest=True)
                answer = tuple(describe_channels(self.core.view.records, request.names))
            case LatestTick():
                raise NotLocalError(
                    f"vchannel {request.vchannel!r} is not written by this process, which opened the log with read_only=True: ask where it "
                    "is written, and hand the tick over"
                )
            case _:
                raise NotLocalError(
                    f"{type(request).__name__} is answered by the process that writes the log alone, and this one opened it with "
                    "read_only=True: ask the writer, or its server (wal://…)"
                )
        answered: Answer = answer
        return answered

    def statistics(self) -> LogStatistics:
        """Returns the counts since the log was opened."""
        pchannels = tuple(pchannel.statistics() for pchannel in self.pchannels.values())
        return LogStatistics(self.name, len(self.core.view.records), 0, 0, pchannels, role="reader")

    async def _retention(self) -> tuple[PChannelRetention, ...]:
        """Returns what each pchannel's log holds, in a reader's view: only the writer has the bounds."""
        cursors = await self.cursors.load_all()
        await self.refresh()
        await self._refresh_logs()
        view, bounds = await self.cursors.placed(cursors), RetentionBounds()
        return tuple(
            [await report_of(pchannel, pins_of(cursors, view, pchannel=name), bounds) for name, pchannel in self.pchannels.items()]
        )

    async def attach(self, names: tuple[str, ...]) -> tuple[ReadOnlyPChannel, Selection, Callable[[Actor, str], ActorRef]]:
        """Returns the pchannel to read these vchannels on, caught up, the vchannels as they are known now, and what starts an actor."""
        await self.refresh()
        self._used.set()
        while True:
            pchannel = self.pchannels.get(channel := self.core.pchannel_of(names))
            if pchannel is None:  # another look found it a moment ago
                await self.refresh()
                continue
            await pchannel.catch_up()  # concurrent with other looks: a server may take long to answer
            if self.core.pchannel_of(names) == channel:
                return pchannel, self.core.selection(channel, names, pchannel.tail.durable_end), self.spawn

    async def attach_matching(self, pattern: Matching) -> tuple[list[tuple[ReadOnlyPChannel, Selection]], Callable[[Actor, str], ActorRef]]:
        """Returns all pchannels, caught up, each with the vchannels on it that match, and what starts an actor.

        Raises InvalidArgumentError for several pchannels on Pulsar, where a reader cannot know whether a writer will promise more ticks.
        """
        await self.refresh()
        if self._location.pulsar is not None and len(self.pchannels) > 1:
            raise unmatched(pattern, self.place)
        self._used.set()
        pchannels = dict(self.pchannels)
        await asyncio.gather(*(pchannel.catch_up() for pchannel in pchannels.values()))
        attached: list[tuple[ReadOnlyPChannel, Selection]] = [
            (pchannel, MatchingSelection(pattern, partial(self._is_live, name))) for name, pchannel in pchannels.items()
        ]
        return attached, self.spawn

    def _is_live(self, pchannel: str, name: str, incarnation: int) -> bool:
        return not self.core.view.is_over(pchannel, name, incarnation)

    async def refresh(self, *, newest: bool = False) -> None:
        """Updates the view of pchannels and vchannels, and notifies the readers. See `ReadOnlySource.vchannels`."""
        async with self._looking:  # at most one thread looks; the others are for reads
            await self._in_thread(partial(self.core.look, newest=newest))
            for name, log in self.core.logs.items():
                if name not in self.pchannels:
                    try:
                        snapshot = await self._in_thread(log.refresh)
                    except WALError:
                        await self._in_thread(partial(self.core.forget, name))
                        raise
                    threaded = ThreadedLog(log, self._pool, snapshot)
                    self._logs.append(threaded)
                    pchannel = self.pchannels[name] = ReadOnlyPChannel(
                        threaded,
                        form=self.core.source.form,
                        clock=self.clock,
                        awaited=self._used.set,
                        has_writer=self.core.source.has_writer,
                    )
                    pchannel.start()
            self._tell()

    # -- looking

    async def _wait_until_present(self, source: ReadOnlySource) -> None:
        """Returns when the log exists; raises FormatError if it does not exist after `wait_s` seconds."""
        for pause_s in pauses(self._wait_s, self.clock.monotonic):
            if await self._in_thread(lambda: source.absence(0.0)) is None:
                return
            await self.clock.sleep(pause_s)
        absent = await self._in_thread(lambda: source.absence(self._wait_s))
        if absent is not None:
            raise absent

    async def _watch(self) -> None:
        """Looks periodically while there is a reader."""
        while True:
            if not any(pchannel.readers for pchannel in self.pchannels.values()):
                self._used.clear()
                await self._used.wait()
            await self.clock.sleep(LOOK_S)
            try:
                await self.refresh()
            except WALError as error:  # an opening or an attach raises the same; a reader continues with the known ones
                if not self._failing:
                    _log.warning("what is known of the vchannels of %s gets older: %s", self.place, error)
                self._failing = True
            except Exception as defect:  # otherwise readers would never learn of a change again
                failure = caused(UnknownError(f"looking after the vchannels failed: {defect!r}; please report it"), defect)
                for pchannel in self.pchannels.values():
                    pchannel.tail.fail(failure)
                return
            else:
                self._failing = False

    def _tell(self) -> None:
        """Ends the readers of dropped vchannels, and moves readers that wait for a vchannel which was created on another pchannel."""
        for pchannel in list(self.pchannels.values()):
            for reader in list(pchannel.readers):
                reader.changed()
                for name, change in self.core.changes(pchannel.channel, reader.vchannels, reader.incarnation):
                    if isinstance(change, ChannelNotExistError):
                        reader.ended_by(name, change)
                    else:
                        reader.created(name, self.pchannels[change.pchannel], incarnation=change.incarnation)

    async def _refresh_logs(self) -> None:
        """Finds out how far the logs reach now, for comparing cursors with them."""
        for pchannel in list(self.pchannels.values()):
            await pchannel.log.refresh()

    def _cursor_view(self) -> LogView:
        return self.core.cursor_view({name: pchannel.log.known for name, pchannel in self.pchannels.items()})

    def _release(self) -> None:
        self._pool.shutdown(wait=True)
        if hasattr(self, "core"):
            self.core.close()
        elif self._source is not None:
            self._source.close()

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        return await asyncio.wrap_future(self._pool.submit(call))


def _closed() -> ClosedError:
    return closed_log()


_log: Final = logging.getLogger("wal.read_only")
