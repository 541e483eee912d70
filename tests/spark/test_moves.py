"""A stream moves between the locations of one log, also onto an archive that lags, and gets each row once. Other logs are refused.

Each pair of a journal, its server and its archive runs by default, in both directions. A soak runs all three in turn, and the cluster of a
log on Pulsar, whose log has no archive.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.locations import FarServer, cluster_of
from tests.spark.logs import write_everything
from tests.spark.queries import Row, StreamQuery, Where, batch
from tests.spark.served_place import served
from tests.spark.test_archive import archived, ends, in_order
from tests.spark.test_stream import put, texts
from wal import Message, bridge
from wal.errors import ChannelNotExistError, ClosedError, LogWentBackError, WouldBlockError
from wal.operate.cli.main import main
from wal.spark import ArchiveLagWarning


def read_in_turns(places: Sequence[Where], count: int) -> list[Row]:
    """Returns the first rows, each batch of them from the next of these places."""
    turns = cycle(places)
    query = StreamQuery(next(turns), startingOffsets="earliest", maxMessagesPerTrigger=20)
    rows = list(query.step() or [])
    while len(rows) < count:
        query.data = next(turns)
        query.start()
        rows += query.step() or []
    assert len(query.logged) > 6
    return rows


@pytest.mark.parametrize(
    "names",
    [
        ("journal", "archive"),
        ("served", "archive"),
        ("journal", "served"),
        pytest.param(("served", "archive", "journal"), marks=pytest.mark.soak("two at a time")),
    ],
    ids="-".join,
)
def test_stream_moves_between_locations(names: tuple[str, ...], data_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    write_everything(data_dir, Random(6), steps=40)
    expected = in_order(batch(data_dir))
    with contextlib.ExitStack() as stack:
        places: dict[str, Where] = {"journal": data_dir, "archive": f"archive:{target}"}
        if "served" in names:
            places["served"] = stack.enter_context(served(data_dir)).options
        archived(data_dir, target)
        while ends(places["archive"]) != ends(data_dir):  # an open log promises the tick of its newest frame a moment later
            archived(data_dir, target)
        assert in_order(read_in_turns([places[name] for name in names], len(expected))) == expected


@pytest.mark.soak("a journal and its server are such a pair by default")
def test_stream_moves_between_pulsar_and_its_cluster(request: pytest.FixtureRequest, far_cluster: FarServer, data_dir: Path) -> None:
    """The archive of a copy in a journal is another log."""
    cluster = cluster_of(request, far_cluster)
    settings = cluster.needs
    settings["pchannels"] = 2
    token = {} if settings["pulsar_token"] is None else {"token": settings["pulsar_token"]}
    pulsar = {"service.url": cluster.place, "kv": settings["kv"], "admin.url": settings["pulsar_admin_url"], **token}
    server = {"address": cluster.address_now()}
    try:
        write_everything(server["address"], Random(8), steps=40)
        expected = in_order(batch(server))
        assert in_order(read_in_turns([pulsar, server], len(expected))) == expected
        query = StreamQuery(server, startingOffsets="earliest")
        assert query.step() == []
        write_everything(data_dir, Random(8), steps=4)
        archived(data_dir, data_dir.parent / "target")
        query.data = f"archive:{data_dir.parent / 'target'}"
        query.start()
        with pytest.raises(ClosedError, match="another log"):
            query.step()
    finally:
        far_cluster.close_now()


@pytest.mark.parametrize("rows_max", [3, 100], ids=["within a frame", "at the end"])
def test_stream_waits_for_a_lagging_archive(rows_max: int, data_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with bridge.blocking(data_dir) as log:
        put(log, "first")
        archived(data_dir, target)
        query = StreamQuery(data_dir, startingOffsets="earliest", maxMessagesPerTrigger=rows_max)
        assert query.step() == []
        assert texts(query.step()) == ["first"]
        log.append_bulk([Message("a", b"%d" % number) for number in range(5)])
        read = texts(query.step())
        assert len(read) == min(rows_max, 5)
        query.data = f"archive:{target}"
        query.start()
        with pytest.warns(ArchiveLagWarning, match="waits for a newer backup"):
            assert query.step() is None
        assert query.step() is None, "one warning"
        query.start(available_now=True)
        with pytest.warns(ArchiveLagWarning):
            assert query.run() == []
        put(log, "last")
        while not set(ends(data_dir).items()) <= set(ends(query.data).items()):
            archived(data_dir, target)
        query.start()
        assert read + [text for rows in query.run() for text in texts(rows)] == [*map(str, range(5)), "last"]


def test_planned_batch_waits_for_a_lagging_archive(data_dir: Path, tmp_path: Path) -> None:
    """A batch that was planned on the journal has its rows from the archive too, once they are there."""
    target = tmp_path / "target"
    with bridge.blocking(data_dir) as log:
        put(log, "first")
        archived(data_dir, target)
        query = StreamQuery(data_dir, startingOffsets="earliest", tickTimeoutMs=0)
        assert query.step() == []
        put(log, "second")
        assert query.plan() is not None
        query.data = f"archive:{target}"
        query.start()
        with pytest.raises(WouldBlockError, match=r"has not reached p0:.*make a newer backup, raise tickTimeoutMs"):
            query.step()
        query.options["tickTimeoutMs"] = 60_000
        query.start()
        late = threading.Timer(0.1, archived, (data_dir, target))
        late.start()
        assert texts(query.step()) == ["first", "second"]
        late.join()
        assert query.step() is None


def test_stream_begins_beyond_a_lagging_archive(data_dir: Path, tmp_path: Path) -> None:
    """`startingOffsets` of a query elsewhere begin a new query, which waits."""
    target = tmp_path / "target"
    with bridge.blocking(data_dir) as log:
        put(log, "first")
        archived(data_dir, target)
        put(log, "second")
        query = StreamQuery(data_dir)
        assert query.step() == []
        query = StreamQuery(f"archive:{target}", startingOffsets=query.logged[-1])
        assert query.step() == []
        with pytest.warns(ArchiveLagWarning):
            assert query.step() is None
        put(log, "third")
        archived(data_dir, target)
        query.start()
        assert texts(query.step()) == ["third"]


@pytest.mark.parametrize("recreated", [False, True], ids=["created", "recreated"])
def test_vchannel_that_is_later_than_the_archive(recreated: bool, data_dir: Path, tmp_path: Path) -> None:
    """The archive lacks it, or has an earlier incarnation of it. A drop is noticed once the archive has it."""
    target = tmp_path / "target"
    with bridge.blocking(data_dir) as log:
        put(log, "other")
        if recreated:
            log.create_vchannel("named")
        archived(data_dir, target)
        if recreated:
            log.drop_vchannel("named")
        log.raw_append(Message("named", b"1"))
        query = StreamQuery(data_dir, startingOffsets="earliest", vchannels="a,named")
        assert query.step() == []
        assert texts(query.step()) == ["other", "1"]
        query.data = f"archive:{target}"
        query.start()
        with pytest.warns(ArchiveLagWarning):
            assert query.step() is None
        log.raw_append(Message("named", b"2"))
        archived(data_dir, target)
        query.start()
        assert texts(query.step()) == ["2"]
        log.drop_vchannel("named")
        put(log, "other")
        archived(data_dir, target)
        query.start()
        with pytest.raises(ChannelNotExistError, match="was dropped"):
            query.step()


def test_pchannel_that_is_later_than_the_archive(data_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with bridge.blocking(data_dir, pchannels=1) as log:
        put(log, "first")
    archived(data_dir, target)
    with bridge.blocking(data_dir, pchannels=2) as log:
        log.create_vchannel("b", pchannel="p1")
        query = StreamQuery(data_dir, startingOffsets="earliest")
        assert query.step() == []
        assert texts(query.step()) == ["first"]
        log.raw_append(Message("b", b"second"))
        assert query.plan() is not None
        query.data, query.options["tickTimeoutMs"] = f"archive:{target}", 0
        query.start()
        with pytest.raises(WouldBlockError, match="has not reached p1:"):
            query.step()
        while ends(query.data).get("p1") != ends(data_dir)["p1"]:  # a backup has what a promised tick covers
            archived(data_dir, target)
        query.start()
        assert texts(query.step()) == ["second"]


@pytest.mark.parametrize("marked", [False, True])
def test_archive_of_a_restored_log_is_refused(marked: bool, data_dir: Path, tmp_path: Path) -> None:
    """An unmarked copy is refused once an event of it is in the place of one that was read: before that it is an archive that lags."""
    place, copied, target = data_dir / "log", data_dir / "copy", tmp_path / "target"
    with bridge.blocking(place) as log:
        put(log, "common")
    shutil.copytree(place, copied)
    with bridge.blocking(place) as log:
        put(log, "lost", "lost too")
    query = StreamQuery(place, startingOffsets="earliest")
    assert query.step() == []
    assert len(texts(query.step())) == 3
    if marked:
        assert main(["mark-restored", str(copied)]) == 0
    with bridge.blocking(copied) as log:
        put(log, "new")
        archived(copied, target)
    query.data = f"archive:{target}"
    query.start()
    for _ in range(2):
        with pytest.raises(LogWentBackError):
            query.step()


def test_stream_refuses_the_archive_of_another_log(data_dir: Path, tmp_path: Path) -> None:
    for name in ("other", "data"):
        with bridge.blocking(tmp_path / name) as log:
            log.append_bulk([Message("a", b"%d" % number) for number in range(10)])
        archived(tmp_path / name, tmp_path / f"copies-{name}")
    query: Any = StreamQuery(data_dir, startingOffsets="earliest", maxMessagesPerTrigger=4)
    assert query.step() == []
    assert query.step()
    query.data = f"archive:{tmp_path / 'copies-other'}"
    query.start()
    with pytest.raises(ClosedError, match="was recreated, so begin with a new checkpoint"):
        query.step()
    query.data = f"archive:{tmp_path / 'copies-data'}"
    query.start()
    assert query.step()
