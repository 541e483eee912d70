"""The risks of a KV in a file: crashes, damage, disk space, ownership, and the thread."""

from __future__ import annotations

import asyncio
import gc
import itertools
import random
import signal
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx

from tests.processes import Child, run_python
from wal.errors import CorruptionError, FormatError, InvalidArgumentError, LockedError, NoSpaceError, StorageError, WouldBlockError
from wal.storage.kv import SqliteKV
from wal.storage.kv.sqlite_store import SqliteStore

KEYS = [f"all/{number:02}" for number in range(40)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kv.sqlite3"


async def threads_end() -> None:
    for thread in threading.enumerate():
        if thread.name.startswith("kv:"):
            await asyncio.to_thread(thread.join, 10)
            assert not thread.is_alive()


def content(path: Path) -> bytes:
    return path.read_bytes()


def files(folder: Path) -> list[str]:
    return [file.name for file in folder.iterdir()]


def make(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def drop(holder: list[SqliteKV]) -> None:
    holder.clear()
    gc.collect()


async def test_saved_values_are_there_after_reopening(path: Path) -> None:
    async with await SqliteKV.open(path) as kv:
        await kv.multi_save({"a": "1", "b\U0001f600": "\0"})
    async with await SqliteKV.open(str(path)) as kv:
        assert await kv.load_with_prefix("") == (["a", "b\U0001f600"], ["1", "\0"])
        assert kv.path == str(path)
    assert files(path.parent) == [f"{path.name}-reserve", path.name]


def test_multi_operations_are_whole_over_kills(path: Path) -> None:
    async def write(path: Path, first: int) -> None:
        """Saves each number on all KEYS by one multi_save, while other saves keep the thread's groups full, and prints it when
        acknowledged.

        Every third time some keys are removed by the same operation.
        """
        kv = await SqliteKV.open(path)

        async def noise(name: str) -> None:
            for count in itertools.count():
                await kv.save(f"noise/{name}", str(count))

        async with asyncio.TaskGroup() as group:
            for name in "abcd":
                group.create_task(noise(name))
            for number in itertools.count(first):
                text = f"{number} {'x' * 500}"
                if number % 3:
                    await kv.multi_save(dict.fromkeys(KEYS, text))
                else:
                    await kv.multi_save_and_remove(dict.fromkeys(KEYS[:20], text), KEYS[20:])
                print(number, flush=True)

    async def everything(path: Path) -> tuple[list[str], list[str]]:
        async with await SqliteKV.open(path) as kv:
            return await kv.load_with_prefix("all/")

    number = 0
    for _ in range(3):
        with Child(write, path, number) as child:
            acknowledged = max(map(int, child.lines_now(kill_after=random.randint(2, 40))))
            child.end_now(-signal.SIGKILL)
        keys, values = asyncio.run(everything(path))
        (found,) = {int(value.split()[0]) for value in values}
        assert acknowledged <= found <= acknowledged + 1
        assert keys == (KEYS if found % 3 else KEYS[:20])
        number = found + 1


async def test_failing_statement_undoes_only_its_operation(path: Path) -> None:
    async def refuse_poison(path: Path) -> None:
        """Makes sqlite itself fail at the statement that saves the value `poison`."""
        await (await SqliteKV.open(path)).close()
        with sqlite3.connect(path) as connection:
            connection.execute(
                "CREATE TRIGGER refuse BEFORE INSERT ON kv WHEN NEW.value LIKE '%poison' BEGIN SELECT RAISE(ABORT, 'poisoned'); END"
            )
        connection.close()

    await refuse_poison(path)
    async with await SqliteKV.open(path) as kv, await kv.watch_with_prefix("") as watch:
        await kv.save("a", "before")
        with pytest.raises(StorageError, match="poisoned"):
            await kv.multi_save_and_remove({"x": "1", "y": "poison", "z": "3"}, ["a"])
        assert await kv.load_with_prefix("") == (["a"], ["before"])
        commits = kv.statistics().commits
        answers = await asyncio.gather(
            *(kv.multi_save({f"k{number}": "1", f"l{number}": "poison" if number % 5 == 0 else "2"}) for number in range(50)),
            kv.compare_and_swap("a", "before", "poison", removals=["k1"]),
            return_exceptions=True,
        )
        assert kv.statistics().commits - commits < 10  # the calls shared transactions
        assert [isinstance(answer, StorageError) for answer in answers] == [n % 5 == 0 for n in range(50)] + [True]
        good = [number for number in range(50) if number % 5]
        assert (await kv.load_with_prefix("k"))[0] == sorted(f"k{number}" for number in good)
        assert (await kv.load_with_prefix("l"))[0] == sorted(f"l{number}" for number in good)
        assert await kv.load("a") == "before"
        events = [await anext(watch) for _ in range(1 + 2 * len(good))]
        assert [event.key for event in events] == ["a", *(f"{letter}{number}" for number in good for letter in "kl")]
        assert kv.statistics().revision == events[-1].revision == 1 + len(good)


async def test_full_disk_writes_nothing_and_the_kv_continues(path: Path) -> None:
    async with await SqliteKV.open(path, bytes_max=200_000) as kv:
        await kv.multi_save({"a": "1", "b": "1"})
        answers: Any = await asyncio.gather(
            kv.multi_save({"a": "2", "big": "x" * 500_000, "b": "2"}),
            kv.save("c", "1"),
            kv.compare_and_swap("b", "1", "3"),
            return_exceptions=True,
        )
        assert isinstance(answers[0], NoSpaceError)
        assert "make room" in str(answers[0])
        assert answers[1:] == [None, True]
        assert await kv.load_with_prefix("") == (["a", "b", "c"], ["1", "3", "1"])
        with pytest.raises(NoSpaceError):
            await kv.save("big", "x" * 500_000)
        await kv.save("d", "1")


def test_failed_write_is_final_for_this_opening(path: Path) -> None:
    limited_writer = """
        import asyncio, resource, sys
        from wal.errors import StorageError
        from wal.storage.kv import SqliteKV
        from wal.storage.kv.sqlite_store import SqliteStore

        async def main():
            kv = await SqliteKV.open(sys.argv[1])
            await kv.multi_save({"a": "1", "b": "1"})
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
            answers = await asyncio.gather(
                kv.multi_save({"a": "2", "big": "x" * 4_000_000, "b": "2"}), kv.save("c", "1"), return_exceptions=True
            )
            answers += await asyncio.gather(kv.load("a"), kv.save("d", "1"), return_exceptions=True)
            for answer in answers:
                print(type(answer).__name__, getattr(answer, "outcome_unknown", None), answer)
            await kv.close()

        asyncio.run(main())
    """

    first, second, third, fourth = run_python("-c", limited_writer, path).out.splitlines()
    assert first.startswith("StorageError")
    assert "disk I/O error" in first
    assert second.startswith("StorageError")
    for later in (third, fourth):
        assert later.startswith("StorageError False nothing was done, because the file failed before")

    async def reopen() -> None:
        async with await SqliteKV.open(path) as kv:
            assert await kv.load_with_prefix("") == (["a", "b"], ["1", "1"])

    asyncio.run(reopen())


@pytest.mark.parametrize("wrong", [b"certainly no sqlite file" * 100, b"\0" * 4096, b"SQLite format 3"])
async def test_file_that_is_not_sqlite(path: Path, wrong: bytes) -> None:
    make(path, wrong)
    with pytest.raises(FormatError, match="file of its own"):
        await SqliteKV.open(path)
    assert content(path) == wrong
    await threads_end()


async def test_sqlite_file_of_another_application(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE kv (key TEXT PRIMARY KEY, value TEXT)")
    connection.close()
    before = content(path)
    with pytest.raises(FormatError, match="another application"):
        await SqliteKV.open(path)
    assert content(path) == before


async def test_file_of_a_newer_version(path: Path) -> None:
    await (await SqliteKV.open(path)).close()
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 4")
    connection.close()
    with pytest.raises(FormatError, match=r"format 4.*upgrade"):
        await SqliteKV.open(path)


async def test_damaged_file_is_an_error(path: Path) -> None:
    async with await SqliteKV.open(path) as kv:
        await kv.multi_save({f"k{number:04}": "v" * 200 for number in range(1000)})
    sound = content(path)
    make(path, sound[: 3 * 4096] + random.randbytes(len(sound) - 3 * 4096))
    with pytest.raises(CorruptionError, match="restore") as caught:
        await SqliteKV.open(path)
    assert caught.value.path == str(path)
    await threads_end()


async def test_empty_file_is_a_new_kv(path: Path) -> None:
    make(path, b"")
    async with await SqliteKV.open(path) as kv:
        await kv.save("a", "1")


async def test_no_folder_is_a_storage_error(path: Path) -> None:
    with pytest.raises(StorageError, match="unable to open"):
        await SqliteKV.open(path / "missing" / "kv.sqlite3")
    with pytest.raises(StorageError):
        await SqliteKV.open(path.parent)
    await threads_end()


@pytest.mark.parametrize("bounds", [{"bytes_max": 0}, {"waiting_max": 0}, {"root_path": "/"}])
async def test_bad_bounds(path: Path, bounds: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError):
        await SqliteKV.open(path, **bounds)
    assert files(path.parent) == []


async def test_sqlite_file_has_one_owner(path: Path) -> None:
    async with await SqliteKV.open(path) as kv:
        with pytest.raises(LockedError, match="one owner"):
            await SqliteKV.open(path)
        await kv.save("a", "1")
    async with await SqliteKV.open(path) as kv:
        assert await kv.load("a") == "1"


async def test_concurrent_calls_share_commits_and_keep_their_order(path: Path) -> None:
    async with await SqliteKV.open(path) as kv:
        await asyncio.gather(*(kv.save("same", str(number)) for number in range(1000)))
        assert await kv.load("same") == "999"
        assert kv.statistics().commits <= 20
        assert kv.statistics().revision == 1000


async def test_read_sees_what_was_written_before_it(path: Path) -> None:
    async with await SqliteKV.open(path) as kv:
        for number in range(20):
            save, load = kv.save("a", str(number)), kv.load("a")
            answers: Any = await asyncio.gather(save, load)
            assert answers == [None, str(number)]


async def test_inbox_is_bounded(path: Path) -> None:
    async with await SqliteKV.open(path, waiting_max=10) as kv:
        answers = await asyncio.gather(*(kv.save(f"k{number:02}", "v") for number in range(15)), return_exceptions=True)
        assert answers[:10] == [None] * 10
        assert all(isinstance(answer, WouldBlockError) for answer in answers[10:])
        assert (await kv.load_with_prefix(""))[0] == [f"k{number:02}" for number in range(10)]


async def test_loop_is_never_blocked(path: Path) -> None:
    with blockbuster_ctx():
        async with await SqliteKV.open(path) as kv, await kv.watch("a") as watch:
            await kv.multi_save({"a": "1", "b": "2"})
            await kv.compare_and_swap("a", "1", "2")
            await kv.load_with_prefix("")
            assert (await anext(watch)).value == "1"


async def test_cancelling_the_opening_leaves_no_owner(path: Path) -> None:
    for turns in range(6):
        opening = asyncio.ensure_future(SqliteKV.open(path))
        for _ in range(turns):
            await asyncio.sleep(0)
        if not opening.cancel():
            await opening.result().close()
        await asyncio.wait([opening])
        if not opening.cancelled():
            await opening.result().close()
    await threads_end()
    async with await SqliteKV.open(path) as kv:
        await kv.save("a", "1")


async def test_kv_dropped_unclosed_warns_and_releases_the_file(path: Path) -> None:
    holder = [await SqliteKV.open(path)]
    await holder[0].save("a", "1")
    with pytest.warns(ResourceWarning, match="was not closed"):
        drop(holder)
    await threads_end()
    async with await SqliteKV.open(path) as kv:
        assert await kv.load("a") == "1"


def test_other_loop_is_refused_until_the_first_ends(path: Path) -> None:
    async def leave_open() -> SqliteKV:
        kv = await SqliteKV.open(path)
        await kv.save("a", "1")
        return kv

    async def use(kv: SqliteKV) -> None:
        with pytest.raises(InvalidArgumentError, match="another event loop"):
            await kv.load("a")

    async def reopen() -> str:
        await threads_end()
        async with await SqliteKV.open(path) as kv:
            return await kv.load("a")

    holder = [asyncio.run(leave_open())]
    asyncio.run(use(holder[0]))
    with pytest.warns(ResourceWarning, match="was not closed"):
        drop(holder)
    assert asyncio.run(reopen()) == "1"


async def test_defect_in_the_thread_reaches_its_callers(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call waits for ever: neither an earlier nor a later one, nor a close."""
    defect = MemoryError("no memory")

    def broken(*_: object) -> None:
        raise defect

    async with asyncio.timeout(60), await SqliteKV.open(path) as kv:
        await kv.save("a", "1")
        monkeypatch.setattr(SqliteStore, "_check_growth", broken)
        monkeypatch.setattr(SqliteStore, "_roll_back", broken)
        outcomes = await asyncio.gather(*(kv.save(f"k{number}", "v") for number in range(5)), return_exceptions=True)
        monkeypatch.undo()
        assert all(isinstance(outcome, StorageError) for outcome in outcomes)
        with pytest.raises(StorageError, match="no memory"):
            await kv.load("a")
    async with await SqliteKV.open(path) as kv:
        assert await kv.load("a") == "1"
