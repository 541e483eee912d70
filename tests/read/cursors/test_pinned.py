"""Pins of processes beside the writer, in files and in keys: what is saved last counts, and nothing is saved below a truncation."""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast

import google_crc32c
import msgspec
import pytest

from tests.read.cursors.samples import cursor
from wal.errors import ChannelNotExistError, CorruptionError, InvalidArgumentError, TruncatedError, WouldBlockError
from wal.message import Lineage, Origin
from wal.read.cursors import pinned
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.read.cursors.pinned import PinnedCursors
from wal.read.cursors.pins import Pin, PinFiles, PinKeys, PinKeysInThread, Pins, name_of, newest_pin, stem_of
from wal.read.cursors.records import CursorRecord
from wal.read.cursors.store import DamagedCursor
from wal.runtime.loop_thread import LoopThread
from wal.storage.base import LogSnapshot
from wal.storage.kv import MemoryKV
from wal.storage.read_only import ReadOnlyStoredLog


class BareLog:
    """A log without a frame, whose truncation the test sets."""

    def __init__(self) -> None:
        self.earliest = (0, 0)
        self.intended = (0, 0)
        self.incarnation = cursor().incarnation
        self.looked: Callable[[], object] = lambda: None
        """Called at each look, before the answer."""

    @property
    def local_earliest(self) -> tuple[int, int]:
        return self.earliest

    def kept(self) -> tuple[tuple[int, int], tuple[int, int]]:
        self.looked()
        return self.earliest, self.intended

    def checkpoint_position(self) -> None: ...

    def reach(self) -> LogSnapshot:
        return LogSnapshot(Origin("p0", self.incarnation, 0, 1), Lineage(self.incarnation), 1, 0, self.earliest, 0, False, None, None)


class Store:
    """The cursors of a log without a frame."""

    def __init__(self, pins: Pins) -> None:
        self.log = BareLog()
        self.pins = pins
        self.cursors = self.opened()

    def opened(self) -> PinnedCursors:
        """Returns the cursors as another process has them."""
        return PinnedCursors(self.pins, lambda: cast("Mapping[str, ReadOnlyStoredLog]", {"p0": self.log}))


