"""CopyTarget: the unfinished log that receives a copy.

Owns the storage of the target, its pchannels in a term of the copy, and a record in its metadata, `copying`, from the first step until the
copy is whole. Frames are written with their ticks in the source. The records that turn the frames into a log are saved last, so a part of a
copy is never taken for a log. A journal is built in a directory beside its location, and renamed. After an interruption `open` resumes:
each pchannel has its last tick.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from broadcaster.message import Content
from broadcaster.records import encode_task, read_records, task_key
from wal.channels.directory import NEXT_KEY, RecordCounter, infos_in
from wal.channels.directory import PREFIX as VCHANNELS
from wal.channels.metadata import BROADCAST_ROOT, IDS_KEY, broadcasts_in, save_metadata
from wal.channels.pchannels import CHECKPOINT_PREFIX, COMPRESSION_KEY, CheckpointRecord, PChannelMeta, encode, names_in, new_incarnation
from wal.channels.pchannels import PREFIX as PCHANNELS
from wal.channels.vchannels import VChannelInfo, place
from wal.consumers.delivery import BodyPosition
from wal.consumers.state import decode_state
from wal.consumers.state import encode_state as encode_saved
from wal.errors import FormatError, InvalidArgumentError, StorageError, WALError, corruption
from wal.frame import Compressor, EncodedFrame, FrameDraft, RunName, encode_frame
from wal.location import Location, parse_location
from wal.message import LogPosition
from wal.message.matching import Matching
from wal.node.local.log import LocalLog
from wal.node.local.storage import Storage, Undo, open_storage
from wal.operate.copying.cutting import CutFrame, TargetRoutes, moved_position
from wal.operate.copying.source import CopySource, Ends, StoredMetadata, TruncatedKeys
from wal.read.cursors.cursor import Cursor, pattern_home
from wal.read.cursors.records import CursorRecord
from wal.runtime.system import is_foreign, sync_path
from wal.runtime.threads import in_thread
from wal.settings import Settings
from wal.storage.base import FramePage, PChannelLog
from wal.storage.files import FORMAT_NAME
from wal.storage.search import PageRequest, event_below, position_after, run_async
from wal.timestamp.oracle import LIMIT_KEY
from wal.write.checkpoint_ledger import Checkpoint
from wal.write.copies import CopyTable
from wal.write.idempotency.state import encode_state
from wal.write.idempotency.table import IdempotencyTable
from wal.write.recovery import RecoveryState, recover
from wal.write.schedule import Scheduled, ScheduleTable

MARK: Final = "copying"
"""The key of the record that marks an unfinished copy into this log."""
IN_FLIGHT_BYTES: Final = 32 << 20
_START: Final = Checkpoint(0, 0)
"""The position before the first frame, where the content of the source's checkpoints that no frame has is stored."""


class CopyMark(msgspec.Struct, frozen=True, kw_only=True):
    """An unfinished copy: the log and its pchannels, and whether they were created and may have frames.

    `floor` is below the ticks of all events. With `whole` all records are saved, and only opening and renaming remain.
    """

    version: int = 1
    source: dict[str, int]
    incarnations: dict[str, int]
    groups: list[list[str]]
    floor: int
    term: int = 0
    created: bool = False
    whole: bool = False


