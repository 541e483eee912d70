"""foreach_batch: passes the batches of a stream to the user's handler, and saves the cursor after the handler.

Owns the order of one batch: its end is looked up, payloads are decoded, the rows are persisted, the handler runs, and only then the cursor
is saved. An exception in any of these steps ends the query without saving the cursor. Spark reruns the batch when the query is restarted.
This module does not read the log: the source does, when the handler requests rows.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from wal.errors import InvalidArgumentError, UnknownError
from wal.message.matching import Matching
from wal.runtime.user_code import described
from wal.spark.foreach.batch import Batch
from wal.spark.foreach.decoding import Decode, Decoding
from wal.spark.foreach.offset_log import entry_of_batch
from wal.spark.foreach.query_cursor import QueryCursor
from wal.spark.frame_source import source_of
from wal.spark.local_session import require_pyspark
from wal.spark.location import SparkLocation
from wal.spark.options import ChannelChoice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType


Handler = Callable[["DataFrame", Batch], object]
"""A function of the rows of a batch and the batch. Its result is ignored."""


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
    options: Mapping[str, str] | None = None,
    vchannels_pattern: str | Matching | None = None,
    checkpoint: str | None = None,
) -> ForeachBatch:
    """Returns a function for `writeStream.foreachBatch` that calls `handler(df, batch)` for each batch; see `Batch`.

    * `schema`, `decode`, `into`, `keep_payload` and `on_error` decode payloads as `decoded` does.
    * `persist` keeps the rows in memory (on disk, if they do not fit) until the handler returns. So the log is read once, even if `df` is
      used several times. Pass False for a handler that uses `df` once.
    * `cursor` names the cursor that is saved at the end of the batch when the handler has returned, so that retention keeps unprocessed
      events. It is in the log that the source reads: the journal at `path`, or the log that `options` name, which are those of the source
      (`service.url`, `kv` and so on). With `vchannels_pattern` it is saved for the vchannels that match, if the source reads by a
      `vchannelsPattern`. If the source reads a family, give its pattern as a `Matching`: the family has one cursor, at which a source with
      `startingCursor` begins.
    * `checkpoint` is the query's checkpointLocation; only Spark Connect needs it.

    A wrong argument raises TypeError or InvalidArgumentError here, before anything runs. DDL in `schema` needs a session.
    """
    require_pyspark()
    if not callable(handler):
        raise TypeError(f"handler must be a function of (df, batch), not {type(handler).__name__}")
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
        raise TypeError("handler is a coroutine function, and Spark awaits nothing: give a plain one, which may use asyncio.run")
    if schema is None and decode is not None:
        raise InvalidArgumentError("decode=… gives values whose types Spark has to know: name their fields by schema=…")
    decoding = None
    if schema is not None:
        decoding = Decoding.of(schema, decode=decode, into=into, keep_payload=keep_payload, on_error=on_error)
    if (cursor is None) != (path is None and options is None):
        raise InvalidArgumentError("cursor=… is saved in the log at path=… or options=…: give cursor and one of them, or none of the three")
    if vchannels_pattern is not None:
        if cursor is None:
            raise InvalidArgumentError(
                "vchannels_pattern=… selects the vchannels for which a cursor is saved: give cursor=… and path=… or options=… with it"
            )
        if not isinstance(vchannels_pattern, Matching):
            try:
                re.compile(vchannels_pattern)
            except re.error as error:
                raise InvalidArgumentError(f"vchannels_pattern={vchannels_pattern!r} is not a regular expression: {error}") from error
    saved = None
    if cursor is not None:
        source = source_of(SparkLocation.named(path, options))
        saved = QueryCursor(source, cursor, ChannelChoice.matching(vchannels_pattern))
    return ForeachBatch(handler, decoding, saved, persist=persist, checkpoint=checkpoint)


class ForeachBatch:
    """The function that `foreach_batch` returns. Spark calls it for one batch after the other, in the driver's process or, under Spark
    Connect, pickled to a process beside it.
    """

    def __init__(
        self, handler: Handler, decoding: Decoding | None, cursor: QueryCursor | None, *, persist: bool, checkpoint: str | None
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
        if self._cursor is not None and entry.is_other:  # the handler has not run: the cursor must not cover this batch
            raise InvalidArgumentError(
                f"the checkpoint of query {entry.query_id} has no end of a wal source in batch {batch_id}, so that its cursor cannot be "
                'saved: give the query a source of the format "wal", or leave cursor=… out; if it has one, upgrade this package for the '
                "form of this checkpoint"
            )
        # An entry older than this object belongs to an earlier run. An object that serves a second run has recorded the batches that it
        # began.
        replay = self._begun.get(entry.query_id, -1) >= batch_id or entry.planned_ms < self._made_ms
        self._begun[entry.query_id] = batch_id
        if self._decoding is not None:
            df = self._decoding.apply(df)
        if self._persist:
            df = df.persist()
        try:
            self._handler(df, Batch(entry.query_id, batch_id, replay))
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:  # it would end the thread that answers the JVM, and the query with an error of that connection
            raise UnknownError(f"the handler of batch {batch_id} raised {described(error)}") from error
        finally:
            if self._persist:
                df.unpersist()
        if self._cursor is not None:
            self._cursor.save(entry.ends)