@pytest.fixture(params=["files", "keys"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "files":
        yield Store(PinFiles(tmp_path))
        return
    thread = LoopThread()

    async def keys() -> PinKeys:
        return PinKeys(MemoryKV())

    yield Store(PinKeysInThread(thread, thread.call(keys)))
    thread.stop()


def test_last_save_counts(store: Store) -> None:
    key = cursor().key
    assert store.cursors.load(key) is None
    assert store.cursors.load_all() == []
    for start in ((1, 0), (9, 9), (3, 1)):
        store.cursors.save(cursor(start=start))
        for each in (store.cursors, store.opened()):
            assert [found.start for found in each.load_all() if isinstance(found, Cursor)] == [start]
            found = each.load(key)
            assert found is not None
            assert found.start == start
        assert len(store.pins.names()) == 1, "a pin replaces the one before it"


def test_cursor_belongs_to_name_and_set(store: Store) -> None:
    saved = [cursor("a", ["x"]), cursor("a", ["x", "y"]), cursor("b", ["x"]), cursor("a b", ["y"])]
    for one in saved:
        store.cursors.save(one)
    assert store.cursors.load_all() == sorted(saved, key=lambda one: one.key)
    assert store.cursors.saved_keys() == sorted(one.key for one in saved)
    assert store.opened().load(CursorKey.of("a", ["y", "x", "y"])) == saved[1]
    assert store.cursors.load(CursorKey.of("a", ["y"])) is None


def test_deleted_cursor_is_gone(store: Store) -> None:
    store.cursors.delete_named("a", None)
    for one in (cursor("a", ["x"]), cursor("a", ["x", "y"]), cursor("ab", ["x"])):
        store.cursors.save(one)
    store.cursors.delete_named("a", ("y",))
    assert len(store.cursors.load_all()) == 3
    store.cursors.delete_named("a", ("x", "y"))
    for each in (store.cursors, store.opened()):
        assert each.load_all() == [cursor("a", ["x"]), cursor("ab", ["x"])]
    store.cursors.save(cursor("a", ["z"]))
    store.cursors.delete_named("a", None)
    assert store.opened().load_all() == [cursor("ab", ["x"])]
    store.cursors.save(cursor("a", ["x"], start=(0, 1)))
    found = store.opened().load(cursor("a", ["x"]).key)
    assert found is not None
    assert found.start == (0, 1)


def test_no_cursor_is_saved_below_a_truncation(store: Store) -> None:
    store.log.earliest = (100, 4)
    store.cursors.save(cursor(start=(100, 4)))
    with pytest.raises(TruncatedError, match="billing"):
        store.cursors.save(cursor(start=(100, 3)))
    assert store.opened().load(cursor().key) == cursor(start=(100, 4))


def test_incarnations_of_vchannel_do_not_mix(store: Store) -> None:
    store.cursors.save(cursor(incarnations=(5,)))
    with pytest.raises(ChannelNotExistError):
        store.cursors.save(cursor(incarnations=(4,)))
    store.cursors.save(cursor(incarnations=(6,), start=(0, 1)))
    found = store.opened().load(cursor().key)
    assert found is not None
    assert (found.start, found.incarnations) == ((0, 1), (6,))


def test_another_incarnation_of_pchannel_is_an_error(store: Store) -> None:
    store.cursors.save(cursor())
    with pytest.raises(InvalidArgumentError, match="delete_cursor"):
        store.cursors.save(cursor(incarnation=78))
    store.cursors.delete_named("billing", None)
    store.cursors.save(cursor(incarnation=78))


def test_save_goes_forward_only_if_asked(store: Store) -> None:
    store.cursors.save(cursor(start=(9, 0)))
    for each in (store.cursors, store.opened()):
        assert not each.save(cursor(start=(9, 0)), forward_only=True)
        assert not each.save(cursor(start=(8, 0)), forward_only=True)
    assert store.opened().save(cursor(start=(9, 1)), forward_only=True)


def test_clock_that_is_set_back_loses_no_save(store: Store) -> None:
    for saved_at in (2000.0, 1000.0, 500.0):
        for each in (store.cursors, store.opened()):
            each.save(cursor(start=(int(saved_at), 0), saved_at=saved_at))
    found = store.opened().load(cursor().key)
    assert found is not None
    assert found.start == (500, 0)


def test_many_threads_save_at_once(store: Store) -> None:
    def worker(number: int) -> None:
        own = store.opened()
        for step in range(20):
            own.save(cursor(f"own {number}", start=(step, 0)))
            own.save(cursor("shared", start=(step, number)))

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {one.key.name: one for one in store.opened().load_all() if isinstance(one, Cursor)}
    assert len(found) == 9
    assert all(found[f"own {number}"].start == (19, 0) for number in range(8))


# -- intents


def test_save_waits_for_truncation_that_passes_it(store: Store) -> None:
    """The writer has said how far it goes, and looked at the pins before this one was there."""
    store.log.intended = (60, 0)
    looks = 0

    def looked() -> None:
        nonlocal looks
        looks += 1
        if looks == 4:  # after the look before the save, and two in which it has not happened
            store.log.earliest, store.log.intended = (60, 0), (0, 0)

    store.log.looked = looked
    with pytest.raises(TruncatedError, match="truncated up to 60:0"):
        store.cursors.save(cursor(start=(50, 0)))
    assert looks == 4
    assert store.pins.names() == []


def test_truncation_that_sees_the_pin_is_taken_back(store: Store) -> None:
    store.log.intended = (60, 0)

    def looked() -> None:
        if store.pins.names():
            store.log.intended = (0, 0)

    store.log.looked = looked
    assert store.cursors.save(cursor(start=(50, 0)))
    assert store.opened().load_all() == [cursor(start=(50, 0))]


def test_refused_save_leaves_the_one_before(store: Store) -> None:
    store.cursors.save(cursor(start=(70, 0)))
    store.log.looked = lambda: setattr(store.log, "earliest", (60, 0) if len(store.pins.names()) > 1 else (0, 0))
    with pytest.raises(TruncatedError):
        store.cursors.save(cursor(start=(50, 0)))
    assert store.opened().load_all() == [cursor(start=(70, 0))]


def test_save_above_intent_does_not_wait(store: Store) -> None:
    store.log.intended = (60, 0)
    assert store.cursors.save(cursor(start=(60, 0)))


def test_wait_for_truncation_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "INTENT_TIMEOUT_S", 0.05)
    store.log.intended = (60, 0)
    with pytest.raises(WouldBlockError, match="or was killed while it did"):
        store.cursors.save(cursor(start=(50, 0)))


# -- pins and records


def test_later_of_pin_and_record_counts() -> None:
    record = CursorRecord(cursor().key, 5, cursor(saved_at=100.0))
    pin = Pin(cursor(saved_at=90.0), revision=4)
    assert not pin.is_later(record), "the record was saved later"
    assert Pin(cursor(saved_at=110.0), revision=4).is_later(record)
    assert Pin(cursor(saved_at=90.0), revision=5).is_later(record), "its process had seen the record"
    assert not Pin(cursor(saved_at=100.0), revision=4).is_later(record), "it was made of the pin"
    assert pin.is_later(None)


def test_higher_number_counts() -> None:
    pins = [Pin(cursor(), number=number, name=name) for number, name in ((2, "a"), (10, "b"), (9, "z"))]
    assert newest_pin(pins) is pins[1]
    assert newest_pin([]) is None


# -- files only


def test_no_file_exists_before_the_first_save(tmp_path: Path) -> None:
    store = Store(PinFiles(tmp_path))
    assert store.cursors.load_all() == []
    store.cursors.delete_named("billing", None)
    assert list(tmp_path.iterdir()) == []


def test_damaged_pin_is_listed_and_raises(tmp_path: Path) -> None:
    store = Store(PinFiles(tmp_path))
    store.cursors.save(cursor("good"))
    store.cursors.save(cursor("bad"))
    (path,) = (tmp_path / "cursors").glob("bad*")
    content = path.read_bytes()
    for spoilt in (b"", content[:30], content[:-1] + b"\0", bytes(len(content))):
        path.write_bytes(spoilt)
        uses: tuple[Callable[[], object], ...] = (lambda: store.cursors.load(cursor("bad").key), lambda: store.cursors.save(cursor("bad")))
        for use in uses:
            with pytest.raises(CorruptionError, match=r"bad-.*\.cursor.*delete_cursor") as caught:
                use()
            assert caught.value.path == str(path)
        good, bad = store.cursors.load_all()
        assert isinstance(good, Cursor)
        assert good.key.name == "good"
        assert isinstance(bad, DamagedCursor)
        assert bad.file == path.name
        store.cursors.save(cursor("good"))
    store.cursors.delete_named("bad", None)
    assert [one.key.name for one in store.cursors.load_all() if isinstance(one, Cursor)] == ["good"]
    assert not path.exists()


def test_file_under_another_name_is_no_pin(tmp_path: Path) -> None:
    store = Store(PinFiles(tmp_path))
    store.cursors.save(cursor("a"))
    (path,) = (tmp_path / "cursors").iterdir()
    path.rename(path.with_name(name_of(cursor("b").key, 1)))
    with pytest.raises(CorruptionError, match="expected the cursor that its name is made of"):
        store.cursors.load(cursor("b").key)


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    store = Store(PinFiles(tmp_path))
    store.cursors.save(cursor())
    (tmp_path / "cursors" / "README").write_bytes(b"")
    assert store.opened().load_all() == [cursor()]
    PinFiles(tmp_path).remove_left()
    assert len(list((tmp_path / "cursors").iterdir())) == 2


def written_by(version: int, saved: Cursor, **fields: object) -> bytes:
    """Returns the file of a cursor as earlier versions wrote it."""
    body = msgspec.msgpack.encode(
        {
            "name": saved.key.name,
            "vchannels": list(zip(saved.key.vchannels, saved.incarnations, strict=True)),
            "pchannel": saved.pchannel,
            "incarnation": saved.incarnation,
            "form": saved.form,
            "start": saved.start,
            "event": saved.event,
            "time_tick": saved.time_tick,
            "saved_at": saved.saved_at,
            "stale": saved.stale,
            **fields,
        }
    )
    head = struct.pack("<8sII", b"WALCURSR", version, len(body))
    return head + struct.pack("<II", google_crc32c.value(head + body), 0) + body


@pytest.mark.parametrize(("revision", "is_saved"), [(0, False), (1, True), (2, False), (7, False)])
def test_files_of_earlier_versions_are_pins(tmp_path: Path, revision: int, is_saved: bool) -> None:
    """A copy of a record counts only if the log never had a record: otherwise the log has the saved position."""
    store = Store(PinFiles(tmp_path))
    (tmp_path / "cursors").mkdir()
    plain, copy = cursor("plain"), cursor("copy")
    (tmp_path / "cursors" / f"{stem_of(plain.key)}.cursor").write_bytes(written_by(1, plain))
    fields = {"moved_at": 5.0, "home": "p0", "revision": revision}
    (tmp_path / "cursors" / f"{stem_of(copy.key)}.cursor").write_bytes(written_by(2, copy, **fields))
    assert store.cursors.load_all() == ([copy, plain] if is_saved else [plain])
    names = cursor("names")
    (tmp_path / "cursors" / name_of(names.key, 1)).write_bytes(written_by(3, names, revision=0, deleted=False))
    assert store.cursors.load(names.key) == names
    later = cursor("plain", start=(9999, 0))
    store.cursors.save(later)
    assert store.opened().load(plain.key) == msgspec.structs.replace(later, saved_at=later.saved_at + 1e-6)
