"""Spark: the speed of reading a journal, compared with Spark's own scan of Parquet with the same rows, in a session as users start it.

`python -m benchmarks spark` runs this once for all its rows, in a process of its own. Each row is a journal and the Parquet files that
Spark makes of it, uncompressed, all columns; before the clock both are counted and summed up, and must agree. The engines take turns, the
order reversed every round. Everything goes to Spark's `noop` sink, which takes all columns of all rows and keeps none.

    batch     spark.read.format("wal")
    stream    spark.readStream.format("wal") with AvailableNow, 200 thousand rows a trigger: rate and time of its triggers, without the
              start of the query, which takes a second or so for any amount of data
    parquet   spark.read.parquet
    pipe      ready batches, yielded repeatedly by a Python source of the same columns: no Python source is faster
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

import msgspec

from benchmarks.cell import Measured, Row
from benchmarks.gauge import percentile
from benchmarks.process_tree import tree_cpu_s
from benchmarks.stores import log_path, vchannel_name
from wal import Message, open_wal
from wal.spark import local_session

TRIGGER_ROWS: Final = 200_000
_PAYLOADS: Final = 64 * 256
SETTINGS: Final = {
    # The settings of a long job: the compiler that a session of a few seconds omits, and memory.
    "spark.driver.extraJavaOptions": "",
    "spark.driver.memory": "2g",
    "spark.log.level": "ERROR",
}


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The rows to measure, and a directory for files; the caller removes them."""

    rows: tuple[Row, ...]
    rounds: int
    directory: str


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """A row, an engine, and the results, round by round."""

    row: str
    engine: str
    measured: tuple[Measured, ...]


class Sums(msgspec.Struct, frozen=True):
    """The sums over all rows."""

    rows: int
    payload_bytes: int
    newest_tick: int
    properties: int


def why_no_spark() -> str | None:
    """Returns the reason why Spark cannot be measured here; None when it can."""
    return local_session.why_no_session()


def main() -> None:
    order = msgspec.json.decode(sys.argv[1], type=Order)
    spark = local_session.session("wal-benchmarks", settings=SETTINGS)
    try:
        results = list(measure(spark, order))
    finally:
        spark.stop()
    sys.stdout.buffer.write(msgspec.json.encode(results) + b"\n")


def measure(spark: Any, order: Order) -> Iterator[Taken]:
    """Creates the files of each row and measures it in this session."""
    from benchmarks.spark_pipe import PipeSource

    spark.dataSource.register(PipeSource)
    for number, row in enumerate(order.rows):
        place = Path(order.directory) / str(number)
        place.mkdir()
        asyncio.run(write_log(row, log_path(str(place))))
        measurements: dict[str, list[Measured]] = {engine: [] for engine in row.engines}
        engines = _engines(spark, row, place)
        for engine in row.engines:  # the compiler's turn
            engines[engine]()
        for turn in range(order.rounds):
            for engine in row.engines if turn % 2 == 0 else row.engines[::-1]:
                measurements[engine].append(_timed(row, engines[engine]))
        for engine, measured in measurements.items():
            yield Taken(row=row.name, engine=engine, measured=tuple(measured))


def _timed(row: Row, engine: Callable[[], list[float] | None]) -> Measured:
    """Runs one pass; if the engine returns seconds, these count instead of the elapsed time."""
    cpu_s, began = tree_cpu_s(), time.perf_counter()
    counted = engine()
    seconds = time.perf_counter() - began
    cpu_s = tree_cpu_s() - cpu_s
    ordered = sorted(array("d", counted or [seconds]))
    seconds = sum(ordered)
    return Measured(
        messages=row.messages,
        seconds=seconds,
        rate=row.messages / seconds,
        p50_s=percentile(ordered, 0.5),
        p99_s=percentile(ordered, 0.99),
        cpu_s=cpu_s,
        payload_bytes=row.messages * row.payload_bytes,
    )


def _engines(spark: Any, row: Row, place: Path) -> dict[str, Callable[[], list[float] | None]]:
    """Returns each engine as a call that reads everything; creates and checks the Parquet files."""
    journal, parquet = str(log_path(str(place))), str(place / "parquet")
    wal = spark.read.format("wal").load(journal)
    wal.write.option("compression", "none").parquet(parquet)
    files = spark.read.parquet(parquet)
    pipe = spark.read.format("wal_benchmark_pipe").option("rows", row.messages).load(journal)
    sums_by_format = {name: _sums(frame) for name, frame in (("wal", wal), ("parquet", files))}
    expected = (row.messages, row.messages * row.payload_bytes, row.messages * row.properties)
    for name, sums in sums_by_format.items():
        if (sums.rows, sums.payload_bytes, sums.properties) != expected or sums != sums_by_format["wal"]:
            raise RuntimeError(f"{name} holds {sums}, the journal was to hold {expected} and holds {sums_by_format['wal']}")
    if pipe.count() != row.messages:
        raise RuntimeError(f"the pipe gave {pipe.count()} rows instead of {row.messages}")
    return {
        "batch": lambda: to_noop(wal),
        "parquet": lambda: to_noop(files),
        "pipe": lambda: to_noop(pipe),
        "stream": lambda: _stream(spark, row, journal),
    }


def _sums(frame: Any) -> Sums:
    row = frame.selectExpr("count(*)", "sum(length(payload))", "max(time_tick)", "sum(size(properties))").first()
    return Sums(*row)


def to_noop(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _stream(spark: Any, row: Row, journal: str) -> list[float]:
    """Returns the seconds of each trigger that had rows, from its planning to its commit."""
    reader = spark.readStream.format("wal").option("startingOffsets", "earliest")
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            reader.option("maxMessagesPerTrigger", min(TRIGGER_ROWS, row.messages // 2))
            .load(journal)
            .writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        triggers = [each for each in query.recentProgress if each.numInputRows]
    if sum(each.numInputRows for each in triggers) != row.messages:
        raise RuntimeError(f"the stream read {sum(each.numInputRows for each in triggers)} of {row.messages} rows")
    return [each.durationMs["triggerExecution"] / 1e3 for each in triggers]


async def write_log(row: Row, path: Path) -> None:
    """Writes group commits of `frame_messages`, over all vchannels in turn, with some tens of different properties.

    There are too many different payloads for a dictionary in Parquet.
    """
    random = Random(1)
    data = [random.randbytes(row.payload_bytes) for _ in range(min(_PAYLOADS, row.messages))]
    async with open_wal(str(path)) as log:
        names = [vchannel_name(number) for number in range(row.vchannels)]
        for name in names:
            await log.create_vchannel(name, pchannel="p0")
        messages = [Message(names[at % row.vchannels], one, properties=_properties(at, row.properties)) for at, one in enumerate(data)]
        for first in range(0, row.messages, row.frame_messages):
            at = first % len(messages)
            await asyncio.gather(*[log.append_nowait(one) for one in messages[at : at + row.frame_messages]])


def _properties(number: int, count: int) -> dict[str, str]:
    """Returns about a hundred bytes of properties, as producers set them; 63 different ones."""
    every = {
        "tenant": f"company-{number % 7:03}-of-some-size",
        "content-type": "application/json",
        "schema": f"orders/v{number % 3}",
        "source": f"checkout-{number % 9}.example.com",
    }
    return dict(list(every.items())[:count])


if __name__ == "__main__":
    main()
