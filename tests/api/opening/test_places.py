"""A log is used in one loop of one process by one writer; directories that are not journals are refused."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from tests import processes
from tests.locations import elsewhere, open_wal
from tests.probes import payloads, read_all
from tests.processes import Child
from wal import Message, WALAccesser
from wal.errors import FormatError, InvalidArgumentError, LockedError, StorageError, StreamingCode

pytestmark = pytest.mark.one_location("wal.api opens and closes every log alike")


def run_python(code: str, *arguments: str) -> str:
    """Runs a program in a separate process and returns its output. Warnings are errors there too."""
    done = processes.run_python("-W", "error", "-c", code, *arguments)
    return done.out


async def test_another_loop_is_refused_and_harms_nothing(log: WALAccesser) -> None:
    await log.raw_append(Message("orders", b"1"))
    txn = await log.txn("orders")
    scanner = log.read("orders")

    async def elsewhere() -> list[str]:
        calls = [
            log.raw_append(Message("orders", b"2")),
            log.append_messages(Message("orders", b"2")),
            log.append_bulk([Message("orders", b"2")]),
            log.txn("orders").__aenter__(),
            txn.append(b"2"),
            txn.commit(),
            scanner.__aenter__(),
            log.vchannels(),
            log.create_vchannel("x"),
            log.drop_vchannel("orders"),
            log.allocate_time_tick(),
            log.close(),
        ]
        texts = []
        for call in calls:
            with pytest.raises(InvalidArgumentError, match="another event loop") as caught:
                await call
            texts.append(str(caught.value))
        with pytest.raises(InvalidArgumentError, match="another event loop"):
            log.append_nowait(Message("orders", b"2"))
        with pytest.raises(InvalidArgumentError, match="another event loop"):
            log.statistics()
        return texts

    texts = await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
    assert len(texts) == 12
    assert await payloads(log, "orders") == [b"1"]
    await log.raw_append(Message("orders", b"3"))


async def test_memory_of_two_openings_is_apart() -> None:
    async with open_wal("memory:") as one, open_wal("memory:") as other:
        await one.raw_append(Message("orders", b"1"))
        assert await read_all(other, "orders") == []


def test_forked_child_is_refused(location: str) -> None:
    forked = """
        import asyncio, os, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        import wal
        from wal import Message, open_wal
        from wal.errors import InvalidArgumentError

        async def child(log, scanner, txn):
            for call in (
                lambda: log.raw_append(Message("orders", b"child")),
                lambda: log.append_bulk([Message("orders", b"child")]),
                lambda: log.txn("orders").__aenter__(),
                lambda: txn.append(b"child"),
                lambda: txn.commit(),
                lambda: scanner.__aenter__(),
                lambda: log.close(),
            ):
                try:
                    await call()
                except InvalidArgumentError as error:
                    assert "fork" in str(error), error
                else:
                    os._exit(3)
            try:
                log.append_nowait(Message("orders", b"child"))
            except InvalidArgumentError:
                pass
            else:
                os._exit(4)
            async with open_wal("memory:") as own:
                await own.raw_append(Message("orders", b"mine"))

        async def main():
            log = await open_wal(sys.argv[1])
            await log.raw_append(Message("orders", b"1"))
            scanner, txn = log.read("orders"), await log.txn("orders")
            pid = os.fork()
            if pid == 0:
                try:
                    asyncio._set_running_loop(None)
                    asyncio.set_event_loop(None)
                    asyncio.run(child(log, scanner, txn))
                except BaseException as error:
                    print(repr(error), file=sys.stderr)
                    os._exit(5)
                os._exit(0)
            _, status = await asyncio.to_thread(os.waitpid, pid, 0)
            await log.raw_append(Message("orders", b"2"))
            async with log.read("orders", follow=False) as scanner:
                print(os.waitstatus_to_exitcode(status), [m.payload async for m in scanner])
            await log.close()

        asyncio.run(main())
    """

    assert run_python(forked, elsewhere(location)).strip() == "0 [b'1', b'2']"


def test_child_does_not_lock_the_journal(data: str) -> None:
    code = """
        import asyncio, os, signal, sys, warnings
        warnings.simplefilter("ignore", DeprecationWarning)
        from wal import Message, open_wal

        async def main():
            log = await open_wal(sys.argv[1])
            await log.raw_append(Message("orders", b"1"))
            pid = os.fork()
            if pid == 0:
                signal.pause()
            try:
                await log.close()
                async with open_wal(sys.argv[1]) as log:
                    await log.raw_append(Message("orders", b"2"))
                print("opened again")
            finally:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)

        asyncio.run(main())
    """
    assert run_python(code, data).strip() == "opened again"


async def test_second_process_gets_the_holder(data: str) -> None:
    code = """
        import asyncio, sys
        from wal import open_wal
        from wal.errors import LockedError

        async def main():
            try:
                async with open_wal(sys.argv[1]):
                    print("opened")
            except LockedError as error:
                print(error.pid, error.retryable, int(error.code), str(error.pid) in str(error))

        asyncio.run(main())
    """
    async with open_wal(data) as log:
        await log.raw_append(Message("orders", b"1"))
        told = await asyncio.to_thread(run_python, code, data)
        assert told.split() == [str(os.getpid()), "True", str(int(StreamingCode.LOCKED)), "True"]
        await log.raw_append(Message("orders", b"2"))
        with pytest.raises(LockedError) as caught:
            await open_wal(data)
        assert caught.value.pid == os.getpid()
    assert (await asyncio.to_thread(run_python, code, data)).strip() == "opened"


async def test_killed_process_leaves_no_lock(data: str) -> None:
    code = """
        import asyncio, os, signal, sys
        from wal import Message, open_wal

        async def main():
            log = await open_wal(sys.argv[1])
            for number in range(1000):
                await log.raw_append(Message("orders", b"%d" % number))
                print(number, flush=True)

        asyncio.run(main())
    """
    async with Child("-c", code, data) as writer:
        while (acknowledged := int(await writer.line())) < 40:
            pass
        rest = await writer.kill()
    acknowledged = int(rest[-1]) if rest else acknowledged
    async with open_wal(data) as log:
        found = [int(payload) for payload in await payloads(log, "orders")]
        assert found == list(range(len(found)))
        assert len(found) in (acknowledged + 1, acknowledged + 2), "at most the one that was in flight beyond them"
        await log.raw_append(Message("orders", b"%d" % len(found)))
        assert len(await payloads(log, "orders")) == len(found) + 1


@pytest.mark.parametrize("content", [{"letters.txt": "a"}, {"FORMAT": "something else\n"}, {"FORMAT": ""}])
async def test_directory_that_is_no_journal(tmp_path: Path, content: dict[str, str]) -> None:
    for name, text in content.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(FormatError) as caught:
        await open_wal(tmp_path)
    assert str(tmp_path) in str(caught.value)
    assert {path.name: path.read_text() for path in tmp_path.iterdir() if path.name != "LOCK"} == content


async def test_newer_format_is_refused_and_says_so(data: str) -> None:
    async with open_wal(data) as log:
        await log.raw_append(Message("orders", b"1"))
    file = Path(data) / "FORMAT"
    before = file.read_text()
    assert "3" in before
    file.write_text(before.replace("3", "99"))
    with pytest.raises(FormatError, match="99"):
        await open_wal(data)
    file.write_text(before)
    async with open_wal(data) as log:
        assert await payloads(log, "orders") == [b"1"]


async def test_file_in_the_place_of_the_directory(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_text("a file")
    with pytest.raises(FormatError, match="data"):
        await open_wal(file)
    assert file.read_text() == "a file"


async def test_opening_creates_the_documented_files(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "er" / "data"
    async with open_wal(place) as log:
        await log.raw_append(Message("orders", b"1"))
        assert int((place / "LOCK").read_text()) == os.getpid()
    names = {path.name for path in place.iterdir()}
    assert {"FORMAT", "LOCK", "meta.sqlite3", "pchannels"} <= names
    assert (place / "pchannels" / "p0").is_dir()


@pytest.mark.linux
async def test_directory_that_cannot_be_created() -> None:
    """Not even root can create directories in /proc."""
    with pytest.raises(StorageError, match="/proc/wal-runtime"):
        await open_wal("/proc/wal-runtime/data")
