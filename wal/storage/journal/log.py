"""JournalLog: one pchannel's log on disk, opened for writing in one term.

Owns the parts of an open log and the order in which they start and stop: writer and preparer (a thread each), reader, truncation,
checkpoints. The loop only queues and answers; all file access is in threads, but for the small frames that the writer submits itself.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import fcntl
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from wal.errors import ChannelFencedError, CorruptionError, StorageError, WALError, closed_log
from wal.frame import EncodedFrame, RunName
from wal.message import Lineage, LogPosition
from wal.runtime.tasks import keep_task
from wal.storage.base import AppendDone, Extent, FramePage, LogState, PChannelLog, Unread, closed_before, past_end, too_long
from wal.storage.files import HeldDirectory
from wal.storage.files.links import is_shared
from wal.storage.journal.active_segment import ActiveSegment
from wal.storage.journal.checkpoint import CheckpointFiles
from wal.storage.journal.control import ControlPage
from wal.storage.journal.disk import Disk
from wal.storage.journal.index import index_name
from wal.storage.journal.index_keeper import IndexKeeper
from wal.storage.journal.log_tail import LogTail
from wal.storage.journal.loop_path import WritePath, loop_bytes_max, loop_write
from wal.storage.journal.preparer import Preparer
from wal.storage.journal.reader import JournalReader
from wal.storage.journal.recovery import RecoveredLog
from wal.storage.journal.segments import Segment, SegmentSet, last_truncated, truncated_tick, write_index
from wal.storage.journal.writer import JournalWriter

_T = TypeVar("_T")


class JournalLog(PChannelLog):
    """See `PChannelLog`. Created by `JournalBackend.open`, on the loop that uses it.

    An append fails with NoSpaceError without room for its segment, and with WouldBlockError without a file descriptor for it. So do the
    appends that were queued before its `done` was called: writing them would leave a gap in their sender's sequence.
    """

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        recovered: RecoveredLog,
        pool: concurrent.futures.ThreadPoolExecutor,
        held: HeldDirectory,
        *,
        pchannel: str,
        incarnation: int,
        term: int,
        checkpoint: int | None = None,
        segment_bytes: int,
        frame_bytes_limit: int,
        write_path: WritePath = "auto",
    ) -> None:
        """`held` is the directory, which watches the names of the recovered files; the log closes it.

        Raises InvalidArgumentError if `write_path` is "loop" and the loop cannot write here.
        """
        self.pchannel = pchannel
        self.incarnation = incarnation
        self._lineage = recovered.lineage
        self.term = term
        self.state: LogState = recovered.state
        self._disk = disk
        self._directory = directory
        self._held = held
        self._pool = pool
        self._frame_bytes_limit = frame_bytes_limit
        self._loop = asyncio.get_running_loop()
        self._earliest = recovered.state.earliest
        self._calls: set[concurrent.futures.Future[Any]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._closed = False
        self._control = control = recovered.control
        self._segments = SegmentSet(disk, directory, recovered.segments, recovered.active.index)
        self._reader = JournalReader(self._segments, pchannel=pchannel, incarnation=incarnation, earliest=self._earliest_now)
        self._checkpoints = CheckpointFiles(disk, directory, control, lineage=recovered.lineage, term=term)
        with contextlib.ExitStack() as undo:  # a thread may not start
            disk.hold(held)
            undo.callback(disk.let_go, held)
            loop_writes = loop_write(disk, recovered.active, write_path)
            if loop_writes is not None:
                undo.callback(pool.submit, loop_writes.close)
            self._preparer = Preparer(disk, directory, name=pchannel, term=term, segment_bytes=segment_bytes, hint=lambda: self.hint())
            undo.callback(pool.submit, self._preparer.close)
            for spare in recovered.spares:
                self._preparer.adopt(spare)
            self._truncation = JournalTruncation(disk, directory, control, self._segments, self._preparer, checkpoint=checkpoint)
            self._tail = LogTail(
                disk,
                control,
                recovered.active,
                self._preparer,
                IndexKeeper(disk, directory, self._preparer),
                held,
                last=(recovered.state.last_term, recovered.state.last_sequence),
                newest=recovered.state.newest,
                sealed=self._sealed,
            )
            self._writer = JournalWriter(
                self._tail,
                pchannel=pchannel,
                loop_write=loop_writes,
                loop_bytes_max=loop_bytes_max(write_path, frame_bytes_limit),
                failed=self._failed,
                write_path=write_path,
            )
            undo.pop_all()
        for path in recovered.leftovers:
            self._preparer.run(partial(disk.unlink, path))
        self._preparer.prepare(2 * recovered.active.segment.header.size)

    @property
    def lineage(self) -> Lineage:
        return self._lineage

    @property
    def segments(self) -> SegmentSet:
        """The segments and their indexes, for readers in this process."""
        return self._segments

    @property
    def durable_end(self) -> int:
        return self._tail.durable_end

    @property
    def earliest(self) -> tuple[int, int]:
        return self._earliest_now()

    def append(self, frame: EncodedFrame, done: AppendDone) -> None:
        if self._closing is not None:
            closed = closed_before(self.pchannel)
            self._closing.add_done_callback(lambda _: done(-1, closed))
        elif frame.length > self._frame_bytes_limit:
            self._writer.refuse(done, too_long(frame.length, self._frame_bytes_limit))
        else:
            self._writer.append(frame, done)

    async def read(self, start: int, *, names: frozenset[str] | None, bytes_max: int, end: int | None = None) -> FramePage:
        self._check_open()
        durable = self._tail.durable_end
        end = durable if end is None else min(end, durable)
        if start >= end:
            self._reader.check(start, durable)
            return FramePage([], start, None, 0)
        return await self._in_thread(lambda: self._reader.page(start, end, names, bytes_max))

    def unread_for(self, names: frozenset[str], start: tuple[int, int], end: int) -> Unread:
        return self._reader.unread_for(names, start, min(end, self._tail.durable_end))

    async def intend(self, up_to: LogPosition | None) -> None:
        self._check_open()
        await self._in_thread(lambda: self._truncation.intend(up_to))

    async def truncate(self, position: int, index: int) -> None:
        self._check_open()
        if position > self.durable_end:
            raise past_end(position, self.durable_end)
        earliest = await self._in_thread(lambda: self._truncation.truncate((position, index)))
        self._earliest = max(self._earliest, earliest)

    def promise(self, tick: int, limit: int) -> None:
        if self._closing is None:
            self._writer.promise(tick, limit)

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        return last_truncated(self._segments.segments, self.earliest)

    @property
    def truncated_tick(self) -> int | None:
        return truncated_tick(self._segments.segments, self.earliest)

    def extents(self) -> list[Extent]:
        segments = self._segments.segments
        extents = [
            # The promised tick with which the next segment began: no event of this one is newer.
            Extent(segment.base, following.base, following.header.promised_tick, sealed=True)
            for segment, following in pairwise(segments)
        ]
        end = max(self.durable_end, segments[-1].base)
        extents.append(Extent(segments[-1].base, end, segments[-1].header.promised_tick, sealed=False))
        return extents

    @property
    def checkpointed(self) -> int | None:
        return self._truncation.checkpoint

    @property
    def held_bytes(self) -> int:
        return self._segments.bytes_below(self._earliest[0])

    @property
    def keyed_bytes(self) -> int:
        return self._tail.keyed_bytes

    async def read_keyed(self, start: int, *, bytes_max: int) -> FramePage:
        self._check_open()
        end = self._tail.durable_end
        self._reader.check_held(start, end)
        if start >= end:
            return FramePage([], start, None, 0)
        return await self._in_thread(lambda: self._reader.keyed_page(start, end, bytes_max))

    async def last_events(self, start: int) -> dict[RunName, LogPosition]:
        self._check_open()
        end = self._tail.durable_end
        return await self._in_thread(lambda: self._reader.last_events(start, end))

    async def save_state(self, position: int, pieces: Sequence[bytes]) -> None:
        self._check_open()
        await self._in_thread(lambda: self._checkpoints.save(position, pieces))

    def keep_room(self, grown_bytes: int) -> None:
        if self._closing is None:
            self._preparer.run(lambda: self._checkpoints.keep_room(grown_bytes))

    async def load_state(self, position: int) -> bytes:
        self._check_open()
        return await self._in_thread(lambda: self._checkpoints.load(position))

    async def release(self, position: int, *, state: int | None) -> None:
        self._check_open()
        await self._in_thread(lambda: self._release(position, state))

    @property
    def map_noted(self) -> bool:
        return self._control.map_noted

    async def note_map(self) -> None:
        self._check_open()
        await self._in_thread(self._note_map)

    async def close(self) -> None:
        if self._closing is None:
            self._closing = self._loop.create_task(self._close(), name=f"close {self.pchannel}")
        await asyncio.shield(self._closing)

    def abandon(self) -> None:
        """See `LogBackend.abandon`; no call may still run in the pool. Queued frames are written first."""
        self._closed = True
        with contextlib.ExitStack() as last:
            self._let_go_of_files(last)
            last.callback(self._preparer.close)
            last.callback(self._writer.join)
            self._writer.end()

    @property
    def write_path(self) -> tuple[str, str]:
        return self._writer.path

    def statistics(self) -> JournalStatistics:
        written = self._tail
        return JournalStatistics(
            written.frames,
            written.frame_bytes,
            written.syncs,
            written.segments,
            self._truncation.recycled,
            self._truncation.removed,
            len(self._segments.segments),
            self._writer.loop_frames,
        )

    async def _close(self) -> None:
        self._writer.end()
        await self._loop.run_in_executor(self._pool, self._writer.join)
        self._writer.deliver()
        self._closed = True
        await self._loop.run_in_executor(self._pool, self._finish)

    def _finish(self) -> None:
        """Waits for calls in flight, stores the index that makes the next opening quick, and marks the log as closed."""
        concurrent.futures.wait(list(self._calls))
        self._preparer.close()
        active = self._tail.active
        try:
            self._held.check()  # The writer may have raised this already; here it reaches a caller that only closes the log.
            if self._tail.failure is None and self._preparer.failure is None:
                with contextlib.suppress(OSError):
                    write_index(self._disk, self._directory, active.segment, active.index)
                with self._control.locked():
                    record = self._control.load_owned()
                    self._control.store(msgspec.structs.replace(record, closed=True))
                    self._control.sync()
        except ChannelFencedError:
            pass  # the log belongs to another writer now, so the marker is not needed
        except OSError as error:
            raise StorageError(f"closing the log in {self._directory} failed: {error.strerror}") from error
        finally:
            with contextlib.ExitStack() as last:
                self._let_go_of_files(last)

    def _let_go_of_files(self, last: contextlib.ExitStack) -> None:
        """Makes the stack close all files, each even if closing another one fails."""
        last.callback(self._held.close)
        last.callback(self._disk.let_go, self._held)
        last.callback(self._control.close)
        last.callback(self._tail.active.file.close)

    def _note_map(self) -> None:
        self._control.note_map()
        try:
            self._control.sync()
        except OSError as error:
            raise StorageError(f"noting the map of the vchannels in {self._directory} failed: {error.strerror}") from error

    def _release(self, position: int, state: int | None) -> None:
        if self._truncation.release(position):
            self._checkpoints.keep_only(state)

    def _sealed(self, old: ActiveSegment, new: ActiveSegment) -> None:
        """Stores the index of a full segment. Called in the writer's thread."""
        self._segments.add(new.segment, new.index)
        old.file.close()
        self._preparer.run(lambda: write_index(self._disk, self._directory, old.segment, old.index))
        with contextlib.suppress(RuntimeError):  # the loop was closed while the log was open
            self._loop.call_soon_threadsafe(self._tell_sealed)

    def _failed(self, error: WALError) -> None:
        if self.failed is not None:
            self.failed(error)

    def _tell_sealed(self) -> None:
        if self.sealed is not None:
            self.sealed()

    def _earliest_now(self) -> tuple[int, int]:
        """Returns the earliest event in the control page: another writer may have truncated the log after this one was fenced."""
        record = None if self._closed else self._control.load()
        return self._earliest if record is None else max(self._earliest, record.earliest)

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        """Runs a call in the pool; if the caller is cancelled, the call finishes and its result is dropped."""
        return await asyncio.wrap_future(keep_task(self._calls, self._pool.submit(self._checked, call)))

    def _checked(self, call: Callable[[], _T]) -> _T:
        """Runs the call if the names of the log lead to its files. If they do not, missing files are not reported as damage."""
        self._check_names()
        try:
            return call()
        except (CorruptionError, StorageError):
            self._check_names()
            raise

    def _check_names(self) -> None:
        with contextlib.suppress(ChannelFencedError):  # the call itself decides what a lower term may still do
            self._held.check()

    def _check_open(self) -> None:
        if self._closing is not None:
            raise closed_log(f"of pchannel {self.pchannel!r}")


