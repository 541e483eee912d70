"""Spark Connect: the server finds the format, which reads, streams and passes batches on as in a classic session."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.spark.java import require_java
from wal import Message
from wal.bridge import blocking


def test_server_of_connect_reads_and_streams(data_dir: Path, tmp_path: Path) -> None:
    require_java()
    with blocking(data_dir) as log:
        for index in range(5):
            log.raw_append(Message("orders", f"plain {index}".encode()))
        with log.txn("orders") as txn:
            for index in range(4):
                txn.append(f"body {index}".encode())
    expected = sorted([f"plain {index}" for index in range(5)] + [f"body {index}" for index in range(4)])
    root = str(Path(__file__).parents[2])
    client = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.connect_driver", str(data_dir), str(tmp_path / "spark")],
        cwd=root,
        env={**os.environ, "PYTHONPATH": root},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, errors = client.communicate()
    finally:
        try:
            os.killpg(client.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    found = [line.removeprefix("said ") for line in out.splitlines() if line.startswith("said ")]
    assert found, errors[-5000:]
    said = json.loads(found[0])
    assert said["connect"].startswith("pyspark.sql.connect")
    assert said["batch"] == expected
    assert said["in_txn"] == 4
    assert said["stream"] == expected
