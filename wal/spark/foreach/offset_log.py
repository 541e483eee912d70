"""OffsetLog: the end of a batch, which Spark writes into the query's checkpoint before it runs the batch.

This entry is exact: reading continues there, even after ranges without rows, which the rows of the batch cannot show. A batch that is rerun
has the same entry. In the driver's process it comes from the running query itself, whatever file system the checkpoint is on. Under Spark
Connect the handler runs in another process, without access to the query: there it comes from the checkpoint's files on this host.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from wal.errors import CorruptionError, InvalidArgumentError
from wal.spark.offsets import StreamOffset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class BatchEntry(msgspec.Struct, frozen=True):
    """A batch in the checkpoint of its query: the query, the end of the batch in each source of this format, and the time of its plan.

    `planned_ms` is the wall time of the first try, in milliseconds since 1970. `is_other` is True if every source has an end, and all of
    these ends are of other formats.
    """

    query_id: str
    batch_id: int
    ends: tuple[StreamOffset, ...]
    planned_ms: int
    is_other: bool = False


def entry_of_batch(df: DataFrame, batch_id: int, checkpoint: str | None) -> BatchEntry:
    """Returns the entry of the batch in `df`, which comes from foreachBatch.

    `checkpoint` is the query's. Only Spark Connect needs it, and raises InvalidArgumentError without it.
    """
    java_session = getattr(df.sparkSession, "_jsparkSession", None)
    if java_session is not None:
        return _from_query(df.sparkSession, java_session, batch_id)
    if checkpoint is None:
        raise InvalidArgumentError(
            "under Spark Connect the handler cannot ask its query where the batch ends: give checkpoint=…, the checkpointLocation "
            "of the query, on this host's file system"
        )
    return _from_files(_directory(checkpoint), batch_id)


def parse_entry(text: str, *, query_id: str, batch_id: int) -> BatchEntry:
    """Returns the entry in the text of a file `offsets/N`; raises CorruptionError for any other text.

    The text has a line with the version, a line with metadata, then a line for each source of the query: its offset in version 1, and
    `NAME:OFFSET` in version 2. "-" is the offset of a source that has none yet. Sources of other formats are ignored.
    """
    lines = text.splitlines()
    try:
        planned_ms = int(json.loads(lines[1])["batchTimestampMs"])
        offsets = [_offset(line) for line in lines[2:]]
    except (IndexError, KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise CorruptionError(
            f"the entry of batch {batch_id} in the checkpoint of query {query_id} cannot be read: {text[:200]!r}",
            expected="a version, metadata with batchTimestampMs, and the end of each source",
        ) from error
    ends = tuple(StreamOffset.parse(offset) for offset in offsets if isinstance(offset, dict))
    return BatchEntry(query_id, batch_id, ends, planned_ms, is_other=bool(offsets) and not ends and None not in offsets)


def _offset(line: str) -> dict[str, Any] | str | None:
    """Returns the offset in the line of a source of this format, None for a source without an offset, and the line of any other source.

    Raises ValueError for a line that begins as one of this format and cannot be parsed.
    """
    text = line if line.startswith("{") else line[line.find(":{") + 1 :]
    if line == "-" or line.endswith(":-"):
        return None
    try:
        entry = json.loads(text)
    except ValueError:
        if '"pchannels"' in text:
            raise
        return line
    return entry if isinstance(entry, dict) and {"pchannels", "version"} <= entry.keys() else line


def _from_query(session: Any, java_session: Any, batch_id: int) -> BatchEntry:
    context = session.sparkContext
    query_id = context.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        raise InvalidArgumentError(
            "this is not a batch of a running query: pass the result of foreach_batch(…) to writeStream.foreachBatch"
        )
    # The session of a batch is a clone without queries. The shared state of the sessions has all queries.
    queries = java_session.sharedState().activeStreamingQueries()
    execution = queries.get(context._jvm.java.util.UUID.fromString(query_id))
    if execution is None:
        raise InvalidArgumentError(
            f"query {query_id} is not running any more: its batch {batch_id} will be run again when the query is restarted"
        )
    log = execution.offsetLog()
    entry = log.get(batch_id)
    if not entry.isDefined():
        raise CorruptionError(
            f"the checkpoint of query {query_id} at {execution.resolvedCheckpointRoot()} has no entry of batch {batch_id}, which runs",
            expected=f"offsets/{batch_id}",
        )
    text = context._jvm.java.io.ByteArrayOutputStream()
    log.serialize(entry.get(), text)
    return parse_entry(text.toString("UTF-8"), query_id=query_id, batch_id=batch_id)


def _from_files(checkpoint: Path, batch_id: int) -> BatchEntry:
    metadata, offsets = checkpoint / "metadata", checkpoint / "offsets" / str(batch_id)
    try:
        query_id = str(json.loads(metadata.read_bytes())["id"])
        data = offsets.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(
            f"checkpoint={str(checkpoint)!r} is not that of this query, which runs batch {batch_id}: {error.filename} cannot be read "
            f"({error.strerror}); give the checkpointLocation of the query, on this host's file system"
        ) from error
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CorruptionError(f"{metadata} does not have the id of its query", path=str(metadata), expected='{"id": …}') from error
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise CorruptionError(f"{offsets} is not text: {error}", path=str(offsets), offset=error.start, expected="UTF-8") from error
    return parse_entry(text, query_id=query_id, batch_id=batch_id)


def _directory(checkpoint: str) -> Path:
    parts = urlsplit(checkpoint)
    if not parts.scheme:
        return Path(checkpoint)
    if parts.scheme == "file" and not parts.netloc:
        return Path(unquote(parts.path))
    raise InvalidArgumentError(
        f"checkpoint={checkpoint!r} is on another file system, and under Spark Connect the handler reads it as files of this host: "
        "keep the checkpoint on this host"
    )
