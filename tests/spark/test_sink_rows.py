"""The rows of the sink: the log accepts every row that passes, and an error names a row that does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.spark.sink_tasks import Sink, schema
from wal.bridge import iterate
from wal.errors import CorruptionError, InvalidArgumentError
from wal.message import MessageType, encode_properties
from wal.settings import Settings
from wal.spark.sink.chunking import ROW_OVERHEAD, ChunkBounds
from wal.spark.sink.rows import RowReader, check_columns
from wal.spark.sink.staging import StagingWriter, read_chunks

PROPERTIES = pa.map_(pa.string(), pa.string())
BOUNDS = ChunkBounds.of(Settings())
SMALL = ChunkBounds.of(Settings(txn_bodies_max=5, txn_bytes_max=400, message_bytes_max=300))


def reader(bounds: ChunkBounds = BOUNDS, vchannel: str | None = None) -> RowReader:
    return RowReader(bounds, vchannel=vchannel, partition_id=4)


def one(**columns: Any) -> pa.RecordBatch:
    return pa.record_batch({"vchannel": ["a", "b", "a"], "payload": [b"1", b"2", b"3"], **columns})


TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
KEY = TEXT.filter(lambda key: not key.startswith("_"))
ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", "ü" * 20]),
        st.binary(max_size=40),
        st.sampled_from([None, "INSERT", "DELETE"]),
        st.none() | st.dictionaries(KEY, TEXT, max_size=4),
    ),
    max_size=40,
)


def arrow(rows: list[tuple[str, bytes, str | None, dict[str, str] | None]]) -> pa.RecordBatch:
    maps = [None if row[3] is None else list(row[3].items()) for row in rows]
    return pa.record_batch(
        {
            "vchannel": pa.array([row[0] for row in rows], pa.string()),
            "payload": pa.array([row[1] for row in rows], pa.binary()),
            "message_type": pa.array([row[2] for row in rows], pa.string()),
            "properties": pa.array(maps, PROPERTIES),
        }
    )


@given(st.lists(ROWS, max_size=5), st.integers(0, 3))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_staged_rows_return_in_order(tmp_path: Path, batches: list[list[Any]], cut_off: int) -> None:
    rows = [row for rows in batches for row in rows[cut_off:]]
    given_batches = (arrow(rows).slice(cut_off) for rows in batches)
    staged = StagingWriter(tmp_path, partition_id=4, attempt=1, bounds=SMALL).stage(given_batches, reader(SMALL))
    if staged is None:
        assert rows == []
        return
    assert staged.rows == len(rows)
    assert (tmp_path / staged.name).stat().st_size == staged.size
    chunks = [list(chunk.messages()) for chunk in read_chunks(tmp_path, staged)]
    assert len(chunks) == staged.chunks
    messages = [message for chunk in chunks for message in chunk]
    assert [(message.vchannel, message.payload, message.message_type, message.properties) for message in messages] == [
        (name, payload, MessageType[kind or "INSERT"], properties or {}) for name, payload, kind, properties in rows
    ]
    for chunk in chunks:
        assert len(chunk) <= 5
        assert sum(message.estimate_size() + ROW_OVERHEAD for message in chunk) <= 400
    assert [list(chunk.messages()) for chunk in read_chunks(tmp_path, staged, skip=1)] == chunks[1:]


@given(ROWS)
def test_counted_bytes_are_at_least_the_logs(rows: list[Any]) -> None:
    checked = reader().read(arrow(rows))
    for (_, payload, _, properties), counted, stored in zip(rows, checked.counted, checked.stored, strict=True):
        texts = [text for entry in (properties or {}).items() for text in entry]
        assert counted == len(payload) + sum(len(text.encode()) for text in texts) + ROW_OVERHEAD
        encoded = encode_properties(properties) if properties else b""
        assert stored >= len(payload) + len(encoded) + ROW_OVERHEAD


def test_wrong_row_is_named(subtests: pytest.Subtests) -> None:
    cases: list[tuple[pa.RecordBatch, str]] = [
        (one(payload=pa.array([b"1", None, b"3"])), "row 1 of Spark partition 4: payload is null"),
        (one(vchannel=pa.array(["a", "b", None])), "row 2 of Spark partition 4: vchannel is null"),
        (one(vchannel=["a", "", "b"]), "row 1 of Spark partition 4: vchannel is empty"),
        (one(vchannel=["a", "b\n", "b"]), "row 1 of Spark partition 4: .*control characters"),
        (one(message_type=["INSERT", None, "FLUSH"]), "row 2 .*message_type 'FLUSH'.*INSERT, DELETE"),
        (one(properties=pa.array([None, [("a", "b")], [("b", "c"), ("_x", "y")]], PROPERTIES)), "row 2 .*'_x' is reserved"),
        (one(properties=pa.array([[("a", None)], [], None], PROPERTIES)), "row 0 .*property 'a' is null"),
        (one(payload=[b"", b"x" * (1 << 20), b"x" * ((1 << 20) + 1)]), "row 2 .*1048577 bytes.*message_bytes_max=1048576"),
        (one(payload=[b"", b"x" * (1 << 20), b""], properties=pa.array([None, [("a", "")], None], PROPERTIES)), "row 1 .*1048577"),
    ]
    for batch, text in cases:
        with subtests.test(repr(batch)), pytest.raises(InvalidArgumentError, match=text):
            reader().read(batch)


def test_rows_are_numbered_over_all_batches(tmp_path: Path) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for _ in range(20):
            yield one()
        yield one(payload=pa.array([b"1", b"2", None]))

    with pytest.raises(InvalidArgumentError, match="row 62 of Spark partition 4: payload is null"):
        StagingWriter(tmp_path, partition_id=4, attempt=1, bounds=SMALL).stage(batches(), reader(SMALL))
    assert list(tmp_path.iterdir()) == []


def test_too_large_row_is_named() -> None:
    bounds = ChunkBounds.of(Settings(txn_bytes_max=100, message_bytes_max=200))
    with pytest.raises(InvalidArgumentError, match=r"row 1 .*132 bytes in a transaction, over the 100 of txn_bytes_max"):
        reader(bounds).read(one(payload=[b"", b"x" * 100, b""]))


def test_option_vchannel_decides_where_all_rows_go() -> None:
    rows = reader(vchannel="one").read(pa.record_batch({"payload": ["ä", "b"]}))
    assert rows.table.column(0).to_pylist() == ["one", "one"]
    assert rows.table.column(1).to_pylist() == ["ä".encode(), b"b"]


def test_refused_columns_are_named(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[tuple[str, str]], str]] = [
        ([("vchannel", "string")], "no column 'payload'.*accepted are: vchannel string"),
        ([("payload", "binary")], "neither a column 'vchannel' nor the option vchannel"),
        ([("vchannel", "string"), ("payload", "int")], "'payload' is of type int.*cast it to binary or string"),
        ([("vchannel", "string"), ("payload", "binary"), ("time_tick", "bigint")], "'time_tick' cannot be written.*properties"),
        ([("vchannel", "string"), ("payload", "binary"), ("properties", "map<string,int>")], "map<string,int>"),
        ([("vchannel", "string"), ("payload", "binary"), ("payload", "binary")], "'payload' is given 2 times"),
    ]
    for fields, text in cases:
        with subtests.test(repr(fields)), pytest.raises(InvalidArgumentError, match=text):
            check_columns(fields, vchannel=None)


def test_many_vchannels_with_long_names_fit_their_frames(tmp_path: Path) -> None:
    names = [f"{number:04}" + "n" * 200 for number in range(2500)]
    sink = Sink(tmp_path / "log", query_id=None)
    sink.run([[(name, b"x" * 1500) for name in names]])
    with iterate(sink.journal, names, follow=False) as messages:
        events = [[(body.vchannel, body.payload) for body in message.bodies()] for message in messages]
    assert len(events) > 1
    assert sorted(row for event in events for row in event) == [(name, b"x" * 1500) for name in names]


def test_types_and_properties_reach_the_log(tmp_path: Path) -> None:
    columns = schema("vchannel", "payload", "message_type", "properties")
    sink = Sink(tmp_path / "log", query_id=None, columns=columns)
    writer = sink.writer()
    rows = one(message_type=[None, "DELETE", "INSERT"], properties=pa.array([[("k", "ü")], None, []], PROPERTIES))
    sink.commit(writer, [sink.write(writer, iter([rows]), 0, 0)])
    seen = {}
    for vchannel in ("a", "b"):
        with iterate(sink.journal, vchannel, follow=False) as messages:
            seen[vchannel] = [(b.payload, b.message_type.name, b.properties) for m in messages for b in m.bodies()]
    assert seen == {"a": [(b"1", "INSERT", {"k": "ü"}), (b"3", "INSERT", {})], "b": [(b"2", "DELETE", {})]}


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
def test_damaged_staged_file_raises_an_error(tmp_path: Path, data: st.DataObject) -> None:
    staged = StagingWriter(tmp_path, partition_id=0, attempt=0, bounds=SMALL).stage(iter([one()] * 4), reader(SMALL))
    assert staged is not None
    path = tmp_path / staged.name
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :])
    with pytest.raises(CorruptionError, match="discard") as caught:
        list(read_chunks(tmp_path, staged))
    assert caught.value.path == str(path)
    path.write_bytes(whole[:at])
    with pytest.raises(CorruptionError):
        list(read_chunks(tmp_path, staged))
    path.unlink()
    with pytest.raises(CorruptionError, match="gone"):
        list(read_chunks(tmp_path, staged))
