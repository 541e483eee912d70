"""Batch reads: the requested rows of an iteration, each once, in columns as Spark requires them."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.types import IntegerType, StructField, StructType

from tests.spark.logs import NAMES, write_everything
from tests.spark.queries import Row, batch, expected, place_of, plan, read_all, schema, source
from wal import Message, bridge
from wal.errors import CorruptionError, FormatError, InvalidArgumentError, TruncatedError
from wal.message import MessageID
from wal.spark import batch_reader
from wal.spark.edges import DataLossWarning
from wal.spark.row_reader import COLUMNS


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a journal with messages of every kind that no process writes any more."""
    path = tmp_path_factory.mktemp("everything") / "data"
    random = Random(5)
    write_everything(path, random)
    write_everything(path, random, steps=30)
    return path


def by_place(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: (place_of(row), row["vchannel"]))


def test_all_rows_of_all_vchannels(data: Path) -> None:
    rows = batch(data)
    assert by_place(rows) == by_place(expected(data, *NAMES))
    kinds = {row["txn_id"] is None for row in rows}
    assert kinds == {True, False}
    assert {b"to all"} < {row["payload"] for row in rows}
    assert b"never" not in {row["payload"] for row in rows}


def test_rows_of_a_pchannel_keep_their_order(data: Path) -> None:
    rows = batch(data)
    for pchannel in ("p0", "p1"):
        mine = [row for row in rows if place_of(row)[0] == pchannel]
        places = [place_of(row) for row in mine]
        assert places == sorted(places)
        assert [row["time_tick"] for row in mine] == sorted(row["time_tick"] for row in mine)
        assert [row["message_id"] for row in mine] == sorted(row["message_id"] for row in mine)


def test_some_vchannels(data: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, str], list[str]]] = [
        ({"vchannels": "orders"}, ["orders"]),
        ({"vchannels": "orders,ü"}, ["orders", "ü"]),
        ({"vchannels": '["payments", "unknown"]'}, ["payments"]),
        ({"vchannels": "unknown"}, []),
        ({"vchannelsPattern": "(or|pay).*s"}, ["orders", "payments"]),
        ({"vchannelsPattern": "r"}, []),
        ({"vchannelsPattern": ".*"}, list(NAMES)),
    ]
    for options, names in cases:
        with subtests.test(repr(options)):
            assert by_place(batch(data, **options)) == by_place(expected(data, *names))


def test_vchannel_that_was_dropped_is_not_shown(data: Path) -> None:
    assert batch(data, vchannels="gone") == []
    assert batch(data, vchannelsPattern="gone|ü") == expected(data, "ü")


def test_some_types(data: Path) -> None:
    rows = [row for row in batch(data) if row["message_type"] in ("DELETE", "IMPORT")]
    assert rows
    assert batch(data, includeTypes="delete,IMPORT") == rows


@pytest.mark.parametrize("names", [["payload"], ["message_id", "vchannel"], [*reversed(COLUMNS)], ["properties", "txn_id"]])
def test_schema_that_the_user_gives_is_a_projection(data: Path, names: list[str]) -> None:
    columns = schema(*names)
    reader = source(data).reader(columns)
    rows = read_all(pickle.loads(pickle.dumps(reader)), reader.partitions(), columns)
    assert rows == [{name: row[name] for name in names} for row in batch(data)]


def test_schema_with_other_columns_is_refused(data: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[StructField, str]] = [
        (StructField("value", IntegerType()), r"no column value int.*payload binary"),
        (StructField("time_tick", IntegerType()), r"no column time_tick int.*time_tick bigint"),
        (StructField("txn_id", schema("txn_id")[0].dataType, nullable=False), "NOT NULL"),
        (schema("vchannel")[0], "twice"),
    ]
    for field, says in cases:
        with subtests.test(repr(field)):
            columns = StructType([schema("vchannel")[0], field])
            for make in (source(data).reader, source(data).streamReader):
                with pytest.raises(InvalidArgumentError, match=says):
                    make(columns)


def test_never_null_columns_may_be_declared_so(data: Path) -> None:
    columns = StructType([StructField(field.name, field.dataType, nullable=False) for field in schema("payload", "message_id")])
    reader = source(data).reader(columns)
    assert len(read_all(reader, reader.partitions(), columns)) == len(batch(data))


@pytest.mark.parametrize("partitions_max", [1, 2, 5, 40])
@pytest.mark.parametrize("choice", [{}, {"vchannels": "payments,ü"}])
def test_large_reads_are_split(data: Path, partitions_max: int, choice: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_reader, "PARTITION_BYTES", 1024)
    reader, partitions = plan(data, maxPartitions=partitions_max, **choice)
    assert len(partitions) == partitions_max or partitions_max == 40
    assert 1 <= len(partitions) <= partitions_max
    assert read_all(reader, partitions) == batch(data, maxPartitions=1, **choice)


def test_small_reads_are_packed(data: Path) -> None:
    _, partitions = plan(data)
    assert len(partitions) == 1
    assert [piece.pchannel for piece in partitions[0].pieces] == ["p0", "p1"]


def test_partition_is_repeatable_and_may_end_early(data: Path) -> None:
    reader, partitions = plan(data)
    first = read_all(reader, partitions)
    rows = reader.read(partitions[0])
    next(rows)
    rows.close()  # as a LIMIT does
    assert read_all(reader, partitions) == first


@pytest.fixture(scope="module")
def rows_of(data: Path) -> list[Row]:
    return batch(data)


