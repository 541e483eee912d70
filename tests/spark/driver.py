"""A process with a Spark of its own, that streams a journal into Parquet and into another journal until it is killed or has everything.

    python -m tests.spark.driver <journal> <folder> <rows a trigger>

In the folder are `sink`, the Parquet of each batch, `target`, the other journal, and a checkpoint of each query. It says `ready` when Spark
runs and waits for `follow` or `finish`; then `begun N` and `written N` of each batch of the first query, and `finished`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Self

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from wal.spark.local_session import session

__all__ = ["QUICK", "Driver"]

QUICK = {
    "spark.log.level": "OFF",
    "spark.sql.adaptive.enabled": False,
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",  # for few rows compiling takes longer than running
    "spark.sql.codegen.wholeStage": False,
    "spark.sql.streaming.pollingDelay": "10ms",
}


class Driver:
    """The process, as its parent holds it: it leads a process group with its JVM and their workers."""

    def __init__(self, data: Path, folder: Path, *, rows: int) -> None:
        self.last_words: list[str] = []
        """What it had said and nobody had heard when it was killed."""
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - `kill` closes it
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.driver", str(data), str(folder), str(rows)],
            cwd=Path(__file__).parents[2],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def tell(self, word: str) -> None:
        """Waits until Spark runs there, and has the query begin."""
        assert self.hear() == "ready"
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """What it says next; it must not have ended by itself."""
        assert self.process.stdout is not None
        said = self.process.stdout.readline().strip()
        if not said:
            self._errors.seek(0)
            raise AssertionError(f"the driver ended by itself:\n{self._errors.read()[-5000:]}")
        return said

    def kill(self) -> None:
        """SIGKILL for all of them."""
        if self.process.returncode is None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self.process.wait()
            assert self.process.stdout is not None
            self.last_words = self.process.stdout.read().splitlines()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._errors.close()
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()
            except BrokenPipeError:
                pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _main(data: str, folder: str, rows_max: str) -> None:
    warnings.simplefilter("ignore")
    spark = session("wal-driver", settings=QUICK)

    def write(rows: DataFrame, batch_id: int) -> None:
        print("begun", batch_id, flush=True)
        rows.write.mode("overwrite").parquet(f"{folder}/sink/batch_id={batch_id}")
        print("written", batch_id, flush=True)

    def rows(*columns: str) -> DataFrame:
        reading = spark.readStream.format("wal").schema(
            "vchannel string, message_id binary, payload binary, txn_id bigint"
        )
        reading = reading.option("startingOffsets", "earliest").option("maxMessagesPerTrigger", rows_max)
        return reading.load(data).select(*columns)

    print("ready", flush=True)
    finish = sys.stdin.readline().strip() == "finish"
    if finish:
        rows_max = str(1 << 31)
    into_parquet = rows("*").writeStream.foreachBatch(write)
    into_journal = rows("vchannel", "payload").writeStream.format("wal").option("path", f"{folder}/target")
    writers = [
        query.option("checkpointLocation", f"{folder}/checkpoint-{number}").trigger(
            **({"availableNow": True} if finish else {"processingTime": "0 seconds"})
        )
        for number, query in enumerate((into_parquet, into_journal))
    ]
    running = {writer: writer.start() for writer in writers}
    while running:
        for writer, query in list(running.items()):
            try:
                if query.awaitTermination(0.1):
                    del running[writer]
            except StreamingQueryException as error:
                # Spark gives a Python process 10 s to start, however busy the host is.
                if "Python worker failed to connect back" not in str(error):
                    raise
                running[writer] = writer.start()
    print("finished", flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
