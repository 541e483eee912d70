"""`bridge.record_batches`: messages as Arrow columns."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from tests.api.blocking.bridging import append_what_is_told, no_thread_is_left, write
from tests.probes import row_of
from tests.processes import Other
from wal import Message, MessageID, MessageType, MessageTypes, StartAfter, bridge

__all__ = ["no_thread_is_left"]


def test_schema_and_rows(data: str) -> None:
    columns = {
        "vchannel": pa.string(),
        "message_id": pa.binary(),
        "time_tick": pa.int64(),
        "message_type": pa.string(),
        "txn_id": pa.int64(),
        "payload": pa.binary(),
        "properties": pa.map_(pa.string(), pa.string()),
        "append_time": pa.timestamp("us", tz="UTC"),
    }

    write(data)
    with bridge.iterate(data, "orders", follow=False) as messages:
        expected = [row_of(body) for message in messages for body in message.bodies()]
    table = pa.Table.from_batches(bridge.record_batches(data, "orders", follow=False))
    assert {field.name: field.type for field in table.schema} == columns
    assert table.schema.names == list(columns)
    table.validate(full=True)
    rows = table.to_pylist()
    assert len(rows) == 100
    assert rows == expected
    assert MessageID.from_bytes(rows[0]["message_id"]).position >= 0
    assert rows[0]["append_time"].tzinfo is not None
    assert abs(rows[0]["append_time"] - datetime.datetime.now(datetime.UTC)) < datetime.timedelta(minutes=5)
    assert [row["txn_id"] is None for row in rows[:9]] == [True] * 5 + [False] * 3 + [True]
    assert rows[5]["txn_id"] == rows[6]["txn_id"] != rows[7]["txn_id"]
    assert rows[8]["message_type"] == "DELETE"


@pytest.mark.parametrize("options", [{}, {"types": [MessageType.DELETE]}, {"after": 4}, {"until": 6}])
def test_batches_hold_the_iterators_messages(data: str, options: dict[str, Any]) -> None:
    write(data, 500)
    with bridge.iterate(data, "orders", follow=False) as messages:
        everything = list(messages)
    read: dict[str, Any] = {}
    if "types" in options:
        read["filters"] = [MessageTypes(*options["types"])]
    if "after" in options:
        read["deliver_policy"] = StartAfter(everything[options["after"]].message_id)
    if "until" in options:
        read["until_time_tick"] = everything[options["until"]].time_tick
    for vchannel in ("orders", ["orders", "payments"], "none"):
        with bridge.iterate(data, vchannel, follow=False, **read) as messages:
            expected = [bytes(body.message_id) for message in messages for body in message.bodies()]
        found = [
            message_id.as_py()
            for batch in bridge.record_batches(data, vchannel, follow=False, **read)
            for message_id in batch.column("message_id")
        ]
        assert found == expected


def test_many_rows_of_all_sizes(data: str) -> None:
    sizes = [0, 1, 100, 5000, 100_000]
    written = [b"%06d" % number + bytes(sizes[number % 5]) for number in range(3000)]
    with bridge.blocking(data, segment_bytes=1 << 20) as log:
        log.append_bulk([Message("orders", payload) for payload in written])
    batches = list(bridge.record_batches(data, "orders", follow=False))
    assert len(batches) > 1, "batches are bounded"
    assert [value.as_py() for batch in batches for value in batch.column("payload")] == written
    ticks = [value.as_py() for batch in batches for value in batch.column("time_tick")]
    assert ticks == sorted(set(ticks))


def test_batches_can_be_abandoned(data: str) -> None:
    write(data, 5000)
    batches = bridge.record_batches(data, "orders", follow=False)
    assert next(batches).num_rows > 0
    batches.close()
    assert list(batches) == []


def test_beside_a_writer(data: str) -> None:
    write(data, 10)
    writer = Other(append_what_is_told, data)
    writer.tell(b"10")
    writer.hear_now()
    rows = pa.Table.from_batches(bridge.record_batches(data, "orders", follow=False)).column("payload")
    assert [int(row.as_py()) for row in rows] == list(range(11))
    writer.kill_now()
