"""Checks whether Spark can run here: in CI it must. Makes its sessions start in half of the time.

`python -m tests.spark.java` creates the `SPARK_HOME` of tests/conftest.py, which `make test` does once for an environment. The home lacks
the zip file from which Spark's Python processes otherwise import pyspark: each of them, some hundreds in a run, would compile it again. It
has `CLASSES` instead.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import CLASSES, SPARK_HOME
from wal.spark.local_session import session, why_no_session


def require_java() -> None:
    """Skips the test, with a warning, if Spark cannot run; in CI that is a failure."""
    reason = why_no_session()
    if reason is None:
        return
    if os.environ.get("CI"):
        pytest.fail(f"CI runs Spark's tests, and there is no Spark here: {reason}")
    pytest.skip(f"SPARK'S TESTS DO NOT RUN HERE: {reason}")


def link_home(home: Path) -> None:
    """Creates a home of Spark with links to the programs and classes of pyspark."""
    import pyspark

    home.mkdir(exist_ok=True)
    for name in ("bin", "jars"):
        link = home / name
        link.unlink(missing_ok=True)
        link.symlink_to(Path(pyspark.__file__).parent / name)


def main() -> None:
    """Makes the home. A session that does what tests do (batch, stream, functions in Python, Parquet) writes `CLASSES` when it ends."""
    if (reason := why_no_session()) is not None:
        print(f"no classes of Spark are shared: {reason}")
        return
    link_home(SPARK_HOME)
    os.environ["SPARK_HOME"] = str(SPARK_HOME)
    written = CLASSES.with_suffix(f".{os.getpid()}")
    os.environ["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={written} -Xlog:cds=off -Xlog:cds+dynamic=off"
    warnings.simplefilter("ignore")  # of Spark's own, about the libraries it finds
    with tempfile.TemporaryDirectory() as folder:
        spark = session("classes", settings={"spark.log.level": "OFF"})
        spark.range(3).mapInArrow(lambda batches: batches, "id long").write.parquet(f"{folder}/rows")
        stream: Any = spark.readStream.schema("id long").parquet(f"{folder}/rows")
        query = stream.writeStream.foreachBatch(lambda rows, _: rows.collect()).option("checkpointLocation", f"{folder}/c")
        query.trigger(availableNow=True).start().awaitTermination()
        java = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        spark.stop()
        java.stdin.close()
        java.wait()
    written.rename(CLASSES)


if __name__ == "__main__":
    main()
