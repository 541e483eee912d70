"""Batch: the information that a handler gets about its batch, and the helpers that make its effect happen once.

After a failure, a kill or a restart, Spark reruns a batch with the same rows, until the query's checkpoint says that it is done. `key` is
the same each time. So an effect happens once if it is stored under the key, or replaces what is stored under the key: `once` does the
first, `write_parquet` the second.
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
"""A file in the directory that `write_parquet` writes to. Spark does not read names that begin with `_`."""


class Batch(msgspec.Struct, frozen=True):
    """One batch of one query.

    `query_id` comes from the checkpoint and survives restarts. `batch_id` counts from 0 without gaps; the first batch of a new query has no
    rows. `replay` says that this batch was begun before, so that its effect may exist in part or in full. False guarantees nothing: the
    helpers here do not rely on it.
    """

    query_id: str
    batch_id: int
    replay: bool = False

    @property
    def key(self) -> str:
        """The key to store an effect under, `query_id:batch_id`: the same each time this batch is run."""
        return f"{self.query_id}:{self.batch_id}"

    def write_parquet(self, df: DataFrame, path: str, *, options: Mapping[str, str] | None = None) -> None:
        """Writes the rows as `path/batch_id=N`, replacing the leftovers of an earlier try. `spark.read.parquet(path)` reads all batches.

        The directory belongs to one query, because the batches of another query have the same numbers. On this host's file system a file in
        it names the query, and another query gets an InvalidArgumentError; on others (`hdfs:`, `s3a:`) there is no such check.
        """
        directory = _local(path, df)
        if directory is not None:
            path = str(directory.absolute())
            self._claim(directory)
        df.write.mode("overwrite").options(**(options or {})).parquet(f"{path.rstrip('/')}/batch_id={self.batch_id}")

    @contextlib.contextmanager
    def once(self, connection: Any, table: str = "wal_batches", *, paramstyle: str | None = None) -> Iterator[bool]:
        """Opens a transaction on a DB-API connection, which is committed together with a note that this batch is done.

            with batch.once(connection) as first:
                if first:
                    connection.execute("UPDATE …")

        Yields False if the batch was done before: then do nothing. The note is one row for each query in `table`, which is created if it is
        absent, in the same database: after a crash the effect and the note are both there, or neither is. An exception rolls both back and
        propagates. Raises InvalidArgumentError for a connection in autocommit mode (sqlite3's may be) or in a transaction.
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
        if not found:  # the writer was killed before it wrote the id
            owner.write_text(self.query_id)
        elif found != self.query_id:
            raise InvalidArgumentError(
                f"{directory} holds the batches of query {found}, and this is query {self.query_id}, whose batches have the same numbers: "
                f"write to another directory, or empty this one if that query is over"
            )


def _local(path: str, df: DataFrame) -> Path | None:
    """Returns the directory on this host's file system; None if it is on another one, or if that is unknown."""
    if not isinstance(path, str):
        raise TypeError(f"path must be a str, not {type(path).__name__}")
    parts = urlsplit(path)
    if parts.scheme:
        return Path(unquote(parts.path)) if parts.scheme == "file" and not parts.netloc else None
    java_session = getattr(df.sparkSession, "_jsparkSession", None)
    if java_session is None:
        return None  # under Spark Connect only the server knows what a path without a scheme means
    default = java_session.sessionState().newHadoopConf().get("fs.defaultFS", "file:///")
    return Path(path) if default.startswith("file:") else None
