"""LocalLog: the whole log in this process. It opens everything, routes vchannels to their actors, and closes in order.

Owns the backend, the KV, the oracle, the actor system, the pchannels, the broadcaster, and the one timer that drives them. Opening: lock,
metadata, oracle, then every pchannel in a term of its own, then what earlier lives left of broadcasts. Closing: broadcasts, intake, drain,
one closing tick for all pchannels, logs, oracle, metadata, lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio._backends._asyncio  # noqa: F401 - anyio would import it at the first task group: 40 ms on the loop

from actors import Actor, ActorError, ActorRef, ActorSystem, Clock, SystemClock, Timer
from broadcaster.broadcast import Broadcast
from broadcaster.limits import BroadcasterLimits
from broadcaster.registry import AppendOperatorType, Registry
from wal.backends import FRAME_BYTES_MAX, LogBackend, PChannelLog
from wal.backends.journal import JournalBackend
from wal.backends.memory import MemoryBackend
from wal.channels import (
    Change,
    CheckpointRecord,
    MapPlace,
    PChannelMeta,
    UnknownVChannels,
    VChannelDirectory,
    VChannelInfo,
    VChannelMapKeeper,
    check_count,
    check_vchannel,
    common_place,
    create_pchannel,
    load_checkpoint,
    load_pchannels,
    new_incarnation,
    pchannel_names,
    place,
    raise_term,
    save_checkpoint,
    unsaved_records,
)
from wal.cursors import CursorFiles, CursorService, CursorsInKV, CursorStore, LogPlace, LogView, MemoryCursors
from wal.engine.late_import import import_late
from wal.engine.local.announcements import Announcements
from wal.engine.local.copies_operator import CopiesOperator
from wal.engine.metadata import open_metadata
from wal.errors import (
    ChannelExistError,
    ChannelNotExistError,
    ClosedError,
    CorruptionError,
    FormatError,
    InvalidArgumentError,
    NoSpaceError,
    StorageError,
    UnavailableError,
    UnknownOutcomeError,
    WALError,
)
from wal.files import HeldDirectory
from wal.frame import RunName
from wal.kv import KVBase, MemoryKV, SqliteKV
from wal.location import Location, parse_kv
from wal.pchannel import (
    Checkpoint,
    Checkpointer,
    CheckpointRule,
    CopyTable,
    Drop,
    IdempotencyTable,
    InFlight,
    PChannel,
    RecoveryState,
    TxnLimits,
    VChannel,
    recover,
)
from wal.reading import Selection
from wal.retention import PChannelRetention, RetentionBounds, RetentionKeeper
from wal.secret import Secret
from wal.settings import Settings
from wal.timestamp import COUNT_MAX, TimestampOracle

__all__ = ["LocalLog"]

INBOX_MAX: Final = 1 << 20
"""Operations in a pchannel's inbox; bytes in flight are the bound that is met first."""
META_FILE: Final = "meta.sqlite3"
BROADCAST_ROOT: Final = "broadcasts"
"""The root path of the broadcaster's records in the metadata."""
CURSOR_ROOT: Final = "cursors"
"""The root path of cursors, where the log has no directory for them."""
PULSAR_ROOT: Final = "pulsar"
"""The root path of what the Pulsar backend keeps there."""
_log: Final = logging.getLogger("wal")


