"""Options: each is accepted in all its forms, and a wrong name or value is an error that names the valid ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from wal import Matching, Secret
from wal.errors import InvalidArgumentError
from wal.message import MessageID, MessageType
from wal.spark.location import SparkLocation
from wal.spark.offsets import PChannelOffset, StreamOffset
from wal.spark.options import OPTIONS, TICK_TIMEOUT_MS, ChannelChoice, SourceOptions
from wal.spark.row_reader import COLUMNS


def of(streaming: bool = False, **options: str) -> SourceOptions:
    return SourceOptions.of({"path": "data", **options}, streaming=streaming)


def test_defaults() -> None:
    batch, stream = of(), of(streaming=True)
    assert batch == SourceOptions(SparkLocation("path", "data"), ChannelChoice(), "earliest")
    assert stream == SourceOptions(SparkLocation("path", "data"), ChannelChoice(), "latest")
    assert batch.channels.everything
    assert (batch.fail_on_data_loss, batch.tick_timeout_s, batch.ending) == (True, 30.0, "latest")


def test_each_option() -> None:
    found = of(
        vchannels="a, b,a",
        startingTimeTick="17",
        endingTimeTick="18",
        tickTimeoutMs="250",
        maxMessagesPerTrigger="5",
        maxBytesPerTrigger="6",
        maxPartitions="7",
        failOnDataLoss="False",
        includeTypes="insert, DELETE",
    )
    assert found.channels == ChannelChoice(("a", "b"))
    assert (found.starting, found.starting_tick, found.ending_tick, found.tick_timeout_s) == ("earliest", 17, 18, 0.25)
    assert (found.rows_max, found.bytes_max, found.partitions_max, found.fail_on_data_loss) == (5, 6, 7, False)
    assert found.types == frozenset({MessageType.INSERT, MessageType.DELETE})
    assert of(vchannels='["a,b", "c"]').channels == ChannelChoice(("a,b", "c"))
    assert of(startingTimestamp="1700000000000").starting_tick == 1700000000000 << 18
    assert of(maxOffsetsPerTrigger="9").rows_max == 9


def test_case_and_sparks_own_options_are_accepted() -> None:
    given = {name.upper(): value for name, value in {"path": "d", "vchannelsPattern": "a.*"}.items()}
    assert SourceOptions.of({**given, "spark.x.y": "1"}, streaming=True).channels == ChannelChoice(pattern="a.*")


def test_pattern_is_matched_on_whole_names() -> None:
    choice = of(vchannelsPattern="or.*|b").channels
    assert choice.among(["orders", "b", "bb", "for"]) == {"orders", "b"}
    assert not choice.everything


def test_name_with_a_star_is_a_family() -> None:
    family = of(vchannels="account-*", startingCursor="sums")
    assert (family.channels, family.starting_cursor) == (ChannelChoice(family=Matching("account-*")), "sums")
    assert family.channels.among(["account-1", "count-1"]) == {"account-1"}
    assert of(vchannels='["account-*"]').channels == ChannelChoice(names=("account-*",))
    assert of(vchannels="a*,b").channels == ChannelChoice(names=("a*", "b"))
    with pytest.raises(InvalidArgumentError, match="startingCursor='sums' is the cursor of a family, and this is a read of 'a'"):
        of(vchannels="a", startingCursor="sums")


def test_places() -> None:
    message_id = MessageID("p0", 3, 4096, 2)
    found = of(
        startingOffsets=json.dumps({"p0": str(message_id), "p1": "Earliest", "p2": {"id": "p2:1:0:0", "tick": 4}}),
        endingOffsets=str(StreamOffset({"p0": PChannelOffset.of(message_id, 9)})),
    )
    assert found.starting == {"p0": PChannelOffset.of(message_id, 0), "p1": "earliest", "p2": PChannelOffset("p2", 1, (0, 0), 4)}
    assert found.ending == {"p0": PChannelOffset.of(message_id, 9)}
    assert of(streaming=True, startingOffsets="EARLIEST").starting == "earliest"


def test_wrong_option_is_explained(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"vchannel": "a"}, "vchannelsPattern"),
        ({"topic": "a"}, "startingOffsets"),
        ({"paths": '["a", "b"]'}, "give it one"),
        ({"vchannels": ""}, "empty name"),
        ({"vchannels": "a,,b"}, "empty name"),
        ({"vchannels": "[1]"}, "JSON"),
        ({"vchannels": "[a]"}, "JSON"),
        ({"vchannels": "a", "vchannelsPattern": "b"}, "contradict"),
        ({"vchannelsPattern": "("}, "regular expression"),
        ({"startingOffsets": "newest"}, "earliest, latest"),
        ({"startingOffsets": "{}"}, "earliest, latest"),
        ({"startingOffsets": '{"p0": "newest"}'}, "earliest"),
        ({"startingOffsets": '{"p0": 5}'}, "earliest"),
        ({"startingOffsets": '{"p0": "p1:1:0:0"}'}, "p1:1:0:0"),
        ({"startingOffsets": "latest"}, "nothing to read"),
        ({"endingOffsets": "earliest"}, "nothing to read"),
        ({"startingOffsets": "earliest", "startingTimeTick": "1"}, "contradict"),
        ({"startingTimestamp": "1", "startingTimeTick": "1"}, "contradict"),
        ({"endingOffsets": "latest", "endingTimeTick": "1"}, "contradict"),
        ({"maxMessagesPerTrigger": "1", "maxOffsetsPerTrigger": "1"}, "contradict"),
        ({"maxMessagesPerTrigger": "0"}, "from 1"),
        ({"maxBytesPerTrigger": "1k"}, "from 1"),
        ({"maxPartitions": "-1"}, "from 1"),
        ({"tickTimeoutMs": "1.5"}, "milliseconds"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"endingTimeTick": str(1 << 64)}, "time tick"),
        ({"failOnDataLoss": "maybe"}, "true nor false"),
        ({"includeTypes": "INSERT,NOTHING"}, "DELETE"),
        ({"includeTypes": "TIME_TICK"}, "INSERT"),
        ({"address": "localhost:1"}, "contradict"),
        ({"kv": "etcd://localhost/root"}, r"goes with service\.url"),
    ]
    for options, says in cases:
        with subtests.test(repr(options)), pytest.raises(InvalidArgumentError, match=says):
            of(**options)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimeTick"])
def test_stream_has_no_end(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no end"):
        of(streaming=True, **{name: "1"})


def test_log_has_to_be_named() -> None:
    with pytest.raises(InvalidArgumentError, match=r"path.*address.*service\.url"):
        SourceOptions.of({}, streaming=False)
    with pytest.raises(InvalidArgumentError, match="no log is named"):
        SourceOptions.of({"path": " "}, streaming=False)
    assert SourceOptions.of({"service.url": "pulsar://h:1"}, streaming=True).location == SparkLocation("service.url", "pulsar://h:1")
    of_pulsar = {"service.url": "pulsar://h/t/n", "kv": "etcd://u@h/r", "KV.password": "qz/ss", "Admin.url": "http://h", "token": "secret"}
    location = SourceOptions.of(of_pulsar, streaming=True).location
    assert location == SparkLocation("service.url", "pulsar://h/t/n", Secret("etcd://u:qz%2Fss@h/r"), "http://h", Secret("secret"), None)
    assert "secret" not in repr(location)
    assert "qz" not in repr(location)


def test_password_stands_where_spark_redacts_it(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, str], str]] = [
        ({"kv": "etcd://u:hidden@h/r"}, r"u:\*\*\*@h/r.*kv\.password"),
        ({"kv": "u:hidden@h/r"}, r"kv\.password"),
        ({"kv.password": "hidden"}, "is missing"),
        ({"kv": "etcd://h/r", "kv.password": "hidden"}, "takes no password"),
        ({"kv": "etcd://u@h/r?password_file=/p", "kv.password": "hidden"}, "takes no password"),
        ({"kv": "meta.sqlite3", "kv.password": "hidden"}, "takes no password"),
    ]
    for options, says in cases:
        with subtests.test(repr(options)):
            with pytest.raises(InvalidArgumentError, match=says) as caught:
                SourceOptions.of({"service.url": "pulsar://h/t/n", **options}, streaming=True)
            assert "hidden" not in str(caught.value)


def test_error_of_an_unknown_option_lists_them_all() -> None:
    with pytest.raises(InvalidArgumentError) as error:
        of(offset="1")
    assert all(name in str(error.value) for name in OPTIONS)


def test_reference_names_every_option_and_column() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/spark.md").read_text()
    assert [name for name in (*OPTIONS, *COLUMNS) if f"`{name}`" not in text] == []
    assert f"| {TICK_TIMEOUT_MS} |" in text
