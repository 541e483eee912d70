"""Ledger: a database table with the last batch of each query whose effects the database has.

Owns one row for each query, with its newest finished batch, so the table does not grow with the batches. A query's batches run one after
the other, and only the newest can run again: so a batch is done if its number is not above the row's. The row is written in the transaction
of the effect itself, which is the whole point. The ledger uses only DB-API (PEP 249), but handles sqlite3's special ways of beginning a
transaction.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import sys
from collections.abc import Iterator
from typing import Any, Final

from wal.errors import InvalidArgumentError

__all__ = ["Ledger"]

_MARKS: Final = {"qmark": ("?", "?"), "numeric": (":1", ":2"), "format": ("%s", "%s"), "pyformat": ("%s", "%s")}
"""The placeholders for two values, in the styles of PEP 249 that take a sequence."""


class Ledger:
    """The notes in `table` of the database of `connection`. One transaction at a time."""

    def __init__(self, connection: Any, table: str, *, paramstyle: str | None = None) -> None:
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", table):
            raise InvalidArgumentError(
                f"table {table!r} is not a plain name: use letters, digits and _, and one dot for a schema"
            )
        style = paramstyle or _paramstyle(connection)
        if style not in _MARKS:
            raise InvalidArgumentError(
                f"paramstyle {style!r} is none of {', '.join(_MARKS)}: give the one of your driver"
            )
        self._connection = connection
        self._table = table
        self._marks = _MARKS[style]

    @contextlib.contextmanager
    def transaction(self, query_id: str, batch_id: int) -> Iterator[bool]:
        """Yields whether the batch still has to be done; then commits the effect together with the note, or rolls both back."""
        begun_here = self._check_idle()
        one, two = self._marks
        if begun_here:
            self._execute("BEGIN IMMEDIATE")
        try:
            self._execute(
                f"CREATE TABLE IF NOT EXISTS {self._table} (query_id VARCHAR(64) PRIMARY KEY, batch_id BIGINT NOT NULL)"
            )
            found = self._row(f"SELECT batch_id FROM {self._table} WHERE query_id = {one}", (query_id,))
            first = found is None or found[0] < batch_id
            if first and found is None:
                # Another live run of the same query fails here, or waits and then finds the row.
                self._execute(
                    f"INSERT INTO {self._table} (query_id, batch_id) VALUES ({one}, {two})", (query_id, batch_id)
                )
            elif first:
                self._execute(f"UPDATE {self._table} SET batch_id = {one} WHERE query_id = {two}", (batch_id, query_id))
            yield first
            self._execute("COMMIT") if begun_here else self._connection.commit()
        except BaseException:
            self._execute("ROLLBACK") if begun_here and self._connection.in_transaction else self._connection.rollback()
            raise

    def _check_idle(self) -> bool:
        """Refuses a connection whose effect would not be one transaction; returns whether to begin and end it by hand."""
        connection = self._connection
        autocommit = getattr(connection, "autocommit", False)
        if isinstance(connection, sqlite3.Connection) and not (sys.version_info >= (3, 12) and autocommit is False):
            # The legacy mode begins only before a write, and the autocommit mode never: both need BEGIN and COMMIT by hand.
            if connection.in_transaction:
                raise InvalidArgumentError(
                    "the connection is in a transaction: commit or roll back before batch.once(…)"
                )
            return True
        if autocommit is True:
            raise InvalidArgumentError(
                "the connection is in autocommit mode, so that the effect and its note would not be one transaction: turn it off"
            )
        return False

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> None:
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement, values) if values else cursor.execute(statement)
        finally:
            cursor.close()

    def _row(self, statement: str, values: tuple[object, ...]) -> Any:
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement, values)
            return cursor.fetchone()
        finally:
            cursor.close()


def _paramstyle(connection: Any) -> str:
    """Returns the paramstyle of the driver's module, as DB-API demands; a connection's class may be in a submodule."""
    name = type(connection).__module__
    while name:
        style = getattr(sys.modules.get(name), "paramstyle", None)
        if isinstance(style, str):
            return style
        name = name.rpartition(".")[0]
    raise InvalidArgumentError(
        f"the driver of {type(connection).__name__} does not say its paramstyle: give paramstyle=… ({', '.join(_MARKS)})"
    )
