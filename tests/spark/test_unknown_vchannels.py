"""A read by Spark that names a missing vchannel: no rows, and a warning of the driver that lists the existing ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.queries import StreamQuery, batch
from wal import Message, bridge


@pytest.mark.parametrize("form", ["batch", "stream"])
def test_unknown_vchannel_is_a_warning_of_the_driver(data_dir: Path, caplog: pytest.LogCaptureFixture, form: str) -> None:
    with bridge.blocking(data_dir) as log:
        log.raw_append(Message("orders", b"1"))
    caplog.set_level("WARNING", logger="wal.channels")
    if form == "batch":
        rows = batch(data_dir, vchannels="orders,oders")
    else:
        query = StreamQuery(data_dir, vchannels="orders,oders", startingOffsets="earliest")
        rows = [row for some in query.run() for row in some or ()]
    assert [row["payload"] for row in rows] == [b"1"]
    assert caplog.messages == [
        f"vchannel 'oders' does not exist in {data_dir}: it is read as an empty log until it is created; there are 'orders'"
    ]