class CopyTarget:
    """The log at `location`. `open` begins or resumes a copy; `close` leaves it unfinished, `finish` turns it into a log."""

    def __init__(self, location: Location, settings: Settings) -> None:
        """Raises InvalidArgumentError for a location that cannot be the target of a copy."""
        if location.servers is not None or (location.path is None and location.pulsar is None):
            raise InvalidArgumentError(
                f"nothing can be copied to {location}: name a directory, or a namespace on Pulsar with the setting kv"
            )
        self.location: Location = location
        self.routes: TargetRoutes
        self.mark: CopyMark
        self._settings = settings
        self._building = location
        if location.path is not None:
            self._building = parse_location(str(location.path.with_name(f"{location.path.name}.copying")))
        self._undo = Undo()
        self._storage: Storage
        self._writers: dict[str, _Writer] = {}

    @property
    def building(self) -> Location:
        """The location of the log until it is whole."""
        return self._building

    async def look(self) -> CopyMark | None:
        """Opens the storage; returns the mark of an unfinished copy, or None.

        Raises FormatError for an existing log, which stays unchanged.
        """
        await in_thread(self._check_place)
        settings = self._settings.replace(pchannels=None, compression=None)
        self._storage = await open_storage(self._building, settings, self._undo, create=True)
        kv = self._storage.kv
        if (text := await kv.find(MARK)) is not None:
            with corruption("the record of a copy cannot be read", expected=MARK):
                return _decoder.decode(text)
        keys, _ = await kv.load_with_prefix("")
        if names_in(keys) or LIMIT_KEY in keys or any(key.startswith(VCHANNELS) for key in keys):
            raise _not_empty(self.location)
        return None

    async def open(self, mark: CopyMark, *, keys: TruncatedKeys | None, compressed: bool) -> None:
        """Opens the pchannels in the next term. `keys` are the truncated keys in the source's checkpoints, for a copy that begins now."""
        backend = self._storage.backend
        mark = await self._save_mark(msgspec.structs.replace(mark, term=mark.term + 1))
        self.routes = TargetRoutes(list(mark.source), list(mark.incarnations), place, mark.groups)
        if not mark.created:
            for name, incarnation in mark.incarnations.items():
                await backend.create(name, incarnation=incarnation)
        for name, incarnation in mark.incarnations.items():
            log = await backend.open(name, incarnation=incarnation, term=mark.term, checkpoint=0)
            self._undo.add(log.close)
            compressor = await in_thread(Compressor) if compressed else None
            writer = self._writers[name] = _Writer(log, mark.term, mark.floor, compressor, backend.frame_bytes_limit)
            if not mark.created:
                assert keys is not None
                await log.save_state(0, list(self._state_of(name, keys)))
        if not mark.created:
            await self._save_mark(msgspec.structs.replace(mark, created=True))
        for writer in self._writers.values():
            await writer.begin()

    @property
    def last_tick(self) -> int:
        """The tick up to which every pchannel is complete."""
        return min(writer.last_tick for writer in self._writers.values())

    def encode(self, pieces: Iterable[CutFrame]) -> list[tuple[str, EncodedFrame]]:
        """Returns the frames of these pieces, without those already in the target. Any thread may call it, without overlap.

        Raises InvalidArgumentError for a frame that is too large for the target, and for ticks that do not ascend.
        """
        encoded = ((piece.target, self._writers[piece.target].encode(piece)) for piece in pieces)
        return [(target, frame) for target, frame in encoded if frame is not None]

    async def write(self, frames: list[tuple[str, EncodedFrame]]) -> None:
        """Writes frames in their order; waits while too much is in flight. Raises the error of an earlier frame."""
        for name, frame in frames:
            await self._writers[name].write(frame)

    async def promise(self, tick: int) -> None:
        """Waits until everything is durable, raising the first error, and records that the target is complete up to this tick.

        An interrupted copy resumes from there.
        """
        for writer in self._writers.values():
            await writer.flush()
        for writer in self._writers.values():
            await writer.promise(tick)

    async def close(self) -> None:
        """Closes all open resources. An unfinished copy stays, so that a later one resumes it."""
        failure = await self._undo.run()
        if failure is not None:
            raise failure

    # -- the end

    async def finish(self, source: CopySource, before: StoredMetadata, metadata: Mapping[str, str], ends: Ends) -> int:
        """Saves the records that turn the frames up to these ends into a log; returns its number of cursors. `complete` follows, after
        `close`.

        `metadata` were read after the pass over the frames, `before` before it; the latter count for broadcasts.
        """
        infos = infos_in(metadata)
        positions, cursors = await self._finish_pchannels(source, before, infos, ends)
        await self._save_records(infos, before.metadata, metadata, positions)
        await self._save_mark(msgspec.structs.replace(self.mark, whole=True))
        return cursors

    async def complete(self) -> None:
        """Does the last steps of a copy whose records are saved: opens the log once, and moves a journal to its location. Idempotent."""
        settings = self._settings.replace(pchannels=None, compression=None)
        log = LocalLog(self._building, settings, create=False)
        await log.open()
        await log.close()
        if self.location.path is not None:
            assert self._building.path is not None
            await in_thread(_put_in_place, self._building.path, self.location.path)
        undo = Undo()
        with contextlib.suppress(WALError):  # another process may have opened the log already: a log ignores the record
            storage = await open_storage(self.location, settings, undo, create=False)
            await storage.kv.remove(MARK)
        await undo.run()

    async def _finish_pchannels(
        self, source: CopySource, before: StoredMetadata, infos: list[VChannelInfo], ends: Ends
    ) -> tuple[dict[str, int], int]:
        """Stores the state of each pchannel at its end, as a checkpoint; returns their ends, and the number of cursors."""
        live = {(info.name, info.incarnation) for info in infos}
        broadcasts: set[int] = set()
        records: dict[str, tuple[CursorRecord, ...]] = {}
        scheduled: dict[str, list[Scheduled]] = {}
        for name in ends.snapshots:
            remembered = await in_thread(source.remembered, name, before, ends, live)
            broadcasts |= remembered.broadcasts
            records[name] = remembered.cursors
            for message in remembered.scheduled:
                scheduled.setdefault(self.routes.target(name, message.name[0]), []).append(message)
        cursors = await self._moved_records(source, (await in_thread(source.saved, records)).values(), {info.name for info in infos})
        positions = {}
        for name, writer in self._writers.items():
            await writer.flush()
            state = await self._recovered(writer.log, live)
            for listed in state.copies.listed():
                if listed.header.broadcast_id not in broadcasts:
                    state.copies.forget(listed.header.broadcast_id)
            for record in cursors.get(name, ()):
                state.cursors.durable(record)
            for message in sorted(scheduled.get(name, ()), key=lambda message: (message.due_ms, message.number)):
                _schedule(state.schedule, message)
            positions[name] = writer.log.durable_end
            await writer.log.save_state(positions[name], list(state.snapshot()))
        return positions, sum(record.cursor is not None for own in cursors.values() for record in own)

    async def _recovered(self, log: PChannelLog, live: Collection[RunName]) -> RecoveryState:
        """Returns the state at the end of a pchannel, as an opening would recover it."""
        state = RecoveryState(IdempotencyTable.of(self._settings), CopyTable(), ScheduleTable(count_max=sys.maxsize, bytes_max=sys.maxsize))
        await recover(log, state, _START, live=live.__contains__)
        return state

    async def _moved_records(
        self, source: CopySource, saved: Collection[tuple[str, CursorRecord]], known: Collection[str]
    ) -> dict[str, list[CursorRecord]]:
        """Returns the records of cursors in the target, by their homes there. `known` are the vchannels that exist."""
        if self.routes.spreads:
            check_homes(record for _, record in saved)
        incarnations = await in_thread(source.incarnations)
        own = self.mark.incarnations.keys()
        moved: dict[str, list[CursorRecord]] = {}
        for home, record in saved:
            cursor = record.cursor
            if record.key.pattern:
                target = self.routes.default(home) if record.is_moving else pattern_home(self.mark.incarnations)
                moved.setdefault(target, []).append(await self._moved_pattern(source, record, is_same=incarnations.keys() == own))
                continue
            if cursor is not None and (
                incarnations.get(cursor.pchannel) != cursor.incarnation or not all(name in known for name in cursor.key.vchannels)
            ):
                continue  # of a log, or a vchannel, that no longer exists: no read can use it
            # The pchannel of the transactions that move it, otherwise the pchannel that it reads.
            target = self.routes.default(home)
            if cursor is not None and not record.is_moving:
                target = self.routes.target(cursor.pchannel, cursor.key.vchannels[0])
            state = await self._moved_state(source, record)
            cursor = None if cursor is None else await self._moved(source, cursor)
            moved.setdefault(target, []).append(msgspec.structs.replace(record, cursor=cursor, state=state))
        return moved

    async def _moved(self, source: CopySource, cursor: Cursor) -> Cursor:
        """Returns the cursor in the target: it begins with the same event."""
        target = self.routes.target(cursor.pchannel, cursor.key.vchannels[0])
        log = self._writers[target].log
        event_tick = None if cursor.event is None else await in_thread(partial(source.tick_at, cursor.pchannel, cursor.event, exact=True))
        start = (0, 0) if cursor.stale else await _moved(source, log, cursor.pchannel, cursor.start)
        event = None if event_tick is None else await _newest(log, event_tick)
        return msgspec.structs.replace(
            cursor, pchannel=target, incarnation=self.mark.incarnations[target], form=self._storage.backend.form, start=start, event=event
        )

    async def _moved_state(self, source: CopySource, record: CursorRecord) -> bytes:
        """Returns the state of a consumer with the target's positions of its bodies."""
        cursor = record.cursor
        if cursor is None:
            return b""
        state, target = decode_state(record.state), self.routes.target(cursor.pchannel, cursor.key.vchannels[0])
        moved = partial(_moved, source, self._writers[target].log, cursor.pchannel)
        return encode_saved(state.moved({at: await moved(at) for at in state.positions}, self.mark.incarnations[target]))

    async def _moved_pattern(self, source: CopySource, record: CursorRecord, *, is_same: bool) -> CursorRecord:
        """Returns the record in the target of the cursor of a pattern. With `is_same` the pchannels have the names of the source's.

        Raises InvalidArgumentError for a consumer with unfinished messages that share a tick, as messages of a cluster may.
        """
        cursor = record.cursor
        if is_same or cursor is None or (at := cursor.tick_position) is None:
            return msgspec.structs.replace(record, cursor=None if cursor is None else msgspec.structs.replace(cursor, begun=()))
        state = decode_state(record.state)
        ticks = () if cursor.stale else (at.time_tick, *[tick for (tick, _), _ in state.positions])
        names = await in_thread(source.vchannels_at, ticks, Matching(cursor.key.pattern))
        events = {tick: {name: self.routes.target(name, own) for name, own in by_name.items()} for tick, by_name in names.items()}
        bodies: dict[BodyPosition, BodyPosition] = {}
        for (tick, name), index in state.positions:
            targets = events.get(tick, {})
            if targets.keys() - {name}:
                raise InvalidArgumentError(
                    f"the consumer of {cursor.key} has read messages of several pchannels with the tick {tick}, which get another order: "
                    "copy the log with as many pchannels as it has, or once this consumer has finished its messages"
                )
            bodies[(tick, name), index] = (tick, targets.get(name, min(self.mark.incarnations))), index
        position = moved_position(at, events.get(at.time_tick, {}), self.mark.incarnations)
        moved = msgspec.structs.replace(cursor, pchannel=position.pchannel, time_tick=position.time_tick, begun=())
        return msgspec.structs.replace(record, cursor=moved, state=encode_saved(state.moved(bodies, 0)))

    async def _save_records(
        self, infos: list[VChannelInfo], before: Mapping[str, str], metadata: Mapping[str, str], ends: Mapping[str, int]
    ) -> None:
        """Saves the records that turn the frames into a log."""
        saves: dict[str, str] = {}
        for info in infos:
            record: dict[str, Any] = msgspec.json.decode(metadata[VCHANNELS + info.name])
            record["pchannel"] = self.routes.target(info.pchannel, info.name)
            saves[VCHANNELS + info.name] = msgspec.json.encode(record).decode()
        saves |= {key: metadata[key] for key in (IDS_KEY, COMPRESSION_KEY, LIMIT_KEY) if key in metadata}
        if NEXT_KEY in metadata:  # the target's maps are its own
            saves[NEXT_KEY] = str(RecordCounter(RecordCounter.parse(metadata[NEXT_KEY]).next_incarnation))
        saves |= self._broadcast_records(before, {info.name: info for info in infos})
        for name, incarnation in self.mark.incarnations.items():
            saves[PCHANNELS + name] = encode(PChannelMeta(name, incarnation, self.mark.term))
            record_of_state = CheckpointRecord(self.mark.term, ends[name], ends[name])
            saves[CHECKPOINT_PREFIX + name] = msgspec.json.encode(record_of_state).decode()
        await save_metadata(self._storage.kv, saves)

    def _broadcast_records(self, metadata: Mapping[str, str], infos: Mapping[str, VChannelInfo]) -> dict[str, str]:
        """Returns the records of the broadcasts, in which each vchannel is on its pchannel of the target."""
        records = broadcasts_in(metadata)
        for broadcast_id, task in read_records(records, records.values()).tasks.items():
            places: dict[str, list[str]] = {}
            for pchannel, vchannels in task.by_pchannel().items():
                for name in vchannels:
                    source = infos[name].pchannel if name in infos else pchannel
                    places.setdefault(self.routes.target(source, name), []).append(name)
            records[task_key(broadcast_id)] = encode_task(task.header, Content(*task.content), places)
        return {f"{BROADCAST_ROOT}/{key}": value for key, value in records.items()}

    # -- beginning

    def _state_of(self, target: str, truncated: TruncatedKeys) -> Iterable[bytes]:
        """Returns the state before the first frame: the keys and producers whose vchannels go to this pchannel."""

        def is_own(source: str, names: tuple[RunName, ...]) -> bool:
            return self.routes.target(source, names[0][0]) == target

        return encode_state(
            [run for source, run in truncated.keys if is_own(source, run.scope.names)],
            [producer for source, producer in truncated.producers if is_own(source, producer.scope.names)],
            cut=truncated.cut,
        )

    async def _save_mark(self, mark: CopyMark) -> CopyMark:
        await self._storage.kv.save(MARK, msgspec.json.encode(mark).decode())
        self.mark = mark
        return mark

    def _check_place(self) -> None:
        """Raises FormatError unless the directory of a journal is missing or empty."""
        path, building = self.location.path, self._building.path
        if path is None or building is None:
            return
        try:
            if path.exists() and (not path.is_dir() or any(not is_foreign(entry.name) for entry in path.iterdir())):
                raise _not_empty(self.location)
            if path.is_mount():
                raise FormatError(f"{path} is a mount point, which no copy can replace: nothing was copied; name a directory below it")
            if building.exists() and any(building.iterdir()) and not (building / FORMAT_NAME).exists():
                raise FormatError(f"{building} is not empty, and no part of a copy: nothing was copied; move it away")
        except OSError as error:
            raise StorageError(f"{error.filename or path} cannot be read: {error.strerror or error}") from error


