"""Logs, scanners and transactions that were never closed: their resources are released, with a ResourceWarning."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

import wal
from tests.locations import open_wal
from tests.probes import local, start, written
from wal import All, Message, Txn, WALAccesser, bridge
from wal.errors import ClosedError, InvalidArgumentError, LockedError

pytestmark = pytest.mark.one_location("wal.api opens and closes every log alike")

HOW = r"await log\.close\(\)"


async def opened(data: str, **settings: Any) -> WALAccesser:
    """Opens the log, appends one event, and returns the open log."""
    log = await open_wal(data, **settings)
    await log.raw_append(Message("orders", b"one"))
    return log


async def count(data: str) -> int:
    """Returns how many events the log holds, in an opening that is closed properly."""
    async with open_wal(data) as log, log.read("orders", deliver_policy=All(), follow=False) as scanner:
        return len([message async for message in scanner])


def held(data: str) -> list[str]:
    """Returns the files below this directory that this process has open or mapped."""
    inside = str(Path(data).resolve())
    found = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            continue  # the descriptor of the listing itself
    return [path for path in found if path.startswith(inside)]


def wait_until_free(data: str) -> None:
    """Checks that another process could open the log now."""
    while held(data):
        threading.Event().wait(0.001)


def leaks(text: str) -> pytest.WarningsRecorder:
    """Runs a block that must leave something unclosed."""
    return pytest.warns(ResourceWarning, match=text)


# -- a log whose event loop has ended


@pytest.mark.parametrize("settings", [{}, {"pchannels": 3}, {"retention_s": 60.0, "cursor_age_max_s": 60.0}])
def test_close_releases_a_log_whose_loop_has_ended(data: str, settings: dict[str, Any]) -> None:
    def threads() -> set[str]:
        """Returns the running threads of logs."""
        return {thread.name for thread in threading.enumerate() if thread.name.startswith(("wal-", "kv:"))}

    before = threads()
    log = asyncio.run(opened(data, **settings))
    asyncio.run(log.close())
    assert held(data) == []
    assert threads() <= before
    assert asyncio.run(count(data)) == 1


def test_close_after_the_loop_is_idempotent(data: str) -> None:
    log = asyncio.run(opened(data))

    async def close_twice() -> None:
        await asyncio.gather(log.close(), log.close())
        await log.close()
        with pytest.raises(ClosedError):
            await log.raw_append(Message("orders", b"two"))

    asyncio.run(close_twice())
    assert asyncio.run(count(data)) == 1


def test_call_without_a_loop_asks_for_close(data: str) -> None:
    log = asyncio.run(opened(data))
    with pytest.raises(InvalidArgumentError, match=r"event loop that has ended.*close\(\)"):
        asyncio.run(log.raw_append(Message("orders", b"two")))
    asyncio.run(log.close())


def test_close_in_another_loop_is_refused(data: str) -> None:
    loop = asyncio.new_event_loop()
    try:
        log = loop.run_until_complete(opened(data))
        with pytest.raises(InvalidArgumentError, match="another event loop"):
            asyncio.run(log.close())
        loop.run_until_complete(log.close())
    finally:
        loop.close()


def test_close_releases_uncancelled_tasks(data: str) -> None:
    loop = asyncio.new_event_loop()
    log = loop.run_until_complete(opened(data))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    loop.set_exception_handler(lambda *_: None)  # asyncio reports each task that it destroys
    asyncio.run(log.close())
    assert held(data) == []
    assert asyncio.run(count(data)) == 1


def test_append_at_the_loops_end_is_whole(data: str) -> None:
    async def leave() -> WALAccesser:
        log = await opened(data)
        for _ in range(1000):
            log.append_nowait(Message("orders", bytes(1000)))
        await asyncio.sleep(0)
        return log

    log = asyncio.run(leave())
    asyncio.run(log.close())
    assert 1 <= asyncio.run(count(data)) <= 1001


def test_log_without_close_is_not_clean(data: str) -> None:
    log = asyncio.run(opened(data))
    asyncio.run(log.close())

    async def was_clean() -> bool:
        async with open_wal(data) as again:
            return all(pchannel.log.state.clean for pchannel in local(again).node.pchannels.values())

    assert not asyncio.run(was_clean())
    assert asyncio.run(was_clean())


def test_log_opening_at_the_loops_end(data: str) -> None:
    async def begin(turns: int) -> None:
        wal.init(data)
        for _ in range(turns):
            await asyncio.sleep(0.0001)

    for turns in range(0, 100, 3):
        asyncio.run(begin(turns))
        asyncio.run(wal.release())
        wait_until_free(data)
    assert asyncio.run(count(data)) == 0


def test_log_closing_at_the_loops_end(data: str) -> None:
    async def begin_to_close(turns: int) -> WALAccesser:
        log = await opened(data)
        start(log.close())
        for _ in range(turns):
            await asyncio.sleep(0.0001)
        return log

    for expected, turns in enumerate(range(0, 40, 2), 1):
        log = asyncio.run(begin_to_close(turns))
        asyncio.run(log.close())
        assert held(data) == []
        assert asyncio.run(count(data)) == expected


def test_release_and_init_after_the_loop_has_ended(data: str) -> None:
    async def use() -> None:
        wal.init(data)
        await wal.WAL().raw_append(Message("orders", b"one"))

    async def again() -> None:
        await wal.release()
        await use()
        await wal.release()

    asyncio.run(use())
    asyncio.run(again())
    assert asyncio.run(count(data)) == 2


def test_read_only_log_whose_loop_has_ended(data: str) -> None:
    asyncio.run(count(data))

    async def read() -> WALAccesser:
        log = await open_wal(data, read_only=True)
        await log.vchannels()
        return log

    log = asyncio.run(read())
    asyncio.run(log.close())
    assert held(data) == []


# -- garbage-collected without close()


def test_collected_log_after_its_loop_warns(data: str) -> None:
    log = asyncio.run(opened(data))
    with leaks(HOW) as warned:
        del log
        gc.collect()
    assert data in str(warned[0].message)
    wait_until_free(data)
    assert asyncio.run(count(data)) == 1


def test_log_that_ends_with_its_function(data: str) -> None:
    async def main() -> None:
        await opened(data)

    for expected in (1, 2, 3):
        with leaks(HOW):
            asyncio.run(main())
            gc.collect()
        assert asyncio.run(count(data)) == expected


async def test_collected_log_is_closed_by_its_loop(data: str) -> None:
    log = await opened(data)
    last = log.append_nowait(Message("orders", b"two"))
    with leaks(HOW):
        del log
        gc.collect()
    async with open_wal(data) as again:
        assert all(pchannel.log.state.clean for pchannel in local(again).node.pchannels.values())
    assert (await last).message_id is not None
    assert await count(data) == 2


async def test_memory_and_read_only_logs_warn_too(data: str) -> None:
    await count(data)
    for location, read_only in (("memory:", False), (data, True)):
        log = await open_wal(location, read_only=read_only)
        with leaks(HOW):
            del log
            gc.collect()


@pytest.mark.parametrize("read_only", [False, True])
async def test_collected_log_in_a_cycle_is_closed(data: str, caplog: pytest.LogCaptureFixture, read_only: bool) -> None:
    await count(data)
    cycle: list[Any] = [await open_wal(data, read_only=read_only)]
    cycle.append(cycle)
    await asyncio.sleep(0)  # its tasks wait, and the loop has no reference to a task that waits
    with leaks(HOW):
        del cycle
        gc.collect()
    async with open_wal(data):  # waits for the release
        assert "destroyed" not in caplog.text


async def test_unopened_and_closed_logs_do_not_warn(data: str) -> None:
    open_wal(data)
    async with open_wal(data):
        with pytest.raises(LockedError):
            await open_wal(data)
    log = await open_wal(data)
    await log.close()
    del log
    gc.collect()


async def test_scanner_or_a_transaction_keeps_the_log_open(data: str) -> None:
    log = await opened(data)
    txn, scanner = await log.txn("orders"), log.read("orders", deliver_policy=All())
    del log
    gc.collect()
    assert (await anext(scanner)).payload == b"one"
    await txn.append(b"two")
    await txn.commit()
    assert [body.payload for body in (await anext(scanner)).bodies()] == [b"two"]
    await scanner.close()
    with leaks(HOW):
        del scanner, txn
        gc.collect()
    assert await count(data) == 2


async def test_error_names_this_process_and_a_remedy(data: str) -> None:
    async with open_wal(data):
        with pytest.raises(LockedError, match=r"this process.*close\(\)") as refused:
            await open_wal(data)
        assert refused.value.pid == os.getpid()


# -- scanners and transactions


async def test_scanner_that_is_collected_gives_up_its_place(log: WALAccesser) -> None:
    await log.raw_append(Message("orders", b"one"))
    with leaks(r"scanner.*orders.*async with"):
        async for _ in log.read("orders", deliver_policy=All()):
            break
        gc.collect()
    assert log.statistics().pchannels[0].readers == 0
    await log.raw_append(Message("orders", b"two"))


async def test_ended_scanner_does_not_warn(log: WALAccesser) -> None:
    await log.raw_append(Message("orders", b"one"))
    log.read("orders")
    assert [message.payload async for message in log.read("orders", deliver_policy=All(), follow=False)] == [b"one"]
    async with log.read("orders"):
        assert log.statistics().pchannels[0].readers == 1
    gc.collect()


async def test_unreferenced_scanner_with_a_handler_continues(log: WALAccesser) -> None:
    seen: asyncio.Queue[bytes] = asyncio.Queue()
    await log.read("orders", handler=lambda message: seen.put_nowait(message.payload)).__aenter__()
    gc.collect()
    await log.raw_append(Message("orders", b"one"))
    assert await seen.get() == b"one"


@pytest.mark.inside
async def test_transaction_that_is_collected_rolls_back(log: WALAccesser) -> None:
    async def begin() -> Txn:
        txn = await log.txn("orders", keepalive=3600)
        await txn.append(bytes(1000))
        return txn

    txn = await begin()
    assert log.statistics().pchannels[0].open_transaction_bytes >= 1000
    with leaks(r"transaction.*orders.*commit"):
        del txn
        gc.collect()
    while written(log).pchannels[0].open_transactions:
        await asyncio.sleep(0)
    assert log.statistics().pchannels[0].open_transaction_bytes == 0


async def test_transaction_that_ended_warns_of_nothing(log: WALAccesser) -> None:
    async with log.txn("orders") as txn:
        await txn.append(b"one")
    with pytest.raises(ZeroDivisionError):
        async with log.txn("orders"):
            raise ZeroDivisionError
    other = await log.txn("orders")
    await other.rollback()
    del txn, other
    gc.collect()


async def test_transaction_that_outlives_its_log_gives_no_warning(location: str) -> None:
    async with open_wal(location) as log:
        txn = await log.txn("orders")
        scanner = log.read("orders")
        await scanner.__aenter__()
    del txn, scanner
    gc.collect()


# -- without an event loop


def test_blocking_log_that_is_collected(data: str) -> None:
    log = bridge.blocking(data).__enter__()
    log.raw_append(Message("orders", b"one"))
    scanner = log.read("orders", deliver_policy=All())
    del log
    gc.collect()
    with scanner:
        assert next(scanner).payload == b"one"
    with leaks(HOW):
        del scanner
        gc.collect()
    with bridge.blocking(data) as again:
        assert [vchannel.name for vchannel in again.vchannels()] == ["orders"]


def test_blocking_scanners_and_transactions_that_are_collected(data: str) -> None:
    with bridge.blocking(data) as log:
        log.raw_append(Message("orders", b"one"))
        with leaks("scanner"):
            for _ in log.read("orders", deliver_policy=All()):
                break
            gc.collect()
        assert log.statistics().pchannels[0].readers == 0
        txn = log.txn("orders", keepalive=3600)
        txn.append(b"two")
        with leaks("transaction"):
            del txn
            gc.collect()
        while log.statistics().pchannels[0].open_transactions:
            pass


# -- forked children


async def test_forked_child_releases_and_says_nothing(log: WALAccesser) -> None:
    await log.raw_append(Message("orders", b"one"))
    scanner, txn = log.read("orders", deliver_policy=All()), await log.txn("orders")
    assert (await anext(scanner)).payload == b"one"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if not (pid := os.fork()):
            del scanner, txn, log
            gc.collect()
            os._exit(sum("was garbage-collected while it was open" in str(warning.message) for warning in said))
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    await scanner.close()
    await txn.append(b"two")
    await txn.commit()
