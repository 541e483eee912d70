"""The guarantees of every cursor store, in memory and in files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.read.cursors.samples import cursor
from wal.errors import ChannelNotExistError, CorruptionError, InvalidArgumentError, TruncatedError, WouldBlockError
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.read.cursors.files import CursorFiles
from wal.read.cursors.files import file_name as name_of
from wal.read.cursors.in_kv import MemoryCursors
from wal.read.cursors.store import CursorStore, DamagedCursor


@pytest.fixture(params=["memory", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> CursorStore:
    return MemoryCursors() if request.param == "memory" else CursorFiles(tmp_path)


def nothing_truncated() -> tuple[int, int]:
    return (0, 0)


def save(store: CursorStore, saved: Cursor, earliest: Callable[[], tuple[int, int]] = nothing_truncated) -> None:
    store.save(saved, earliest=earliest)


def test_last_save_counts(store: CursorStore) -> None:
    key = cursor().key
    assert store.load(key) is None
    assert store.load_all() == []
    for saved in (cursor(start=(1, 0)), cursor(start=(9, 9)), cursor(start=(3, 1), event=None)):
        save(store, saved)
        assert store.load(key) == saved
        assert store.load_all() == [saved]


def test_cursors_are_told_apart_by_name_and_set(store: CursorStore) -> None:
    saved = [cursor("a", ["x"]), cursor("a", ["x", "y"]), cursor("b", ["x"]), cursor("a b", ["y"])]
    for one in saved:
        save(store, one)
    assert store.load_all() == sorted(saved, key=lambda one: one.key)
    assert store.load(CursorKey.of("a", ["y", "x", "y"])) == saved[1]
    assert store.load(CursorKey.of("a", ["y"])) is None


def test_delete(store: CursorStore) -> None:
    store.delete_named("a", None)
    for one in (cursor("a", ["x"]), cursor("a", ["x", "y"]), cursor("ab", ["x"])):
        save(store, one)
    store.delete_named("a", ("y",))
    assert len(store.load_all()) == 3
    store.delete_named("a", ("x", "y"))
    assert store.load_all() == [cursor("a", ["x"]), cursor("ab", ["x"])]
    save(store, cursor("a", ["z"]))
    store.delete_named("a", None)
    assert store.load_all() == [cursor("ab", ["x"])]
    store.delete(lambda one: one.key.name != "ab")
    assert store.load_all() == []


def test_no_cursor_is_saved_below_a_truncation(store: CursorStore) -> None:
    save(store, cursor(start=(100, 4)), lambda: (100, 4))
    with pytest.raises(TruncatedError, match="billing"):
        save(store, cursor(start=(100, 3)), lambda: (100, 4))
    assert store.load(cursor().key) == cursor(start=(100, 4))


def test_stale_cursor_is_not_replaced_until_it_is_deleted(store: CursorStore) -> None:
    save(store, cursor())
    stale = cursor(stale="its reader is too far behind")
    with store.locked():
        assert not store.change(cursor(start=(1, 1)), stale), "it was saved meanwhile"
        assert store.change(cursor(), stale)
    with pytest.raises(TruncatedError, match=r"too far behind.*delete_cursor"):
        save(store, cursor(start=(9999, 0)))
    with pytest.raises(TruncatedError):
        save(store, cursor(start=(9999, 0), incarnations=(None,)))
    assert store.load(stale.key) == stale
    store.delete_named("billing", None)
    save(store, cursor(start=(9999, 0)))


def test_incarnations_of_a_vchannel_do_not_mix(store: CursorStore) -> None:
    save(store, cursor(incarnations=(5,)))
    with pytest.raises(ChannelNotExistError):
        save(store, cursor(incarnations=(4,)))
    later = cursor(incarnations=(6,), start=(0, 1))
    save(store, later)
    assert store.load(later.key) == later


def test_another_incarnation_of_the_pchannel_is_an_error(store: CursorStore) -> None:
    save(store, cursor())
    with pytest.raises(InvalidArgumentError, match="delete_cursor"):
        save(store, cursor(incarnation=78))
    store.delete_named("billing", None)
    save(store, cursor(incarnation=78))


def test_wait_for_the_lock_is_bounded(store: CursorStore) -> None:
    held, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        with store.locked():
            held.set()
            assert let_go.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert held.wait(10)
        with pytest.raises(WouldBlockError), store.locked(0.01):
            raise AssertionError("two hold it")
    finally:
        let_go.set()
        thread.join()
    with store.locked(0.01):
        pass


def test_save_looks_at_the_earliest_event_under_the_lock(store: CursorStore) -> None:
    """A truncation does the same, so that neither overtakes the other."""
    earliest = [(0, 0)]
    begun = threading.Event()
    outcomes: list[object] = []

    def saver() -> None:
        begun.set()
        try:
            save(store, cursor(start=(50, 0)), lambda: earliest[0])
            outcomes.append("saved")
        except TruncatedError as error:
            outcomes.append(error)

    thread = threading.Thread(target=saver)
    with store.locked():
        thread.start()
        assert begun.wait(10)
        assert store.load_all() == [], "the truncation sees no cursor …"
        earliest[0] = (60, 0)
    thread.join()
    assert isinstance(outcomes[0], TruncatedError), "… so none may be saved below it"
    assert store.load_all() == []


def test_many_at_once(store: CursorStore) -> None:
    def worker(number: int) -> None:
        for step in range(20):
            save(store, cursor(f"own {number}", start=(step, 0)))
            save(store, cursor("shared", start=(step, number)))

    threads = [threading.Thread(target=worker, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = {one.key.name: one for one in store.load_all() if isinstance(one, Cursor)}
    assert len(found) == 9
    assert all(found[f"own {number}"].start == (19, 0) for number in range(8))


# -- files only


def test_no_file_exists_before_the_first_save(tmp_path: Path) -> None:
    files = CursorFiles(tmp_path)
    assert files.load_all() == []
    files.delete_named("billing", None)
    files.sync()
    assert list(tmp_path.iterdir()) == []


def test_another_store_on_the_directory_sees_them(tmp_path: Path) -> None:
    save(CursorFiles(tmp_path), cursor())
    assert CursorFiles(tmp_path).load_all() == [cursor()]
    with CursorFiles(tmp_path).locked(), pytest.raises(WouldBlockError), CursorFiles(tmp_path).locked(0.01):
        pass


def test_damaged_cursor_is_an_error_when_used_and_is_listed(tmp_path: Path) -> None:
    files = CursorFiles(tmp_path)
    save(files, cursor("good"))
    save(files, cursor("bad"))
    path = tmp_path / "cursors" / name_of(cursor("bad").key)
    content = path.read_bytes()
    for spoilt in (b"", content[:30], content[:-1] + b"\0", bytes(len(content))):
        path.write_bytes(spoilt)
        uses: tuple[Callable[[], object], ...] = (lambda: files.load(cursor("bad").key), lambda: save(files, cursor("bad")))
        for use in uses:
            with pytest.raises(CorruptionError, match=r"bad-.*\.cursor.*delete_cursor") as caught:
                use()
            assert caught.value.path == str(path)
        good, bad = files.load_all()
        assert good == cursor("good")
        assert isinstance(bad, DamagedCursor)
        assert bad.file == path.name
        files.delete(lambda _: False)
        assert [one.file for one in files.load_all() if isinstance(one, DamagedCursor)] == [path.name]
        save(files, cursor("good"))
    files.delete_named("bad", None)
    assert files.load_all() == [cursor("good")]


def test_file_under_another_name_is_no_cursor(tmp_path: Path) -> None:
    files = CursorFiles(tmp_path)
    save(files, cursor("a"))
    path = tmp_path / "cursors" / name_of(cursor("a").key)
    path.rename(path.with_name(name_of(cursor("b").key)))
    with pytest.raises(CorruptionError, match="expected the cursor that its name is made of"):
        files.load(cursor("b").key)


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    files = CursorFiles(tmp_path)
    save(files, cursor())
    (tmp_path / "cursors" / "saving.tmp").write_bytes(b"half of it, of one that was killed")
    (tmp_path / "cursors" / "README").write_bytes(b"")
    assert files.load_all() == [cursor()]
    save(files, cursor(start=(5, 0)))
    assert sorted(path.name for path in (tmp_path / "cursors").iterdir()) == sorted(["README", name_of(cursor().key)])
