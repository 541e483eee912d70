"""Two queries that stream a journal into Parquet and into another journal, and a process with its own Spark that runs them until it is
killed.

    python -m tests.spark.driver <journal> <folder> <rows a trigger>

The folder has `sink`, the Parquet of each batch, `target`, the other journal, its `settings.toml`, and a checkpoint of each query. The
process prints `ready` when Spark runs. Then it prints `begun N` and `written N` for each batch of the first query, which waits for ever
when it has written WRITTEN_MAX batches.
"""

from __future__ import annotations

import itertools
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from tests.processes import ROOT, Child
from tests.times import children_of
from wal.spark.local_session import session

QUICK: dict[str, str | int | bool] = {
    "spark.log.level": "OFF",
    "spark.sql.adaptive.enabled": False,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",  # for few rows compiling takes longer than running
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.shuffle.partitions": 1,
    "spark.sql.streaming.pollingDelay": "10ms",
}


OF_SPARK: Final = ("Python worker failed to connect back", "Task serialization failed: java.lang.IllegalStateException: Illegal size")
"""Failures of Spark itself, after which a query is started again. Spark gives a Python process 10 s to start, even on a busy host. Scala
does not serialize a collection of a task that another thread of Spark changes at that moment (happened once with Spark 4.3.0).
"""

WRITTEN_MAX: Final = 2
LINE_S: Final = 180.0
"""The maximum time until the next line: a session of Spark starts in it, also on a busy host."""


class Driver(Child):
    """The process, with its JVM and their Python processes."""

    def __init__(self, data: Path, folder: Path, *, rows: int) -> None:
        options = os.environ.get("SPARK_SUBMIT_OPTS", "")
        temporary = {"TMPDIR": str(folder), "SPARK_SUBMIT_OPTS": f"{options} -Djava.io.tmpdir={folder}"}  # a killed process removes nothing
        environment = {**os.environ, **temporary, "PYTHONPATH": str(ROOT)}
        super().__init__("-m", "tests.spark.driver", data, folder, rows, environment=environment, fresh=True, timeout_s=LINE_S)

    def begin(self) -> None:
        """Waits until Spark runs there, and the queries begin."""
        assert self.line_now() == "ready"

    def kill_while(self, condition: Callable[[], bool]) -> list[str]:
        """Kills the process while the condition holds. All its processes are stopped first, so that none continues meanwhile."""
        while True:
            while not condition():
                assert self.runs, "the driver ended by itself"
                time.sleep(0.0005)
            stopped = self._stop()
            if condition():
                return self.kill_now()
            for pid in reversed(stopped):  # a parent that runs may remove a child that has ended, and with it the child's number
                os.kill(pid, signal.SIGCONT)

    def kill_now(self) -> list[str]:
        """Kills all its processes. The Python processes would continue for a while, in process groups of their own."""
        self._kill_all()
        return super().kill_now()

    def __exit__(self, *_: object) -> None:
        self._kill_all()
        super().__exit__()

    def _kill_all(self) -> None:
        if self.runs:
            for pid in reversed(self._stop()):  # as above
                os.kill(pid, signal.SIGKILL)

    def _stop(self) -> list[int]:
        """Stops all its processes, also ones that begin meanwhile, and returns them, parents first."""
        stopped = [self.pid]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
            while not all(map(is_stopped, Path(f"/proc/{pid}/task").glob("*/stat"))):
                time.sleep(0.0005)
            stopped += children_of(pid)
        return stopped


def is_stopped(stat: Path) -> bool:
    """Returns whether a thread is stopped, or has ended."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] in "TZX"
    except OSError:
        return True


def queries(
    spark: SparkSession, data: str | Path, folder: str | Path, *, say: Callable[[str], None], rows: int = 1 << 31
) -> list[DataStreamWriter]:
    """Returns both queries, ready to be started, with at most this many rows per trigger."""

    def write(frame: DataFrame, batch_id: int) -> None:
        say(f"begun {batch_id}")
        frame.write.mode("overwrite").parquet(f"{folder}/sink/batch_id={batch_id}")
        say(f"written {batch_id}")

    def read(*columns: str) -> DataStreamWriter:
        reading = spark.readStream.format("wal").schema("vchannel string, message_id binary, payload binary, txn_id bigint")
        reading = reading.option("startingOffsets", "earliest").option("maxMessagesPerTrigger", rows)
        return reading.load(str(data)).select(*columns).writeStream

    into_journal = (
        read("vchannel", "payload").format("wal").option("path", f"{folder}/target").option("settings", f"{folder}/settings.toml")
    )
    return [
        query.option("checkpointLocation", f"{folder}/checkpoint-{number}")
        for number, query in enumerate((read("*").foreachBatch(write), into_journal))
    ]


def _main(data: str, folder: str, rows_max: str) -> None:
    warnings.simplefilter("ignore")
    spark = session("wal-driver", settings=QUICK)
    written = itertools.count(1)

    def say(said: str) -> None:
        print(said, flush=True)
        if said.startswith("written") and next(written) == WRITTEN_MAX:
            threading.Event().wait()

    writers = queries(spark, data, folder, say=say, rows=int(rows_max))
    print("ready", flush=True)
    running: list[StreamingQuery | None] = [None for _ in writers]
    while True:
        for number, query in enumerate(running):
            try:
                if query is None:
                    running[number] = writers[number].start()
                else:
                    query.awaitTermination(0.1)  # type: ignore[arg-type]
            except (PySparkException, Py4JError) as error:
                if not any(said in str(error) for said in OF_SPARK):
                    raise
                running[number] = None


if __name__ == "__main__":
    _main(*sys.argv[1:])
