"""Fixtures for logs: they need no async plugin, work with several, and cost nothing in a run that uses none."""

from __future__ import annotations

import importlib.metadata
import textwrap

import pytest

from tests.testing.conftest import Service


def test_plugin_is_installed_for_pytest() -> None:
    (plugin,) = importlib.metadata.entry_points(group="pytest11", name="wal")
    assert plugin.value == "wal.testing.plugin"


def test_plugin_imports_nothing_unasked(service: Service) -> None:
    inert = """
        import sys

        def test_nothing_is_imported():
            loaded = {name for name in sys.modules if name.split(".")[0] in ("wal", "actors", "broadcaster")}
            assert loaded == {"wal", "wal._version", "wal.runtime", "wal.runtime.installation", "wal.testing", "wal.testing.plugin"}
            assert not {"asyncio", "anyio", "msgspec", "multiprocessing"} & set(sys.modules)
    """

    assert "1 passed" in service(inert, fresh=True).out


def test_fixtures_need_no_async_plugin(service: Service) -> None:
    plain = """
        import asyncio

        def test_log_without_any_async_plugin(wal_log):
            async def append():
                await wal_log.append("orders", b"1")
            asyncio.run(append())

        def test_log_on_a_loop_that_goes_on(wal_log, loop=asyncio.new_event_loop()):
            loop.run_until_complete(wal_log.append("orders", b"1"))

        def test_log_that_nobody_uses(wal_log):
            assert "not opened yet" in repr(wal_log)

        def test_loop_is_free_again():
            loop = test_log_on_a_loop_that_goes_on.__defaults__[0]
            assert not asyncio.all_tasks(loop)
            loop.close()
    """

    ended = service(plain, "-o", "log_cli=true", "--log-cli-level=WARNING")
    assert "4 passed" in ended.out
    assert "cut off" not in ended.out


MARKS = {
    "pytest_asyncio.plugin": "@pytest.mark.asyncio",
    "anyio.pytest_plugin": "@pytest.mark.parametrize('anyio_backend', ['asyncio'])\n@pytest.mark.anyio",
}


@pytest.mark.parametrize("plugin", MARKS)
def test_fixtures_work_with_async_plugins(service: Service, plugin: str) -> None:
    log_tests = """
        import asyncio
        import time
        from datetime import UTC, datetime, timedelta
        import pytest
        from wal import open_wal
        from wal.errors import TransactionExpiredError

        IMPORTED_S = time.time()

        {mark}
        async def test_log_and_its_clock(wal_log, wal_clock):
            txn = await wal_log.txn("orders", keepalive=5.0)
            await txn.append(b"1")
            await wal_clock.run(4.9)
            await txn.append(b"2")
            await wal_clock.run(5.1)
            with pytest.raises(TransactionExpiredError):
                await txn.commit()

        {mark}
        async def test_clock_begins_at_the_real_time(wal_log, wal_clock):
            assert IMPORTED_S <= wal_clock.wall() <= time.time()
            await wal_log.append("orders", b"1", deliver_at=datetime.now(UTC) + timedelta(hours=1))
            await wal_clock.run(3540.0)
            async with wal_log.read("orders", follow=False) as scanner:
                assert not [message async for message in scanner]
            async with wal_log.read("orders") as scanner:
                message = asyncio.ensure_future(anext(scanner))
                while not message.done():
                    await wal_clock.run(10.0)
                assert (await message).payload == b"1"

        {mark}
        async def test_log_is_a_new_one(wal_log):
            assert await wal_log.vchannels() == []
            await wal_log.append("orders", b"1")

        {mark}
        async def test_directory_is_new(wal_dir):
            assert not wal_dir.exists()
            async with open_wal(wal_dir) as log:
                await log.append("orders", b"1")

        {mark}
        async def test_reader_catches_up(wal_log, wal_caught_up):
            async def read():
                async with wal_log.read("orders", cursor="billing") as scanner:
                    async for _ in scanner:
                        await scanner.save()

            reader = asyncio.create_task(read())
            for number in range(10):
                result = await wal_log.append("orders", b"%d" % number)
            (info,) = await wal_caught_up(wal_log, "billing", time_tick=result.time_tick)
            assert info.position.time_tick >= result.time_tick
            (info,) = await wal_caught_up(wal_log, "billing")
            assert (info.name, info.lag_bytes) == ("billing", 0)
            reader.cancel()
            await asyncio.wait([reader])
            await wal_log.append("orders", b"nobody reads it")
            with pytest.raises(TimeoutError, match="'billing' has not caught up within 0.05 s"):
                await wal_caught_up(wal_log, "billing", timeout_s=0.05)
            with pytest.raises(TimeoutError, match="no cursor of this name"):
                await wal_caught_up(wal_log, "other", timeout_s=0.0)
    """

    assert "5 passed" in service(textwrap.dedent(log_tests).format(mark=MARKS[plugin]), plugins=(plugin,)).out
