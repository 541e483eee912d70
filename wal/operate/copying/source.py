"""CopySource: the log that is copied, read beside its writer or without one.

Owns the open source. It returns the source's frames in the order of their ticks up to a tick that no later frame undercuts, its metadata,
its cursors, and the content of its checkpoints that is not in its frames. It changes nothing and takes no lock. Its calls block and must
not overlap.
"""

from __future__ import annotations

import contextlib
import heapq
import time
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, cast

import msgspec

from wal.channels.cluster import FORMAT, ClusterRecord, load_cluster
from wal.channels.metadata import open_metadata
from wal.channels.pchannels import CheckpointRecord, checkpoint_records
from wal.errors import CorruptionError, FormatError, InvalidArgumentError, LockedError, TruncatedError, UnavailableError
from wal.frame import FrameView, RunKind, RunName
from wal.location import EtcdLocation, Location, ServerLocation, parse_kv, parse_location
from wal.message import LogPosition
from wal.message.matching import Matching
from wal.operate.inspect.outside import metadata_of
from wal.read.cursors.cursor import CursorKey, pattern_home
from wal.read.cursors.pinned import PinnedCursors
from wal.read.cursors.pins import Pin, newest_pin
from wal.read.cursors.records import CursorRecord, newest_records
from wal.read.cursors.store import DamagedCursor
from wal.read.read_only_core import ReadOnlyCore
from wal.read.sources import source_of
from wal.runtime.secret import Secret
from wal.settings import Settings
from wal.storage.base import LogSnapshot, StoredFrame
from wal.storage.journal.read_only_journal import ReadOnlyJournalLog
from wal.storage.journal.salvage import LostPart, SalvagedLog
from wal.storage.read_only import ReadOnlyStoredLog
from wal.write.copies import CopyTable
from wal.write.cursor_table import CursorTable
from wal.write.idempotency.scopes import KeyRun, Scope
from wal.write.idempotency.state import KeptProducer, decode_state
from wal.write.idempotency.table import IdempotencyTable
from wal.write.schedule import Scheduled, ScheduleTable

PAGE_BYTES: Final = 4 << 20
_TRIES: Final = 20
PROMISE_S: Final = 10.0
"""The maximum wait for the promises of all pchannels."""
_PAUSE_S: Final = 0.02


class Ends(msgspec.Struct, frozen=True):
    """The end of a pass over the source: the snapshots of its pchannels, and the last tick that is copied, None for all of it."""

    snapshots: Mapping[str, LogSnapshot]
    tick: int | None

    @property
    def promised(self) -> int:
        """The tick up to which the copy is complete."""
        if self.tick is not None:
            return self.tick
        return max((snapshot.promised_tick for snapshot in self.snapshots.values()), default=0)


class TruncatedKeys(msgspec.Struct, frozen=True):
    """The idempotency keys and producers whose events are no longer in any frame, each with its pchannel.

    `cut` is the tick of the newest key that was forgotten before its age. The keys have the position 0, where no event is, and ascend.
    """

    keys: tuple[tuple[str, KeyRun], ...]
    producers: tuple[tuple[str, KeptProducer], ...]
    cut: int


class StoredMetadata(msgspec.Struct, frozen=True):
    """The metadata at one moment, and the checkpoint of each pchannel at that moment: its position, and its state (None: without a
    state).
    """

    metadata: Mapping[str, str]
    checkpoints: Mapping[str, tuple[int, bytes | None]]


class Remembered(msgspec.Struct, frozen=True):
    """The state of a pchannel at the end of a pass, beside its keys: the ids of the broadcasts with copies, its cursors that are records of
    the log, and its delayed messages.
    """

    broadcasts: frozenset[int]
    cursors: tuple[CursorRecord, ...]
    scheduled: tuple[Scheduled, ...]


