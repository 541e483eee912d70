"""LocalLog: the engine of a log that this process writes.

Owns the parts of the log and the order in which they are opened: storage (lock, metadata), ticks, the directory of vchannels, every
pchannel in a term of its own, maps for readers in other processes, cursors, and last the broadcaster, which completes what earlier
openings of the log left unfinished. They are closed in reverse: broadcasts, the intake of appends, what is in flight, one closing
tick for all pchannels, and then everything that was opened.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping

import anyio._backends._asyncio  # noqa: F401 - anyio would import it at the first task group: 40 ms on the loop

from actors import Actor, ActorRef, ActorSystem, Clock, SystemClock
from broadcaster.admission import BroadcasterLimits
from broadcaster.broadcast import Broadcast
from wal.channels.channels import ChannelDescription
from wal.channels.directory import VChannelDirectory
from wal.channels.map_keeper import VChannelMapKeeper
from wal.channels.pchannels import (
    PChannelMeta,
    check_count,
    create_pchannel,
    load_pchannels,
    new_incarnation,
    pchannel_names,
    raise_term,
)
from wal.channels.vchannel_map import MapPlace
from wal.channels.vchannels import OwnerDescription, VChannelInfo
from wal.coordinator.vchannels import LocalChannels
from wal.engine import LogStatistics
from wal.errors import ChannelNotExistError, CorruptionError, InvalidArgumentError
from wal.files import HeldDirectory
from wal.kv import KVBase
from wal.local.announcements import Announcements
from wal.local.storage import Undo, open_storage
from wal.location import Location
from wal.message import MessageID
from wal.node.appends import LocalAppends
from wal.node.copies_operator import CopiesOperator
from wal.node.hosting import INBOX_MAX, Hosting
from wal.node.retention import RetentionKeeper
from wal.node.routes import VChannelRoutes, closed_log
from wal.read.cursors.files import CursorFiles
from wal.read.cursors.in_kv import CursorsInKV, MemoryCursors
from wal.read.cursors.service import CursorService
from wal.read.cursors.status import LogRange, LogView
from wal.read.cursors.store import CursorStore
from wal.read.options import Selection
from wal.retention.policy import RetentionBounds
from wal.retention.report import PChannelRetention
from wal.settings import Settings
from wal.storage.base import LogBackend
from wal.storage.metadata import BROADCAST_ROOT, CURSOR_ROOT
from wal.timestamp import TimestampOracle
from wal.write.in_flight import InFlight
from wal.write.pchannel import PChannel
from wal.write.recovery import CheckpointRule

__all__ = ["LocalLog"]


class LocalLog:
    """A `WritableEngine`. `open` opens the log at the location; from then on every attribute is set, until `close`."""

    checkpoint_rule: CheckpointRule = CheckpointRule()

    def __init__(
        self, location: Location, settings: Settings, *, clock: Clock | None = None, create: bool = True
    ) -> None:
        """With `create=False`, `open` raises a FormatError where there is no log, and creates nothing."""
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.place: str = str(location if location.path is None else location.path)
        self.released: bool = False
        """Whether the log holds nothing any more: it was closed or abandoned, or its opening failed."""
        self.in_flight: InFlight = InFlight(settings.in_flight_bytes_max)
        self.system: ActorSystem = ActorSystem("wal", clock=self.clock)
        self.pchannels: dict[str, PChannel] = {}
        self.frame_bytes_max: int
        self.backend: LogBackend
        self.kv: KVBase
        self.oracle: TimestampOracle
        self.vchannels: VChannelRoutes
        self.channels: LocalChannels
        self.appends: LocalAppends
        self.broadcasts: Broadcast
        self.cursors: CursorService
        self.retention: RetentionKeeper
        self._location = location
        self._create = create
        self._announcements = Announcements(str(location), self.clock.monotonic)
        self._hosting: Hosting
        self._held: HeldDirectory | None = None
        self._spawned = 0
        self._undo = Undo()
        self._abandoning = threading.Lock()

    @property
    def name(self) -> str:
        """The name of the backend."""
        return self.backend.name

    @property
    def log_id(self) -> int:
        """What identifies this log wherever it is served: the incarnation of its first pchannel, which is drawn when the log is created."""
        return next(iter(self.pchannels.values())).log.incarnation

    @property
    def writable(self) -> LocalLog:
        """This log."""
        return self

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
            for pchannel in self.pchannels.values():
                pchannel.tail.failure = pchannel.tail.failure or closed_log()
            try:
                self._undo.abandon()
            finally:
                self.released = True
                self._announcements.closed(self._event_count(), trouble="its event loop had ended")

    async def close(self) -> None:
        """Drains what is in flight, gives all pchannels one closing tick, and releases everything."""
        self._hosting.disarm()
        self.vchannels.end_warnings()
        await self.broadcasts.close()
        self.in_flight.fail(closed_log)
        await self.retention.close()
        await self.cursors.close()
        trouble = await self._hosting.drain()
        failures = await self._hosting.finish(closed_log)
        await self.system.stop()
        await self._release()
        self._announcements.closed(self._event_count(), trouble=trouble or next(iter(failures), None))
        if failures:
            raise failures[0]

    async def _open(self) -> None:
        undo, settings = self._undo, self.settings
        await self.system.start()
        undo.add(self.system.stop)
        storage = await open_storage(self._location, settings, undo, create=self._create)
        self.backend, self.kv, self._held = storage.backend, storage.kv, storage.held
        self.frame_bytes_max = storage.limits.frame_bytes_max
        self.oracle = TimestampOracle(self.kv, clock=self.clock)
        await self.oracle.start()
        undo.add(self.oracle.close)
        directory = VChannelDirectory(self.kv)
        await directory.load()
        saver = self.system.spawn(directory, name="directory", inbox_max=INBOX_MAX)
        self.vchannels = VChannelRoutes(
            directory, saver, self.pchannels, settings, location=str(self._location), clock=self.clock
        )
        self.appends = LocalAppends(self.vchannels, self.pchannels, self.in_flight, settings)
        self._hosting = Hosting(
            self.backend,
            self.kv,
            self.oracle,
            self.system,
            settings,
            pchannels=self.pchannels,
            in_flight=self.in_flight,
            limits=storage.limits,
            checkpoint_rule=self.checkpoint_rule,
            is_live=lambda name: self.vchannels.incarnation(name[0]) == name[1],
        )
        undo.add(self._hosting.close)
        metas = await self._load_pchannels()
        # Every opening runs to its end, so that undoing a failure finds everything there is to undo.
        opened = await asyncio.gather(*(self._open_pchannel(meta) for meta in metas.values()), return_exceptions=True)
        for outcome in opened:
            if isinstance(outcome, BaseException):
                raise outcome
            self.pchannels[outcome.channel] = outcome
        await self._keep_maps(metas)
        await self._open_cursors()
        await self._open_broadcasts()
        self._hosting.arm()
        self._announcements.opened()

    async def _load_pchannels(self) -> dict[str, PChannelMeta]:
        """Returns the records of all pchannels, after creating those that the settings add."""
        metas = await load_pchannels(self.kv)
        self._announcements.is_new = not metas
        for name in pchannel_names(check_count(self.settings.pchannels, len(metas))):
            if name not in metas:
                meta = PChannelMeta(name, new_incarnation(), 0)
                await self.backend.create(name, incarnation=meta.incarnation)
                await create_pchannel(self.kv, meta)
                metas[name] = meta
        if lost := {info.pchannel for info in self.vchannels.records.values()} - metas.keys():
            raise CorruptionError(
                f"vchannel records in the KV name the pchannels {', '.join(sorted(lost))}, of which there is no record",
                expected=f"pchannels {', '.join(metas)}",
            )
        return metas

    async def _open_pchannel(self, meta: PChannelMeta) -> PChannel:
        pchannel, replayed = await self._hosting.open(await raise_term(self.kv, meta))
        self._announcements.recovered(pchannel.log.term, pchannel.log.state, replayed=replayed)
        return pchannel

    async def _keep_maps(self, metas: Mapping[str, PChannelMeta]) -> None:
        """Shows the vchannels to other processes, if the backend lets other processes read the log."""
        folders = {name: self.backend.folder(name) for name in metas}
        places = {
            name: MapPlace(folder, metas[name].incarnation) for name, folder in folders.items() if folder is not None
        }
        if places:
            maps = VChannelMapKeeper(self.vchannels.directory, places, monotonic=self.clock.monotonic, held=self._held)
            self.vchannels.maps = maps
            self._undo.add(maps.close, abandon=maps.abandon)
            logs = [pchannel.log for pchannel in self.pchannels.values() if not pchannel.log.map_noted]
            if await maps.start(durably=bool(logs)):
                await asyncio.gather(*(log.note_map() for log in logs))

    async def _open_cursors(self) -> None:
        location, settings = self._location, self.settings
        store: CursorStore
        if location.pulsar is not None:
            store = CursorsInKV(self.kv.under(CURSOR_ROOT))
            await store.begin()
        else:
            store = MemoryCursors() if location.path is None else CursorFiles(location.path, held=self._held)
        lineages = {name: pchannel.log.lineage for name, pchannel in self.pchannels.items()}
        if any(lineage.restores for lineage in lineages.values()):
            await asyncio.to_thread(store.adopt, lineages)
        self.cursors = CursorService(store, view=self._cursor_view, wall=self.clock.wall)
        self._undo.add(self.cursors.close, abandon=self.cursors.abandon)
        self.channels = LocalChannels(self.vchannels, self.pchannels, self.cursors)
        # Abandoned before the cursors: a truncation under way holds the lock on them.
        self._undo.add(abandon=self.backend.finish_calls)
        bounds = RetentionBounds(
            settings.retention_bytes, settings.retention_s, settings.cursor_lag_bytes_max, settings.cursor_age_max_s
        )
        self.retention = RetentionKeeper(bounds, self.pchannels, self.cursors, clock=self.clock)
        self._undo.add(self.retention.close)
        await self.retention.start()

    async def _open_broadcasts(self) -> None:
        settings = self.settings
        self.broadcasts = await Broadcast.start(
            self.system,
            kv=self.kv.under(BROADCAST_ROOT),
            operator=CopiesOperator(self),
            limits=BroadcasterLimits(
                tasks_max=settings.broadcast_tasks_max, vchannels_max=settings.broadcast_vchannels_max
            ),
        )
        self._undo.add(self.broadcasts.close)

    async def _release(self) -> None:
        failure = await self._undo.run()
        self.released = True  # not reached if it was cancelled: `abandon` still has something to release
        if failure is not None:
            raise failure

    # -- reading

    async def attach(self, names: tuple[str, ...]) -> tuple[PChannel, Selection, Callable[[Actor, str], ActorRef]]:
        """Returns the pchannel to read these vchannels on, the vchannels as they are now, and `spawn`."""
        pchannel, selection = self.vchannels.select(names)
        return pchannel, selection, self.spawn

    def spawn(self, actor: Actor, name: str) -> ActorRef:
        """Starts an actor that ends with the log at the latest. A number is added to make its name unique."""
        self._spawned += 1
        return self.system.spawn(actor, name=f"{name} #{self._spawned}")

    async def list_vchannels(self) -> list[VChannelInfo]:
        """Returns all vchannels."""
        return list(self.vchannels.records.values())

    async def describe_channels(self, names: tuple[str, ...] | None) -> list[ChannelDescription]:
        """Returns these channels, or (None) all."""
        return self.channels.describe(names)

    async def latest_tick(self, vchannel: str) -> int:
        """Returns the promised tick of the vchannel's pchannel, or of all pchannels if the vchannel does not exist yet."""
        info = self.vchannels.records.get(vchannel)
        if info is not None:
            return self.pchannels[info.pchannel].promised.tick
        if not self.settings.create_vchannels:
            raise ChannelNotExistError(f"vchannel {vchannel!r} does not exist: make it with create_vchannel()")
        return min(pchannel.promised.tick for pchannel in self.pchannels.values())

    async def last_event(self, vchannel: str) -> MessageID | None:
        """Returns the id of the vchannel's last durable event, or None."""
        info = self.vchannels.records.get(vchannel)
        if info is not None:
            return self.pchannels[info.pchannel].last_event((info.name, info.incarnation))
        if not self.settings.create_vchannels:
            raise ChannelNotExistError(f"vchannel {vchannel!r} does not exist: make it with create_vchannel()")
        return None

    async def retention_report(self) -> list[PChannelRetention]:
        """Returns what each pchannel holds, and who holds it."""
        return await self.retention.report()

    def statistics(self) -> LogStatistics:
        """Returns the counts since the log was opened."""
        return LogStatistics(
            self.name,
            len(self.vchannels.records),
            self.in_flight.size,
            self.in_flight.waiting,
            tuple(pchannel.statistics() for pchannel in self.pchannels.values()),
        )

    # -- changing

    async def create_vchannel(self, name: str, pchannel: str | None) -> VChannelInfo:
        """Creates a vchannel durably."""
        return await self.vchannels.create(name, pchannel)

    async def drop_vchannel(self, name: str) -> None:
        """Drops a vchannel durably, and deletes its cursors (best effort)."""
        await self.channels.drop_vchannel(name)

    async def create_channels(self, owner: OwnerDescription, count: int) -> list[str]:
        """Creates channels durably, all or none."""
        return await self.channels.create(owner, count)

    async def destroy_channels(self, names: tuple[str, ...]) -> None:
        """Destroys channels durably, all or none, and deletes their cursors (best effort)."""
        await self.channels.destroy(names)

    async def truncate(self, up_to: MessageID) -> None:
        """Truncates the pchannel of this event up to it, inclusive."""
        pchannel = self.pchannels.get(up_to.pchannel)
        up_to = up_to if pchannel is None else pchannel.current(up_to)
        if pchannel is None or not up_to.same_log(pchannel.log_id):
            raise InvalidArgumentError(
                f"message id {up_to} belongs to no pchannel of this log ({', '.join(self.pchannels)}), or to another incarnation of one"
            )
        await self.retention.truncate(up_to)

    async def allocate_time_tick(self) -> int:
        """Returns a tick above every tick allocated before."""
        return await self.oracle.allocate()

    # -- calls between the parts

    def _event_count(self) -> int:
        """Returns how many events were appended since the log was opened."""
        return sum(pchannel.statistics().events for pchannel in self.pchannels.values())

    def _cursor_view(self) -> LogView:
        """Returns what cursors are compared with."""
        places = {
            name: LogRange(
                pchannel.log.incarnation,
                pchannel.log.earliest,
                pchannel.log.durable_end,
                newest=pchannel.tail.newest,
                bytes_between=pchannel.log.bytes_between,
                lineage=pchannel.log.lineage,
                bytes_for=pchannel.log.bytes_for,
            )
            for name, pchannel in self.pchannels.items()
        }
        return LogView(places, self.vchannels.incarnation, self.vchannels.directory.next_incarnation)
