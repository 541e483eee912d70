"""Arrow batches: the rows of every read are the bodies of the messages that `iterate` yields for it."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import wal
from tests.api.blocking.logs import Writer, numbers, write_mixture
from tests.probes import row_of
from tests.processes import run_python
from wal.api.arrow import record_batch, schema
from wal.errors import CorruptionError, FormatError, InvalidArgumentError, TruncatedError
from wal.message import Origin
from wal.read.columns import RowColumns


def rows_of(messages: list[wal.ImmutableMessage]) -> list[dict[str, Any]]:
    return [row_of(body) for message in messages for body in message.bodies()]


def both(data: str, vchannel: Any, **read: Any) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Returns the rows of a read by messages and by batches, and checks the schema and sizes of the batches."""
    limits = {name: read.pop(name) for name in ("rows_max", "bytes_max") if name in read}
    with wal.bridge.iterate(data, vchannel, follow=False, **read) as messages:
        expected = rows_of(list(messages))
    found: list[dict[str, Any]] = []
    with wal.bridge.record_batches(data, vchannel, follow=False, **limits, **read) as batches:
        for batch in batches:
            batch.validate(full=True)
            assert batch.schema == schema()
            assert 0 < batch.num_rows <= limits.get("rows_max", 65_536)
            found += batch.to_pylist()
    return expected, found


@pytest.mark.parametrize("seed", range(4))
def test_every_read_gives_the_rows_of_its_messages(data: str, seed: int, soak: int) -> None:
    random = Random(f"{seed}/{soak}")
    write_mixture(data, random, steps=60 * soak)
    with wal.bridge.iterate(data, ["orders", "payments", "ü"], follow=False) as messages:
        everything = list(messages)
        end = messages.position
    assert end is not None
    assert any(message.txn_context for message in everything)
    for _ in range(12):
        at = random.choice(everything)
        body = random.choice(list(at.bodies()) or [at])
        reads: list[dict[str, Any]] = [
            {},
            {"deliver_policy": wal.StartFrom(body.message_id)},
            {"deliver_policy": wal.StartAfter(body.message_id)},
            {"deliver_policy": wal.Latest()},
            {"filters": wal.TimeTickGT(at.time_tick)},
            {"filters": [wal.TimeTickGTE(at.time_tick), wal.MessageTypes(wal.MessageType.INSERT)]},
            {"filters": wal.MessageTypes(wal.MessageType.DELETE, wal.MessageType.IMPORT)},
            {"until_time_tick": at.time_tick},
            {"until_time_tick": at.time_tick - 1, "include_time_ticks": True},
            {"resume": wal.ReadPosition(at.message_id, at.time_tick), "include_time_ticks": True},
            {"resume": end},
        ]
        names = random.choice(("orders", "ü", ["orders", "payments"], ["ü", "payments", "orders"], "nothing"))
        read = random.choice(reads)
        limits = random.choice(({}, {"rows_max": 1}, {"rows_max": 7}, {"bytes_max": 1}, {"bytes_max": 10_000}))
        expected, found = both(data, names, **read, **limits)
        assert found == expected, (seed, names, read, limits)


def test_time_ticks_before_any_event_have_no_id(data: str) -> None:
    with wal.bridge.blocking(data):
        pass
    expected, found = both(data, "orders", include_time_ticks=True)
    assert found == expected
    assert [row["message_id"] for row in found] == [None]
    assert found[0]["message_type"] == "TIME_TICK"