class _Writer:
    """One pchannel of the target, which is complete up to `last_tick`."""

    def __init__(self, log: PChannelLog, term: int, floor: int, compressor: Compressor | None, frame_bytes_max: int) -> None:
        self.log = log
        self.last_tick = max(floor, log.state.promised_tick)
        self._resumed = self.last_tick
        self._term = term
        self._compressor = compressor
        self._frame_bytes_max = frame_bytes_max
        self._sequence = 0
        self._in_flight = 0
        self._error: BaseException | None = None
        self._settled = asyncio.Event()

    async def begin(self) -> None:
        """Writes the first frame of the term."""
        draft, state = FrameDraft(), self.log.state
        draft.term_start(previous_term=state.last_term, previous_last_sequence=max(state.last_sequence, 0))
        await self.write(self._encoded(draft, self.last_tick, self.last_tick))
        await self.flush()

    def encode(self, piece: CutFrame) -> EncodedFrame | None:
        if piece.last_tick <= self._resumed:
            return None
        if piece.first_tick <= self.last_tick:
            raise InvalidArgumentError(
                f"the ticks of several pchannels overlap at {piece.first_tick}, so they cannot be merged into one: copy with as many "
                "pchannels as the log has"
            )
        self.last_tick = piece.last_tick
        return self._encoded(piece.draft, piece.first_tick, piece.last_tick)

    def _encoded(self, draft: FrameDraft, first_tick: int, promised: int) -> EncodedFrame:
        frame = encode_frame(
            draft,
            incarnation=self.log.incarnation,
            term=self._term,
            sequence=self._sequence,
            first_tick=first_tick,
            promised_tick=promised,
            compressor=self._compressor,
        )
        if frame.length > self._frame_bytes_max:
            raise InvalidArgumentError(
                f"a frame of {frame.length} bytes is too large for the target, which takes {self._frame_bytes_max}: it was written with "
                "larger bounds for transactions or messages than the target allows"
            )
        self._sequence += 1
        return frame

    async def write(self, frame: EncodedFrame) -> None:
        await self._settle(IN_FLIGHT_BYTES)
        self._in_flight += frame.length

        def done(_position: int, error: BaseException | None) -> None:
            self._in_flight -= frame.length
            self._error = self._error or error
            self._settled.set()

        self.log.append(frame, done)

    async def promise(self, tick: int) -> None:
        """Writes a frame without events that promises this tick, unless a frame has done so."""
        if self.last_tick < tick:
            self.last_tick = tick
            await self.write(self._encoded(FrameDraft(), tick, tick))
            await self.flush()

    async def flush(self) -> None:
        await self._settle(1)

    async def _settle(self, below: int) -> None:
        """Waits until fewer bytes than this are in flight; raises the first error."""
        while self._in_flight >= below and self._error is None:
            self._settled.clear()
            await self._settled.wait()
        if self._error is not None:
            raise self._error