class CopySource:
    """The log at `location`. Use it after `open` and until `close`."""

    _salvaged: dict[str, SalvagedLog] | None = None
    """The logs that are read around damage, by pchannel; None without `skip_damaged`."""

    def __init__(self, location: Location, settings: Settings, *, skip_damaged: bool = False) -> None:
        """With `skip_damaged`, damaged frames and checkpoints of a journal are left out: see `lost`.

        Raises InvalidArgumentError for a log that cannot be read where it is stored, such as one in memory.
        """
        self.location: Location = location
        self._settings = settings
        self._core = ReadOnlyCore(source_of(location, settings))
        self._salvaged = {} if skip_damaged else None

    def open(self) -> None:
        """Opens the log for reading. Raises FormatError for a missing log, StorageError and UnavailableError for an unreachable one."""
        self._core.open()

    def close(self) -> None:
        """Closes the log. Idempotent."""
        for log in () if self._salvaged is None else self._salvaged.values():
            log.close()
        self._core.close()

    def incarnations(self) -> dict[str, int]:
        """Returns the pchannels in the order of their numbers, and the incarnation of the log of each."""
        self._core.look()
        return {name: log.incarnation for name, log in self._core.logs.items()}

    def log(self, pchannel: str) -> ReadOnlyStoredLog:
        """Returns the log of a pchannel."""
        log = cast("ReadOnlyStoredLog", self._core.logs[pchannel])
        if self._salvaged is None:
            return log
        if pchannel not in self._salvaged:
            self._salvaged[pchannel] = SalvagedLog(cast("ReadOnlyJournalLog", log).directory)
        return self._salvaged[pchannel]

    def lost(self) -> list[LostPart]:
        """Returns the parts that were left out of the frames; empty without `skip_damaged`."""
        return [part for log in (self._salvaged or {}).values() for part in log.lost]

    def has_writer(self) -> bool:
        """Returns whether a process has the log open for writing; True where that is not visible."""
        return self._core.source.has_writer() is not False

    def ends(self, *, follow: bool = False) -> Ends:
        """Returns the end of a pass that begins now: without a writer the end of the log, with one a tick that all pchannels promised.

        That tick covers everything that is durable now. To `follow` the writer it is the newest that is promised already. Raises
        UnavailableError if a pchannel does not promise it within `PROMISE_S`.
        """
        if not self.has_writer():  # before the snapshots: without a writer they have everything
            return Ends(self._reached(self._core), None)
        if self._salvaged is not None:
            raise LockedError(f"a process has {self.location} open for writing: stop it to copy around damage", pid=None)
        return self._ends_beside_a_writer(self._core, follow=follow)

    def _ends_beside_a_writer(self, promises: ReadOnlyCore, *, follow: bool) -> Ends:
        """Returns the ends for a log whose writers promise their ticks in `promises`."""
        least = 0 if follow else max(snapshot.promised_tick for snapshot in self._reached(self._core).values())
        snapshots = self._promised(promises, least, time.monotonic() + PROMISE_S)
        tick = min(snapshot.promised_tick for snapshot in snapshots.values())
        return Ends(snapshots if promises is self._core else self._reached(self._core), tick)

    def _promised(self, promises: ReadOnlyCore, tick: int, until: float) -> dict[str, LogSnapshot]:
        """Waits until each pchannel has promised this tick, so that no later frame undercuts it, and returns their snapshots."""
        while True:
            snapshots = self._reached(promises)
            late = [name for name, snapshot in snapshots.items() if snapshot.promised_tick < tick]
            if not late:
                return snapshots
            if time.monotonic() >= until:
                raise UnavailableError(
                    f"pchannel {late[0]} of {self.location} is idle, and its writer does not tell that it is complete up to tick {tick}: "
                    "copy with --follow and close the writer, or try again"
                )
            time.sleep(_PAUSE_S)

    def _reached(self, core: ReadOnlyCore) -> dict[str, LogSnapshot]:
        return {name: (self.log(name) if core is self._core else log).reach() for name, log in core.logs.items()}

    def first_ticks(self) -> dict[str, int]:
        """Returns, for each pchannel, a tick at or below that of its first event and above those of all truncated events."""
        ticks: dict[str, int] = {}
        for name in self._core.logs:
            snapshot = self.log(name).reach()
            first = self.tick_at(name, snapshot.earliest)
            ticks[name] = snapshot.promised_tick + 1 if first is None else first
        return ticks

    # -- frames

    def frames(self, after: int, ends: Ends) -> Iterator[tuple[str, StoredFrame, int]]:
        """Yields (pchannel, frame, least index) of the frames with ticks above `after`, in the order of their ticks.

        Raises InvalidArgumentError where the ticks of two pchannels overlap, so that no such order exists; TruncatedError if the writer
        drops frames that are not copied yet.
        """
        streams = [self._frames_of(name, after, snapshot, ends.tick) for name, snapshot in ends.snapshots.items()]
        yield from heapq.merge(*streams, key=lambda item: item[1].view.header.first_tick)

    def heads(self, ends: Ends) -> Iterator[FrameView]:
        """Yields all frames, possibly without their bodies."""
        for name, snapshot in ends.snapshots.items():
            yield from (frame.view for frame in self.log(name).heads(snapshot.earliest[0], snapshot.durable_end))

    def _frames_of(self, name: str, after: int, snapshot: LogSnapshot, up_to: int | None) -> Iterator[tuple[str, StoredFrame, int]]:
        log, end = self.log(name), snapshot.durable_end
        earliest = snapshot.earliest
        at = max(earliest, log.position_after(after, earliest[0], end))[0] if after else earliest[0]
        for frame in log.frames(at, end, PAGE_BYTES):
            header = frame.view.header
            if up_to is not None and header.first_tick > up_to:
                return
            if header.promised_tick > after:
                yield name, frame, earliest[1] if frame.position == earliest[0] else 0

    def tick_at(self, pchannel: str, position: LogPosition, *, exact: bool = False) -> int | None:
        """Returns the tick of the first event at or after this position. Returns None if it does not exist yet, or is truncated, or (with
        `exact`) if it is not at this position.
        """
        log = self.log(pchannel)
        with contextlib.suppress(TruncatedError):
            for frame in log.heads(position[0], log.reach().durable_end, bytes_max=1):
                header, is_here = frame.view.header, frame.position == position[0]
                index = position[1] if is_here else 0
                if index < header.indices and (is_here or not exact):
                    return header.first_tick + index
                if exact:
                    break
        return None

    def vchannels_at(self, ticks: Iterable[int], pattern: Matching) -> dict[int, dict[str, str]]:
        """Returns a matching vchannel of each event with one of these ticks, by the tick and the pchannel of the event."""
        ascending = sorted(set(ticks) - {0})
        vchannels: dict[int, dict[str, str]] = {}
        for name in self._core.logs if ascending else ():
            log, snapshot = self.log(name), self.log(name).reach()
            at = log.position_after(ascending[0] - 1, snapshot.earliest[0], snapshot.durable_end)[0]
            for frame in log.heads(at, snapshot.durable_end):
                first_tick, runs = frame.view.header.first_tick, frame.view.runs
                if first_tick > ascending[-1]:
                    break
                first, end = (bisect_left(ascending, first_tick + index) for index in (0, frame.view.header.indices))
                for run in (*runs.of_kind(RunKind.VCHANNEL), *runs.of_kind(RunKind.COPY)) if first < end else ():
                    if run.name in pattern:
                        indices = (run.index,) if run.kind == RunKind.COPY else runs.rows(run.first, run.end).indices
                        for tick in {first_tick + index for index in indices}.intersection(ascending[first:end]):
                            vchannels.setdefault(tick, {})[name] = run.name
        return vchannels

    # -- metadata

    def metadata(self) -> dict[str, str]:
        """Returns the records of the metadata by key, as they are now."""
        return metadata_of(self.location.path, self._settings.kv)

    def pins(self) -> list[Pin]:
        """Returns the positions that processes beside the writer have saved. Raises CorruptionError for an unreadable pin, which has to be
        deleted or repaired before the copy.
        """
        pins: list[Pin] = []
        for pin in cast("PinnedCursors", self._core.source.cursors).all_pins():
            if isinstance(pin, DamagedCursor):
                raise pin.error
            pins.append(pin)
        return pins

    def cursors(self) -> dict[CursorKey, tuple[str, CursorRecord]]:
        """Returns the record of each saved cursor, as of now, with the pchannel that is its home."""
        stored, ends = self.stored(), self.ends(follow=True)
        records = {name: self.remembered(name, stored, ends, ()).cursors for name in ends.snapshots}
        return {key: saved for key, saved in self.saved(records).items() if saved[1].cursor is not None}

    def saved(self, records: Mapping[str, Iterable[CursorRecord]]) -> dict[CursorKey, tuple[str, CursorRecord]]:
        """Returns the newest record of each cursor with its home, given the records of each pchannel. Pins replace the positions in these
        records.
        """
        saved = newest_records((name, record) for name, own in records.items() for record in own)
        pins: dict[CursorKey, list[Pin]] = {}
        for pin in self.pins():
            pins.setdefault(pin.cursor.key, []).append(pin)
        for key, each in pins.items():
            home, before = saved.get(key, (pattern_home(records) if key.pattern else each[0].cursor.pchannel, None))
            if (later := newest_pin(pin for pin in each if pin.is_later(before))) is not None:
                revision = 2 if before is None else before.revision + 1
                saved[key] = home, CursorRecord(key, revision, None if later.deleted else later.cursor, deleted=later.deleted)
        return saved

    # -- checkpoints

    def stored(self) -> StoredMetadata:
        """Returns the metadata and the checkpoints as they are now.

        Raises CorruptionError for a lost checkpoint, UnavailableError if checkpoints replace each other meanwhile.
        """
        before: dict[str, CheckpointRecord] = {}
        for _ in range(_TRIES):
            metadata = self.metadata()
            records = checkpoint_records(metadata)
            checkpoints: dict[str, tuple[int, bytes | None]] = {}
            missing: list[str] = []
            for name, record in records.items():
                try:
                    state = None if record.state is None else self.log(name).checkpoint_state(record.state)
                except CorruptionError:
                    if self._salvaged is None:
                        raise
                    state = None
                checkpoints[name] = record.position, state
                if record.state is not None and state is None:
                    if self._salvaged is None:
                        missing.append(name)
                    else:  # all readable frames are replayed instead
                        checkpoints[name] = 0, None
            if not missing:
                return StoredMetadata(metadata, checkpoints)
            if any(records[name] == before.get(name) for name in missing):
                text = f"the checkpoint of pchannel {missing[0]} of {self.location} is missing, and its metadata name it"
                raise CorruptionError(text, expected="a checkpoint")
            before = records
        raise UnavailableError(f"the checkpoints of {self.location} were replaced during each of {_TRIES} attempts to read them: try again")

    def truncated_keys(self, stored: StoredMetadata, first_ticks: Mapping[str, int]) -> TruncatedKeys:
        """Returns the keys and producers in the checkpoints whose events are below the first tick of their pchannel."""
        keys: list[tuple[str, KeyRun]] = []
        producers: list[tuple[str, KeptProducer]] = []
        cut = 0
        scopes: dict[tuple[RunName, ...], Scope] = {}

        def scope_of(names: tuple[RunName, ...]) -> Scope:
            return scopes.setdefault(names, Scope(names))

        for name, (_, state) in stored.checkpoints.items():
            if state is None:
                continue
            with IdempotencyTable.reading(state) as pieces:
                own_keys, own_producers, own_cut = decode_state(pieces, scope_of)
            cut = max(cut, own_cut)
            for run in own_keys:
                if run.tick < first_ticks[name]:
                    older_run = run.part(0, min(len(run.keys), first_ticks[name] - run.tick))
                    keys.append((name, msgspec.structs.replace(older_run, position=0)))
            older = (_below(producer, first_ticks[name]) for producer in own_producers)
            producers += [(name, producer) for producer in older if producer is not None]
        keys.sort(key=lambda item: item[1].tick)
        return TruncatedKeys(tuple(keys), tuple(producers), cut)

    def remembered(self, pchannel: str, stored: StoredMetadata, ends: Ends, live: Collection[RunName]) -> Remembered:
        """Returns the state of a pchannel at these ends, from an earlier checkpoint and the frames written after it.

        `live` are the vchannels that exist.
        """
        log, end = self.log(pchannel), ends.snapshots[pchannel].durable_end
        copies, cursors, schedule = CopyTable(), CursorTable(), ScheduleTable()
        at = log.reach().earliest[0]
        if (checkpoint := stored.checkpoints.get(pchannel)) is not None:
            position, state = checkpoint
            at = max(at, position)
            if state is not None:
                copies.restore(state)
                cursors.restore(state)
                schedule.restore(state, live=live.__contains__)
            while self._salvaged is None and position < at:  # truncated, and kept for a recovery
                page = log.keyed_page(position, at, PAGE_BYTES)
                for frame in page.frames:
                    cursors.replay(frame.position, frame.view)
                position = page.next_position
        for frame in log.frames(at, end, PAGE_BYTES):
            if ends.tick is not None and frame.view.header.first_tick > ends.tick:
                break
            copies.replay(frame.position, frame.view)
            cursors.replay(frame.position, frame.view)
            schedule.replay(frame.position, frame.view, live=live.__contains__)
        return Remembered(
            frozenset(listed.header.broadcast_id for listed in copies.listed()),
            tuple(cursors.all()),
            tuple(message for name in sorted(live) for message in schedule.listed(name)),
        )