@given(st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_adjacent_ranges_have_every_row_once(data: Path, rows_of: list[Row], draw: st.DataObject) -> None:
    """Wherever a log is cut, inside of frames and transactions too, both parts together have all rows, and transactions are whole."""
    cuts = {}
    for pchannel in ("p0", "p1"):
        mine = [row for row in rows_of if place_of(row)[0] == pchannel]
        row = draw.draw(st.sampled_from(mine))
        found = MessageID.from_bytes(row["message_id"])
        cuts[pchannel] = str(MessageID(pchannel, found.incarnation, found.position, found.index + draw.draw(st.integers(0, 1))))
    place = json.dumps(cuts)
    below, above = batch(data, endingOffsets=place), batch(data, startingOffsets=place)
    assert by_place([*below, *above]) == by_place(rows_of)
    for rows in (below, above):
        txns = {row["txn_id"] for row in rows} - {None}
        assert sum(row["txn_id"] in txns for row in rows_of) == sum(row["txn_id"] in txns for row in rows)
    for row in below:
        assert MessageID.from_bytes(row["message_id"]) < MessageID.parse(cuts[place_of(row)[0]])


def test_unnamed_pchannels_begin_at_the_earliest_event(data: Path, rows_of: list[Row]) -> None:
    assert batch(data, startingOffsets='{"p0": "latest"}') == [row for row in rows_of if place_of(row)[0] == "p1"]
    with pytest.raises(InvalidArgumentError, match=r"'p7'.*p0, p1"):
        batch(data, startingOffsets='{"p7": "latest"}')


def test_ending_offsets_have_to_name_every_pchannel(data: Path, rows_of: list[Row]) -> None:
    with pytest.raises(InvalidArgumentError, match=r"does not name pchannel 'p1'.*earliest"):
        batch(data, endingOffsets='{"p0": "latest"}')
    found = batch(data, endingOffsets='{"p0": "latest", "p1": "earliest"}')
    assert found == [row for row in rows_of if place_of(row)[0] == "p0"]


def test_unknown_positions_are_refused(data: Path, rows_of: list[Row]) -> None:
    last = MessageID.from_bytes(rows_of[-1]["message_id"])
    above = str(MessageID(last.pchannel, last.incarnation, last.position + (1 << 30), 0))
    other = str(MessageID(last.pchannel, last.incarnation + 1, 0, 0))
    for option in ("startingOffsets", "endingOffsets"):
        with pytest.raises(InvalidArgumentError, match="durable end"):
            batch(data, **{option: json.dumps({"p0": "latest", "p1": "latest", last.pchannel: above})})
        with pytest.raises(InvalidArgumentError, match="another incarnation"):
            batch(data, **{option: json.dumps({"p0": "latest", "p1": "latest", last.pchannel: other})})


@given(st.data())
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_first_tick(data: Path, rows_of: list[Row], draw: st.DataObject) -> None:
    tick = draw.draw(st.sampled_from(rows_of))["time_tick"] + draw.draw(st.integers(-1, 1))
    assert batch(data, startingTimeTick=tick) == [row for row in rows_of if row["time_tick"] >= tick]
    milliseconds = tick >> 18
    assert batch(data, startingTimestamp=milliseconds) == [row for row in rows_of if row["time_tick"] >= milliseconds << 18]


def test_empty_log(data_dir: Path) -> None:
    with bridge.blocking(data_dir):
        pass
    assert batch(data_dir) == []


def test_location_without_a_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError):
        batch(tmp_path / "nothing")
    for location in ("memory:", "pulsar://host:6650/t/n"):
        with pytest.raises(InvalidArgumentError, match="directory"):
            batch(location)
    with pytest.raises(InvalidArgumentError, match="names no server"):
        source({"address": "h:1"}).reader(schema())


def test_another_log_in_the_same_place(data_dir: Path, tmp_path: Path) -> None:
    """A worker runs for long and keeps logs open: it detects that the directory holds another journal now."""
    for payload in (b"one", b"two"):
        with bridge.blocking(data_dir) as log:
            log.raw_append(Message("orders", payload))
        assert [row["payload"] for row in batch(data_dir)] == [payload]
        data_dir.rename(tmp_path / payload.decode())


def test_truncation_of_rows_that_were_not_read(data_dir: Path) -> None:
    with bridge.blocking(data_dir) as log:
        results = [log.raw_append(Message("orders", b"%d" % number)) for number in range(10)]
        place = json.dumps({"p0": str(results[2].message_id)})
        reader, partitions = plan(data_dir)
        lenient, same = plan(data_dir, failOnDataLoss=False)
        log.truncate(up_to=results[4].message_id)
        assert [row["payload"] for row in batch(data_dir)] == [b"5", b"6", b"7", b"8", b"9"]
        with pytest.raises(TruncatedError, match="failOnDataLoss"):
            batch(data_dir, startingOffsets=place)
        with pytest.warns(DataLossWarning, match="truncated before"):
            assert len(batch(data_dir, startingOffsets=place, failOnDataLoss=False)) == 5
        with pytest.raises(TruncatedError):
            read_all(reader, partitions)  # planned before
        with pytest.warns(DataLossWarning):
            assert len(read_all(lenient, same)) == 5
        after = json.dumps({"p0": str(MessageID.parse(str(results[4].message_id)))})
        with pytest.raises(TruncatedError):
            batch(data_dir, startingOffsets=after)
        kept = json.dumps({"p0": str(results[5].message_id)})
        assert len(batch(data_dir, startingOffsets=kept)) == 5


def test_damage_raises_an_error(data_dir: Path) -> None:
    with bridge.blocking(data_dir) as log:
        log.append_bulk([Message("orders", b"x" * 1000) for _ in range(50)])
    (segment,) = data_dir.glob("pchannels/p0/*.wal")
    content = bytearray(segment.read_bytes())
    at = content.index(b"x" * 1000)
    content[at + 500] ^= 1
    segment.write_bytes(content)
    with pytest.raises(CorruptionError, match=segment.name):
        batch(data_dir)