def check_homes(records: Iterable[CursorRecord]) -> None:
    """Raises InvalidArgumentError for cursors that move with transactions, where vchannels of one pchannel go to several."""
    for record in records:
        if record.is_moving and record.cursor is not None and not (record.key.pattern and record.fence):
            raise InvalidArgumentError(
                f"{record.key} moves with transactions, which have to be on one pchannel with it: copy the log with as many pchannels as "
                "it has, or fewer, or delete the cursor first"
            )


def new_mark(source: Mapping[str, int], count: int, groups: list[list[str]], floor: int) -> CopyMark:
    """Returns the mark of a copy that begins now, into `count` pchannels; every event has a tick above `floor`."""
    return CopyMark(
        source=dict(source), incarnations={f"p{number}": new_incarnation() for number in range(count)}, groups=groups, floor=floor
    )


def _schedule(table: ScheduleTable, message: Scheduled) -> None:
    table.durable(
        table.submit(
            message.name,
            message.key,
            message.due_ms,
            keyed=message.keyed,
            message_type=message.message_type,
            properties=message.properties,
            payload=message.payload,
        )
    )


async def _moved(source: CopySource, log: PChannelLog, pchannel: str, position: LogPosition) -> LogPosition:
    """Returns the position in a pchannel of the target of the event at this position in the source."""
    tick = await in_thread(source.tick_at, pchannel, position)
    return (log.durable_end, 0) if tick is None else await _after(log, tick - 1)


