"""The view of a log from another process, by its frames and its files: `OutsideDetails`, and the metadata of a journal in use.

Every call blocks, or runs the blocking part in a thread. Nothing is written, and a log in use is not disturbed. The only lock is a shared
one, held for an instant to check whether a writer is present. Counts read the heads of the frames; bodies are not read where the log allows
to skip them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from wal.channels.metadata import load_metadata
from wal.channels.pchannels import COMPRESSION_KEY, CheckpointRecord, checkpoint_records
from wal.channels.vchannels import VChannelInfo
from wal.errors import InvalidArgumentError, TruncatedError, WALError
from wal.frame import FrameView, RunKind, RunName
from wal.location import EtcdLocation, parse_kv
from wal.message import LogPosition
from wal.operate.inspect.builders import Lag, PChannelDetails, VChannelCounts, WriterDetails
from wal.read.cursors.cursor import CursorInfo
from wal.read.read_only_core import ReadOnlyCore, ReadOnlySource
from wal.runtime.descriptors import open_file
from wal.runtime.loop_thread import LoopThread
from wal.runtime.secret import Secret
from wal.runtime.threads import in_thread
from wal.storage.files import LOCK_NAME, META_NAME, LockHolder
from wal.storage.journal.directory import is_being_written
from wal.storage.journal.read_only_journal import ReadOnlyJournalLog
from wal.storage.journal.segments import segment_bases
from wal.storage.kv import RecordsBeside
from wal.storage.read_only import ReadOnlyPChannelLog
from wal.timestamp.timestamp import compose, parse, to_datetime
from wal.write.schedule import ScheduleTable

_T = TypeVar("_T")
STATUS_NAME: Final = "STATUS"
"""The file beside LOCK with the address of the writer's status service: a JSON object with host, port and pid."""
RATE_S: Final = 60.0
"""The time over which rates are counted."""
_FLAG_COMMIT: Final = 2