def test_position_comes_after_the_batches_given(data: str) -> None:
    """Messages that were read ahead do not count: a reader that stops after any batch resumes exactly with the rows of the next batch."""
    write_mixture(data, Random(7))
    whole = both(data, "orders")[0]
    for rows_max in (1, 5, 64):
        with wal.bridge.record_batches(data, "orders", follow=False, rows_max=rows_max) as batches:
            taken = 0
            places = []
            for batch in batches:
                taken += batch.num_rows
                places.append((taken, batches.position))
        assert taken == len(whole)
        for count, position in places[:: max(1, len(places) // 8)]:
            if position is None:
                continue
            rest = [row for one in wal.bridge.record_batches(data, "orders", follow=False, resume=position) for row in one.to_pylist()]
            # A batch may end in the middle of a frame or a transaction; the position is then before it.
            assert whole[len(whole) - len(rest) :] == rest
            assert len(whole) - len(rest) <= count
        ticks = [position.time_tick for _, position in places if position is not None]
        assert all(before <= after for before, after in pairwise(ticks))


def test_follower_gets_a_batch_at_the_tail(data: str) -> None:
    with Writer(data) as writer, wal.bridge.record_batches(data, "orders", timeout_s=5.0) as batches:
        for number in range(5):
            writer.append(number, number)
            found: list[int] = []
            while len(found) < 2:
                found += [int(value.as_py()) for value in next(batches).column("payload")]
            assert found == [number, number]
    with pytest.raises(StopIteration):
        next(batches)


def test_timeout_gives_the_rows_read_so_far(data: str) -> None:
    with wal.bridge.blocking(data) as log:
        log.append_bulk([wal.Message("orders", b"%d" % number) for number in range(10)])
    with wal.bridge.record_batches(data, "orders", timeout_s=0.05) as batches:
        assert next(batches).num_rows == 10
        for _ in range(2):
            with pytest.raises(TimeoutError):
                next(batches)
        with wal.bridge.blocking(data) as log:
            log.raw_append(wal.Message("orders", b"10"))
        assert next(batches).column("payload").to_pylist() == [b"10"]


def test_cursor_is_saved_after_the_batches_given(data: str) -> None:
    with wal.bridge.blocking(data) as log:
        for first in range(0, 40, 4):
            log.append_bulk([wal.Message("orders", b"%d" % number) for number in range(first, first + 4)])
    found: list[int] = []
    while len(found) < 40:
        with wal.bridge.record_batches(data, "orders", follow=False, cursor="spark", bytes_max=1) as batches:
            for _ in range(3):
                batch = next(batches, None)
                if batch is not None:
                    found += [int(value.as_py()) for value in batch.column("payload")]
            batches.save()
    assert found == list(range(40))
    with wal.bridge.blocking(data, read_only=True) as log:
        assert [info.lag_bytes for info in log.cursors()] == [0]
        log.delete_cursor("spark")


def test_ids_and_times_of_rows_are_usable(data: str) -> None:
    with wal.bridge.blocking(data) as log:
        results = log.append_bulk([wal.Message("orders", b"%d" % number) for number in range(3)])
    (batch,) = wal.bridge.record_batches(data, "orders", follow=False)
    assert [wal.MessageID.from_bytes(value.as_py()) for value in batch.column("message_id")] == [result.message_id for result in results]
    middle = wal.MessageID.from_bytes(batch.column("message_id")[1].as_py())
    with wal.bridge.iterate(data, "orders", follow=False, deliver_policy=wal.StartFrom(middle)) as messages:
        assert numbers(messages) == [1, 2]
    assert pa.Table.from_batches([batch]).sort_by("message_id").column("payload").to_pylist() == [b"0", b"1", b"2"]


def test_truncated_starts_and_wrong_arguments_are_errors(data: str) -> None:
    with wal.bridge.blocking(data) as log:
        results = log.append_bulk([wal.Message("orders", b"%d" % number) for number in range(3)])
        log.truncate(up_to=results[1].message_id)
    assert results[0].message_id is not None
    with pytest.raises(TruncatedError) as caught:
        next(wal.bridge.record_batches(data, "orders", deliver_policy=wal.StartFrom(results[0].message_id)))
    assert caught.value.earliest == results[2].message_id
    for name in ("rows_max", "bytes_max"):
        with pytest.raises(InvalidArgumentError, match=name):
            wal.bridge.record_batches(data, "orders", **{name: 0})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=name):
            wal.bridge.record_batches(data, "orders", **{name: True})  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        wal.bridge.record_batches(data, "orders", handler=print)  # type: ignore[call-arg]


def test_without_pyarrow_the_error_says_what_to_install(data: str) -> None:
    code = (
        "import sys; sys.modules['pyarrow'] = None; from wal import bridge\n"
        f"try: bridge.record_batches({data!r}, 'orders')\n"
        "except ImportError as error: print(error.name, error)\n"
    )
    said = run_python("-c", code).out
    assert said.startswith("pyarrow ")
    assert "which is not installed: pip install '" in said
    assert "[arrow]'" in said


def test_row_of_a_time_tick_equals_the_scanners(data: str) -> None:
    with wal.bridge.blocking(data) as log:
        log.raw_append(wal.Message("orders", b"1"))
        with log.read("orders", follow=False, include_time_ticks=True) as scanner:
            assert isinstance(list(scanner)[-1], wal.TimeTickMessage)
    expected, found = both(data, "orders", include_time_ticks=True)
    assert found == expected
    assert [row["message_type"] for row in found] == ["INSERT", "TIME_TICK"]


@pytest.mark.parametrize(
    "columns", [["message_id", "payload"], ["properties"], ["append_time", "txn_id", "vchannel"], ["message_type", "time_tick"]]
)
def test_only_the_columns_asked_for_are_given(data: str, columns: list[str]) -> None:
    write_mixture(data, Random(11))
    names = ["orders", "payments", "ü"]
    with wal.bridge.record_batches(data, names, follow=False) as batches:
        whole = pa.Table.from_batches(batches)
    with wal.bridge.record_batches(data, names, follow=False, columns=columns, rows_max=50) as batches:
        chosen = pa.Table.from_batches(batches)
    assert chosen.schema == schema(columns)
    assert chosen.equals(whole.select(columns))


def test_wrong_choice_of_columns_is_an_error(data: str) -> None:
    for columns in (["payload", "offset"], [], ["payload", "payload"]):
        with pytest.raises(InvalidArgumentError, match="column"):
            wal.bridge.record_batches(data, "orders", columns=columns)
    with pytest.raises(TypeError):
        wal.bridge.record_batches(data, "orders", columns="payload")


def test_properties_that_are_no_maps_are_damage() -> None:
    columns = RowColumns(["properties"])
    origin = Origin("p0", 7, 0)
    columns.add_messages([wal.ImmutableMessage(origin, 0, 77, "orders", b"", 2, b"\xc1")])
    with pytest.raises(CorruptionError, match="properties"):
        record_batch(columns)


def test_large_frame_makes_several_batches(data: str) -> None:
    """A frame may hold four megabytes; batches stay near the requested size."""
    with wal.bridge.blocking(data) as log:
        log.append_bulk([wal.Message("orders", bytes(1000)) for _ in range(4000)])
    with wal.bridge.record_batches(data, "orders", follow=False, bytes_max=256 * 1024) as batches:
        sizes = [batch.num_rows for batch in batches]
    assert sum(sizes) == 4000
    assert max(sizes) <= 2200


def test_read_is_a_stream_of_arrows_interface(data: str) -> None:
    write_mixture(data, Random(12))
    names = ["orders", "payments", "ü"]
    with wal.bridge.record_batches(data, names, follow=False, rows_max=100) as batches:
        expected = pa.Table.from_batches(batches)
    with wal.bridge.record_batches(data, names, follow=False, rows_max=100) as batches:
        assert pa.table(batches).equals(expected)
    with wal.bridge.record_batches(data, "nothing", follow=False, columns=["payload"]) as batches:
        assert pa.table(batches).schema == batches.schema == schema(["payload"])


@pytest.mark.parametrize(
    ("settings", "says"), [(wal.Settings(), "give the setting kv"), (wal.Settings(kv="kv"), "one process has for itself")]
)
def test_log_on_pulsar_needs_shared_metadata(settings: wal.Settings, says: str) -> None:
    with pytest.raises(InvalidArgumentError, match=says):
        wal.bridge.record_batches("pulsar://127.0.0.1:6650/public/default", "orders", settings=settings)


@pytest.mark.parametrize("read", [wal.bridge.record_batches, wal.bridge.iterate])
def test_location_without_a_journal_fails_the_call(data: str, read: Any) -> None:
    with pytest.raises(FormatError, match=f"^{data} holds no journal"):
        read(data, "orders", follow=False)
    with pytest.raises(InvalidArgumentError, match="no known form"):
        read("http://host/data", "orders", follow=False)


def test_early_error_is_not_an_arrow_error(data: str) -> None:
    with wal.bridge.blocking(data) as log:
        first, second, _ = [log.raw_append(wal.Message("orders", payload)) for payload in (b"gone", b"gone too", b"there")]
        log.truncate(up_to=second.message_id)
    batches = wal.bridge.record_batches(data, "orders", follow=False, deliver_policy=wal.StartFrom(first.message_id))
    with pytest.raises(TruncatedError):
        pa.RecordBatchReader.from_stream(batches)


def test_table_has_the_rest_of_the_read(data: str) -> None:
    with wal.bridge.blocking(data) as log:
        log.append_bulk(wal.Message("orders", b"%d" % number) for number in range(5))
    with wal.bridge.record_batches(data, "orders", columns=["payload"], follow=False, rows_max=2) as batches:
        assert next(batches).num_rows == 2
        table = batches.to_table()
        assert table["payload"].to_pylist() == [b"2", b"3", b"4"]
        empty = batches.to_table()
    assert (empty.num_rows, empty.schema) == (0, schema(["payload"]))