class LocalLog:
    """The log at a location. `open` opens it; from then on every attribute is set, until `close`."""

    checkpoint_rule: CheckpointRule = CheckpointRule()

    def __init__(
        self, location: Location, settings: Settings, *, clock: Clock | None = None, create: bool = True
    ) -> None:
        """`create=False`: where there is no log nothing is made, and `open` raises a FormatError."""
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self.place: str = str(location if location.path is None else location.path)
        self.released: bool = False
        """Whether it holds nothing any more: it was closed, abandoned, or not opened after all."""
        self._location = location
        self._create = create
        self._announcements = Announcements(str(location), self.clock.monotonic)
        self.in_flight: InFlight = InFlight(settings.in_flight_bytes_max)
        self.message_bytes_max: int = settings.message_bytes_max
        loop = asyncio.get_running_loop()
        # Bound once: `get_running_loop` costs a system call in Python 3.11.
        self.create_future: Callable[[], asyncio.Future[Any]] = loop.create_future
        self.is_running: Callable[[], bool] = loop.is_running
        self.pchannels: dict[str, PChannel] = {}
        self.routes: dict[str, VChannel] = {}
        self.saving: dict[str, asyncio.Future[None]] = {}
        """The vchannels whose records are being saved, and when that is done."""
        self.on_dropped: Callable[[str], object] = lambda name: None
        """Hears of each vchannel that was dropped, when its record is gone."""
        self.broadcast: Broadcast
        self.backend: LogBackend
        self.kv: KVBase
        self.oracle: TimestampOracle
        self.directory: VChannelDirectory
        self.cursors: CursorService
        self.retention: RetentionKeeper
        self.system: ActorSystem = ActorSystem("wal", clock=self.clock)
        self.limits: TxnLimits = _limits(settings)
        self._unknown: UnknownVChannels
        self._directory: ActorRef
        self._ticks: ActorRef
        self._held: HeldDirectory | None = None
        """The directory of a journal, with the names in it that the whole log depends on."""
        self._timer: Timer | None = None
        self._spawned = 0
        self._undo: list[Callable[[], Any]] = []
        self._maps: VChannelMapKeeper | None = None
        self._abandoning = threading.Lock()
        self._releases = contextlib.ExitStack()
        """What `abandon` releases, in the order of opening."""

    async def open(self) -> None:
        """Opens the log, taking over every pchannel. A failure undoes what was done and raises."""
        try:
            await self._open(self._location, create=self._create)
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(self._undo_all()))
            raise

    def abandon(self) -> None:
        """Releases files, threads and locks once the event loop has ended; see `LogBackend.abandon`. Idempotent, from any thread."""
        with self._abandoning:
            if self.released:
                return
            for pchannel in self.pchannels.values():
                pchannel.tail.failure = pchannel.tail.failure or _closed()
            try:
                self._releases.close()
            finally:
                self.released = True
                self._announcements.closed(self._event_count(), trouble="its event loop had ended")

    async def close(self) -> None:
        """Drains what was taken, gives all pchannels one closing tick, and lets go of everything."""
        if self._timer is not None:
            self._timer.cancel()
        await self.broadcast.close()
        self.in_flight.fail(_closed)
        await self.retention.close()
        await self.cursors.close()
        live = list(self.pchannels.values())
        await asyncio.gather(*(pchannel.drain() for pchannel in live))
        trouble: BaseException | None = next((fault for pchannel in live if (fault := pchannel.fault)), None)
        await asyncio.gather(*(pchannel.checkpointer.close() for pchannel in live if pchannel.checkpointer is not None))
        tick = 0
        try:
            tick = await self.oracle.allocate()
        except Exception as error:
            unsaved = error if isinstance(error, WALError) else _no_ticks(error)
            for pchannel in live:
                pchannel.fail(unsaved)
        finished = await asyncio.gather(
            *(pchannel.finish(tick, _closed()) for pchannel in live), return_exceptions=True
        )
        trouble = trouble or next((error for error in finished if error is not None), None)
        await self.system.stop()
        await self._undo_all()
        self._announcements.closed(self._event_count(), trouble=trouble)
        for result in finished:
            if isinstance(result, BaseException):
                raise result

    def _event_count(self) -> int:
        """How many events were appended since the log was opened."""
        return sum(pchannel.statistics().events for pchannel in self.pchannels.values())

    def spawn(self, actor: Actor, name: str) -> ActorRef:
        """Starts an actor of the log's, which ends with it at the latest; a number makes its name unlike the others."""
        self._spawned += 1
        return self.system.spawn(actor, name=f"{name} #{self._spawned}")

    # -- vchannels

    def route(self, name: str) -> VChannel:
        """The actor of this vchannel, making the vchannel if that is allowed.

        ChannelNotExistError when it is not, InvalidArgumentError for a bad name or past `vchannels_max`.
        """
        vchannel = self.routes.get(name)
        if vchannel is not None:
            return vchannel
        info = self.directory.records.get(check_vchannel(name))
        if info is not None:
            return self._join(info)
        if not self.settings.create_vchannels:
            raise ChannelNotExistError(
                f"vchannel {name!r} does not exist and create_vchannels is off: make it with create_vchannel({name!r})"
            )
        return self._make(name, place(name, list(self.pchannels)), None)

    @property
    def name(self) -> str:
        """The name of the backend."""
        return self.backend.name

    @property
    def records(self) -> Mapping[str, VChannelInfo]:
        """The vchannels that there are."""
        return self.directory.records

    @property
    def saved_records(self) -> Mapping[str, VChannelInfo]:
        """The vchannels that an opening now would find."""
        return self.directory.saved

    async def retention_report(self) -> list[PChannelRetention]:
        """Where each pchannel's log stands, and who holds it."""
        return await self.retention.report()

    async def refresh(self) -> None:
        """`records` is always up to date here."""

    async def attach(self, names: tuple[str, ...]) -> tuple[PChannel, Selection, Callable[[Actor, str], ActorRef]]:
        """The pchannel to read these vchannels on, and the vchannels as they are now."""
        records = self.directory.records
        channel = common_place(names, records, list(self.pchannels), create_vchannels=self.settings.create_vchannels)
        self._unknown.note(names, records)
        bound = {name: records[name].incarnation if name in records else None for name in names}
        return self.pchannels[channel], Selection(bound, floor=self.directory.next_incarnation), self.spawn

    async def create_vchannel(self, name: str, pchannel: str | None) -> VChannelInfo:
        """Makes a vchannel; ChannelExistError when there is one of that name."""
        check_vchannel(name)
        if name in self.directory.records:
            raise ChannelExistError(f"vchannel {name!r} exists already: append to it, or drop it first")
        if pchannel is not None and not isinstance(pchannel, str):
            raise TypeError(f"pchannel must be a str or None, not {type(pchannel).__name__}")
        if pchannel is not None and pchannel not in self.pchannels:
            raise InvalidArgumentError(
                f"pchannel {pchannel!r} does not exist: choose one of {', '.join(self.pchannels)}"
            )
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        vchannel = self._make(name, pchannel or place(name, list(self.pchannels)), saved)
        await asyncio.shield(saved)
        return VChannelInfo(name, vchannel.pchannel.channel, vchannel.run_name[1])

    async def drop_vchannel(self, name: str) -> None:
        """Ends a vchannel for good, in the order of the calls; ChannelNotExistError when there is none."""
        info = self.directory.records.get(check_vchannel(name))
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if info is None:
            if self._maps is None or not self._maps.is_overdue(name):
                raise ChannelNotExistError(f"vchannel {name!r} does not exist: log.vchannels() lists those that do")
            # A call before this one dropped it, but could not tell readers in other processes.
            self._when_shown(name, partial(_settle, saved))
            await asyncio.shield(saved)
            return
        vchannel = self.route(name)
        group = vchannel.pchannel.actor_group
        dropped: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            group.tell(vchannel, Drop(dropped))
        except ActorError as error:
            raise (vchannel.closed or _closed)() from error
        del self.routes[name]
        vchannel.pchannel.endings += 1
        self.directory.forget(info)

        def removed(error: WALError | None) -> None:
            # Only now: as long as its record is there an opening may find it alive, and then its keys have to be known.
            if error is None:
                vchannel.pchannel.keyed.table.drop(vchannel.run_name)
                self.on_dropped(name)
                self._when_shown(name, partial(_settle, saved))
            else:
                _settle(saved, error)

        def ended(_: asyncio.Future[None]) -> None:
            # A callback, so that it happens whether or not the caller still waits. What was told meanwhile is not lost either.
            if (error := dropped.exception()) is not None:
                saved.set_exception(error)
                return
            assert vchannel.closed is not None
            vchannel.refuse(group.leave(vchannel), vchannel.closed())
            self._save(info, remove=True, done=removed)

        dropped.add_done_callback(ended)
        await asyncio.shield(saved)
        try:
            await self.cursors.drop(name, info.incarnation)
        except WALError as error:  # they are worth nothing any more, and are deleted with the next chance
            _log.warning("the cursors of vchannel %r, which was dropped, could not be deleted yet: %s", name, error)

    def _make(self, name: str, pchannel: str, saved: asyncio.Future[None] | None) -> VChannel:
        if len(self.directory.records) >= self.settings.vchannels_max:
            raise InvalidArgumentError(
                f"vchannel {name!r} would be one more than vchannels_max={self.settings.vchannels_max}: drop some, or raise the "
                "setting"
            )
        info = self.directory.admit(name, pchannel)
        vchannel = self._join(info)
        for other in self.pchannels.values():
            for reader in list(other.readers):
                reader.made(name, vchannel.pchannel)
        group = vchannel.pchannel.actor_group
        group.pause()
        if saved is None:
            saved = asyncio.get_running_loop().create_future()
            saved.add_done_callback(_seen)
        self.saving[name] = saved

        def recorded(error: WALError | None) -> None:
            if error is None:
                # Where a reader would not look for it, or could still see a former incarnation, nothing is appended before.
                elsewhere = pchannel != place(name, list(self.pchannels))
                self._when_shown(name, shown, wanted=elsewhere)
            else:
                done(error)

        def shown(error: WALError | None) -> None:
            done(error)
            if error is not None:
                self._save(info, remove=True, done=lambda _: None)

        def done(error: WALError | None) -> None:
            if self.saving.get(name) is saved:
                del self.saving[name]
            if error is not None:
                self.directory.forget(info)
                if self.routes.get(name) is vchannel:
                    del self.routes[name]
                vchannel.closed = lambda: _unsaved(name, error)
                vchannel.pchannel.endings += 1
            group.resume()
            _settle(saved, error)

        self._save(info, remove=False, done=recorded)
        return vchannel

    def _join(self, info: VChannelInfo) -> VChannel:
        pchannel = self.pchannels[info.pchannel]
        vchannel = VChannel(pchannel, info.name, info.incarnation)
        pchannel.actor_group.join(vchannel, name=f"{info.name}#{info.incarnation}")
        pchannel.vchannels[info.name] = self.routes[info.name] = vchannel
        return vchannel

    def _when_shown(self, name: str, then: Callable[[WALError | None], None], *, wanted: bool = False) -> None:
        """See `VChannelMapKeeper.when_shown`; at once where no other process can read the log."""
        if self._maps is None:
            then(None)
        else:
            self._maps.when_shown(name, then, wanted=wanted)

    def _save(self, info: VChannelInfo, *, remove: bool, done: Callable[[WALError | None], None]) -> None:
        try:
            self._directory.tell(Change(info, remove, done))
        except ActorError as error:  # it failed before, or the log is being closed
            cause = error.__cause__ or error
            asyncio.get_running_loop().call_soon(done, unsaved_records(cause))

    # -- opening and closing

    async def _open(self, location: Location, *, create: bool) -> None:
        self._unknown = UnknownVChannels(str(location))
        await self.system.start()
        self._undo.append(self.system.stop)
        if (
            location.pulsar is not None
        ):  # what is known of its topics lies there; a journal's lock comes before its metadata
            await self._open_kv(location, create=create)
        await self._open_backend(location, create=create)
        if self.limits.txn_bodies_max >= COUNT_MAX:
            raise InvalidArgumentError(
                f"setting txn_bodies_max={self.limits.txn_bodies_max} is too large: at most {COUNT_MAX - 1}, since a transaction and "
                "its commit take one range of ticks"
            )
        if self.settings.broadcast_vchannels_max > COUNT_MAX:
            raise InvalidArgumentError(
                f"setting broadcast_vchannels_max={self.settings.broadcast_vchannels_max} is too large: at most {COUNT_MAX}, since the "
                "copies in a frame take one range of ticks"
            )
        self.limits = _limits(self.settings, frame_bytes_limit=self.backend.frame_bytes_limit)
        if self.limits.frame_bytes_max > self.backend.frame_bytes_limit:
            limit, source = self.backend.frame_bytes_limit, self.backend.frame_bytes_source
            raise InvalidArgumentError(
                f"the settings ask for frames of {self.limits.frame_bytes_max} bytes (from txn_bytes_max and message_bytes_max), "
                f"but the {self.backend.name} backend takes at most {limit}: {source and source + ', or '}lower them, txn_bytes_max to "
                f"at most {max(0, limit - _TXN_TABLES_BYTES)} and message_bytes_max to at most {limit // 3}"
            )
        if location.pulsar is None:
            await self._open_kv(location, create=create)
        self.oracle = TimestampOracle(self.kv, clock=self.clock)
        await self.oracle.start()
        self._undo.append(self.oracle.close)
        self.directory = VChannelDirectory(self.kv)
        await self.directory.load()
        self._directory = self.system.spawn(self.directory, name="directory", inbox_max=INBOX_MAX)
        self._ticks = self.system.spawn(_TickKeeper(self.oracle), name="ticks")
        metas = await load_pchannels(self.kv)
        self._announcements.is_new = not metas
        count = check_count(self.settings.pchannels, len(metas))
        for name in pchannel_names(count):
            if name not in metas:
                meta = PChannelMeta(name, new_incarnation(), 0)
                await self.backend.create(name, incarnation=meta.incarnation)
                await create_pchannel(self.kv, meta)
                metas[name] = meta
        if lost := {info.pchannel for info in self.directory.records.values()} - metas.keys():
            raise CorruptionError(
                f"vchannel records in the KV name the pchannels {', '.join(sorted(lost))}, of which there is no record",
                expected=f"pchannels {', '.join(metas)}",
            )
        # Each to its end, so that the undoing of a failure finds all there is to undo.
        opened = await asyncio.gather(*(self._open_pchannel(meta) for meta in metas.values()), return_exceptions=True)
        for outcome in opened:
            if isinstance(outcome, BaseException):
                raise outcome
        self.pchannels = {name: self.pchannels[name] for name in metas}
        await self._keep_maps(metas)
        await self._open_cursors(location)
        await self._open_broadcast()
        self._arm()
        self._announcements.opened()

    async def _open_cursors(self, location: Location) -> None:
        store: CursorStore
        if location.pulsar is not None:
            store = CursorsInKV(self.kv.under(CURSOR_ROOT))
        else:
            store = MemoryCursors() if location.path is None else CursorFiles(location.path, held=self._held)
        self.cursors = CursorService(store, view=self._cursor_view, wall=self.clock.wall)
        self._undo.append(self.cursors.close)
        self._releases.callback(self.cursors.abandon)
        self._releases.callback(
            self.backend.finish_calls
        )  # before: a truncation under way holds the lock on the cursors
        settings = self.settings
        bounds = RetentionBounds(
            settings.retention_bytes,
            settings.retention_s,
            settings.cursor_lag_bytes_max,
            settings.cursor_age_max_s,
        )
        self.retention = RetentionKeeper(bounds, self.pchannels, self.cursors, clock=self.clock)
        self._undo.append(self.retention.close)
        await self.retention.start()

    async def _open_broadcast(self) -> None:
        registry = Registry()
        registry.register(AppendOperatorType.STREAMING, CopiesOperator(self))
        settings = self.settings
        self.broadcast = await Broadcast.start(
            self.system,
            kv=self.kv.under(BROADCAST_ROOT),
            registry=registry,
            limits=BroadcasterLimits(
                tasks_max=settings.broadcast_tasks_max, vchannels_max=settings.broadcast_vchannels_max
            ),
        )
        self._undo.append(self.broadcast.close)

    def _cursor_view(self) -> LogView:
        """What cursors are held against."""
        records = self.directory.records

        def life(name: str) -> int | None:
            info = records.get(name)
            return None if info is None else info.incarnation

        places = {
            name: LogPlace(
                pchannel.log.incarnation,
                pchannel.log.earliest,
                pchannel.log.durable_end,
                last_frame=pchannel.tail.durable_end - 1,
                bytes_between=pchannel.log.bytes_between,
            )
            for name, pchannel in self.pchannels.items()
        }
        return LogView(places, life, self.directory.next_incarnation)

    async def _keep_maps(self, metas: Mapping[str, PChannelMeta]) -> None:
        """Shows the vchannels to other processes, where there can be any that read the log."""
        folders = {name: self.backend.folder(name) for name in metas}
        places = {
            name: MapPlace(folder, metas[name].incarnation) for name, folder in folders.items() if folder is not None
        }
        if places:
            self._maps = VChannelMapKeeper(self.directory, places, monotonic=self.clock.monotonic, held=self._held)
            self._undo.append(self._maps.close)
            self._releases.callback(self._maps.abandon)
            await self._maps.start()

    async def _open_backend(self, location: Location, *, create: bool) -> None:
        backend = await self._backend(location, create=create)
        self._releases.callback(backend.abandon)
        try:
            await backend.start()
        except BaseException:
            await backend.close()
            raise
        self.backend = backend
        self._undo.append(backend.close)
        if isinstance(backend, JournalBackend):
            self._held = backend.held

    async def _backend(self, location: Location, *, create: bool) -> LogBackend:
        if location.pulsar is not None:
            await import_late("wal.backends.pulsar")
            from wal.backends.pulsar import Allowances, PulsarAddress, PulsarBackend

            settings = self.settings
            address = PulsarAddress(
                location.pulsar.service_url,
                location.pulsar.tenant,
                location.pulsar.namespace,
                admin_url=settings.pulsar_admin_url,
                token=Secret.of(settings.pulsar_token) if settings.pulsar_token else None,
                tls_authority=settings.pulsar_tls_authority,
            )
            allowed = Allowances(message_ttl=settings.allow_message_ttl, backlog_quota=settings.allow_backlog_quota)
            return PulsarBackend(address, self.kv.under(PULSAR_ROOT), allowed=allowed)
        if location.path is None:
            return MemoryBackend()
        return JournalBackend(
            location.path,
            segment_bytes=self.settings.segment_bytes,
            create=create,
            group_readable=self.settings.group_readable,
        )

    async def _open_kv(self, location: Location, *, create: bool) -> None:
        if not create:
            await self._check_metadata_file(location)
        if self.settings.kv is not None:
            self.kv = await open_metadata(self.settings.kv)
        elif location.pulsar is not None:
            raise InvalidArgumentError(
                f"a log at {location} needs a place for its metadata: give the setting kv, the path of a sqlite file or etcd://…"
            )
        else:
            self.kv = MemoryKV() if location.path is None else await SqliteKV.open(location.path / META_FILE)
        self._undo.append(self.kv.close)
        if self._held is not None and isinstance(self.kv, SqliteKV):
            self._held.watch(Path(self.kv.path), self.kv.status)
        self._releases.callback(self.kv.abandon)
        if not create and not await load_pchannels(self.kv):
            raise FormatError(
                f"the metadata of the log at {location} know of no log: name those that it was made with (setting kv), or open it without "
                "create=False to make one"
            )

    async def _check_metadata_file(self, location: Location) -> None:
        """FormatError where opening the metadata would make their file."""
        file = None if location.path is None else location.path / META_FILE
        if self.settings.kv is not None:
            file = found if isinstance(found := parse_kv(self.settings.kv), Path) else None
        if file is not None and not await asyncio.to_thread(file.exists):
            raise FormatError(
                f"{file}, the metadata of the log at {location}, is not there: name the file that the log was made with (setting kv), or "
                "open it without create=False to make one"
            )

    async def _open_pchannel(self, meta: PChannelMeta) -> None:
        meta = await raise_term(self.kv, meta)
        record = await load_checkpoint(self.kv, meta.name)
        log = await self.backend.open(
            meta.name,
            incarnation=meta.incarnation,
            term=meta.term,
            checkpoint=None if record is None else record.position,
        )
        self._undo.append(log.close)
        state, last, (replayed, replayed_bytes) = await self._recover_state(log, meta, record)
        self._announcements.recovered(log.term, log.state, replayed=replayed)
        if log.state.promised_tick >= self.oracle.last:
            self.oracle.observe(log.state.promised_tick)
        group = self.system.group(meta.name, inbox_max=INBOX_MAX, on_turn_end=lambda: pchannel.turn_ended())
        pchannel = PChannel(
            log,
            form=self.backend.form,
            group=group,
            ticks=self.oracle,
            need_ticks=lambda starving: self._ticks.tell(starving),
            in_flight=self.in_flight,
            limits=self.limits,
            keepalive=self.settings.txn_keepalive,
            interval_s=self.settings.time_tick_interval_s,
            monotonic=self.clock.monotonic,
            state=state,
        )
        group.join(pchannel, name=meta.name)
        group.join(pchannel.copies, name=f"{meta.name} copies")
        await pchannel.start()
        pchannel.checkpointer = Checkpointer(
            log,
            state,
            last=last,
            replayed_bytes=replayed_bytes,
            end=lambda: pchannel.tail.durable_end,
            save=partial(self._save_checkpoint, meta),
            monotonic=self.clock.monotonic,
            rule=self.checkpoint_rule,
        )
        self.pchannels[meta.name] = pchannel

    async def _recover_state(
        self, log: PChannelLog, meta: PChannelMeta, record: CheckpointRecord | None
    ) -> tuple[RecoveryState, Checkpoint, tuple[int, int]]:
        """What a pchannel knew when its log ended, the checkpoint that this went by, and what was replayed; see `recover`."""
        if record is None:
            # Made before there were checkpoints: what is not truncated is all there is. From now on it is kept.
            last = Checkpoint(log.earliest[0])
            await self._save_checkpoint(meta, last)
            await log.release(last.position, state=None)
        else:
            last = Checkpoint(record.position, record.state)
        keys = IdempotencyTable(
            window_count=self.settings.idempotency_window_count,
            window_s=self.settings.idempotency_window_s,
            producers_max=self.settings.producers_max,
        )
        state = RecoveryState(keys, CopyTable())
        return state, last, await recover(log, state, last, live=self._is_live)

    async def _save_checkpoint(self, meta: PChannelMeta, checkpoint: Checkpoint) -> None:
        await save_checkpoint(self.kv, meta, CheckpointRecord(meta.term, checkpoint.position, checkpoint.state))

    def _is_live(self, name: RunName) -> bool:
        """Whether this vchannel, in this incarnation, still exists."""
        info = self.directory.records.get(name[0])
        return info is not None and info.incarnation == name[1]

    def _arm(self) -> None:
        self._timer = self.clock.call_later(self.settings.time_tick_interval_s, self._timer_turn)

    def _timer_turn(self) -> None:
        self._arm()
        for pchannel in self.pchannels.values():
            if pchannel.failure is None:
                try:
                    pchannel.actor_group.tell_control(pchannel, pchannel.timer_turn)
                    if pchannel.checkpointer is not None:
                        pchannel.checkpointer.look()
                except Exception as defect:  # the timer goes on for the others
                    pchannel.poisoned(defect, [])

    async def _undo_all(self) -> None:
        errors: list[Exception] = []
        while self._undo:
            try:
                await self._undo.pop()()
            except Exception as error:
                errors.append(error)
        self.released = True
        if errors:
            raise errors[0]


