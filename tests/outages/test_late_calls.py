"""Changes that arrive after their client has abandoned them and sent a later one: none of them is executed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.outages.conftest import stored
from tests.outages.proxy import Proxy
from tests.processes import eventually
from tests.serve.servers import Serving
from wal import BroadcastMessage, Message, WALAccesser
from wal.errors import SessionLostError, UnknownOutcomeError
from wal.serve import fence


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[SessionLostError]:
    """The refusals of late calls."""
    made: list[SessionLostError] = []
    late = fence.late

    def noted() -> SessionLostError:
        made.append(late())
        return made[-1]

    monkeypatch.setattr(fence, "late", noted)
    return made


async def arrives_late(
    proxy: Proxy, call: Awaitable[object], refused: list[SessionLostError], then: Callable[[], Awaitable[object]]
) -> None:
    """Holds a call up on its way until its outcome is unknown, and lets it arrive after `then`; returns when it was refused."""
    proxy.stall()
    with pytest.raises(UnknownOutcomeError):
        await call
    await then()
    assert not refused
    await delivered(proxy, refused)


async def delivered(proxy: Proxy, refused: list[SessionLostError]) -> None:
    """Delivers what was held up, but not that the client has given it up since; returns when it was refused."""
    proxy.deliver_late()
    await eventually(lambda: refused)


async def test_drop_does_not_end_the_next_incarnation(
    log: WALAccesser, proxy: Proxy, served: Serving, refused: list[SessionLostError]
) -> None:
    async def repeat() -> None:
        # As the error advises, it looks first. A look is retried; a second change might be lost on the same connection, while that closes.
        assert [found.name for found in await log.vchannels()] == ["orders"]
        await log.drop_vchannel("orders")
        await log.create_vchannel("orders")
        await log.raw_append(Message("orders", b"second incarnation"))

    await arrives_late(proxy, log.drop_vchannel("orders"), refused, repeat)
    assert await stored(served) == [b"second incarnation"]


async def test_broadcast_is_not_in_the_log_twice(log: WALAccesser, proxy: Proxy, served: Serving, refused: list[SessionLostError]) -> None:
    """A caller that looks, and finds no trace of it, may repeat it."""
    message = BroadcastMessage(vchannels=["orders"], payload=b"to all")

    async def repeat() -> None:
        assert await log.broadcast().tasks() == []
        await log.broadcast().append(message)

    await arrives_late(proxy, log.broadcast().append(message), refused, repeat)
    assert await stored(served) == [b"to all"]


async def test_saved_cursor_does_not_go_back(log: WALAccesser, proxy: Proxy, served: Serving, refused: list[SessionLostError]) -> None:
    """A save is sent again by itself; its first copy arrives after a later save."""
    for number in range(3):
        await log.raw_append(Message("orders", b"%d" % number))
    async with log.read("orders", cursor="reader") as scanner:
        await anext(scanner)
        proxy.stall()
        await scanner.save()
        await anext(scanner)
        await scanner.save()
        await delivered(proxy, refused)
    async with log.read("orders", cursor="reader") as scanner:
        assert (await anext(scanner)).payload == b"2"


async def test_deleted_cursor_that_was_saved_again_stays(
    log: WALAccesser, proxy: Proxy, served: Serving, refused: list[SessionLostError]
) -> None:
    for number in range(3):
        await log.raw_append(Message("orders", b"%d" % number))
    async with log.read("orders", cursor="reader") as scanner:
        await anext(scanner)
        await scanner.save()
        proxy.stall()
        await log.delete_cursor("reader")
        await anext(scanner)
        await scanner.save()
        await delivered(proxy, refused)
    async with log.read("orders", cursor="reader") as scanner:
        assert (await anext(scanner)).payload == b"2"


async def test_cancelled_truncation_does_not_remove_what_its_caller_has_kept(
    log: WALAccesser, proxy: Proxy, served: Serving, refused: list[SessionLostError]
) -> None:
    ids = [(await log.raw_append(Message("orders", b"%d" % number))).message_id for number in range(3)]
    proxy.stall()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await log.truncate(up_to=ids[1])
    async with log.read("orders", follow=False) as scanner:
        assert len([message async for message in scanner]) == 3
    await delivered(proxy, refused)
    assert len(await stored(served)) == 3