def writer_of(directory: Path) -> WriterDetails:
    """Returns the details of the process that has the journal in this directory open for writing; "killed" if it was killed."""
    if (written := is_being_written(directory)) is not True:
        return WriterDetails(state="unknown" if written is None else "killed")
    try:
        fd = open_file(directory / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return WriterDetails(state="open")
    try:
        pid = LockHolder.find(fd).pid
    finally:
        os.close(fd)
    return WriterDetails(state="open", pid=pid, status_address=_status_address(directory, pid))


def _status_address(directory: Path, pid: int | None) -> str | None:
    """Returns the URL of the status service of this process; None without one. A file of a killed process does not count."""
    try:
        status = msgspec.json.decode((directory / STATUS_NAME).read_bytes(), type=_Status)
    except (OSError, msgspec.MsgspecError, RecursionError, ValueError):
        return None
    if pid is not None and status.pid != pid:
        return None
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(status.host, status.host)
    return f"http://{f'[{host}]' if ':' in host else host}:{status.port}"


def metadata_of(directory: Path | None, kv: str | Secret | None) -> dict[str, str]:
    """Returns the metadata of a log at one moment, by key: those at `kv`, or (None) of the journal in this directory, which may be in use.

    Raises InvalidArgumentError if their location is not known, and the errors of `RecordsBeside.load` and etcd.
    """
    place = None if kv is None else parse_kv(kv)
    if isinstance(place, EtcdLocation):
        assert kv is not None
        thread = LoopThread()
        try:
            return thread.call(load_metadata, kv)
        finally:
            thread.stop()
    if (file := place or (directory and directory / META_NAME)) is None:
        raise InvalidArgumentError("it is not known where the metadata of this log are: say it by the setting kv (--set kv=…, WAL_KV)")
    return RecordsBeside(file).load()


class OutsideDetails:
    """The `Details` of a log that is read from outside; see `wal.operate.inspect.builders`.

    It owns the source, open from `open` until `close`. A count takes as long as reading the heads of all frames.
    """

    def __init__(self, source: ReadOnlySource, directory: Path | None) -> None:
        self.core: ReadOnlyCore = ReadOnlyCore(source)
        self._directory = directory
        self._checkpoints: Mapping[str, CheckpointRecord] | None = None

    def open(self) -> None:
        """Opens the log; raises as `ReadOnlyCore.open` does."""
        self.core.open()

    def close(self) -> None:
        """Closes the log. Idempotent."""
        self.core.close()

    def compression(self) -> str | None:
        """Returns the compression of new frames of a journal, from its metadata; None where these cannot be read."""
        if self._directory is None:
            return None
        with contextlib.suppress(WALError):  # it may be in another KV, or the user may not read it
            return metadata_of(self._directory, None).get(COMPRESSION_KEY, "none")
        return None

    async def writer(self) -> WriterDetails:
        """Returns the details of the writer."""
        return await in_thread(self._writer)

    def _writer(self) -> WriterDetails:
        if self._directory is None:
            has_writer = self.core.source.has_writer()
            return WriterDetails(state={True: "open", False: "closed", None: "unknown"}[has_writer])
        writer = writer_of(self._directory)
        if writer.state != "open" and all(log.refresh().closed for log in self.core.logs.values()):
            return WriterDetails(state="closed")
        return writer

    async def pchannel(self, name: str) -> PChannelDetails | None:
        """Returns the segments, the checkpoint and the rates of a pchannel."""
        log = self.core.logs.get(name)
        return None if log is None else await in_thread(self._pchannel, log)

    async def counts(self, vchannels: Sequence[VChannelInfo]) -> Mapping[str, VChannelCounts]:
        """Returns the counts of these vchannels."""
        return await in_thread(self.count, vchannels)

    async def lag(self, cursor: CursorInfo) -> Lag | None:
        """Returns the unread part of the cursor's log; None if its log is not known."""
        return await in_thread(self._lag, cursor)

    def _pchannel(self, log: ReadOnlyPChannelLog) -> PChannelDetails:
        snapshot = log.reach()
        start, end = log.local_earliest[0], snapshot.durable_end  # an archive may have older events, and be away
        messages_per_s, bytes_per_s = _rates(log, start, end)
        if self._directory is None or not isinstance(log, ReadOnlyJournalLog):
            return PChannelDetails(end=end, promised_tick=snapshot.promised_tick, messages_per_s=messages_per_s, bytes_per_s=bytes_per_s)
        record = self._checkpoint_of(log.pchannel)
        checkpoint = None if record is None else record.position
        return PChannelDetails(
            end=end,
            promised_tick=snapshot.promised_tick,
            segments=len(segment_bases(log.directory)),
            checkpoint=checkpoint,
            checkpoint_age_s=None if checkpoint is None else _age_s(log, max(checkpoint, start), end),
            replay_bytes=None if checkpoint is None else max(0, end - checkpoint),
            scheduled=None if record is None else self._scheduled(log, record, end),
            messages_per_s=messages_per_s,
            bytes_per_s=bytes_per_s,
        )

    def _scheduled(self, log: ReadOnlyJournalLog, record: CheckpointRecord, end: int) -> int | None:
        """Returns the number of delayed messages; None if the writer has replaced the checkpoint meanwhile."""
        table, view = ScheduleTable(), self.core.view

        def live(name: RunName) -> bool:
            return view.current(name[0]) == name[1]

        if record.state is None:
            return 0
        try:
            blob = log.checkpoint_state(record.state)
            if blob is None:
                return None
            table.restore(blob, live=live)
            for frame in log.frames(record.position, end) if table.used else ():  # the first message waits for a checkpoint with its record
                table.replay(frame.position, frame.view, live=live)
        except TruncatedError:
            return None
        return len(table)

    def _checkpoint_of(self, pchannel: str) -> CheckpointRecord | None:
        if self._checkpoints is None:
            self._checkpoints = {}
            assert self._directory is not None
            with contextlib.suppress(WALError):  # it may be in another KV, or the user may not read it
                self._checkpoints = checkpoint_records(metadata_of(self._directory, None))
        return self._checkpoints.get(pchannel)

    def count(self, vchannels: Sequence[VChannelInfo]) -> dict[str, VChannelCounts]:
        """Returns the counts of these vchannels. Blocks."""
        counts: dict[str, VChannelCounts] = {}
        by_pchannel: dict[str, dict[str, int]] = {}
        for info in vchannels:
            by_pchannel.setdefault(info.pchannel, {})[info.name] = info.incarnation
        for pchannel, incarnations in by_pchannel.items():
            if (log := self.core.logs.get(pchannel)) is not None:
                counts |= _unless_truncated(log, lambda log=log, its=incarnations: self._counts_of(log, its))  # type: ignore[misc]
        return counts

    def _counts_of(self, log: ReadOnlyPChannelLog, incarnations: Mapping[str, int]) -> dict[str, VChannelCounts]:
        messages, sizes = dict.fromkeys(incarnations, 0), dict.fromkeys(incarnations, 0)
        newest: dict[str, tuple[int, LogPosition]] = {}
        snapshot = log.reach()
        first, least_index = log.local_earliest  # an archive may have older events, and any number of them
        for frame in log.heads(first, snapshot.durable_end, frozenset(incarnations)):
            least = least_index if frame.position == first else 0
            for name, incarnation, count, size, last in rows_of(frame.view, incarnations, least):
                if incarnations[name] == incarnation:
                    messages[name] += count
                    sizes[name] += size
                    newest[name] = frame.view.header.first_tick + last, (frame.position, last)
        return {
            name: VChannelCounts(
                messages=messages[name],
                bytes=sizes[name],
                last_tick=newest[name][0] if name in newest else 0,
                last_id=str(self.core.origin(log, newest[name][1][0]).message_id(newest[name][1][1])) if name in newest else None,
            )
            for name in incarnations
        }

    def _lag(self, cursor: CursorInfo) -> Lag | None:
        if cursor.pattern:
            return None  # a position on all pchannels, whose vchannels no record names
        view = self.core.view
        position = cursor.position
        pchannel = position.message_id.pchannel if position is not None else self.core.pchannel_of(cursor.vchannels)
        log = self.core.logs.get(pchannel)
        if log is None:
            return None
        current = {name: view.current(name) for name in cursor.vchannels}

        def lag() -> Lag:
            snapshot = log.reach()
            start = snapshot.earliest
            if position is not None:
                start = max(start, (position.message_id.position, position.message_id.index + 1))
            messages, oldest = 0, None
            for frame in log.heads(start[0], snapshot.durable_end, frozenset(current)):
                least = start[1] if frame.position == start[0] else 0
                for name, incarnation, count, _, _ in rows_of(frame.view, current, least):
                    if count and current[name] in (None, incarnation):
                        messages += count
                        oldest = oldest or to_datetime(frame.view.header.first_tick + least)
            return Lag(messages=messages, oldest=oldest)

        return _unless_truncated(log, lag)


def rows_of(view: FrameView, names: Mapping[str, object], least: int = 0) -> Iterator[tuple[str, int, int, int, int]]:
    """Yields (vchannel, incarnation, messages, bytes, last index) of these vchannels' events in a frame, at index `least` or after it.

    A body of a transaction counts as a message, its commit does not.
    """
    for run in view.runs.find(names):
        if run.kind == RunKind.COPY:
            if run.index >= least:
                shared = view.runs[run.shared]
                yield run.name, run.incarnation, 1, shared.body_end - shared.body_start, run.index
        elif run.kind == RunKind.VCHANNEL and run.end > run.first:
            rows = view.runs.rows(run.first, run.end)
            last = rows.indices[-1]
            if last < least:
                continue
            flags = rows.flags
            if least == 0 and flags is None:
                yield run.name, run.incarnation, run.end - run.first, run.body_end - run.body_start, last
                continue
            counted = [at for at, index in enumerate(rows.indices) if index >= least and not (flags and flags[at] & _FLAG_COMMIT)]
            lens = (rows.payload_lens, rows.properties_lens, rows.ext_lens)
            size = sum(column[at] for column in lens if column is not None for at in counted)
            yield run.name, run.incarnation, len(counted), size, last


def _unless_truncated(log: ReadOnlyPChannelLog, call: Callable[[], _T]) -> _T:
    """Returns the result of a call that begins at the earliest event; repeats it if that was truncated meanwhile."""
    while True:
        earliest = log.refresh().earliest
        try:
            return call()
        except TruncatedError:
            if log.refresh().earliest == earliest:
                raise


def _rates(log: ReadOnlyPChannelLog, start: int, end: int) -> tuple[float | None, float | None]:
    """Returns the messages and the bytes that were appended in the last minute, per second."""
    since = compose(max(0, int(1000 * (time.time() - RATE_S))), 0)
    try:
        position, _ = log.position_after(since, start, end)
        weights = log.weights(position, end, None, rows_max=1 << 62)
        return sum(weight.rows for weight in weights) / RATE_S, log.bytes_between(position, end) / RATE_S
    except TruncatedError:
        return None, None


def _age_s(log: ReadOnlyPChannelLog, position: int, end: int) -> float | None:
    """Returns the age of the first frame at or after this position, 0 without one."""
    try:
        weights = log.weights(position, end, None, rows_max=0)
    except TruncatedError:
        return None
    return max(0.0, time.time() - parse(weights[0].first_tick)[0] / 1000) if weights else 0.0


class _Status(msgspec.Struct):
    host: str
    port: int
    pid: int
