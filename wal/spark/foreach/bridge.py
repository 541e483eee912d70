"""foreach_batch: from batches of a stream to a handler of the user's, and back: when the handler is done, the log may let go of them.

Owns the order of one batch: where it ends is looked up, payloads are decoded, the rows are kept for the time of the handler, the
handler runs, and then, only then, the cursor is saved. An exception of any of it ends the query without a cursor saved; Spark runs
the batch again when the query is started again. Nothing is read here: the log is read by the source, when the handler asks for
rows.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wal.errors import InvalidArgumentError
from wal.spark.foreach.batch import Batch
from wal.spark.foreach.decoding import Decode, Decoding
from wal.spark.foreach.offset_log import entry_of_batch
from wal.spark.foreach.query_cursor import QueryCursor
from wal.spark.local_session import require_pyspark
from wal.spark.options import ChannelChoice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

__all__ = ["ForeachBatch", "Handler", "foreach_batch"]

Handler = Callable[["DataFrame", Batch], object]
"""What is done with a batch; what it returns is not looked at."""


def foreach_batch(
    handler: Handler,
    *,
    schema: str | StructType | None = None,
    decode: Decode | None = None,
    into: str = "value",
    keep_payload: bool = False,
    on_error: str = "raise",
    persist: bool = True,
    cursor: str | None = None,
    path: str | None = None,
    vchannels_pattern: str | None = None,
    checkpoint: str | None = None,
) -> ForeachBatch:
    """What to give to `writeStream.foreachBatch`, so that `handler(df, batch)` is called for each batch; see `Batch`.

    `schema` (and `decode`, `into`, `keep_payload`, `on_error`): payloads are decoded as `decoded` does. `persist`: the rows are
    kept in memory (what does not fit, on disk) until the handler returns, so that the log is read once however often `df` is used;
    False saves that for a handler that uses it once. `cursor`: when the handler has returned, the query's place is saved under this
    name in the journal at `path` (the source's), so that retention keeps what is not done; of the vchannels that match
    `vchannels_pattern`, if the source reads by one. `checkpoint`: the query's checkpointLocation, needed under Spark Connect only.

    A wrong argument is a TypeError or an InvalidArgumentError here, before anything runs; DDL in `schema` needs a session.
    """
    require_pyspark()
    if not callable(handler):
        raise TypeError(f"handler must be a function of (df, batch), not {type(handler).__name__}")
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
        raise TypeError(
            "handler is a coroutine function, and Spark awaits nothing: give a plain one, which may use asyncio.run"
        )
    if schema is None and decode is not None:
        raise InvalidArgumentError("decode=… gives values whose types Spark has to know: name their fields by schema=…")
    decoding = None
    if schema is not None:
        decoding = Decoding.of(schema, decode=decode, into=into, keep_payload=keep_payload, on_error=on_error)
    if (cursor is None) != (path is None):
        raise InvalidArgumentError("cursor=… is saved in the journal at path=…: give both, or neither")
    if vchannels_pattern is not None:
        if cursor is None:
            raise InvalidArgumentError(
                "vchannels_pattern=… says whose cursor is saved: give cursor=… and path=… with it"
            )
        try:
            re.compile(vchannels_pattern)
        except re.error as error:
            raise InvalidArgumentError(
                f"vchannels_pattern={vchannels_pattern!r} is no regular expression: {error}"
            ) from error
    saved = None
    if cursor is not None and path is not None:
        saved = QueryCursor(path, cursor, ChannelChoice(pattern=vchannels_pattern))
    return ForeachBatch(handler, decoding, saved, persist=persist, checkpoint=checkpoint)


class ForeachBatch:
    """What `foreach_batch` gives: called by Spark, one batch at a time, in the driver's process or, under Spark Connect, pickled to
    one beside it."""

    def __init__(
        self,
        handler: Handler,
        decoding: Decoding | None,
        cursor: QueryCursor | None,
        *,
        persist: bool,
        checkpoint: str | None,
    ) -> None:
        self._handler = handler
        self._decoding = decoding
        self._cursor = cursor
        self._persist = persist
        self._checkpoint = checkpoint
        self._made_ms = int(time.time() * 1000)
        self._begun: dict[str, int] = {}

    def __call__(self, df: Any, batch_id: int) -> None:
        entry = entry_of_batch(df, batch_id, self._checkpoint)
        # Planned before this was made: by a run before this one. A handler that is given to a second run knows itself what it has begun.
        replay = self._begun.get(entry.query_id, -1) >= batch_id or entry.planned_ms < self._made_ms
        self._begun[entry.query_id] = batch_id
        if self._decoding is not None:
            df = self._decoding.apply(df)
        if self._persist:
            df = df.persist()
        try:
            self._handler(df, Batch(entry.query_id, batch_id, replay))
        finally:
            if self._persist:
                df.unpersist()
        if self._cursor is not None:
            self._cursor.save(entry.ends)
