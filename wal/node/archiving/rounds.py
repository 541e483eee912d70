"""Rounds: the backups of one journal in one store, made one after the other, each of the new part of the log.

Completeness at one tick: the metadata are read once before the ends of the pchannels, and once after. Checkpoints are those of the first
reading, so they only cover the log below the ends. Vchannels and the limit of ticks are those of the second, so they cover everything in
the log. Broadcasts are those of both, since a broadcast that ended in between may have copies above the tick. The tick is the smallest
promised one of all pchannels, and each pchannel is cut before its first frame above it. If the writer frees a file meanwhile, the round
starts again. The files that the writer replaces most often, checkpoints and cursors, are read first.

Costs: a round reads new bytes once, and checks each checksum on the way. It takes the index of the frames from the log, in the process of
the writer from the writer; only damaged parts are read once more, as `wal verify` does. Several threads compress and store the bytes.
Between two rounds the journal stays open, and the last manifest lists the content of the store. So a round lists nothing, and reads no
index twice. It takes no lock, and writes nothing in the directory of the log.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import google_crc32c
import msgspec

from wal.channels.pchannels import CheckpointRecord, checkpoint_records, names_in
from wal.errors import CorruptionError, FormatError, InvalidArgumentError, LockedError, NoSpaceError, StorageError, TruncatedError, WALError
from wal.frame.codec import load_zstd
from wal.read.cursors.pins import CURSOR_SUFFIX, CURSORS_NAME, decode_pin
from wal.storage.archive.manifest import (
    BYTES_MAX,
    METADATA,
    NEWEST,
    OBJECTS,
    PREFIX,
    Chunk,
    DamagedPart,
    Manifest,
    PChannelCopy,
    SegmentCopy,
    manifest_name,
    numbered,
    part_of_cursor,
    part_of_file,
    part_of_segment,
)
from wal.storage.archive.objects import (
    COMPRESSED,
    ChunkPlan,
    ObjectIndex,
    compress_blocks,
    indexed_chunk,
    load_manifest,
    plan_chunks,
    state_after,
    state_at,
)
from wal.storage.archive.store import BackupStore, ObjectExistsError
from wal.storage.files import META_NAME
from wal.storage.journal.archived_file import load_start
from wal.storage.journal.checkpoint import checkpoint_name
from wal.storage.journal.control import CONTROL_NAME, ControlRecord, ControlView
from wal.storage.journal.disk import Disk, JournalFile
from wal.storage.journal.index import SegmentIndex
from wal.storage.journal.layout import HEADER_PAGE_BYTES, SegmentHeader, segment_name
from wal.storage.journal.lineage_file import LINEAGE_NAME
from wal.storage.journal.read_only_journal import ReadOnlyJournal, ReadOnlyJournalLog
from wal.storage.journal.segments import SegmentSet, open_shared, read_header, segment_bases
from wal.storage.journal.verify import FramesCheck, check_frames
from wal.storage.kv import RecordsBeside

CHUNK_BYTES: Final = 16 << 20
_AT_ONCE: Final = 4
"""The number of objects that are compressed and stored in parallel."""
_LEVEL: Final = 1
_SAMPLE_BYTES: Final = 16 << 10
_SAMPLES: Final = 4
_WORTH: Final = 0.95
"""The compression ratio of samples above which a chunk is stored uncompressed: compressing would cost more than storing."""
_TRIES: Final = 20
_CHECKPOINTS: Final = ("pchannels/", "checkpoints/")
_BROADCASTS: Final = "broadcasts/"

_log: Final = logging.getLogger("wal.backup")

Progress = Callable[[dict[str, Any]], None]


class Rounds:
    """The backups of the journal in `directory`. Not thread-safe, except that any thread may call `close`, which ends a running backup."""

    def __init__(
        self,
        directory: Path,
        store: BackupStore,
        progress: Progress | None,
        *,
        keeps_history: bool = False,
        written: Callable[[str], SegmentSet | None] = lambda _: None,
    ) -> None:
        """With `keeps_history` each manifest also has the segments of the one before that the log has dropped since. `written` returns the
        segments of a pchannel whose writer is in this process.
        """
        self.store: BackupStore = store
        self._directory = directory
        self._keeps_history = keeps_history
        self._written = written
        self._newest: Manifest | None = None
        self._number = 0
        self._logs: dict[str, ReadOnlyJournalLog] = {}
        self._journal: ReadOnlyJournal | None = None
        self._metadata = RecordsBeside(directory / META_NAME)
        self._objects = StoredObjects(store, progress)
        self._damage: list[DamagedPart] = []
        self._making = threading.Lock()

    def make(self) -> Manifest:
        """Makes one more backup. Raises as `wal.operate.backup.backup` does."""
        with self._making:
            if self._number == 0:
                names = numbered(self.store.names(PREFIX))
                if not names:
                    self.store.check()
                self._newest = _readable(self.store, names)
                self._number = names[-1][0] if names else 0
                self._objects.there = set(self.store.names(OBJECTS))
            manifest = self._tried()
            name, data = manifest_name(manifest.number), manifest.encode()
            try:
                self.store.create(name, data)
            except ObjectExistsError:
                if self.store.get(name, BYTES_MAX) != data:  # otherwise the answer to an earlier attempt was lost
                    raise LockedError(
                        f"another process has made backup {manifest.number} at {self.store.place} meanwhile: let one process write there",
                        pid=None,
                    ) from None
            self._newest, self._number = manifest, manifest.number
            self._objects.there = manifest.names()
            with contextlib.suppress(StorageError, NoSpaceError):  # a hint
                self.store.replace(NEWEST, b"%d" % manifest.number)
            return manifest

    def close(self) -> None:
        """Ends a running backup, and closes the journal. Idempotent."""
        self._objects.close()
        with self._making:
            self._close_journal()

    def _tried(self) -> Manifest:
        tried = 0
        while True:
            opened = self._journal is None
            self._damage = []
            try:
                return self._attempt(self._open_logs())
            except (FileNotFoundError, TruncatedError, CorruptionError) as error:
                tried += 1
                self._close_journal()
                if tried == _TRIES and isinstance(error, FileNotFoundError) and not isinstance(error, _CheckpointAhead):
                    raise CorruptionError(f"{error.filename} is missing, and the log needs it", path=error.filename) from error
                if tried == _TRIES:
                    raise
                time.sleep(0.01 * (tried - 1))
            except WALError:
                self._close_journal()
                if opened:
                    raise  # otherwise the log was recreated or restored, or its directory replaced, since the last round
            finally:
                self._objects.settle()

    def _open_logs(self) -> dict[str, ReadOnlyJournalLog]:
        if self._journal is None:
            self._journal = ReadOnlyJournal(self._directory)
        for name in self._journal.pchannels():
            if name not in self._logs:
                self._logs[name] = self._journal.open(name, written=self._written(name))
        if not self._logs:
            raise FormatError(f"{self._directory} holds no log yet: it is made by opening it for writing")
        return self._logs

    def _close_journal(self) -> None:
        for log in self._logs.values():
            log.close()
        self._logs.clear()
        if self._journal is not None:
            self._journal.close()
            self._journal = None

    def _attempt(self, logs: dict[str, ReadOnlyJournalLog]) -> Manifest:
        self._check_log(next(iter(logs.values())))
        before = self._metadata.load()
        states = {name: log.reach() for name, log in logs.items()}
        after = self._metadata.load()
        metadata = {key: value for key, value in after.items() if not key.startswith(_CHECKPOINTS)}
        metadata |= {key: value for key, value in before.items() if key.startswith(_CHECKPOINTS)}
        metadata |= {key: value for key, value in before.items() if key.startswith(_BROADCASTS) and key not in after}
        if set(names_in(metadata)) != logs.keys():
            raise _CheckpointAhead("a pchannel is being created")
        tick = min(state.promised_tick for state in states.values())
        checkpoints = dict.fromkeys(logs, CheckpointRecord(0, 0)) | checkpoint_records(metadata)  # without one, recovery reads all
        records = {name: self._record(name, log) for name, log in logs.items()}
        self._objects.bytes_total = sum(self._new_bytes(records[name], name, state.durable_end) for name, state in states.items())
        own_files = {name: self._own_files(log, checkpoints[name].state) for name, log in logs.items()}
        cursors = self._cursors()
        pchannels = {}
        for name, log in logs.items():
            record, checkpoint = records[name], checkpoints[name].position
            end, _ = log.first_above(tick, states[name].durable_end)
            if max(record.earliest[0], checkpoint) > end:
                raise _CheckpointAhead(f"the recovery of pchannel {name} begins above tick {tick}")
            segments = self._copies(log, record, min(record.earliest[0], checkpoint), end)
            files = {file: chunk.result() for file, chunk in own_files[name].items()}
            newest, promised_tick = log.end_state(end)
            earliest = record.earliest
            if self._keeps_history:
                earliest, segments = self._with_history(name, log, states[name].durable_end, earliest, segments)
            pchannels[name] = PChannelCopy(
                record.incarnation, record.term, end, earliest, record.limit, segments, files, newest, promised_tick, self._keeps_history
            )
        return Manifest(
            number=self._number + 1,
            tick=tick,
            at_s=time.time(),
            pchannels=pchannels,
            files={file: chunk.result() for file, chunk in cursors.items()},
            metadata=self._put(msgspec.json.encode(metadata), METADATA).result(),
            damage=tuple(self._damage),
        )

    def _check_log(self, log: ReadOnlyJournalLog) -> None:
        """Raises InvalidArgumentError if the store has backups of another log."""
        lives = {log.incarnation, *(restore.parent for restore in log.lineage.restores)}
        if self._newest is not None and self._newest.log_id not in lives:
            raise InvalidArgumentError(f"{self.store.place} has backups of another log than {self._directory}: name another target")
        if self._newest is not None and not self._keeps_history and any(copy.keeps_history for copy in self._newest.pchannels.values()):
            raise InvalidArgumentError(
                f"{self.store.place} is the archive of {self._directory}, which archives itself (archive=): name another target, or read "
                f"archive:{self.store.place}"
            )

    def _with_history(
        self, name: str, log: ReadOnlyJournalLog, durable_end: int, earliest: tuple[int, int], segments: tuple[SegmentCopy, ...]
    ) -> tuple[tuple[int, int], tuple[SegmentCopy, ...]]:
        """Returns the earliest event and the segments of a pchannel, with those of the archive that the log has dropped.

        What `truncate` has dropped is dropped from the archive too. Raises InvalidArgumentError if the log does not continue the archive.
        """
        newest = None if self._newest is None else self._newest.pchannels.get(name)
        if newest is None or not newest.segments:
            return earliest, segments
        if newest.incarnation == log.incarnation and newest.end > durable_end:
            raise InvalidArgumentError(
                f"the archive at {self.store.place} has pchannel {name} up to position {newest.end}, and the log ends at {durable_end}: it "
                "is an older copy of the log; mark it as restored (`wal mark-restored`), or name another archive"
            )
        first = segments[0].base if segments else newest.end
        older = tuple(segment for segment in newest.segments if segment.base < first)
        start = load_start(self._pchannel(name))
        begin = newest.earliest
        if start is not None and earliest <= start.dropped:  # otherwise the local start was moved without this archive
            begin = max(begin, min(start.earliest, earliest))
        if not older:
            return min(earliest, begin) if newest.segments[0].base == first else earliest, segments
        stop = older[-1].base + older[-1].chunks[-1].end
        if stop < first:
            raise InvalidArgumentError(
                f"the archive at {self.store.place} ends at position {stop} of pchannel {name}, and the log begins at {first}: what lies "
                "between was dropped without being archived; name another archive"
            )
        if stop > first:  # after a restore, a segment may begin inside an archived one
            return earliest, segments
        return begin, older + segments

    def _new_bytes(self, record: ControlRecord, name: str, end: int) -> int:
        """Returns the approximate number of bytes of a pchannel that the last backup does not have."""
        newest = None if self._newest is None else self._newest.pchannels.get(name)
        known_end = newest.end if newest is not None and newest.incarnation == record.incarnation else 0
        return max(0, end - max(known_end, record.earliest[0]))

    def _record(self, name: str, log: ReadOnlyJournalLog) -> ControlRecord:
        with closing(ControlView(self._pchannel(name) / CONTROL_NAME)) as control:
            record = control.load()
        if record.incarnation != log.incarnation:
            raise _CheckpointAhead("the log was marked as restored meanwhile")
        return record

    def _pchannel(self, name: str) -> Path:
        return self._directory / "pchannels" / name

    def _own_files(self, log: ReadOnlyJournalLog, state: int | None) -> dict[str, Future[Chunk]]:
        """Stores the checkpoint and the lineage of a pchannel."""
        files = [] if state is None else [checkpoint_name(state)]
        if state is not None:
            with self._naming(f"pchannels/{log.pchannel}/{files[0]}"):
                log.checkpoint_state(state)
        if (log.directory / LINEAGE_NAME).exists():
            files.append(LINEAGE_NAME)  # it was checked when the log was opened
        return {file: self._put((log.directory / file).read_bytes(), part_of_file(log.pchannel, file)) for file in files}

    def _cursors(self) -> dict[str, Future[Chunk]]:
        """Stores the pins of cursors; their records are in the frames."""
        files: dict[str, Future[Chunk]] = {}
        for path in sorted((self._directory / CURSORS_NAME).glob(f"*{CURSOR_SUFFIX}")):
            file, data = f"{CURSORS_NAME}/{path.name}", path.read_bytes()
            with self._naming(file):
                decode_pin(data)
            files[file] = self._put(data, part_of_cursor(file))
        return files

    @contextlib.contextmanager
    def _naming(self, file: str) -> Iterator[None]:
        """Records damage that the block raises, under this file of the log."""
        try:
            yield
        except CorruptionError as error:
            self._damage.append(DamagedPart(file, error.offset or 0, str(error)))

    def _copies(self, log: ReadOnlyJournalLog, record: ControlRecord, start: int, end: int) -> tuple[SegmentCopy, ...]:
        """Copies the segments of a pchannel that have positions from `start` up to `end`."""
        name, directory = log.pchannel, log.directory
        bases = [base for base in segment_bases(directory) if base < end]
        first = max((at for at, base in enumerate(bases) if base <= start), default=-1)
        if first < 0:
            raise FileNotFoundError(2, "the segment was truncated", str(directory))
        newest = None if self._newest is None else self._newest.pchannels.get(name)
        known_segments = {} if newest is None else {segment.base: segment for segment in newest.segments}
        is_same = newest is not None and newest.incarnation == record.incarnation
        stops = [*bases[first + 1 :], end]
        copies: list[tuple[SegmentCopy, list[Future[Chunk]]]] = []
        for base, stop in zip(bases[first:], stops, strict=True):
            segment = known_segments.get(base)
            if is_same and segment is not None and self._is_whole(segment, stop - base):
                self._carry_damage(name, base, stop - base)
                copies.append((segment, []))
            else:
                copies.append(self._segment(log, base, stop - base, segment if is_same else None))
        return tuple(
            msgspec.structs.replace(segment, chunks=(*segment.chunks, *(chunk.result() for chunk in chunks))) if chunks else segment
            for segment, chunks in copies
        )

    def _is_whole(self, segment: SegmentCopy, size: int) -> bool:
        """Returns whether the store has the segment up to this size, which is the end of this log's frames in it."""
        return bool(segment.chunks) and segment.chunks[-1].end == size and all(map(self._is_there, segment.chunks))

    def _is_there(self, chunk: Chunk) -> bool:
        return chunk.name in self._objects.there and (chunk.index_name or chunk.name) in self._objects.there

    def _segment(
        self, log: ReadOnlyJournalLog, base: int, stop: int, stored: SegmentCopy | None
    ) -> tuple[SegmentCopy, list[Future[Chunk]]]:
        """Returns an earlier backup's copy of a segment up to the offset `stop`, and the chunks of the rest, which are being stored."""
        pchannel, path = log.pchannel, log.directory / segment_name(base)
        with closing(open_shared(Disk(), path)) as file:
            header = read_header(file)
            chunks, state = self._usable(pchannel, stored, header, stop)
            at = chunks[-1].end if chunks else 0
            self._carry_damage(pchannel, base, at)
            again = stored.chunks[len(chunks) :] if stored is not None and stored.generation == header.generation else ()
            index, check = log.index_of(base), FramesCheck(header)
            putting = None if index is None else self._put_part(pchannel, file, state, index, at, stop, check, again)
            if putting is None:
                frames, damages = check_frames(path, header, file.read, begin=at or HEADER_PAGE_BYTES, end=stop)
                self._damage += [DamagedPart(f"pchannels/{pchannel}/{path.name}", damage.offset, damage.problem) for damage in damages]
                putting = self._put_part(pchannel, file, state, frames, at, stop)
                assert putting is not None
            if read_header(file) != header:
                raise FileNotFoundError(2, "the segment was recycled while it was being copied", str(path))
        return SegmentCopy(base, header.generation, header.size, tuple(chunks)), putting

    def _put_part(
        self,
        pchannel: str,
        file: JournalFile,
        state: SegmentHeader,
        index: SegmentIndex,
        start: int,
        stop: int,
        check: FramesCheck | None = None,
        again: tuple[Chunk, ...] = (),
    ) -> list[Future[Chunk]] | None:
        """Starts to store the bytes [start, stop) of a segment, whose header would be `state` if it began there, with the `index` of their
        frames. Returns the chunks, or None if the frames do not pass the `check`, which needs only the checksum of chunks that are stored
        `again`.
        """
        putting: list[Future[Chunk]] = []
        for plan in plan_chunks(index, state.base, start, stop, CHUNK_BYTES):
            data = file.read(plan.end - plan.start, plan.start)
            if len(data) < plan.end - plan.start:
                raise FileNotFoundError(2, "the segment is shorter than the log", str(file.path))
            if check is not None:
                sound = plan.start
                for chunk in again:
                    is_next = chunk.index is not None and chunk.start == sound and chunk.end <= plan.end
                    if is_next and google_crc32c.value(data[sound - plan.start : chunk.end - plan.start]) == chunk.crc:
                        sound = chunk.end
                if plan.frames is None or not check.are_sound(data, plan.start, plan.frames, state.base + sound):
                    return None
            part = part_of_segment(pchannel, state.base, state.generation, plan.start)
            putting.append(self._objects.put_frames(data, part, plan, state))
            state = state_after(state, plan.frames)
        return putting

    def _usable(self, pchannel: str, stored: SegmentCopy | None, header: SegmentHeader, stop: int) -> tuple[list[Chunk], SegmentHeader]:
        """Returns the chunks of an earlier copy of a segment, from its beginning, that stay; and the header of a segment that would begin
        after them.

        Small chunks are stored once more, as part of a larger one, so that a segment has few chunks after any number of backups.
        """
        if stored is None or stored.generation != header.generation:
            return [], header
        chunks: list[Chunk] = []
        for chunk in stored.chunks:
            if chunk.index is None or chunk.end > stop or not self._is_there(chunk):
                break
            chunks.append(chunk)
        at = chunks[-1].end if chunks else 0
        while chunks and chunks[-1].size <= min(stop - at, CHUNK_BYTES // 2):
            at = chunks.pop().start
        if len(chunks) < len(stored.chunks):
            entry = stored.chunks[len(chunks)].index
            return (chunks, state_at(header, entry)) if chunks and entry is not None else ([], header)
        assert self._newest is not None
        copy = self._newest.pchannels[pchannel]
        return chunks, msgspec.structs.replace(header, promised_tick=copy.promised_tick, newest=copy.newest)

    def _carry_damage(self, pchannel: str, base: int, stop: int) -> None:
        """Records the damage that an earlier backup detected in a part of a segment that is not read again."""
        file = f"pchannels/{pchannel}/{segment_name(base)}"
        if self._newest is not None:
            self._damage += [part for part in self._newest.damage if part.file == file and part.offset < stop]

    def _put(self, data: bytes, part: str, *, start: int = 0) -> Future[Chunk]:
        """Starts to store these bytes, as `StoredObjects.put` does."""
        if len(data) > BYTES_MAX:
            raise InvalidArgumentError(
                f"{part} of {self._directory} has {len(data)} bytes, and a backup takes at most {BYTES_MAX} of such a file: "
                "copy the log with `wal copy` instead"
            )
        return self._objects.put(data, part, start)


class StoredObjects:
    """Stores objects, several in parallel, unless they are `there`; counts the objects of one attempt, until `settle`."""

    def __init__(self, store: BackupStore, progress: Progress | None) -> None:
        self.there: set[str] = set()
        self.bytes_total: int = 0
        """The approximate bytes of segments that the running attempt stores, for its progress."""
        self._store, self._progress = store, progress
        self._pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="wal-backup")
        self._running: deque[Future[Chunk]] = deque()
        self._lock = threading.Lock()
        self._count = self._bytes = self._bytes_done = 0
        try:
            self._compress: Callable[[bytes, int], bytes] | None = load_zstd().compress
        except ImportError:
            self._compress = None

    def put(self, data: bytes, part: str, start: int) -> Future[Chunk]:
        """Starts to store these bytes of a file, from `start` on; waits while too many others are being stored. Raises an earlier
        failure.
        """
        return self._submit(self._stored, data, part, start)

    def settle(self) -> None:
        """Waits until all objects are stored."""
        while self._running:
            with contextlib.suppress(CancelledError):
                self._running.popleft().exception()
        self._count = self._bytes = self._bytes_done = 0

    def close(self) -> None:
        """Ends the running operations."""
        self._pool.shutdown(cancel_futures=True)

    def put_frames(self, data: bytes, part: str, plan: ChunkPlan, before: SegmentHeader) -> Future[Chunk]:
        """Starts to store these bytes of a segment with their index, as `put` does; `before` has the state of the log before them."""
        return self._submit(self._stored, data, part, plan.start, plan, before)

    def _submit(self, call: Callable[..., Chunk], *arguments: Any) -> Future[Chunk]:
        while len(self._running) >= _AT_ONCE:
            self._running.popleft().result()
        future = self._pool.submit(call, *arguments)
        self._running.append(future)
        return future

    def _stored(self, data: bytes, prefix: str, start: int, plan: ChunkPlan | None = None, before: SegmentHeader | None = None) -> Chunk:
        """Stores these bytes, unless an object with the same content exists. Called in several threads."""
        crc, end = google_crc32c.value(data), start + len(data)
        in_blocks = plan is not None and plan.frames is not None
        name, suffix, block_ends = f"{len(data):x}-{crc:08x}", "", array("Q")
        if not in_blocks and (existing := {f"{OBJECTS}{prefix}-{name}{end}" for end in ("", COMPRESSED)} & self.there):
            return Chunk(existing.pop(), start, end, crc)
        stored = data
        if self._compress is not None and self._is_worth_it(data):
            compress, suffix = self._compress, COMPRESSED
            if in_blocks:
                stored, block_ends = compress_blocks(data, lambda block: compress(block, _LEVEL))
                name = f"{google_crc32c.value(stored):08x}-{name}"
            else:
                stored = compress(data, _LEVEL)
        chunk = Chunk(f"{OBJECTS}{prefix}-{name}{suffix}", start, end, crc)
        self._create(chunk.name, stored)
        if plan is not None:
            with self._lock:
                self._bytes_done += len(data)
        if plan is not None and plan.frames is not None and before is not None:
            index = ObjectIndex(plan.frames, block_ends).encode(incarnation=before.incarnation, generation=before.generation)
            chunk = indexed_chunk(chunk, index, before)
            assert chunk.index_name is not None
            self._create(chunk.index_name, index)
        return chunk

    def _create(self, name: str, data: bytes) -> None:
        if name in self.there:
            return
        try:
            self._store.create(name, data)
        except ObjectExistsError:
            pass  # its name determines its content
        else:
            with self._lock:
                self._count, self._bytes = self._count + 1, self._bytes + len(data)
                if self._progress is not None:
                    done = min(self._bytes_done, self.bytes_total)
                    sizes = {"stored_bytes": self._bytes, "bytes_done": done, "bytes_total": self.bytes_total}
                    self._progress({"objects": self._count, **sizes, "name": name})
        self.there.add(name)

    def _is_worth_it(self, data: bytes) -> bool:
        """Returns whether samples of these bytes compress well."""
        assert self._compress is not None
        if len(data) <= _SAMPLES * _SAMPLE_BYTES:
            return True
        step = len(data) // _SAMPLES
        starts = range(step - _SAMPLE_BYTES, len(data) - _SAMPLE_BYTES + 1, step)  # a segment begins with a page of zeros
        samples = b"".join(data[at : at + _SAMPLE_BYTES] for at in starts)
        return len(self._compress(samples, _LEVEL)) < _WORTH * len(samples)


def _readable(store: BackupStore, names: list[tuple[int, str]]) -> Manifest | None:
    """Returns the newest readable manifest. A backup continues from it, so that one damaged manifest does not end all backups."""
    for _, name in reversed(names):
        try:
            return load_manifest(store, name)
        except CorruptionError as error:
            _log.warning("a backup is left out, see `wal backup verify`: %s", error)
    return None


class _CheckpointAhead(FileNotFoundError):
    """A checkpoint above the tick; the round starts again."""