async def log_of_cluster(root: str, settings: Settings) -> tuple[Location, Settings]:
    """Returns the location of the stored log of the cluster at this root in etcd, and the settings to read it with.

    Raises InvalidArgumentError without a cluster, FormatError for a cluster of a newer version.
    """
    record = await _load_cluster(root)
    place = parse_location(root)  # its text shows no password
    if record is None:
        raise InvalidArgumentError(f"no cluster at {place}: nothing was copied")
    if record.format > FORMAT:
        raise FormatError(f"the cluster at {place} writes format {record.format}, known here is {FORMAT}: upgrade to copy it")
    return parse_location(record.log), settings.replace(kv=root)


async def cluster_over(location: Location, settings: Settings) -> Location | None:
    """Returns the cluster that writes the log stored at this location; None if no cluster does."""
    if location.pulsar is None or settings.kv is None or not isinstance(root := parse_kv(settings.kv), EtcdLocation):
        return None
    if await _load_cluster(settings.kv) is None:
        return None
    return Location("wal", servers=ServerLocation((), root.tls, root.ca, root.certificate, root.key, root))


async def _load_cluster(root: str | Secret) -> ClusterRecord | None:
    kv = await open_metadata(root)
    try:
        return await load_cluster(kv)
    finally:
        await kv.close()


def _below(producer: KeptProducer, before: int) -> KeptProducer | None:
    """Returns the producer's state before this tick, without the results of its sequences; None if it is not known to be older."""
    older = [sequence for sequence, result in zip(producer.sequences, producer.results, strict=True) if result.tick < before]
    if older:
        return KeptProducer(producer.scope, producer.name, older[-1], (), ())
    if producer.sequences:  # the copied frames restore it
        return None
    return KeptProducer(producer.scope, producer.name, producer.last, (), ())


def check_same_log(source: Location, target: Location, before: Mapping[str, int], now: Mapping[str, int]) -> None:
    """Raises FormatError unless the pchannels of the source are those with which the copy at `target` began."""
    if dict(before) != dict(now):
        raise FormatError(f"{target} holds a part of another log than {source}, or {source} has got more pchannels since: remove that part")