async def _after(log: PChannelLog, tick: int) -> LogPosition:
    """Returns the position after all events with a tick up to this one."""
    return await run_async(position_after(tick, 0, log.durable_end, log.bytes_between), _pages_of(log))


async def _newest(log: PChannelLog, tick: int) -> LogPosition | None:
    """Returns the newest event with a tick up to this one."""
    below = await _after(log, tick)
    return await run_async(event_below((0, 0), below, (0, 0), log.bytes_between), _pages_of(log))


def _pages_of(log: PChannelLog) -> Callable[[PageRequest], Awaitable[FramePage]]:
    return lambda page: log.read(page.start, names=page.names, bytes_max=page.bytes_max, end=page.end)


def _not_empty(location: Location) -> FormatError:
    return FormatError(f"{location} is not empty: nothing was copied; name an empty location")


def _put_in_place(building: Path, path: Path) -> None:
    try:
        for entry in path.iterdir() if path.exists() else ():
            if is_foreign(entry.name):
                entry.rename(building / entry.name)
        building.rename(path)  # replaces an empty directory, and no other
    except OSError as error:
        raise FormatError(f"{path} was made by somebody else meanwhile; the copy is whole, in {building}: {error.strerror}") from error
    sync_path(path.parent)


_decoder: Final = msgspec.json.Decoder(CopyMark)
