"""LocalLog: the engine of a log that this process writes: a coordinator and a node in one process.

Owns the order in which the parts are opened: storage (lock, metadata), ticks, the directory of vchannels, every pchannel in a term of its
own, maps for readers in other processes, cursors, and last the broadcaster, which completes what earlier openings of the log left
unfinished. They are closed in reverse: broadcasts, the intake of appends, what is in flight, one closing tick for all pchannels, and then
everything that was opened. The `Coordinator` has the vchannels that exist, the `StreamingNode` the operations on pchannels.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, Final

import anyio._backends._asyncio  # noqa: F401 - anyio would import it at the first task group: 40 ms on the loop

from actors import Actor, ActorRef, ActorSystem, Clock, SystemClock
from broadcaster.broadcast import Broadcast
from wal.channels.cluster import LEADER, load_cluster
from wal.channels.metadata import CURSOR_ROOT
from wal.channels.pchannels import PChannelMeta
from wal.channels.vchannel_map import MapPlace, load_map
from wal.channels.vchannels import VChannelBegin
from wal.coordinator.coordinator import Coordinator
from wal.coordinator.submit import CoordinatorRequests
from wal.engine import LogStatistics
from wal.errors import CorruptionError, InvalidArgumentError, LockedError, NoSpaceError, closed_log
from wal.location import Location, check_archive
from wal.message.matching import Matching
from wal.node.appends import LocalAppends
from wal.node.archiving.archiver import Archiver
from wal.node.copies_operator import CopiesOperator
from wal.node.cursor_claims import LocalCursorHome
from wal.node.cursors import NodeCursors
from wal.node.local.storage import Storage, Undo, open_storage
from wal.node.local.waiting import LockWait
from wal.node.node import StreamingNode
from wal.node.submit import NodeRequests
from wal.read.cursors.cursor import CursorKey
from wal.read.cursors.pins import AsyncPins, PinFiles, PinFilesInThreads, PinKeys
from wal.read.lease import OWN, Lease
from wal.read.options import Selection
from wal.requests.request import Answer, Request, Where
from wal.runtime.threads import in_thread
from wal.settings import Settings
from wal.storage.base import LogBackend, LogState, PChannelLog
from wal.write.checkpoint_ledger import CheckpointRule
from wal.write.pchannel import PChannel


class LocalLog:
    """A `WritableEngine`. `open` opens the log at the location; from then on every attribute is set, until `close`."""

    checkpoint_rule: CheckpointRule = CheckpointRule()
    lease: Lease = OWN

    def __init__(
        self, location: Location, settings: Settings, *, clock: Clock | None = None, create: bool = True, wait_s: float = 0.0
    ) -> None:
        """With `create=False`, `open` raises a FormatError where no log exists, and creates nothing.

        Raises InvalidArgumentError for an archive, which is only read.
        """
        if location.archive is not None:
            raise InvalidArgumentError(f"{location} is an archive, which is only read: open the log itself, or restore the archive first")
        check_archive(location, settings.archive)
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.place: str = str(location if location.path is None else location.path)
        self.released: bool = False
        """Whether the log holds nothing any more: it was closed or abandoned, or its opening failed."""
        self.system: ActorSystem = ActorSystem("wal", clock=self.clock)
        self.node: StreamingNode = StreamingNode(settings, self.system, place=str(location))
        self._requests = NodeRequests(self.node)
        self._log_requests: CoordinatorRequests
        self.coordinator: Coordinator
        self.backend: LogBackend
        self.frame_bytes_max: int
        self.appends: LocalAppends
        self.broadcasts: Broadcast
        self.cursors: NodeCursors
        self._location = location
        self._create = create
        self._wait = LockWait(wait_s, self.clock)
        self._opening_s = 0.0
        self._announcements = Announcements(str(location), self.clock.monotonic)
        self._undo = Undo()
        self._abandoning = threading.Lock()

    @property
    def name(self) -> str:
        """The name of the backend."""
        return self.backend.name

    @property
    def writable(self) -> LocalLog:
        """This log."""
        return self

    @property
    def is_waiting(self) -> bool:
        """Whether the opening waits for the lock of another writer."""
        return self._wait.is_under_way

    # -- opening and closing

    async def open(self) -> None:
        """Opens the log, taking over every pchannel. A failure undoes what was done and raises."""
        try:
            await self._open()
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(self._release()))
            raise

    def abandon(self) -> None:
        """Releases files, threads and locks once the event loop has ended; see `LogBackend.abandon`. Idempotent, from any thread."""
        with self._abandoning:
            if self.released:
                return
            for pchannel in self.node.pchannels.values():
                pchannel.tail.failure = pchannel.tail.failure or closed_log()
            try:
                self._undo.abandon()
            finally:
                self.released = True
                self._announcements.closed(self.node.events(), trouble="its event loop had ended")

    async def close(self) -> None:
        """Drains what is in flight, gives all pchannels one closing tick, and releases everything."""
        node = self.node
        node.hosting.disarm()
        node.routes.end_warnings()
        await self.broadcasts.close()
        trouble, failures = await node.close(closed_log)
        await self.system.stop()
        await self._release()
        self._announcements.closed(node.events(), trouble=trouble or next(iter(failures), None))
        if failures:
            raise failures[0]

    async def _open(self) -> None:
        began_s = self.clock.monotonic()
        undo, node = self._undo, self.node
        await self.system.start()
        undo.add(self.system.stop)
        storage = await open_storage(self._location, self.settings, undo, create=self._create, wait=self._wait)
        if self._location.pulsar is not None and (cluster := await load_cluster(storage.kv)) is not None:
            _, coordinators = await storage.kv.load_with_prefix(LEADER)
            raise LockedError(
                f"the log at {cluster.log} belongs to a cluster (coordinators at {', '.join(coordinators) or 'no address at the moment'}): "
                f"open it as a client, at the root of its metadata or at a coordinator (wal://…)"
            )
        self.backend = storage.backend
        self.frame_bytes_max = storage.limits.frame_bytes_max
        await self._upgrade(storage)
        await node.open_oracle(storage.kv)
        undo.add(node.oracle.close)
        self.coordinator = Coordinator(storage.kv, self.settings, self.system)
        vchannels = self.coordinator.vchannels
        node.host(storage.backend, storage.kv, vchannels, limits=storage.limits, checkpoint_rule=self.checkpoint_rule, lease=self.lease)
        vchannels.host = node.routes
        vchannels.directory.end_of = self._end_of
        self.appends = node.appends
        undo.add(node.hosting.close)
        self._log_requests = self.coordinator_requests()
        await self.coordinator.load(self._create_log)
        self._announcements.is_new = self.coordinator.is_new
        maps = self._map_places()
        await self._check_maps(maps)
        await self._open_pchannels()
        await self._keep_maps(storage, maps)
        await self._open_cursors(storage)
        await self.coordinator.start_broadcasts(CopiesOperator(node))
        self.broadcasts = self.coordinator.broadcasts
        undo.add(self.broadcasts.close)
        node.hosting.arm()
        self._opening_s = self.clock.monotonic() - began_s
        self._announcements.opened()

    async def _upgrade(self, storage: Storage) -> None:
        """Gives the records of an older log their checksums, if there is room for that; see `wal.storage.kv.records`."""
        try:
            await storage.kv.upgrade()
        except NoSpaceError as error:
            _log.warning("the metadata of %s stay without checksums until there is room for them: %s", self.place, error)

    def _ends(self) -> dict[str, int]:
        """Returns the durable end of each pchannel."""
        return {name: pchannel.tail.durable_end for name, pchannel in self.node.pchannels.items()}

    def _log_of(self, pchannel: str) -> PChannelLog | None:
        hosted = self.node.pchannels.get(pchannel)
        return None if hosted is None else hosted.log

    def _end_of(self, pchannel: str) -> VChannelBegin | None:
        """Returns where the log of a pchannel ends now: nothing of a vchannel that is created now is below."""
        hosted = self.node.pchannels.get(pchannel)
        return None if hosted is None else (hosted.log.incarnation, hosted.tail.durable_end)

    async def _create_log(self, meta: PChannelMeta) -> None:
        await self.backend.create(meta.name, incarnation=meta.incarnation)

    async def _open_pchannels(self) -> None:
        """Opens every pchannel in a new term, side by side."""
        names = list(self.coordinator.pchannels)
        replayed = await self.node.open_all([self.coordinator.raise_term(name) for name in names])
        for name, count in replayed.items():
            log = self.node.pchannels[name].log
            self._announcements.recovered(log.term, log.state, replayed=count)

    def _map_places(self) -> dict[str, MapPlace]:
        """Returns where the maps of the vchannels are, if the backend lets other processes read the log."""
        metas = self.coordinator.pchannels
        folders = {name: self.backend.folder(name) for name in metas}
        return {name: MapPlace(folder, metas[name].incarnation) for name, folder in folders.items() if folder is not None}

    async def _check_maps(self, places: dict[str, MapPlace]) -> None:
        """Raises CorruptionError if the metadata have lost a vchannel that a map shows: it would read as an empty one."""
        directory = self.coordinator.vchannels.directory
        for pchannel, place in places.items():
            shown = await in_thread(load_map, place.folder)
            if shown is None or shown.incarnation != place.incarnation:
                continue
            incarnations = {info.name: info.incarnation for info in directory.saved.values() if info.pchannel == pchannel}
            problem = shown.lost_by(incarnations, directory.saved_next, directory.saved_removals)
            if problem is not None:
                raise CorruptionError(
                    f"the metadata of pchannel {pchannel} are damaged: {problem}; restore them from a backup",
                    path=str(place.folder),
                    expected="the vchannels of the map",
                )

    async def _keep_maps(self, storage: Storage, places: dict[str, MapPlace]) -> None:
        """Shows the vchannels to other processes."""
        if places:
            logs = [pchannel.log for pchannel in self.node.pchannels.values() if not pchannel.log.map_noted]
            maps = self.coordinator.make_maps(places, held=storage.held)
            self._undo.add(maps.close, abandon=maps.abandon)
            if await maps.start(durably=bool(logs)):
                await asyncio.gather(*(log.note_map() for log in logs))

    async def _open_cursors(self, storage: Storage) -> None:
        location, node = self._location, self.node
        pins: AsyncPins | None = None
        if location.pulsar is not None:
            pins = PinKeys(storage.kv.under(CURSOR_ROOT))
        elif location.path is not None:
            files = PinFiles(location.path, held=storage.held)
            await in_thread(files.remove_left)
            pins = PinFilesInThreads(files)
        await node.open_cursors(pins, storage.kv, raise_format=self.backend.raise_format)
        self.cursors = node.cursors
        self._undo.add(node.cursors.end)
        self._undo.add(abandon=self.backend.finish_calls)
        if self.settings.archive is not None and location.path is not None:
            node.archiver = Archiver(location.path, self.settings.archive, self._ends, self._log_of)
            await node.archiver.start()
            for pchannel in node.pchannels.values():
                pchannel.log.hint = node.archiver.hint
            self._undo.add(node.archiver.close)
        await node.start_retention()
        self._undo.add(node.retention.close)

    async def _release(self) -> None:
        failure = await self._undo.run()
        self.released = True  # not reached if it was cancelled: `abandon` still has something to release
        if failure is not None:
            raise failure

    def coordinator_requests(self, ending: Callable[[], AbstractContextManager[None]] | None = None) -> CoordinatorRequests:
        """Returns what answers requests to the coordinator: of this process, or (`ending`) of the clients of a server."""
        return CoordinatorRequests(
            self.coordinator,
            self.node.pchannels,
            self.node.oracle,
            name=self.name,
            form=self.backend.form,
            frame_bytes_max=self.frame_bytes_max,
            ending=ending,
        )

    # -- reading

    async def attach(self, names: tuple[str, ...]) -> tuple[PChannel, Selection, Callable[[Actor, str], ActorRef]]:
        """Returns the pchannel to read these vchannels on, the vchannels as they are now, and `spawn`."""
        return await self.node.routes.attach(names)

    async def attach_matching(self, pattern: Matching) -> tuple[list[tuple[PChannel, Selection]], Callable[[Actor, str], ActorRef]]:
        """Returns all pchannels, each with the vchannels on it that match, and `spawn`."""
        return await self.node.routes.attach_matching(pattern)

    def submit(self, request: Request[Answer]) -> Coroutine[Any, Any, Answer]:
        """Returns the answer to a request."""
        return (self._log_requests if request.where is Where.COORDINATOR else self._requests).submit(request)

    def statistics(self) -> LogStatistics:
        """Returns the counts since the log was opened."""
        return self.node.statistics(
            self.name, vchannels=len(self.coordinator.vchannels.records), broadcasts=self.broadcasts.statistics(), opening_s=self._opening_s
        )

    # -- changing

    async def cursor_home(self, key: CursorKey, *, pchannel: str | None = None) -> LocalCursorHome:
        """Returns the home of a cursor, naming it if it has none."""
        return await self.node.cursor_home(key, pchannel=pchannel)


_log: Final = logging.getLogger("wal")


class Announcements:
    """The lines that a log writes when it was opened and when it was closed, which docs/reference/logging.md shows, and their counts.

    It is created when the opening begins. `monotonic` is a clock in seconds.
    """

    def __init__(self, place: str, monotonic: Callable[[], float]) -> None:
        self.is_new = False
        """Whether this opening created the log."""
        self._place = place
        self._is_open = False
        self._monotonic = monotonic
        self._began = monotonic()
        self._terms: list[int] = []
        self._clean = True
        self._torn_bytes = 0
        self._replayed = 0

    def recovered(self, term: int, state: LogState, *, replayed: int) -> None:
        """Counts a pchannel that was opened in this term, after replaying `replayed` events that followed its last checkpoint."""
        self._terms.append(term)
        self._clean = self._clean and state.clean
        self._torn_bytes += state.torn_bytes
        self._replayed += replayed

    def opened(self) -> None:
        """Writes the line of a log that was opened."""
        self._is_open = True
        before = "new" if self.is_new else f"recovered, {'closed' if self._clean else 'not closed'} cleanly before"
        low, high = min(self._terms), max(self._terms)
        _log.info(
            "opened the log at %s in %.1f ms: %s, %s; torn bytes cut: %d; events replayed: %d; pchannels: %d",
            self._place,
            1000 * (self._monotonic() - self._began),
            before,
            f"term {low}" if low == high else f"terms {low} to {high}",
            self._torn_bytes,
            self._replayed,
            len(self._terms),
            extra={
                "wal_event": "opened",
                "wal_location": self._place,
                "wal_seconds": self._monotonic() - self._began,
                "wal_new": self.is_new,
                "wal_clean": self._clean,
                "wal_term": high,
                "wal_torn_bytes": self._torn_bytes,
                "wal_replayed_events": self._replayed,
                "wal_pchannels": len(self._terms),
            },
        )

    def closed(self, events: int, *, trouble: BaseException | str | None) -> None:
        """Writes the line of a log that was closed after `events` appends; `trouble` is the reason why the next opening has to recover it.

        A log whose opening failed gets no line.
        """
        if not self._is_open:
            return
        _log.info(
            "closed the log at %s after %.1f s, %s; events appended: %d",
            self._place,
            self._monotonic() - self._began,
            "cleanly" if trouble is None else f"not cleanly ({trouble})",
            events,
            extra={
                "wal_event": "closed",
                "wal_location": self._place,
                "wal_seconds": self._monotonic() - self._began,
                "wal_clean": trouble is None,
                "wal_events": events,
            },
        )
