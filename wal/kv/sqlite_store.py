"""SqliteStore: the KV's file and its transactions, synchronous; belongs to one thread.

Owns: the sqlite connection, the format of the file and the meaning of sqlite's errors. It promises that a group of operations is
one durable transaction in which each operation happens whole or not at all without harming the others. It never retries a
failed write or sync: what the kernel dropped cannot be synced again.

    application_id  "WALK"      user_version  1      kv(key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID, ordered by UTF-8 bytes
"""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from wal.errors import CorruptionError, FormatError, LockedError, NoSpaceError, StorageError, WALError
from wal.kv.batch import Batch
from wal.kv.keys import prefix_end

__all__ = ["Applied", "Load", "Operation", "Outcome", "Scan", "SqliteStore"]

APPLICATION_ID: Final = 0x57414C4B
FORMAT_VERSION: Final = 1

_LOCK_WAIT_S: Final = 0.2
"""How long opening waits for another owner that is just closing the file."""
_PAGE_BYTES: Final = 4096

_FULL, _BUSY, _LOCKED = sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED
_FINAL: Final = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
"""Primary codes after which the state on the disk is not known: nothing more is done with the file."""

_SAVE: Final = "INSERT INTO kv VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_LOAD: Final = "SELECT value FROM kv WHERE key = ?"
_REMOVE: Final = "DELETE FROM kv WHERE key = ?"


class Load(msgspec.Struct, frozen=True):
    """Asks for the values on keys."""

    keys: list[str]


class Scan(msgspec.Struct, frozen=True):
    """Asks for the keys that start with a prefix."""

    prefix: str


class Applied(msgspec.Struct, frozen=True):
    """A batch was carried out: its saves, and the keys that were there and are `removed`."""

    saves: dict[str, str]
    removed: list[str]


Operation = Load | Scan | Batch
Outcome = list[str | None] | list[tuple[str, str]] | Applied | None | Exception
"""Of a Load, of a Scan, of a Batch (None: its comparison failed), or what went wrong."""


