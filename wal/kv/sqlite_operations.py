"""The operations that the thread of a sqlite file carries out, their outcomes, and the statements for them. Synchronous."""

from __future__ import annotations

import sqlite3
from typing import Final

import msgspec

from wal.kv.base import Batch
from wal.kv.keys import prefix_end

__all__ = ["Applied", "Differs", "Load", "Operation", "Outcome", "Scan", "apply"]

_SAVE: Final = "INSERT INTO kv VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value"
_LOAD: Final = "SELECT value FROM kv WHERE key = ?"
_REMOVE: Final = "DELETE FROM kv WHERE key = ?"


class Load(msgspec.Struct, frozen=True):
    """Asks for the values on keys."""

    keys: list[str]


class Scan(msgspec.Struct, frozen=True):
    """Asks for the keys that start with a prefix."""

    prefix: str


class Differs(msgspec.Struct, frozen=True):
    """The outcome of a batch that did not happen: the first key whose value is not the one to compare with."""

    key: str


class Applied(msgspec.Struct, frozen=True):
    """The outcome of a batch that was carried out: its saves, and the keys that existed and are `removed`."""

    saves: dict[str, str]
    removed: list[str]


Operation = Load | Scan | Batch
Outcome = list[str | None] | list[tuple[str, str]] | Applied | Differs | None | Exception
"""The outcome of a Load, of a Scan, of a Batch, or the error; None while there is none."""


def apply(connection: sqlite3.Connection, operation: Operation) -> Outcome:
    """Carries out one operation inside a transaction and returns its outcome; raises any sqlite3.Error unchanged."""
    execute = connection.execute
    if isinstance(operation, Load):
        rows = [execute(_LOAD, (key,)).fetchone() for key in operation.keys]
        return [None if row is None else row[0] for row in rows]
    if isinstance(operation, Scan):
        where, bounds = _starts_with(operation.prefix)
        return execute(f"SELECT key, value FROM kv WHERE {where} ORDER BY key", bounds).fetchall()
    for key, expected in operation.compare:
        row = execute(_LOAD, (key,)).fetchone()
        if (None if row is None else row[0]) != expected:
            return Differs(key)
    for pair in operation.saves.items():
        execute(_SAVE, pair)
    removed = [key for key in operation.removals if execute(_REMOVE, (key,)).rowcount]
    if operation.removed_prefix is not None:
        where, bounds = _starts_with(operation.removed_prefix)
        removed += [key for (key,) in execute(f"SELECT key FROM kv WHERE {where} ORDER BY key", bounds)]
        execute(f"DELETE FROM kv WHERE {where}", bounds)
    return Applied(operation.saves, removed)


def _starts_with(prefix: str) -> tuple[str, tuple[str, ...]]:
    end = prefix_end(prefix)
    return ("key >= ?", (prefix,)) if end is None else ("key >= ? AND key < ?", (prefix, end))
