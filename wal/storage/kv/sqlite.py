"""SqliteKV: the default, one file on this machine.

Owns: the only thread that accesses the file, and the calls to it. It guarantees that an operation is synced to disk when its await returns
and that the event loop is never blocked. It never shares the file, because its watches see only its own changes; a second opening raises
LockedError.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import warnings
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final, Self, cast

from wal.errors import ClosedError, InnerError, InvalidArgumentError, WouldBlockError
from wal.storage.kv.base import KVBase, KVBatch, KVStatistics
from wal.storage.kv.sqlite_records import Applied, Differs, Load, Operation, Outcome, Scan, Upgrade
from wal.storage.kv.sqlite_store import SqliteStore
from wal.storage.kv.watch import Watch, WatchHub

_GROUP_MAX: Final = 256
"""Operations in one transaction of the file: enough to make the sync cheap, few enough that the first one does not wait long."""
_log: Final = logging.getLogger("wal.kv")


class SqliteKV(KVBase):
    """A KV in a sqlite file, created by `await SqliteKV.open(path)`.

    Calls that wait while the file is being synced are committed together, in the order in which they were made. A call whose write or
    sync fails gets StorageError, and so do all later calls until the file is reopened. A call that finds no room gets NoSpaceError;
    nothing of it was written, and it can be retried. Existing records can be changed on a full disk too: the file `<path>-reserve`
    keeps 128 KiB for that.
    """

    def __init__(self, worker: _SqliteThread, *, root_path: str, waiting_max: int) -> None:
        super().__init__(root_path=root_path)
        self._worker = worker
        self._waiting_max = waiting_max

    @classmethod
    async def open(
        cls, path: str | os.PathLike[str], *, root_path: str = "", bytes_max: int | None = None, waiting_max: int = 65_536
    ) -> Self:
        """Opens the file, or creates it; its folder must exist.

        `bytes_max` bounds the file: above it a save raises NoSpaceError, and no reserve is kept. `waiting_max` calls may wait for the
        thread: above it a call raises WouldBlockError. Raises FormatError when the file is not a KV or is of a newer version, LockedError
        when it is already open, CorruptionError when it is damaged, StorageError for any other failure.
        """
        if bytes_max is not None and bytes_max < 65_536:
            raise InvalidArgumentError(f"bytes_max={bytes_max} is below 65,536: an empty file needs most of that")
        if waiting_max < 1:
            raise InvalidArgumentError(f"waiting_max={waiting_max} is below 1: then no call could wait at the thread")
        worker = _SqliteThread(os.fsdecode(path), asyncio.get_running_loop(), bytes_max)
        kv = cls(worker, root_path=root_path, waiting_max=waiting_max)
        try:
            worker.start()
            await asyncio.shield(worker.opened)
        except BaseException:
            kv._closed = True
            worker.stop()  # the thread closes the file if it has opened it by then
            raise
        return kv

    @property
    def path(self) -> str:
        """Returns the absolute path of the file."""
        return self._worker.path

    @property
    def status(self) -> os.stat_result:
        """Returns the status of the opened file, to which the name must lead."""
        return self._worker.status

    async def upgrade(self) -> None:
        self._check_open()
        await self._ask(Upgrade())

    async def close(self) -> None:
        """Carries out the waiting calls, ends the watches with ClosedError and closes the file. Idempotent; all callers wait for it."""
        if not self._closed:
            self._closed = True
            self._worker.stop()
        await asyncio.shield(self._worker.closed)

    def abandon(self) -> None:
        super().abandon()
        self._worker.stop()
        self._worker.join()

    def statistics(self) -> KVStatistics:
        return self._worker.statistics()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self._worker.stop()
            warnings.warn(f"{self.path} was not closed: await kv.close()", ResourceWarning, source=self, stacklevel=1)

    async def _load(self, keys: list[str]) -> list[str | None]:
        return cast("list[str | None]", await self._ask(Load(keys)))

    async def _scan(self, prefix: str) -> list[tuple[str, str]]:
        return cast("list[tuple[str, str]]", await self._ask(Scan(prefix)))

    async def _commit(self, batch: KVBatch) -> str | None:
        outcome = await self._ask(batch)
        return outcome.key if isinstance(outcome, Differs) else None

    async def _watch(self, subject: str, *, is_prefix: bool, root_length: int, buffer_max: int) -> Watch:
        return self._worker.hub.open(subject, is_prefix=is_prefix, root_length=root_length, buffer_max=buffer_max)

    async def _ask(self, operation: Operation) -> Outcome:
        if asyncio.get_running_loop() is not self._worker.loop:  # a forked child has another loop as well
            raise InvalidArgumentError(f"{self.path} was opened by another event loop: open a KV in each loop")
        if self._worker.waiting >= self._waiting_max:
            raise WouldBlockError(f"{self._waiting_max} calls wait for {self.path}: await some of them first")
        return await self._worker.ask(operation)


class _OperationRequest:
    __slots__ = ("future", "operation", "outcome")

    def __init__(self, operation: Operation, future: asyncio.Future[Outcome]) -> None:
        self.operation = operation
        self.future = future
        self.outcome: Outcome = None


class _SqliteThread:
    """The thread and its inbox. It has no reference to its SqliteKV, so that an unclosed SqliteKV can be garbage-collected."""

    def __init__(self, path: str, loop: asyncio.AbstractEventLoop, bytes_max: int | None) -> None:
        self.loop = loop
        self.hub: WatchHub = WatchHub()
        self.opened: asyncio.Future[None] = loop.create_future()
        self.closed: asyncio.Future[None] = loop.create_future()
        self.waiting: int = 0
        self.path: str = path
        self.status: os.stat_result
        """The status of the file; set before `opened` is done."""
        self._bytes_max = bytes_max
        self._inbox: SimpleQueue[_OperationRequest | None] = SimpleQueue()
        self._operations = 0
        self._commits = 0
        # A daemon: a program that forgets close() must still be able to end, and acknowledged operations are synced anyway.
        self._thread = threading.Thread(target=self._run, name=f"kv:{os.path.basename(path)}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask(self, operation: Operation) -> asyncio.Future[Outcome]:
        future: asyncio.Future[Outcome] = self.loop.create_future()
        self.waiting += 1
        self._inbox.put(_OperationRequest(operation, future))
        return future

    def stop(self) -> None:
        self._inbox.put(None)  # reentrant, so a collector may call this at any point

    def join(self) -> None:
        """Waits until the stopping thread has closed the file. Never call it on the loop."""
        self._thread.join()

    def statistics(self) -> KVStatistics:
        return KVStatistics(
            revision=self.hub.revision, operations=self._operations, commits=self._commits, waiting=self.waiting, watches=len(self.hub)
        )

    def _run(self) -> None:
        try:
            # The thread asks the system for the path, because that blocks; an absolute path also takes the special meaning from
            # ":memory:" and "".
            # Not abspath, which drops a symbolic link together with the ".." after it.
            self.path = str(Path(self.path).absolute())
            store = SqliteStore(self.path, bytes_max=self._bytes_max)
            self.status = store.status
        except BaseException as error:
            self._tell(_settle_opening, self.opened, error)
            self._tell(_settle_opening, self.closed, None)
            return
        if not self._tell(_settle_opening, self.opened, None):
            # The loop is gone, and with it every caller that could close the store.
            store.close()
            return
        try:
            while self._serve(store):
                pass
        finally:
            try:
                store.close()
            finally:
                self._tell(self._end)

    def _serve(self, store: SqliteStore) -> bool:
        """Serves one group: all waiting requests, up to the bound. Returns False after the last one."""
        request = self._inbox.get()
        group: list[_OperationRequest] = []
        while request is not None:
            group.append(request)
            if len(group) == _GROUP_MAX:
                break
            try:
                request = self._inbox.get_nowait()
            except Empty:
                break
        if group:
            try:
                outcomes = store.execute([one.operation for one in group])
            except Exception as cause:  # no error may end this thread: callers would wait for ever
                outcomes = [store.defect(cause)] * len(group)
            for one, outcome in zip(group, outcomes, strict=True):
                one.outcome = outcome
            if not self._tell(self._settle, group, store.commits):
                return False  # the loop is gone, and with it all callers
        return request is not None

    def _settle(self, group: list[_OperationRequest], commits: int) -> None:
        """Runs on the loop, in commit order: first the watches see a change, then its caller gets the result."""
        self.waiting -= len(group)
        self._operations += len(group)
        self._commits = commits
        for request in group:
            outcome = request.outcome
            if isinstance(outcome, Applied) and (outcome.saves or outcome.removed):
                try:
                    self.hub.commit(outcome.saves, outcome.removed)
                except Exception as cause:
                    # The watches have missed a change; the other requests of the group still get their answers.
                    _log.exception("the watches of %s ended, because a change could not be shown to them", self.path)
                    self.hub.fail(InnerError(f"a change could not be shown: {cause!r}; load the keys again and watch them again"))
            if request.future.done():
                continue  # its caller was cancelled; the operation still happened
            if isinstance(outcome, Exception):
                request.future.set_exception(outcome)
            else:
                request.future.set_result(outcome)

    def _end(self) -> None:
        self.hub.fail(ClosedError(f"{self.path} was closed: open it again, load the keys again and watch them again"))
        if not self.closed.done():
            self.closed.set_result(None)

    def _tell(self, callback: object, *args: object) -> bool:
        try:
            self.loop.call_soon_threadsafe(callback, *args)  # type: ignore[arg-type]
        except RuntimeError:  # the loop is closed
            return False
        return True


def _settle_opening(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
        return
    future.set_exception(error)
    future.exception()  # its caller may be gone
