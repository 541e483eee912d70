"""SqliteStore: the KV's file and its transactions, synchronous; it belongs to one thread.

Owns: the sqlite connection and the meaning of sqlite's errors; `sqlite_records.py` has the format of the file. It guarantees that a group
of operations is one durable transaction in which each operation happens completely or not at all without harming the others. It never
retries a failed write or sync: data that the kernel dropped cannot be synced again.

On a full disk the operations that found no room are carried out with the bytes of the reserve, one after the other: the store releases the
reserve, folds sqlite's write-ahead file into the file, commits the operation, folds it too, and fills the reserve with the freed bytes. So
existing records can be changed for ever. Only an operation for which the file must grow uses up room: no more pages may wait to be folded
than the reserve has room for, and with the reserve only an operation on a few records may make the file grow, by a few pages.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import stat
import weakref
from pathlib import Path
from typing import Final

from wal.errors import FormatError, LockedError, NoSpaceError, StorageError, WALError, caused
from wal.storage.files import RESERVE_BYTES, HeldNames, SpaceReserve, free_bytes
from wal.storage.files.links import check_only_name
from wal.storage.kv.base import KVBatch
from wal.storage.kv.sqlite_ahead import check_ahead
from wal.storage.kv.sqlite_records import (
    APPLICATION_ID,
    FORMAT_VERSION,
    Operation,
    Outcome,
    Records,
    Upgrade,
    apply,
    open_records,
    unreadable,
)

_LOCK_WAIT_S: Final = 0.2
"""How long opening waits for another owner that is closing the file."""
_PAGE_BYTES: Final = 4096
_UNFOLDED_BYTES_MAX: Final = RESERVE_BYTES // 4
"""Pages that only the write-ahead file has are folded when they take more than this."""
_RESERVED_GROWTH_BYTES: Final = 2 * _PAGE_BYTES
"""How much the file may grow for an operation that uses the reserve, …"""
_RESERVED_RECORDS: Final = 4
"""… on at most this many records, …"""
_RESERVE_BYTES_MIN: Final = RESERVE_BYTES * 3 // 4
"""… if the reserve had at least this before: twice what such an operation writes and folding it takes."""
_MODE: Final = 0o600

_FULL, _BUSY, _LOCKED = sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED
_FINAL: Final = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
"""Primary codes after which the state on the disk is unknown: the file is not used any more."""


class SqliteStore:
    """The open file. `failure` is set once and for all when the state on the disk is no longer known."""

    def __init__(self, path: str, *, bytes_max: int | None = None) -> None:
        self.failure: WALError | None = None
        self.commits: int = 0
        self._path = path
        for name in (path, f"{path}-wal"):
            with contextlib.suppress(OSError):  # sqlite meets it too, and reports it
                check_only_name(Path(name), os.stat(name))
        # First of all: sqlite drops what it cannot read, for good when it closes the file.
        check_ahead(Path(f"{path}-wal"), Path(path))
        _make_private(path)
        self._held = HeldNames()
        try:
            self._connection = sqlite3.connect(path, timeout=_LOCK_WAIT_S, isolation_level=None, cached_statements=32)
        except sqlite3.Error as error:
            raise self._explain(error) from error
        # A file with its own bound is full long before the disk is, so no reserve would help it.
        self._reserve = SpaceReserve(path) if bytes_max is None else None
        self._reserved = 0
        """The bytes that the reserve had before it was released for the current operation."""
        _open.add(self)
        try:
            self._prepare(bytes_max)
            if self._reserve is not None:
                self._reserve.fill()
            self._folded_bytes = os.path.getsize(path)
            self._unfolded_before = self._unfolded_bytes()
            self.status: os.stat_result = self._watch()
        except BaseException as error:
            self._connection.close()
            if isinstance(error, UnicodeDecodeError) or _primary_code(error) == sqlite3.SQLITE_ERROR:  # of the schema
                raise unreadable(path, error) from error
            if isinstance(error, sqlite3.Error | OSError):
                raise self._explain(error) from error
            raise

    def execute(self, operations: list[Operation]) -> list[Outcome]:
        """Carries out a group in order and returns the outcome of each; every operation answered as done is durable. Never raises."""
        try:
            self._held.check()
        except StorageError as error:
            self.failure = self.failure or error
        if self.failure is not None:
            return [self._refusal(self.failure)] * len(operations)
        if not any(isinstance(operation, KVBatch | Upgrade) for operation in operations):
            return [self._attempt(operation) for operation in operations]
        committing = False
        alone = len(operations) == 1
        bare = self._records.bare
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            outcomes = [self._apply(operation) if alone else self._apply_guarded(operation) for operation in operations]
            self._check_growth(operations)
            committing = True
            self._connection.execute("COMMIT")
            self.commits += 1
        except Exception as error:
            failure = self._explain(error, outcome_unknown=committing)
            self._roll_back()
            self._records.bare = bare
            if _is_final(error):
                self.failure = failure
                return [failure] * len(operations)
            if isinstance(failure, NoSpaceError) and self._reserve is not None and not self._reserved:
                return self._execute_in_reserve(operations, self._reserve, failure)
            if alone:
                return [failure]
            # One of them failed the whole transaction (no room, say). Alone, each gets its own answer.
            return [self.execute([operation])[0] for operation in operations]
        if self._reserve is not None and not self._reserved:
            self._keep_foldable(self._reserve)
        return outcomes

    def defect(self, cause: Exception) -> WALError:
        """Returns the answer for the case that `execute` raised after all: the file is not used any more."""
        failed = caused(
            StorageError(f"{self._path}: carrying out operations failed: {cause!r}; please report it", outcome_unknown=True), cause
        )
        self.failure = self.failure or failed
        return failed

    def close(self) -> None:
        """Closes the file; sqlite folds its write-ahead file into it first."""
        self._connection.close()
        _open.discard(self)

    def _prepare(self, bytes_max: int | None) -> None:
        execute = self._connection.execute
        # There is one owner: a second process (or a second opening) would commit changes that this one's watches do not see.
        execute("PRAGMA locking_mode = EXCLUSIVE")
        (application,) = execute("PRAGMA application_id").fetchone()
        (version,) = execute("PRAGMA user_version").fetchone()
        (tables,) = execute("SELECT count(*) FROM sqlite_schema").fetchone()
        is_new = application == 0 and version == 0 and tables == 0
        if not is_new:
            self._records = open_records(self._connection, self._path)
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        execute("PRAGMA fullfsync = ON")  # on macOS, where fsync alone leaves data in the disk's cache; elsewhere without effect
        if bytes_max is not None:
            execute(f"PRAGMA max_page_count = {max(1, bytes_max // _PAGE_BYTES)}")
        execute("BEGIN IMMEDIATE")  # takes the lock, even when the table exists
        if is_new:
            execute("CREATE TABLE kv (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
            execute(f"PRAGMA application_id = {APPLICATION_ID}")
            execute(f"PRAGMA user_version = {FORMAT_VERSION}")
            self._records = Records(self._connection, self._path, bare=False)
        execute("COMMIT")
        self._records.everything()

    def _watch(self) -> os.stat_result:
        """Returns the status of the open file. From now on its name, and that of its write-ahead file, must lead to the same files.

        Sqlite keeps both open until it closes them. They are never opened here: closing that descriptor would drop sqlite's locks on
        them.
        """
        log = Path(f"{self._path}-wal")
        if log.exists():
            self._held.watch(log, os.stat(log))
        status = os.stat(self._path)
        self._held.watch(Path(self._path), status)
        return status

    def _attempt(self, operation: Operation) -> Outcome:
        if self.failure is not None:
            return self._refusal(self.failure)
        try:
            return self._apply(operation)
        except Exception as error:
            failure = self._explain(error)
            if _is_final(error):
                self.failure = failure
            return failure

    def _pages(self) -> int:
        """Returns the number of pages of the file, including pages that only the write-ahead file has."""
        (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
        return int(pages)

    def _unfolded_bytes(self) -> int:
        """Returns the bytes by which the file has to grow when the write-ahead file is folded."""
        return self._pages() * _PAGE_BYTES - self._folded_bytes

    def _execute_in_reserve(self, operations: list[Operation], reserve: SpaceReserve, failure: WALError) -> list[Outcome]:
        """Carries out a group that found no room, one operation after the other; `failure` is the error of the group."""
        outcomes: list[Outcome] = []
        for operation in operations:
            reserve.fill()
            self._reserved = reserve.release()
            if not self._reserved:
                outcomes.append(failure)
                continue
            try:
                self._checkpoint("TRUNCATE")
                outcomes += self.execute([operation])
                self._checkpoint("TRUNCATE")
            finally:
                self._reserved = 0
                reserve.fill()
        return outcomes

    def _check_growth(self, operations: list[Operation]) -> None:
        """Raises NoSpaceError, before the end of a transaction, when the file has to grow by more than the available room."""
        if self._reserve is None or (unfolded := self._unfolded_bytes()) <= self._unfolded_before:
            return
        if self._reserved:
            records = sum(len(batch.saves) + len(batch.removals) for batch in operations if isinstance(batch, KVBatch))
            grows = unfolded - self._unfolded_before
            if self._reserved >= _RESERVE_BYTES_MIN and grows <= _RESERVED_GROWTH_BYTES and records <= _RESERVED_RECORDS:
                return
        elif unfolded <= self._reserve.held or (free := free_bytes(self._path)) is None or 2 * unfolded <= free:
            return
        raise NoSpaceError(
            f"{self._path} has to grow for this, and the disk is full; nothing was written: make room for at least "
            f"{2 * unfolded} bytes and try again"
        )

    def _keep_foldable(self, reserve: SpaceReserve) -> None:
        """Fills the reserve after a transaction, and folds the pages that only the write-ahead file has if they are more than a few."""
        reserve.fill()
        try:
            self._unfolded_before = self._unfolded_bytes()
        except sqlite3.Error as error:  # the transaction itself is committed
            self.failure = self._explain(error)
            return
        if self._unfolded_before > _UNFOLDED_BYTES_MAX and not self._checkpoint("PASSIVE"):
            reserve.release()
            self._checkpoint("TRUNCATE")
            reserve.fill()

    def _checkpoint(self, mode: str) -> bool:
        """Folds the write-ahead file into the file; returns False, and leaves it unchanged, without room for that."""
        try:
            self._connection.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
            self._folded_bytes = os.path.getsize(self._path)
            self._unfolded_before = self._unfolded_bytes()
        except (sqlite3.Error, OSError) as error:
            if _primary_code(error) != _FULL:
                self.failure = self._explain(error)
            return False
        return True

    def _apply(self, operation: Operation) -> Outcome:
        return apply(self._connection, self._records, operation)

    def _apply_guarded(self, operation: Operation) -> Outcome:
        execute = self._connection.execute
        bare = self._records.bare
        execute("SAVEPOINT one")
        try:
            outcome = self._apply(operation)
        except Exception as error:
            full = _primary_code(error) == _FULL and self._reserve is not None  # then each is carried out alone
            if full or _is_final(error) or not self._connection.in_transaction:
                raise
            execute("ROLLBACK TO one")
            execute("RELEASE one")
            self._records.bare = bare
            return self._explain(error)
        execute("RELEASE one")
        return outcome

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                self.failure = self._explain(error)

    def _refusal(self, failure: WALError) -> WALError:
        return StorageError(f"nothing was done, because the file failed before: {failure}; close the KV and open it again")

    def _explain(self, error: Exception, *, outcome_unknown: bool = False) -> WALError:
        if isinstance(error, WALError):
            return error
        code = _primary_code(error)
        text = f"{self._path}: {error}"
        if code == _FULL:
            return NoSpaceError(f"{text}; nothing was written: make room and try again")
        if code == sqlite3.SQLITE_NOTADB and not os.path.exists(f"{self._path}-reserve"):
            return FormatError(f"{text}; give the KV a file of its own")
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return unreadable(self._path, error)
        if code in (_BUSY, _LOCKED) and self._path in _inherited:
            return LockedError(
                f"{text}: this process was forked from one that had the file open, and sqlite lets no such process open it again: open it "
                "in a process that was started on its own"
            )
        if code in (_BUSY, _LOCKED):
            return LockedError(f"{text}: another KV has the file open, and it has one owner at a time; close that one")
        return StorageError(f"{text} ({getattr(error, 'sqlite_errorname', type(error).__name__)})", outcome_unknown=outcome_unknown)


def _note_inherited() -> None:
    """Records in a forked child which files its parent had open: sqlite mistakes the parent's locks for the child's own, and must not close
    them."""
    _inherited.update(store._path for store in _open)


_open: Final[weakref.WeakSet[SqliteStore]] = weakref.WeakSet()
_inherited: Final[set[str]] = set()
os.register_at_fork(after_in_child=_note_inherited)


def _make_private(path: str) -> None:
    """Gives the file to its owner alone, creating it if it is missing; sqlite gives the same mode to the files beside it.

    A user who may read the file could lock it. It is never opened here: closing it would release the locks that another connection of this
    process has.
    """
    # If the system refuses this, sqlite gets the same error when it opens the file, and reports it.
    with contextlib.suppress(OSError):
        os.mknod(path, stat.S_IFREG | _MODE)
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        if stat.S_ISREG(status.st_mode) and stat.S_IMODE(status.st_mode) != _MODE:
            os.chmod(path, _MODE)
            for suffix in ("-wal", "-journal"):
                os.chmod(path + suffix, _MODE)


def _primary_code(error: BaseException) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _is_final(error: Exception) -> bool:
    return _primary_code(error) in _FINAL
