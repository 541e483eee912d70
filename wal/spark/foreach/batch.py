"""Batch: what a handler is told of the batch it is given, and what makes its effect happen once.

A batch of a query is run again, with the same rows, until Spark has noted in the query's checkpoint that it is done: after a
failure, a kill, or a restart. `key` is the same each time. So an effect happens once if it is stored under the key, or replaces
what the key stored before: `write_parquet` does the second, `once` the first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

import msgspec

from wal.errors import InvalidArgumentError
from wal.spark.foreach.ledger import Ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Batch"]

OWNER: Final = "_query_id"
"""A file in the directory that `write_parquet` writes to; Spark does not read names that begin with `_`."""


class Batch(msgspec.Struct, frozen=True):
    """One batch of one query.

    `query_id` is that of the checkpoint: the same over restarts. `batch_id` counts from 0 without gaps; the first batch of a new
    query has no rows. `replay`: this batch was begun before, so that a part of its effect, or all of it, may be there; False when
    nothing is known of that, which promises nothing: the helpers here do not rely on it.
    """

    query_id: str
    batch_id: int
    replay: bool = False

    @property
    def key(self) -> str:
        """`query_id:batch_id`, to store an effect under: the same whenever this batch is run."""
        return f"{self.query_id}:{self.batch_id}"

    def write_parquet(self, df: DataFrame, path: str, *, options: Mapping[str, str] | None = None) -> None:
        """Writes the rows as `path/batch_id=N`, in the place of what an earlier try left there. `spark.read.parquet(path)` reads
        them all.

        The directory is one query's: on this host's file system it notes which, and another query's is an InvalidArgumentError,
        because its batches have the same numbers. Elsewhere (`hdfs:`, `s3a:`) nobody notes that.
        """
        directory = _local(path, df)
        if directory is not None:
            path = str(directory.absolute())
            self._claim(directory)
        df.write.mode("overwrite").options(**(options or {})).parquet(f"{path.rstrip('/')}/batch_id={self.batch_id}")

    @contextlib.contextmanager
    def once(self, connection: Any, table: str = "wal_batches", *, paramstyle: str | None = None) -> Iterator[bool]:
        """A transaction on a DB-API connection that is committed together with a note that this batch is done.

            with batch.once(connection) as first:
                if first:
                    connection.execute("UPDATE …")

        Gives False when it was done before; do nothing then. The note is a row of `table` for each query, made if it is absent, in the
        same database: either all of it is there after a crash, or nothing. An exception rolls all of it back and goes on. The
        connection must not be in autocommit mode (sqlite3's may) nor in a transaction: InvalidArgumentError.
        """
        with Ledger(connection, table, paramstyle=paramstyle).transaction(self.query_id, self.batch_id) as first:
            yield first

    def _claim(self, directory: Path) -> None:
        owner = directory / OWNER
        directory.mkdir(parents=True, exist_ok=True)
        try:
            with owner.open("x") as file:
                file.write(self.query_id)
            return
        except FileExistsError:
            found = owner.read_text()
        if not found:  # killed between making and writing it
            owner.write_text(self.query_id)
        elif found != self.query_id:
            raise InvalidArgumentError(
                f"{directory} holds the batches of query {found}, and this is query {self.query_id}, whose batches have the same numbers: "
                f"write to another directory, or empty this one if that query is over"
            )


def _local(path: str, df: DataFrame) -> Path | None:
    """The directory on this host's file system, None for another file system, or where it is not known to be this one."""
    if not isinstance(path, str):
        raise TypeError(f"path must be a str, not {type(path).__name__}")
    parts = urlsplit(path)
    if parts.scheme:
        return Path(unquote(parts.path)) if parts.scheme == "file" and not parts.netloc else None
    java_session = getattr(df.sparkSession, "_jsparkSession", None)
    if java_session is None:
        return None  # under Spark Connect: what a path without a scheme means only the server knows
    default = java_session.sessionState().newHadoopConf().get("fs.defaultFS", "file:///")
    return Path(path) if default.startswith("file:") else None
