"""Batch: the argument of a handler that describes its batch, with helpers that make its effect happen once.

After a failure, a kill or a restart, Spark reruns a batch with the same rows, until the query's checkpoint records its end. `key` is the
same each time. So an effect happens once if it is stored under the key, or replaces an earlier effect under the key. `once` does the first,
`write_parquet` the second.
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from wal.errors import InvalidArgumentError
from wal.runtime.descriptors import open_file, write_file

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


_MARKS: Final = {"qmark": ("?", "?"), "numeric": (":1", ":2"), "format": ("%s", "%s"), "pyformat": ("%s", "%s")}
"""The placeholders for two values, in the styles of PEP 249 that take a sequence."""


class BatchLedger:
    """A database table with the last batch of each query whose effects the database has.

    Owns one row for each query, with its newest finished batch, so the table does not grow with the batches. A query's batches run one
    after the other, and only the newest can run again: so a batch is finished if its number is not above the row's. The row is written in
    the transaction of the effect itself, so both exist or neither does. The ledger uses only DB-API (PEP 249), but handles sqlite3's
    special ways of beginning a transaction.

    The notes are in `table` of the database of `connection`. Transactions do not overlap.
    """

    def __init__(self, connection: Any, table: str, *, paramstyle: str | None = None) -> None:
        if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)?", table):
            raise InvalidArgumentError(f"table {table!r} is not a plain name: use letters, digits and _, and one dot for a schema")
        style = paramstyle or _paramstyle(connection)
        if style not in _MARKS:
            raise InvalidArgumentError(f"paramstyle {style!r} is not one of {', '.join(_MARKS)}: give the style of your driver")
        self._connection = connection
        self._table = table
        self._marks = _MARKS[style]

    @contextlib.contextmanager
    def transaction(self, query_id: str, batch_id: int) -> Iterator[bool]:
        """Yields whether the batch still has to be processed; then commits the effect together with the note, or rolls both back."""
        begun_here = self._check_idle()
        one, two = self._marks
        if begun_here:
            self._execute("BEGIN IMMEDIATE")
        try:
            self._execute(f"CREATE TABLE IF NOT EXISTS {self._table} (query_id VARCHAR(64) PRIMARY KEY, batch_id BIGINT NOT NULL)")
            row = self._row(f"SELECT batch_id FROM {self._table} WHERE query_id = {one}", (query_id,))
            first = row is None or row[0] < batch_id
            if first and row is None:
                # Another live run of the same query fails here, or waits and then reads the row.
                self._execute(f"INSERT INTO {self._table} (query_id, batch_id) VALUES ({one}, {two})", (query_id, batch_id))
            elif first:
                self._execute(f"UPDATE {self._table} SET batch_id = {one} WHERE query_id = {two}", (batch_id, query_id))
            yield first
            self._execute("COMMIT") if begun_here else self._connection.commit()
        except BaseException:
            self._execute("ROLLBACK") if begun_here and self._connection.in_transaction else self._connection.rollback()
            raise

    def _check_idle(self) -> bool:
        """Rejects a connection whose effect would not be one transaction; returns whether BEGIN and COMMIT must be explicit."""
        connection = self._connection
        autocommit = getattr(connection, "autocommit", False)
        if isinstance(connection, sqlite3.Connection) and not (sys.version_info >= (3, 12) and autocommit is False):
            # sqlite3's legacy mode begins a transaction only before a write, and the autocommit mode never: both need explicit BEGIN and
            # COMMIT.
            if connection.in_transaction:
                raise InvalidArgumentError("the connection is in a transaction: commit or roll back before batch.once(…)")
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
    """Returns the paramstyle of the driver's module, as DB-API requires; a connection's class may be in a submodule."""
    name = type(connection).__module__
    while name:
        style = getattr(sys.modules.get(name), "paramstyle", None)
        if isinstance(style, str):
            return style
        name = name.rpartition(".")[0]
    raise InvalidArgumentError(
        f"the driver of {type(connection).__name__} does not say its paramstyle: give paramstyle=… ({', '.join(_MARKS)})"
    )


OWNER: Final = "_query_id"
"""A file in the directory that `write_parquet` writes to. Spark does not read names that begin with `_`."""


class Batch(msgspec.Struct, frozen=True):
    """One batch of one query.

    `query_id` comes from the checkpoint and survives restarts. `batch_id` counts from 0 without gaps; the first batch of a new query has no
    rows. With `replay` True this batch was begun before, so its effect may exist in part or in full. False guarantees nothing: the helpers
    here do not rely on it.
    """

    query_id: str
    batch_id: int
    replay: bool = False

    @property
    def key(self) -> str:
        """The key to store an effect under, `query_id:batch_id`: the same at each run of this batch."""
        return f"{self.query_id}:{self.batch_id}"

    def write_parquet(self, df: DataFrame, path: str, *, options: Mapping[str, str] | None = None) -> None:
        """Writes the rows as `path/batch_id=N`, replacing the leftovers of an earlier try. `spark.read.parquet(path)` reads all batches.

        The directory belongs to one query, because the batches of another query have the same numbers. On this host's file system a file in
        it names the query, and another query gets an InvalidArgumentError; on others (`hdfs:`, `s3a:`) nothing checks it.
        """
        directory = _local(path, df)
        if directory is not None:
            path = str(directory.absolute())
            self._claim(directory)
        df.write.mode("overwrite").options(**(options or {})).parquet(f"{path.rstrip('/')}/batch_id={self.batch_id}")

    @contextlib.contextmanager
    def once(self, connection: Any, table: str = "wal_batches", *, paramstyle: str | None = None) -> Iterator[bool]:
        """Opens a transaction on a DB-API connection, which is committed together with a note that this batch is finished.

            with batch.once(connection) as first:
                if first:
                    connection.execute("UPDATE …")

        Yields False if the batch was finished before: then do nothing. The note is one row for each query in `table`, in the same database,
        which is created if it is absent. After a crash the effect and the note both exist, or neither does. An exception rolls both back
        and propagates. Raises InvalidArgumentError for a connection in autocommit mode (sqlite3's may be) or in a transaction.
        """
        with BatchLedger(connection, table, paramstyle=paramstyle).transaction(self.query_id, self.batch_id) as first:
            yield first

    def _claim(self, directory: Path) -> None:
        owner = directory / OWNER
        directory.mkdir(parents=True, exist_ok=True)
        try:
            with open(owner, "x", opener=open_file) as file:
                file.write(self.query_id)
            return
        except FileExistsError:
            holder = owner.read_bytes().decode(errors="backslashreplace")
        if not holder:  # the writer was killed before it wrote the id
            write_file(owner, self.query_id.encode())
        elif holder != self.query_id:
            raise InvalidArgumentError(
                f"{directory} holds the batches of query {holder}, and this is query {self.query_id}, whose batches have the same numbers: "
                f"write to another directory, or empty this one if that query has ended"
            )


def _local(path: str, df: DataFrame) -> Path | None:
    """Returns the directory on this host's file system; None if it is on another one, or not known."""
    if not isinstance(path, str):
        raise TypeError(f"path must be a str, not {type(path).__name__}")
    parts = urlsplit(path)
    if parts.scheme:
        return Path(unquote(parts.path)) if parts.scheme == "file" and not parts.netloc else None
    java_session = getattr(df.sparkSession, "_jsparkSession", None)
    if java_session is None:
        return None  # under Spark Connect only the server can resolve a path without a scheme
    default = java_session.sessionState().newHadoopConf().get("fs.defaultFS", "file:///")
    return Path(path) if default.startswith("file:") else None