class JournalTruncation:
    """Truncates one log that is open for writing: moves its beginning, and frees the segments below it. Blocks, so it runs in threads.

    The earliest event is stored and synced before any file is removed, and a file is removed only when the checkpoint of the next recovery
    has passed it too. Then the segment becomes a spare, unless a reader has it locked, a copy shares it or there are enough spares;
    otherwise it is removed. Its index is removed after it: a thread that is just storing the index finds the segment gone, and removes the
    index again (`remove_stale_index`). The active segment always stays.
    """

    def __init__(
        self, disk: Disk, directory: Path, control: ControlPage, segments: SegmentSet, preparer: Preparer, *, checkpoint: int | None
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._control = control
        self._segments = segments
        self._preparer = preparer
        self._lock = threading.Lock()
        self.checkpoint = checkpoint
        """The position where recovery begins: no file at or above it is removed, truncated or not. None: recovery needs no file."""
        self.recycled: int = 0
        """The number of segments that became spares."""
        self.removed: int = 0
        """The number of segments whose files were removed."""

    def intend(self, up_to: LogPosition | None) -> None:
        """See `PChannelLog.intend`."""
        with self._lock, self._control.locked():
            self._control.load_owned()
            self._control.intend(up_to)

    def truncate(self, earliest: tuple[int, int], *, note: Callable[[], None] | None = None) -> tuple[int, int]:
        """Makes this the earliest event unless a later one already is; returns the resulting one. Calls `note` before, while the log is
        owned. Raises ChannelFencedError, StorageError.
        """
        with self._lock:
            try:
                with self._control.locked():
                    record = self._control.load_owned()
                    if note is not None:
                        note()
                    if earliest <= record.earliest:
                        return record.earliest
                    self._control.store(msgspec.structs.replace(record, earliest=earliest))
                    self._control.sync()
                    self._control.intend(None)
                self._drop(earliest[0])
            except OSError as error:
                raise StorageError(f"truncating the log in {self._directory} failed: {error.strerror}") from error
        return earliest

    def release(self, checkpoint: int) -> bool:
        """Lets recovery begin here from now on; returns False if it already begins later. Raises ChannelFencedError, StorageError."""
        with self._lock:
            if self.checkpoint is not None and checkpoint < self.checkpoint:
                return False
            try:
                with self._control.locked():
                    record = self._control.load_owned()
                self.checkpoint = checkpoint
                self._drop(record.earliest[0])
            except OSError as error:
                raise StorageError(f"giving space back in {self._directory} failed: {error.strerror}") from error
        return True

    def _drop(self, earliest: int) -> None:
        below = earliest if self.checkpoint is None else min(earliest, self.checkpoint)
        dropped = self._segments.drop_below(below)
        for segment in dropped:
            self._release(segment)
            self._disk.unlink(self._directory / index_name(segment.base))
        if dropped:
            self._disk.sync_directory(self._directory)

    def _release(self, segment: Segment) -> None:
        try:
            file = self._disk.open(segment.path)
        except FileNotFoundError:
            return
        try:
            fcntl.flock(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not is_shared(os.fstat(file.fd)) and self._preparer.offer(segment.path, segment.header.size):
                self.recycled += 1
                return
        except BlockingIOError:
            pass  # A reader here or in another process has the segment locked: it keeps the open file, and the name is removed.
        finally:
            file.close()
        self._disk.unlink(segment.path)
        self.removed += 1


class JournalStatistics(msgspec.Struct, frozen=True, gc=False):
    """The counters of an open log since its opening.

    `frames` with `frame_bytes` in all were written, with one sync each (`syncs`), and `loop_frames` of them from the event loop. `segments`
    were begun, and truncated ones were `recycled` or `removed`. `segments_held` exist now.
    """

    frames: int
    frame_bytes: int
    syncs: int
    segments: int
    recycled: int
    removed: int
    segments_held: int
    loop_frames: int