class SqliteStore:
    """The open file. `failure` is set once and for all when the state on the disk is no longer known."""

    def __init__(self, path: str, *, bytes_max: int | None = None) -> None:
        self.failure: WALError | None = None
        self.commits = 0
        self._path = path
        try:
            self._connection = sqlite3.connect(path, timeout=_LOCK_WAIT_S, isolation_level=None, cached_statements=32)
        except sqlite3.Error as error:
            raise self._explain(error) from error
        try:
            self._prepare(bytes_max)
        except BaseException as error:
            self._connection.close()
            if isinstance(error, sqlite3.Error):
                raise self._explain(error) from error
            raise

    def execute(self, operations: list[Operation]) -> list[Outcome]:
        """Carries out a group in order and answers each; what is answered as done is durable. Never raises."""
        if self.failure is not None:
            return [self._refusal(self.failure)] * len(operations)
        if not any(isinstance(operation, Batch) for operation in operations):
            return [self._attempt(operation) for operation in operations]
        committing = False
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            alone = len(operations) == 1
            outcomes = [self._apply(operation) if alone else self._apply_guarded(operation) for operation in operations]
            committing = True
            self._connection.execute("COMMIT")
            self.commits += 1
        except Exception as error:
            failure = self._explain(error, outcome_unknown=committing)
            self._roll_back()
            if _is_final(error):
                self.failure = failure
                return [failure] * len(operations)
            if alone:
                return [failure]
            # One of them took the transaction down with it (no room, say). Alone, each gets its own answer.
            return [self.execute([operation])[0] for operation in operations]
        return outcomes

    def close(self) -> None:
        """Closes the file; sqlite folds its write-ahead file into it first."""
        self._connection.close()

    def _prepare(self, bytes_max: int | None) -> None:
        execute = self._connection.execute
        # One owner: a second process (or a second opening) would commit past this one's watches without their knowing.
        execute("PRAGMA locking_mode = EXCLUSIVE")
        (application,) = execute("PRAGMA application_id").fetchone()
        (version,) = execute("PRAGMA user_version").fetchone()
        (tables,) = execute("SELECT count(*) FROM sqlite_schema").fetchone()
        is_new = application == 0 and version == 0 and tables == 0
        if application != APPLICATION_ID and not is_new:
            raise FormatError(f"{self._path} is a sqlite file of another application: give the KV a file of its own")
        if version > FORMAT_VERSION:
            raise FormatError(
                f"{self._path} has format {version}, and this version reads up to {FORMAT_VERSION}: upgrade wal-runtime"
            )
        execute("PRAGMA journal_mode = WAL")
        execute("PRAGMA synchronous = FULL")
        if bytes_max is not None:
            execute(f"PRAGMA max_page_count = {max(1, bytes_max // _PAGE_BYTES)}")
        execute("BEGIN IMMEDIATE")  # takes the lock, also when there is nothing to make
        if is_new:
            execute("CREATE TABLE kv (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID")
            execute(f"PRAGMA application_id = {APPLICATION_ID}")
            execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        execute("COMMIT")

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

    def _apply_guarded(self, operation: Operation) -> Outcome:
        execute = self._connection.execute
        execute("SAVEPOINT one")
        try:
            outcome = self._apply(operation)
        except Exception as error:
            if _is_final(error) or not self._connection.in_transaction:
                raise
            execute("ROLLBACK TO one")
            execute("RELEASE one")
            return self._explain(error)
        execute("RELEASE one")
        return outcome

    def _apply(self, operation: Operation) -> Outcome:
        execute = self._connection.execute
        if isinstance(operation, Load):
            rows = [execute(_LOAD, (key,)).fetchone() for key in operation.keys]
            return [None if row is None else row[0] for row in rows]
        if isinstance(operation, Scan):
            where, bounds = _starts_with(operation.prefix)
            return execute(f"SELECT key, value FROM kv WHERE {where} ORDER BY key", bounds).fetchall()
        if operation.compare is not None:
            key, expected = operation.compare
            row = execute(_LOAD, (key,)).fetchone()
            if (None if row is None else row[0]) != expected:
                return None
        for pair in operation.saves.items():
            execute(_SAVE, pair)
        removed = [key for key in operation.removals if execute(_REMOVE, (key,)).rowcount]
        if operation.removed_prefix is not None:
            where, bounds = _starts_with(operation.removed_prefix)
            removed += [key for (key,) in execute(f"SELECT key FROM kv WHERE {where} ORDER BY key", bounds)]
            execute(f"DELETE FROM kv WHERE {where}", bounds)
        return Applied(operation.saves, removed)

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            try:
                self._connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                self.failure = self._explain(error)

    def _refusal(self, failure: WALError) -> WALError:
        return StorageError(
            f"nothing was done, because the file failed before: {failure}; close the KV and open it again"
        )

    def _explain(self, error: Exception, *, outcome_unknown: bool = False) -> WALError:
        code = _primary_code(error)
        text = f"{self._path}: {error}"
        if code == _FULL:
            return NoSpaceError(f"{text}; nothing was written: make room and try again")
        if code == sqlite3.SQLITE_NOTADB:
            return FormatError(f"{text}; give the KV a file of its own")
        if code == sqlite3.SQLITE_CORRUPT:
            return CorruptionError(f"{text}; restore the file", path=self._path, expected="a sound sqlite file")
        if code in (_BUSY, _LOCKED):
            return LockedError(f"{text}: another KV has the file open, and it has one owner at a time; close that one")
        return StorageError(
            f"{text} ({getattr(error, 'sqlite_errorname', type(error).__name__)})", outcome_unknown=outcome_unknown
        )


def _starts_with(prefix: str) -> tuple[str, tuple[str, ...]]:
    end = prefix_end(prefix)
    return ("key >= ?", (prefix,)) if end is None else ("key >= ? AND key < ?", (prefix, end))


def _primary_code(error: Exception) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def _is_final(error: Exception) -> bool:
    return _primary_code(error) in _FINAL
