"""The first screen of the README, and the same code for services that share one log in a process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

import wal
from tests.locations import init, open_wal
from tests.probes import payloads, start, turns
from wal import WAL, Message, release
from wal.errors import ClosedError, FormatError, InvalidArgumentError, StreamingCode

pytestmark = pytest.mark.one_location("wal.api opens and closes every log alike")


@pytest.fixture(autouse=True)
async def released(location: str) -> AsyncIterator[None]:
    """Releases the log while its directory is still there."""
    yield
    await release()


async def test_first_screen(location: str) -> None:
    lines: list[tuple[int, bytes]] = []
    async with open_wal(location) as log:
        result = await log.raw_append(Message("orders", b"created"))
        async with log.txn("orders") as txn:
            await txn.append(b"paid")
            await txn.append(b"shipped")
        async with log.read("orders", follow=False) as scanner:
            async for message in scanner:
                for body in message.bodies():
                    lines.append((message.time_tick, body.payload))
    assert txn.result is not None
    assert lines == [(result.time_tick, b"created"), (txn.result.time_tick, b"paid"), (txn.result.time_tick, b"shipped")]


async def test_form_of_the_seeds(location: str) -> None:
    init(location)
    txn = await wal.WAL().txn(vchannel="orders", keepalive=10.0)
    await txn.append(b"paid")
    await txn.commit()
    assert await payloads(wal.WAL(), "orders") == [b"paid"]
    await wal.release()


async def test_by_hand(location: str) -> None:
    log = await open_wal(location)
    await log.raw_append(Message("orders", b"1"))
    await log.close()
    await log.close()
    with pytest.raises(ClosedError):
        await log.raw_append(Message("orders", b"2"))


async def test_entry_and_exit_in_different_tasks(location: str) -> None:
    opening = open_wal(location)
    log = await start(opening.__aenter__())
    await start(log.raw_append(Message("orders", b"1")))
    await start(opening.__aexit__(None, None, None))
    with pytest.raises(ClosedError):
        await log.vchannels()


async def test_init_and_release_in_different_tasks(location: str) -> None:
    async def begin() -> None:
        init(location)

    await start(begin())
    await start(WAL().raw_append(Message("orders", b"1")))
    await start(release())
    with pytest.raises(ClosedError):
        WAL()


def test_without_a_running_loop_init_only_remembers(location: str) -> None:
    init(location)

    async def main() -> list[bytes]:
        await WAL().raw_append(Message("orders", b"1"))
        found = await payloads(WAL(), "orders")
        await release()
        return found

    assert asyncio.run(main()) == [b"1"]


def test_init_and_release_without_any_use(location: str) -> None:
    init(location)
    asyncio.run(release())
    with pytest.raises(ClosedError):
        WAL()


async def test_init_twice_is_refused_and_changes_nothing(location: str) -> None:
    init(location)
    first = WAL()
    with pytest.raises(InvalidArgumentError, match=r"release\(\)"):
        init(location)
    assert WAL() is first
    await first.raw_append(Message("orders", b"1"))


async def test_before_init_and_after_release() -> None:
    with pytest.raises(ClosedError) as caught:
        WAL()
    assert caught.value.code == StreamingCode.ON_SHUTDOWN
    await release()
    init("memory:")
    log = WAL()
    await log.raw_append(Message("orders", b"1"))
    await release()
    await release()
    with pytest.raises(ClosedError):
        WAL()
    for call in (
        lambda: log.raw_append(Message("orders", b"2")),
        lambda: log.append_messages(Message("orders", b"2")),
        lambda: log.append_bulk([Message("orders", b"2")]),
        lambda: log.vchannels(),
        lambda: log.create_vchannel("x"),
        lambda: log.drop_vchannel("orders"),
        lambda: log.allocate_time_tick(),
        lambda: log.get_latest_mvcc_timestamp_if_local("orders"),
        lambda: log.read("orders").__aenter__(),
        lambda: log.read("orders").__anext__(),
        lambda: log.txn("orders").__aenter__(),
    ):
        with pytest.raises(ClosedError):
            await call()
    with pytest.raises(ClosedError):
        log.append_nowait(Message("orders", b"2"))
    with pytest.raises(ClosedError):
        log.statistics()


async def test_init_release_init_again(location: str) -> None:
    for number in range(3):
        init(location)
        await WAL().raw_append(Message("orders", b"%d" % number))
        await release()
    init(location)
    kept = await payloads(WAL(), "orders")
    assert kept == ([] if location == "memory:" else [b"0", b"1", b"2"])


async def test_release_at_once_after_init(location: str) -> None:
    init(location)
    await release()
    init(location)
    await WAL().raw_append(Message("orders", b"1"))


async def test_concurrent_releases_all_wait(location: str) -> None:
    init(location)
    appends = [start(WAL().raw_append(Message("orders", b"%d" % number))) for number in range(50)]
    log = WAL()
    await turns(2)
    await asyncio.gather(release(), log.close(), log.close())
    done = [append for append in appends if not isinstance(append.exception(), ClosedError)]
    assert all(append.result().time_tick for append in done)


async def test_waiting_call_survives_a_release_error(location: str) -> None:
    init(location)
    append = start(WAL().raw_append(Message("orders", b"1")))
    read = start(WAL().read("orders").__anext__())
    await turns(1)
    await release()
    for waiting in (append, read):
        with pytest.raises(ClosedError):
            await waiting


async def test_failed_opening_raises_at_the_first_call(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = tmp_path_factory.mktemp("other")
    (place / "letters.txt").write_text("not a journal")
    init(place)
    with pytest.raises(FormatError):
        await WAL().raw_append(Message("orders", b"1"))
    with pytest.raises(FormatError):
        await WAL().vchannels()
    await release()
    await release()
    with pytest.raises(ClosedError):
        WAL()
    init(place)
    await release()
    with pytest.raises(FormatError):
        async with open_wal(place):
            pass
    with pytest.raises(FormatError):
        await open_wal(place)


async def test_release_from_another_loop_is_refused(location: str) -> None:
    init(location)
    await WAL().raw_append(Message("orders", b"1"))

    def elsewhere() -> None:
        asyncio.run(release())

    with pytest.raises(InvalidArgumentError, match="another event loop"):
        await asyncio.to_thread(elsewhere)
    log = WAL()
    await log.raw_append(Message("orders", b"2"))
    await release()
    with pytest.raises(ClosedError):
        await log.raw_append(Message("orders", b"3"))


async def test_cancelled_close_goes_on(location: str) -> None:
    log = await open_wal(location)
    closing = start(log.close())
    await turns(1)
    closing.cancel()
    await log.close()
    log = await open_wal(location)
    await log.close()


async def test_cancelled_opening_releases_everything(location: str) -> None:
    for count in range(12):
        opening = start(open_wal(location).__aenter__())
        await turns(count)
        opening.cancel()
        try:
            log = await opening
        except asyncio.CancelledError:
            continue
        await log.close()
    async with open_wal(location) as log:
        await log.raw_append(Message("orders", b"1"))
