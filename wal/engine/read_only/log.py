"""ReadOnlyLog: a journal as a process sees it that only reads, beside its writer or without one. The counterpart of `LocalLog`.

Owns the threads that files are read in, an `ReadOnlyPChannel` for each pchannel, what is known of vchannels, and the task that keeps
that up to date while anybody reads. It writes nothing, takes no lock that could keep a writer out, and never opens the metadata:
all it goes by are the log's own files.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import anyio._backends._asyncio  # noqa: F401 - anyio would import it at the first task group: 40 ms on the loop

from actors import Actor, ActorRef, ActorSystem, Clock, SystemClock
from wal.backends.journal import (
    ABSENT_REMEDY,
    FollowedLog,
    JournalBackend,
    ReadOnlyJournal,
    ReadOnlyJournalLog,
    check_present,
    is_present,
    pauses,
)
from wal.channels import MapPlace, UnknownVChannels, VChannelInfo, VChannelMaps, VChannelView, common_place
from wal.cursors import CursorFiles, CursorService, LogPlace, LogView
from wal.errors import ChannelNotExistError, ClosedError, StorageError, UnknownError, WALError
from wal.location import Location, check_read_only
from wal.pchannel import ReadOnlyPChannel
from wal.reading import Selection
from wal.retention import PChannelRetention, RetentionBounds, pins_of, report_of
from wal.settings import Settings

__all__ = ["ReadOnlyLog"]

_T = TypeVar("_T")
LOOK_S: Final = 0.05
"""How often the maps are looked at while anybody reads."""
_THREADS: Final = 8


class ReadOnlyLog:
    """A journal to be read. `open` opens it; from then on every attribute is set, until `close`."""

    name: Final = JournalBackend.name

    def __init__(
        self, location: Location, settings: Settings, *, clock: Clock | None = None, wait_s: float = 0.0
    ) -> None:
        """InvalidArgumentError for a location that only the process which writes there can read."""
        check_read_only(location)
        assert location.path is not None
        directory = location.path
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.place: str = str(directory)
        self._wait_s = wait_s
        self.released: bool = False
        """Whether it holds nothing any more: it was closed, abandoned, or not opened after all."""
        self._abandoning = threading.Lock()
        self.pchannels: dict[str, ReadOnlyPChannel] = {}
        self._followed: list[FollowedLog] = []
        self.system: ActorSystem = ActorSystem("wal", clock=self.clock)
        self._cursor_files = CursorFiles(directory)
        self.cursors: CursorService = CursorService(self._cursor_files, view=self._cursor_view, wall=self.clock.wall)
        self._directory = directory
        self._journal: ReadOnlyJournal | None = None
        self._logs: list[ReadOnlyJournalLog] = []
        self._maps = VChannelMaps()
        self._unknown = UnknownVChannels(f"journal:{directory}")
        self._places: dict[str, MapPlace] = {}
        self._looking = asyncio.Lock()
        self._finding = threading.Lock()  # a look that was cancelled may still be at work in its thread
        self._used = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._failing = False
        self._spawned = 0
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="wal-observe")

    async def open(self) -> None:
        """Opens the journal for reading, waiting for at most `wait_s` for one that is not there yet.

        FormatError when there is none; a failure undoes what was done and raises.
        """
        began = self.clock.monotonic()
        try:
            await _wait_until_present(self._directory, self._wait_s, self.clock)
            self._journal = await self._in_thread(lambda: ReadOnlyJournal(self._directory))
            self._cursor_files.held = self._journal.held
            await self._open()
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(self.close()))
            raise
        took_ms = 1000 * (self.clock.monotonic() - began)
        _log.debug(
            "opened the log at %s for reading in %.1f ms: pchannels: %d", self.place, took_ms, len(self.pchannels)
        )

    def abandon(self) -> None:
        """Releases files and threads once the event loop has ended. Blocks; idempotent, from any thread."""
        with self._abandoning:
            if self.released:
                return
            self._pool.shutdown(wait=True)
            self.cursors.abandon()
            for pchannel in self.pchannels.values():
                pchannel.tail.failure = pchannel.tail.failure or _closed()
            for followed in self._followed:
                followed.abandon()
            self._release()
            self.released = True

    async def close(self) -> None:
        """Ends the readers and lets go of everything."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        await self.cursors.close()
        cause = _closed()
        await asyncio.gather(*(pchannel.close(cause) for pchannel in self.pchannels.values()))
        await self.system.stop()
        await asyncio.get_running_loop().run_in_executor(None, self._release)
        self.released = True

    def spawn(self, actor: Actor, name: str) -> ActorRef:
        """Starts an actor of the log's, which ends with it at the latest; a number makes its name unlike the others."""
        self._spawned += 1
        return self.system.spawn(actor, name=f"{name} #{self._spawned}")

    @property
    def records(self) -> Mapping[str, VChannelInfo]:
        """The vchannels that are known here."""
        return self._maps.view.records

    async def retention_report(self) -> list[PChannelRetention]:
        """Where each pchannel's log stands, as far as it shows from here: bounds are the writer's."""
        cursors = await self.cursors.run(self.cursors.store.load_all)
        await self._look()
        view = self._cursor_view()
        return [
            await report_of(pchannel, pins_of(cursors, view, pchannel=name), RetentionBounds())
            for name, pchannel in self.pchannels.items()
        ]

    async def refresh(self) -> None:
        """Brings what is known of vchannels up to date."""
        await self._look()

    async def attach(
        self, names: tuple[str, ...]
    ) -> tuple[ReadOnlyPChannel, Selection, Callable[[Actor, str], ActorRef]]:
        """The pchannel to read these vchannels on, caught up, and the vchannels as they are known now."""
        view = await self._look()
        self._used.set()
        while True:
            pchannel = self.pchannels[self._place(names, view)]
            await pchannel.catch_up()
            if self._place(names, view := self._maps.view) == pchannel.channel:
                break
        self._unknown.note(names, view.records)
        bound = {name: view.records[name].incarnation if name in view.records else None for name in names}
        return pchannel, Selection(bound, floor=view.floor(pchannel.channel)), self.spawn

    def _cursor_view(self) -> LogView:
        """What cursors are held against, as far as it is known here."""
        view = self._maps.view

        def life(name: str) -> int | None:
            info = view.records.get(name)
            return None if info is None else info.incarnation

        states = {name: pchannel.log.refresh() for name, pchannel in self.pchannels.items()}
        places = {
            name: LogPlace(self.pchannels[name].log.incarnation, state.earliest, state.durable_end)
            for name, state in states.items()
        }
        return LogView(places, life, min(map(view.floor, self.pchannels), default=0))

    def _place(self, names: tuple[str, ...], view: VChannelView) -> str:
        return common_place(names, view.records, list(self.pchannels), create_vchannels=self.settings.create_vchannels)

    # -- what is known of pchannels and vchannels

    async def _open(self) -> None:
        await self.system.start()
        await self._look()
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="observe vchannels")

    async def _watch(self) -> None:
        """Looks again and again while anybody reads."""
        while True:
            if not any(pchannel.readers for pchannel in self.pchannels.values()):
                self._used.clear()
                await self._used.wait()
            await self.clock.sleep(LOOK_S)
            try:
                await self._look()
            except WALError as error:  # whoever opens or attaches meets the same; who reads goes on with what is known
                if not self._failing:
                    _log.warning("what is known of the vchannels of %s gets older: %s", self._directory, error)
                self._failing = True
            except Exception as defect:  # nobody would be told of anything any more
                failure = UnknownError(f"looking after the vchannels failed: {defect!r}; please report it")
                failure.__cause__ = defect
                for pchannel in self.pchannels.values():
                    pchannel.tail.fail(failure)
                return
            else:
                self._failing = False

    async def _look(self) -> VChannelView:
        """Looks for pchannels and vchannels that came and went, and tells the readers."""
        async with self._looking:
            known = frozenset(self.pchannels)
            finding = self._pool.submit(self._find, known)
            try:
                found, view = await asyncio.wrap_future(finding)
            except asyncio.CancelledError:
                finding.add_done_callback(_let_go)
                raise
            for log in found:
                self._add(log)
            self._tell(view)
            return view

    def _find(self, known: frozenset[str]) -> tuple[list[ReadOnlyJournalLog], VChannelView]:
        """In a thread: the logs of new pchannels, and the vchannels as they are now. StorageError when the directory was removed."""
        found: list[ReadOnlyJournalLog] = []
        assert self._journal is not None
        with self._finding:
            for log in self._logs:
                with contextlib.suppress(ClosedError, StorageError):  # whoever reads there is told by the log itself
                    log.check()
            self._journal.held.check()
            try:
                for name in self._journal.pchannels():
                    if name not in known:
                        log = self._journal.open(name)
                        found.append(log)
                        self._places[name] = MapPlace(log.directory, log.incarnation)
                return found, self._maps.look(self._places)
            except BaseException:
                for log in found:
                    log.close()
                raise

    def _release(self) -> None:
        self._pool.shutdown(wait=True)
        if self._journal is not None:
            self._journal.close()

    def _add(self, log: ReadOnlyJournalLog) -> None:
        self._logs.append(log)
        followed = FollowedLog(log, self._pool)
        self._followed.append(followed)
        pchannel = ReadOnlyPChannel(followed, form=JournalBackend.form, clock=self.clock, awaited=self._used.set)
        pchannel.start()
        self.pchannels[log.pchannel] = pchannel

    def _tell(self, view: VChannelView) -> None:
        """Ends the readers of what was dropped, and moves those that wait for what was made elsewhere."""
        for pchannel in list(self.pchannels.values()):
            for reader in list(pchannel.readers):
                for name in reader.vchannels:
                    incarnation, info = reader.incarnation(name), view.records.get(name)
                    if incarnation is not None:
                        if view.is_over(pchannel.channel, name, incarnation):
                            reader.ended_by(name, _dropped(name))
                    elif info is not None and info.pchannel != pchannel.channel:
                        reader.made(name, self.pchannels[info.pchannel], incarnation=info.incarnation)

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        return await asyncio.wrap_future(self._pool.submit(call))


async def _wait_until_present(directory: Path, wait_s: float, clock: Clock) -> None:
    """Returns when there is a journal to read; FormatError when there is none after `wait_s`."""
    for pause_s in pauses(wait_s, clock.monotonic):
        if await asyncio.to_thread(is_present, directory):
            return
        await clock.sleep(pause_s)
    await asyncio.to_thread(check_present, directory, remedy=ABSENT_REMEDY, waited_s=wait_s)


def _let_go(finding: concurrent.futures.Future[tuple[list[ReadOnlyJournalLog], VChannelView]]) -> None:
    """Closes the logs that were found for a caller that does not wait any more."""
    if not finding.cancelled() and finding.exception() is None:
        for log in finding.result()[0]:
            log.close()


def _closed() -> ClosedError:
    return ClosedError("the log was closed: open it again to go on")


def _dropped(name: str) -> ChannelNotExistError:
    return ChannelNotExistError(f"vchannel {name!r} was dropped: nothing comes from it any more")


_log: Final = logging.getLogger("wal.read_only")
