"""The records of a sqlite file: their form and checks, and the operations on them, in one transaction of the caller.

    application_id  "WALK"      user_version  3      kv(key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID, ordered by UTF-8 bytes

Each value is kept with the checksum of the record, see `records`. A file is checked as a whole when it is opened, because a damaged key
would only look like a missing one later. A file of version 1 has no checksums: it is served unchanged until `Upgrade` adds them. Versions
differ in at least two bits from this one, so that a version that differs in one is damage and not a newer format.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Final

import msgspec

from wal.errors import CorruptionError, FormatError
from wal.storage.kv.base import KVBatch
from wal.storage.kv.keys import prefix_end
from wal.storage.kv.records import damaged, sealed, text, unsealed
from wal.storage.kv.sqlite_ahead import check_ahead

APPLICATION_ID: Final = 0x57414C4B
FORMAT_VERSION: Final = 3
_VERSION_WITHOUT_CHECKSUMS: Final = 1
_SAVE: Final = "INSERT INTO kv VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_LOAD: Final = "SELECT value FROM kv WHERE key = ?"
_REMOVE: Final = "DELETE FROM kv WHERE key = ?"


class Load(msgspec.Struct, frozen=True):
    """Asks for the values on keys."""

    keys: list[str]


class Scan(msgspec.Struct, frozen=True):
    """Asks for the keys that start with a prefix."""

    prefix: str


class Upgrade(msgspec.Struct, frozen=True):
    """Adds the checksums to a file of version 1."""


class Differs(msgspec.Struct, frozen=True):
    """The outcome of a batch that did not happen: the first key whose value is not the one to compare with."""

    key: str


class Applied(msgspec.Struct, frozen=True):
    """The outcome of a batch that was carried out: its saves, and the keys that existed and are `removed`."""

    saves: dict[str, str]
    removed: list[str]


Operation = Load | Scan | KVBatch | Upgrade
Outcome = list[str | None] | list[tuple[str, str]] | Applied | Differs | None | Exception
"""The outcome of a Load, of a Scan, of a KVBatch, or the error; None of an Upgrade, and before the outcome."""


class Records:
    """The records of an open file, and whether they have no checksums yet (`bare`)."""

    def __init__(self, connection: sqlite3.Connection, path: str, *, bare: bool) -> None:
        self.bare: bool = bare
        self._path = path
        self._connection = connection
        connection.text_factory = _Text

    def everything(self) -> dict[str, str]:
        """Returns all records of the file, checked. Raises CorruptionError for damage, and any sqlite3.Error unchanged."""
        (problem,) = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        if problem != b"ok":
            raise unreadable(self._path, ValueError(problem.decode(errors="replace")))
        return dict(self.select("1", ()))

    def select(self, where: str, bounds: tuple[str, ...]) -> list[tuple[str, str]]:
        """Returns the records that a condition selects, ascending and checked."""
        rows = self._connection.execute(f"SELECT key, value FROM kv WHERE {where} ORDER BY key", bounds)
        return [(text(key, key, self._path), self._value(key, value)) for key, value in rows]

    def load(self, key: str) -> str | None:
        """Returns the value on a key, checked; None if the key is missing."""
        row = self._connection.execute(_LOAD, (key,)).fetchone()
        return None if row is None else self._value(_Text(key.encode()), row[0])

    def save(self, key: str, value: str) -> None:
        """Saves a record."""
        self._connection.execute(_SAVE, (key, value if self.bare else sealed(key, value)))

    def upgrade(self) -> None:
        """Adds the checksums, inside a transaction; it resets `bare` at once, so the caller sets it back if the transaction fails."""
        everything = self.everything()
        self.bare = False
        for key, value in everything.items():
            self.save(key, value)
        self._connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")

    def _value(self, key: object, stored: object) -> str:
        if not isinstance(key, _Text) or not isinstance(stored, _Text):
            raise damaged(str(key).encode(), "its key or value is not text", self._path)
        return unsealed(key, stored, self._path, bare=self.bare)


class _Text(bytes):
    """Text as the file has it. Bytes that sqlite returns without this type are a blob, which no KV saves."""


def apply(connection: sqlite3.Connection, records: Records, operation: Operation) -> Outcome:
    """Carries out one operation inside a transaction and returns its outcome; raises any sqlite3.Error unchanged."""
    execute = connection.execute
    if isinstance(operation, Load):
        return [records.load(key) for key in operation.keys]
    if isinstance(operation, Scan):
        return records.select(*_starts_with(operation.prefix))
    if isinstance(operation, Upgrade):
        if records.bare:
            records.upgrade()
        return None
    for key, expected in operation.compare:
        if records.load(key) != expected:
            return Differs(key)
    for key, value in operation.saves.items():
        records.save(key, value)
    removed = [key for key in operation.removals if execute(_REMOVE, (key,)).rowcount]
    if operation.removed_prefix is not None:
        where, bounds = _starts_with(operation.removed_prefix)
        removed += [key.decode() for (key,) in execute(f"SELECT key FROM kv WHERE {where} ORDER BY key", bounds)]
        execute(f"DELETE FROM kv WHERE {where}", bounds)
    return Applied(operation.saves, removed)


def open_records(connection: sqlite3.Connection, path: str) -> Records:
    """Returns the records of the KV in this file, with only its version checked.

    Raises FormatError for a file of another application or of a newer version, CorruptionError if the version is damaged, and any
    sqlite3.Error unchanged.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    for field, saved, expected in (("application_id", application, APPLICATION_ID), ("user_version", version, FORMAT_VERSION)):
        if saved != _VERSION_WITHOUT_CHECKSUMS and ((saved ^ expected) & 0xFFFFFFFF).bit_count() == 1:
            raise CorruptionError(
                f"the metadata in {path} are damaged: {field} is {saved:#x}; restore them from a backup",
                path=path,
                expected=f"{expected:#x}",
            )
    if application != APPLICATION_ID:
        raise FormatError(f"{path} is a sqlite file of another application: give the KV a file of its own")
    if version not in (_VERSION_WITHOUT_CHECKSUMS, FORMAT_VERSION):
        raise FormatError(f"{path} has format {version}, and this version reads up to {FORMAT_VERSION}: upgrade wal-runtime")
    return Records(connection, path, bare=version == _VERSION_WITHOUT_CHECKSUMS)


def read_records(copy: Path, where: Path) -> dict[str, str]:
    """Returns all records of a copy of the KV's file `where`, checked.

    Raises FormatError as `open_records` does, and CorruptionError for any damage; both name `where`.
    """
    check_ahead(Path(f"{copy}-wal"), where)
    try:
        with contextlib.closing(sqlite3.connect(copy)) as connection:
            return open_records(connection, str(where)).everything()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise unreadable(str(where), error) from error


def unreadable(path: str, error: BaseException) -> CorruptionError:
    return CorruptionError(
        f"the metadata in {path} are damaged: {error}; restore them from a backup", path=path, expected="a sound sqlite file"
    )


def _starts_with(prefix: str) -> tuple[str, tuple[str, ...]]:
    end = prefix_end(prefix)
    return ("key >= ?", (prefix,)) if end is None else ("key >= ? AND key < ?", (prefix, end))
