"""JournalBackend: the logs of pchannels as segment files in one directory. It is the default backend.

Owns the directory: its FORMAT, its LOCK, the folders of the pchannels, and the threads that access the files.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Final, TypeVar, get_args

from wal.errors import ClosedError, InvalidArgumentError, NoSpaceError, StorageError
from wal.message import FORM_JOURNAL, Lineage
from wal.runtime.system import warn_of_weaknesses
from wal.runtime.threads import in_thread
from wal.storage.base import LogBackend
from wal.storage.files import LOCK_NAME, HeldDirectory
from wal.storage.journal.control import CONTROL_NAME, FENCE_NAME
from wal.storage.journal.directory import DirectoryLock, carry_out, choose_access, claim_format, create_log, raise_format
from wal.storage.journal.disk import Disk
from wal.storage.journal.layout import HEADER_PAGE_BYTES
from wal.storage.journal.lineage_file import save_lineage
from wal.storage.journal.log import JournalLog
from wal.storage.journal.loop_path import WritePath
from wal.storage.journal.preparer import NO_SPACE
from wal.storage.journal.read_only_journal import absence
from wal.storage.journal.recovery import RecoveredLog, recover_log

_T = TypeVar("_T")

SEGMENT_BYTES: Final = 64 << 20
FIRST_SEGMENT_BYTES: Final = 4 << 20
"""A small size, so that an empty log opens at once; the next segments double up to SEGMENT_BYTES."""
_FRAME_BYTES_LIMIT: Final = 256 << 20
_NAME_BYTES_MAX: Final = 255
_THREADS: Final = 8


class JournalBackend(LogBackend):
    """A journal in `directory`, which `start` (or the first `create` or `open`) locks.

    `segment_bytes` and `first_segment_bytes` are file sizes: multiples of 4,096, at least 8 KiB. `disk`: see `Disk`. With `create=False` a
    missing or empty directory stays unchanged. `group_readable`: whether the group of the files may read them; None keeps the current
    setting, or private for a new journal. `log_types` returns the kind of log for the folder of a pchannel, and may block. `write_path`:
    see `WritePath`; with "loop", `open` raises InvalidArgumentError where the loop cannot write. Raises FormatError when the directory is
    not a journal, and LockedError while another backend has it open.
    """

    name: ClassVar[str] = "journal"
    form: ClassVar[int] = FORM_JOURNAL
    frame_bytes_limit: int = _FRAME_BYTES_LIMIT

    def __init__(
        self,
        directory: Path,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        first_segment_bytes: int = FIRST_SEGMENT_BYTES,
        disk: Disk | None = None,
        create: bool = True,
        group_readable: bool | None = None,
        write_path: WritePath = "auto",
        log_types: Callable[[Path], Callable[..., JournalLog]] | None = None,
    ) -> None:
        for name, size in (("segment_bytes", segment_bytes), ("first_segment_bytes", first_segment_bytes)):
            if size % HEADER_PAGE_BYTES or size < 2 * HEADER_PAGE_BYTES:
                raise InvalidArgumentError(f"{name} is {size}: give a multiple of {HEADER_PAGE_BYTES}, at least {2 * HEADER_PAGE_BYTES}")
        if write_path not in get_args(WritePath):
            raise InvalidArgumentError(f"write_path is {write_path!r}: give one of {', '.join(map(repr, get_args(WritePath)))}")
        self._directory = Path(directory)
        self._segment_bytes = segment_bytes
        self._first_segment_bytes = min(first_segment_bytes, segment_bytes)
        self._disk = Disk() if disk is None else disk
        self._create = create
        self._group_readable = group_readable
        self._write_path: WritePath = write_path
        self._log_types = log_types
        self._pool = concurrent.futures.ThreadPoolExecutor(_THREADS, thread_name_prefix="wal-journal")
        self._lock: DirectoryLock | None = None
        self.held: HeldDirectory | None = None
        """The directory, with the names in it on which all pchannels depend; None before `start`."""
        self._starting: asyncio.Task[None] | None = None
        self._recovering: set[concurrent.futures.Future[tuple[RecoveredLog, HeldDirectory]]] = set()
        self._logs: weakref.WeakSet[JournalLog] = weakref.WeakSet()
        self._closed = False

    async def start(self) -> None:
        """Locks the directory, and makes it a journal if it is missing or empty. Idempotent; it can be retried after an error."""
        if self._closed:
            raise ClosedError(f"the journal {self._directory} is closed: make a new JournalBackend to continue")
        if self._lock is not None:
            return
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._start())
        try:
            await asyncio.shield(self._starting)
        finally:
            if self._starting is not None and self._starting.done():
                self._starting = None

    async def raise_format(self) -> None:
        await self._in_thread(lambda: raise_format(self._disk, self._directory))

    async def create(self, pchannel: str, *, incarnation: int) -> None:
        directory = self.folder(pchannel)
        await self.start()

        def create() -> None:
            if self.held is not None:
                self.held.check()
            create_log(self._disk, directory, pchannel=pchannel, incarnation=incarnation, first_segment_bytes=self._first_segment_bytes)

        await self._in_thread(create)

    async def open(self, pchannel: str, *, incarnation: int, term: int, checkpoint: int | None = None) -> JournalLog:
        directory = self.folder(pchannel)
        await self.start()
        log_types = self._log_types
        log_type = JournalLog if log_types is None else await self._in_thread(lambda: log_types(directory))
        recovering = self._pool.submit(
            _storage_errors,
            lambda: hold(
                recover_log(self._disk, directory, pchannel=pchannel, incarnation=incarnation, term=term, checkpoint=checkpoint),
                directory,
                within=self.held,
            ),
        )
        self._recovering.add(recovering)
        try:
            recovered, holder = await asyncio.shield(asyncio.wrap_future(recovering))
            log = log_type(
                self._disk,
                directory,
                recovered,
                self._pool,
                holder,
                pchannel=pchannel,
                incarnation=incarnation,
                term=term,
                checkpoint=checkpoint,
                segment_bytes=self._segment_bytes,
                frame_bytes_limit=self.frame_bytes_limit,
                write_path=self._write_path,
            )
        except BaseException:  # the caller was cancelled, the loop has ended, or the log has no thread
            recovering.add_done_callback(_let_go)
            raise
        finally:
            self._recovering.discard(recovering)
        self._logs.add(log)
        return log

    def save_lineage(self, pchannel: str, lineage: Lineage) -> None:
        """Stores durably that the log of this pchannel, which is not open, was restored from a copy. Blocks."""
        _storage_errors(lambda: save_lineage(self._disk, self.folder(pchannel), lineage))

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._starting is not None:
            await asyncio.wait([self._starting])
        await in_thread(self._close)

    def finish_calls(self) -> None:
        self._pool.shutdown(wait=True)

    def abandon(self) -> None:
        self._closed = True
        self.finish_calls()
        with contextlib.ExitStack() as last:  # the lock is released even if an earlier step fails
            last.callback(self._close)
            for recovering in list(self._recovering):
                last.callback(_let_go, recovering)
            for log in list(self._logs):
                last.callback(log.abandon)

    async def _start(self) -> None:
        await self._in_thread(self._take)

    def _take(self) -> None:
        self._disk.access = access = choose_access(self._directory, self._group_readable)
        if self._create:
            claim_format(self._disk, self._directory)
        else:
            absent = absence(self._directory, remedy="open it without create=False to create one")
            if absent is not None:
                raise absent
        self._lock = lock = DirectoryLock.acquire(self._directory, access)  # set at once, so that every error path releases it
        try:
            self.held = holder = HeldDirectory(self._directory)
            holder.watch(self._directory / LOCK_NAME, lock.status())
            carry_out(self._directory, access, asked=self._group_readable is not None)
            try:
                raise_format(self._disk, self._directory)
            except OSError as error:
                if error.errno not in NO_SPACE:  # on a full disk an older journal keeps its format until there is room
                    raise
            warn_of_weaknesses()
        except BaseException:
            if self.held is not None:
                self.held.close()
            self.held = self._lock = None
            lock.release()
            raise

    def _close(self) -> None:
        self._pool.shutdown(wait=True)
        if self.held is not None:
            self.held.close()
        if self._lock is not None:
            self._lock.release()

    def folder(self, pchannel: str) -> Path:
        """Returns the folder of this pchannel. Raises InvalidArgumentError for a name that cannot name a folder."""
        if not isinstance(pchannel, str):
            raise TypeError(f"a pchannel's name is a str, not {type(pchannel).__name__}")
        if pchannel in ("", ".", "..") or "/" in pchannel or "\0" in pchannel or len(pchannel.encode()) > _NAME_BYTES_MAX:
            raise InvalidArgumentError(f"pchannel name {pchannel!r} cannot name a folder: use 1 to {_NAME_BYTES_MAX} bytes without '/'")
        return self._directory / "pchannels" / pchannel

    async def _in_thread(self, call: Callable[[], _T]) -> _T:
        return await asyncio.wrap_future(self._pool.submit(_storage_errors, call))


def _storage_errors(call: Callable[[], _T]) -> _T:
    """Runs the call, and raises an error of the operating system as a StorageError, on a full disk as a NoSpaceError."""
    try:
        return call()
    except OSError as error:
        if error.errno in NO_SPACE:
            where = f" for {error.filename}" if error.filename else ""
            raise NoSpaceError(f"no room{where}: free some space, then open the log again") from error
        raise StorageError(f"{error.filename or 'the journal'}: {error.strerror or error}") from error


def hold(recovered: RecoveredLog, directory: Path, *, within: HeldDirectory | None = None) -> tuple[RecoveredLog, HeldDirectory]:
    """Opens and watches the directory in which a log was recovered. Raises StorageError, and releases the log, if its names already lead to
    other files.

    Once a writer of a higher term owns the log, the names belong to that writer: from then on a check raises ChannelFencedError.
    """
    control = recovered.control
    with contextlib.ExitStack() as undo:
        undo.callback(recovered.close)
        holder = HeldDirectory(directory, within=within, released=control.check_owned)
        undo.callback(holder.close)
        holder.watch(directory / CONTROL_NAME, control.status())
        holder.watch(directory / FENCE_NAME, control.fence_status())
        holder.watch(recovered.active.segment.path, os.fstat(recovered.active.file.fd))
        holder.check()
        undo.pop_all()
    return recovered, holder


def _let_go(recovering: concurrent.futures.Future[tuple[RecoveredLog, HeldDirectory]]) -> None:
    """Releases a recovered log whose opener no longer waits for it."""
    if not recovering.cancelled() and recovering.exception() is None:
        recovered, holder = recovering.result()
        holder.close()
        recovered.close()
