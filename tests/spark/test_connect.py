"""Spark Connect: the server discovers the format, which reads, streams and passes batches on as in a classic session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.processes import run_python
from wal import Message
from wal.bridge import blocking


@pytest.fixture
def connect_address(spark: SparkSession) -> Iterator[str]:
    """Yields the address of a server of Spark Connect, which runs in the session of the other tests: another one takes long to start."""
    jvm: Any = spark._jvm
    service = getattr(getattr(jvm.org.apache.spark.sql.connect.service, "SparkConnectService$"), "MODULE$")
    service.start(spark.sparkContext._jsc.sc())
    yield f"sc://127.0.0.1:{service.localPort()}"
    service.stop(jvm.scala.Option.empty(), jvm.scala.Option.empty())


def test_server_of_connect_reads_and_streams(connect_address: str, data_dir: Path, tmp_path: Path) -> None:
    with blocking(data_dir) as log:
        for index in range(5):
            log.raw_append(Message("orders", f"plain {index}".encode()))
        with log.txn("orders") as txn:
            for index in range(4):
                txn.append(f"body {index}".encode())
    expected = sorted([f"plain {index}" for index in range(5)] + [f"body {index}" for index in range(4)])
    ended = run_python("-m", "tests.spark.connect_client", connect_address, data_dir, tmp_path / "spark", timeout_s=300)
    (found,) = [line.removeprefix("found ") for line in ended.out.splitlines() if line.startswith("found ")]
    assert json.loads(found) == {"module": "pyspark.sql.connect.session", "batch": expected, "in_txn": 4, "stream": expected}
