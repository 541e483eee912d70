"""ReadOnlyCore over a fake source: its lookups, the effects of changes on a read, and the objects that it closes."""

from __future__ import annotations

import threading

import pytest

from wal.channels.vchannel_map import VChannelMap, VChannelView
from wal.channels.vchannels import VChannelInfo
from wal.errors import ChannelNotExistError, ClosedError, FormatError, InvalidArgumentError, StorageError
from wal.message import FORM_JOURNAL, Lineage, Origin
from wal.read.cursors.store import SavedCursors
from wal.read.read_only_core import ReadOnlyCore, ReadOnlySource
from wal.read.sources import pauses
from wal.storage.base import FramePage, LogSnapshot
from wal.storage.read_only import ReadOnlyPChannelLog

INCARNATION = 7


class EmptyLog(ReadOnlyPChannelLog):
    """A log without frames."""

    refresh_waits = False
    earliest = (0, 0)
    last_truncated = None

    def __init__(self, pchannel: str) -> None:
        self.pchannel = pchannel
        self.incarnation = INCARNATION
        self.lineage = Lineage(INCARNATION)
        self.closed = False

    def refresh(self) -> LogSnapshot:
        return LogSnapshot(Origin(self.pchannel, INCARNATION, 0), Lineage(INCARNATION), 1, 0, (0, 0), 0, False, None)

    reach = refresh

    def page(self, start: int, end: int, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        return FramePage([], end, None, 0)

    def bytes_between(self, start: int, end: int) -> int:
        return end - start

    def close(self) -> None:
        self.closed = True


class MadeUpSource(ReadOnlySource):
    """A source with the pchannels and vchannels of a test."""

    name = "made up"
    form = FORM_JOURNAL
    location = "made up:"
    cursors: SavedCursors

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.logs: dict[str, EmptyLog] = {}
        self.maps = {name: VChannelMap(INCARNATION, 1, {}) for name in names}
        self.absent: FormatError | None = None
        self.failure: StorageError | None = None
        self.closed = False

    def create(self, vchannel: str, pchannel: str, incarnation: int) -> None:
        self.maps[pchannel].records[vchannel] = incarnation
        self.maps = {name: VChannelMap(known.incarnation, incarnation + 1, known.records) for name, known in self.maps.items()}

    def drop(self, vchannel: str) -> None:
        for known in self.maps.values():
            known.records.pop(vchannel, None)

    def absence(self, waited_s: float) -> FormatError | None:
        return self.absent

    def open(self) -> None:
        pass

    def pchannels(self) -> list[str]:
        if self.failure is not None:
            raise self.failure
        return self.names

    def open_log(self, pchannel: str) -> EmptyLog:
        log = self.logs[pchannel] = EmptyLog(pchannel)
        return log

    def vchannels(self, *, newest: bool = False) -> VChannelView:
        records = {
            name: VChannelInfo(name, pchannel, incarnation)
            for pchannel, known in self.maps.items()
            for name, incarnation in known.records.items()
        }
        return VChannelView(records, dict(self.maps))

    def has_writer(self) -> bool | None:
        return None

    def is_current(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True


def opened(source: MadeUpSource, *, create_vchannels: bool = True) -> ReadOnlyCore:
    core = ReadOnlyCore(source, create_vchannels=create_vchannels)
    core.open()
    return core


def test_look_opens_the_logs_of_new_pchannels_once() -> None:
    source = MadeUpSource("p0")
    core = opened(source)
    before = core.logs
    source.names.append("p1")
    core.look()
    core.look()
    assert list(core.logs) == ["p0", "p1"]
    assert core.logs["p0"] is before["p0"]
    assert list(before) == ["p0"], "a thread that iterates the logs is not disturbed"


def test_many_threads_that_look_open_each_log_once() -> None:
    source = MadeUpSource("p0")
    core = opened(source)
    source.names += [f"p{number}" for number in range(1, 20)]
    threads = [threading.Thread(target=core.look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: core.logs[name] for name in source.names} == source.logs


def test_absent_log_raises_and_closes_everything() -> None:
    source = MadeUpSource("p0")
    source.absent = FormatError("nothing there")
    with pytest.raises(FormatError, match="nothing there"):
        opened(source)
    assert source.closed


def test_failed_opening_closes_its_logs() -> None:
    class FailingSource(MadeUpSource):
        def vchannels(self, *, newest: bool = False) -> VChannelView:
            raise StorageError("no records")

    source = FailingSource("p0", "p1")
    with pytest.raises(StorageError, match="no records"):
        opened(source)
    assert source.closed
    assert all(log.closed for log in source.logs.values())


def test_look_after_closing_is_an_error() -> None:
    source = MadeUpSource("p0")
    core = opened(source)
    core.close()
    core.close()
    assert source.closed
    assert source.logs["p0"].closed
    with pytest.raises(ClosedError):
        core.look()


def test_failed_look_leaves_what_was_known() -> None:
    source = MadeUpSource("p0")
    source.create("orders", "p0", 1)
    core = opened(source)
    source.failure = StorageError("away")
    with pytest.raises(StorageError):
        core.look()
    assert list(core.view.records) == ["orders"]
    source.failure = None
    source.create("more", "p0", 2)
    assert list(core.look().records) == ["orders", "more"]


def test_read_attaches_to_current_incarnations() -> None:
    source = MadeUpSource("p0", "p1")
    source.create("orders", "p1", 3)
    core = opened(source)
    log, snapshot, selection = core.attach(("orders",))
    assert log.pchannel == snapshot.origin.pchannel == "p1"
    assert selection.incarnation("orders") == 3


def test_vchannels_on_two_pchannels_are_refused() -> None:
    source = MadeUpSource("p0", "p1")
    source.create("a", "p0", 1)
    source.create("b", "p1", 2)
    core = opened(source)
    with pytest.raises(InvalidArgumentError, match="pchannel"):
        core.attach(("a", "b"))


def test_unknown_vchannel_is_refused_without_creation() -> None:
    core = opened(MadeUpSource("p0"), create_vchannels=False)
    with pytest.raises(ChannelNotExistError, match="'orders'"):
        core.attach(("orders",))


def test_changes_are_drops_and_awaited_creations() -> None:
    source = MadeUpSource("p0", "p1")
    source.create("dropped", "p0", 1)
    source.create("kept", "p0", 2)
    core = opened(source)
    bound = {"dropped": 1, "kept": 2, "awaited": None, "here": None}
    names = tuple(bound)
    assert list(core.changes("p0", names, bound.get)) == []
    source.drop("dropped")
    source.create("awaited", "p1", 3)
    source.create("here", "p0", 4)
    core.look()
    (first, error), (second, info) = core.changes("p0", names, bound.get)
    assert (first, second) == ("dropped", "awaited")
    assert isinstance(error, ChannelNotExistError)
    assert info == VChannelInfo("awaited", "p1", 3)


def test_recreated_vchannel_ends_earlier_reads() -> None:
    source = MadeUpSource("p0")
    source.create("orders", "p0", 1)
    core = opened(source)
    source.drop("orders")
    source.create("orders", "p0", 2)
    core.look()
    ((_, error),) = core.changes("p0", ("orders",), {"orders": 1}.get)
    assert isinstance(error, ChannelNotExistError)
    assert list(core.changes("p0", ("orders",), {"orders": 2}.get)) == []


def test_pauses_grow_and_end_with_the_wait() -> None:
    now = [100.0]
    taken = []
    for pause_s in pauses(1.0, lambda: now[0]):
        taken.append(pause_s)
        now[0] += pause_s
    assert sum(taken) == pytest.approx(1.0)
    assert taken[:4] == [0.005, 0.01, 0.02, 0.04]
    assert max(taken) == 0.1
    assert list(pauses(0.0, lambda: now[0])) == []