class _TickKeeper(Actor):
    """Waits for the oracle where a pchannel must not."""

    def __init__(self, oracle: TimestampOracle) -> None:
        self._oracle = oracle

    async def receive(self, batch: list[Any]) -> None:
        """Extends the oracle's limit once for all pchannels of the batch."""
        failure: WALError | None = None
        try:
            await self._oracle.extend()
        except WALError as error:
            failure = error
        except Exception as error:
            failure = _no_ticks(error)
        for pchannel in batch:
            if pchannel.failure is None:  # a failed one has let go of what waited
                with contextlib.suppress(ActorError):  # one that failed meanwhile
                    pchannel.actor_group.tell_control(pchannel, partial(pchannel.ticks_extended, failure))

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        """A defect in here: no pchannel gets ticks any more."""
        for pchannel in unhandled:
            pchannel.poisoned(cause, [])


def _closed() -> ClosedError:
    return ClosedError("the log was closed: open it again to go on")


def _no_ticks(cause: Exception) -> StorageError:
    error = StorageError(f"the timestamp oracle's limit could not be saved: {cause!r}")
    error.__cause__ = cause
    return error


_TXN_TABLES_BYTES: Final = 1 << 19
"""What the header and tables of a frame take beside the largest transaction."""


def _limits(settings: Settings, *, frame_bytes_limit: int = FRAME_BYTES_MAX) -> TxnLimits:
    """`frame_bytes_limit`: of the backend; one below FRAME_BYTES_MAX is kept to where the settings allow that."""
    return TxnLimits(
        settings.txn_bytes_max,
        settings.txn_bodies_max,
        settings.open_txn_bytes_max,
        max(
            min(FRAME_BYTES_MAX, frame_bytes_limit),
            settings.txn_bytes_max + _TXN_TABLES_BYTES,
            3 * settings.message_bytes_max,
        ),
    )


def _seen(future: asyncio.Future[None]) -> None:
    """Its error is told to others, whether or not anybody waits for it here."""
    future.exception()


def _settle(future: asyncio.Future[None], error: WALError | None) -> None:
    if not future.done():
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)


def _unsaved(name: str, error: WALError) -> WALError:
    # Away for a moment, or full, is not broken: the caller may try again.
    kind: type[WALError] = StorageError
    if isinstance(error, UnavailableError | UnknownOutcomeError):
        kind = UnavailableError
    elif isinstance(error, NoSpaceError):
        kind = NoSpaceError
    own = kind(f"vchannel {name!r} could not be saved in the metadata, nothing was written: {error}")
    own.__cause__ = error
    return own
