"""The lag of a query, from the JSON of its progress. Without a JVM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.spark.offsets_of_logs import end_of, place_behind
from wal import Matching, Message
from wal.bridge import blocking
from wal.errors import InvalidArgumentError
from wal.message import FORM_PULSAR
from wal.spark.lag_report import lag
from wal.spark.offsets import PChannelOffset, StreamOffset
from wal.timestamp import compose


def offset(**places: tuple[int, int, float]) -> StreamOffset:
    """pchannel=(position, index, seconds)."""
    return StreamOffset(
        {
            name: PChannelOffset(name, 7, (position, index), compose(1_700_000_000_000 + int(seconds * 1000), 0))
            for name, (position, index, seconds) in places.items()
        }
    )


def progress(*sources: tuple[StreamOffset | None, StreamOffset | None], text: bool = True) -> dict[str, Any]:
    def shown(one: StreamOffset | None) -> Any:
        return None if one is None else str(one) if text else one.to_json()

    return {
        "id": "023c3c9d",
        "name": "delays",
        "batchId": 4,
        "sources": [{"endOffset": shown(done), "latestOffset": shown(end)} for done, end in sources],
    }


@pytest.mark.parametrize("text", [True, False])
def test_bytes_and_seconds_of_each_pchannel(text: bool) -> None:
    done, end = offset(p0=(1000, 0, 0), p1=(500, 3, 10)), offset(p0=(5000, 0, 2.5), p1=(500, 3, 60))
    found = lag(progress((done, end), text=text))
    assert [(one.pchannel, one.bytes, one.seconds) for one in found.pchannels] == [("p0", 4000, 2.5), ("p1", 0, 0.0)]
    assert (found.query_id, found.name, found.batch_id, found.bytes, found.seconds) == ("023c3c9d", "delays", 4, 4000, 2.5)
    assert found.pchannels[0].done == done.pchannels["p0"].message_id
    assert found.pchannels[0].end == end.pchannels["p0"].message_id


def test_json_and_what_has_it() -> None:
    report = progress((offset(p0=(1, 0, 0)), offset(p0=(2, 0, 0))))

    class Progress(dict[str, Any]):
        json = json.dumps(report)

    assert lag(Progress()) == lag(json.dumps(report)) == lag(report)


def test_query_ahead_of_the_end_has_no_lag() -> None:
    """The end that Spark reports may be older than the batch."""
    found = lag(progress((offset(p0=(5000, 0, 3)), offset(p0=(1000, 0, 0)))))
    assert (found.bytes, found.seconds) == (0, 0.0)


def test_other_sources_and_other_incarnations_are_ignored() -> None:
    other = progress((offset(p0=(1, 0, 0)), offset(p0=(9, 0, 1), p1=(100, 0, 1))), (None, None))
    other["sources"].append({"endOffset": '{"offset": 5}', "latestOffset": "5"})
    found = lag(other)
    assert [(one.source, one.pchannel, one.bytes) for one in found.pchannels] == [(0, "p0", 8)]
    assert lag(progress((None, None))).pchannels == ()
    assert lag(progress((None, None))).seconds == 0.0


def test_lag_that_spark_does_not_report_is_unknown() -> None:
    found = lag(progress((offset(p0=(1, 0, 0)), None)))
    assert (found.complete, found.bytes, found.rows, found.seconds) == (False, None, None, None)


def test_current_end_counts_the_rows_before_it(data_dir: Path) -> None:
    with blocking(data_dir) as log:
        first = log.append_bulk(Message("JFK", b"%d" % number) for number in range(10))
        log.raw_append(Message("LGA", b"x"))
        ids = [result.message_id for result in first]
        for done, expected in ((None, (11, 10)), (ids[3], (7, 6)), (ids[-1], (1, 0))):
            report = progress((place_behind(done, data_dir), None))
            found = lag(report, path=str(data_dir))
            assert (found.rows, found.complete) == (expected[0], True)
            assert found.bytes is not None
            assert found.bytes > 0
            assert lag(report, path=str(data_dir), vchannels=["JFK"]).rows == expected[1]
            for pattern in ("J.*", Matching("J*")):
                assert lag(report, path=str(data_dir), vchannels_pattern=pattern).rows == expected[1]
        report = progress((end_of(data_dir), None))
        log.raw_append(Message("LGA", b"y"))
        (one,) = lag(report, path=str(data_dir)).pchannels
        assert (one.rows, one.done_tick < one.end_tick) == (1, True)
        assert lag(report, path=str(data_dir), vchannels=["JFK"]).bytes == 0
        assert lag(report, path=str(data_dir), vchannels=["JFK"]).seconds == 0.0
    with pytest.raises(InvalidArgumentError, match="path="):
        lag(report, vchannels=["JFK"])


def test_bytes_are_unknown_where_positions_are_not_bytes() -> None:
    def pulsar(entry: int) -> StreamOffset:
        return StreamOffset({"p0": PChannelOffset("p0", 7, (9 << 64 | entry, 0), compose(entry * 1000, 0), FORM_PULSAR)})

    found = lag(progress((pulsar(1), pulsar(4))))
    assert (found.bytes, found.seconds) == (None, 3.0)


@pytest.mark.parametrize("wrong", [None, 5, "", "{", "[]", {}, {"sources": []}, {"sources": 3, "id": "", "batchId": 0}])
def test_anything_but_a_progress_is_an_error(wrong: object) -> None:
    with pytest.raises(InvalidArgumentError, match=r"lastProgress"):
        lag(wrong)
