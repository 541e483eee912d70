"""Common mistakes: `with` for `async with`, `for` for `async for`, a read of nothing. The error names the right form."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import pytest

from tests.locations import open_wal
from wal import Delivery, Message, WALAccesser, bridge
from wal.errors import InvalidArgumentError

pytestmark = pytest.mark.one_location("wal.api refuses the call before any log has it")


async def test_with_says_async_with(log: WALAccesser) -> None:
    with pytest.raises(TypeError, match=r"async with open_wal\(…\) as log.*wal\.bridge\.blocking"), open_wal("memory:"):  # type: ignore[attr-defined]
        pass
    with pytest.raises(TypeError, match=r"async with log\.txn\(…\) as txn"), log.txn("orders"):  # type: ignore[attr-defined]
        pass
    with pytest.raises(TypeError, match=r"async with log\.read\(…\) as scanner"), log.read("orders"):  # type: ignore[attr-defined]
        pass
    with pytest.raises(TypeError, match="async with"), contextlib.ExitStack() as stack:
        stack.enter_context(open_wal("memory:"))  # type: ignore[arg-type]


async def test_for_says_async_for(log: WALAccesser) -> None:
    with pytest.raises(TypeError, match="async for message in scanner"):
        for _ in log.read("orders"):  # type: ignore[attr-defined]
            pass
    async with log.read("orders", follow=False) as scanner:
        with pytest.raises(TypeError, match="async for message in scanner"):
            list(scanner)  # type: ignore[call-overload]
        assert [message async for message in scanner] == []


WRONG: list[tuple[Any, type[Exception], str]] = [
    (None, TypeError, "takes the name of a vchannel, several names on one pchannel, or a pattern.*not None"),
    (3, TypeError, "takes the name of a vchannel, several names on one pchannel, or a pattern.*not 3"),
    (b"orders", TypeError, "takes the name of a vchannel, several names on one pchannel, or a pattern.*not b'orders'"),
    ([], InvalidArgumentError, "names no vchannel"),
    ([None], TypeError, "a vchannel is named by a str, not NoneType"),
    ([["orders"]], TypeError, "a vchannel is named by a str, not list"),
    ("", InvalidArgumentError, "vchannel is empty"),
]


@pytest.mark.parametrize(("vchannel", "error", "says"), WRONG)
async def test_read_without_vchannels_is_explained(log: WALAccesser, vchannel: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        log.read(vchannel)


@pytest.mark.parametrize(("vchannel", "error", "says"), WRONG)
def test_blocking_read_without_vchannels_is_explained(data: str, vchannel: Any, error: type[Exception], says: str) -> None:
    with bridge.blocking(data) as log:
        log.raw_append(Message("orders", b""))
        with pytest.raises(error, match=says):
            log.read(vchannel)
    for read in (bridge.iterate, bridge.record_batches):
        with pytest.raises(error, match=says):
            read(data, vchannel)


async def test_transaction_without_vchannels_is_explained(log: WALAccesser) -> None:
    with pytest.raises(TypeError, match=r"takes several names.*not 3"):
        log.txn(vchannels=3)  # type: ignore[call-overload]


async def nothing(delivery: Delivery) -> None: ...


JOBS = ("jobs", nothing)
WRONG_KEYWORDS: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("consume", JOBS, {"cursor": "c", "workers": 8}, "'workers'; did you mean concurrency="),
    ("consume", JOBS, {"cursor": "c", "retries": 8}, "'retries'; did you mean attempts="),
    ("consume", JOBS, {"cursor": "c", "group": "g"}, "'group'; did you mean cursor="),
    ("consume", JOBS, {"cursor": "c", "atempts": 1}, "'atempts'; did you mean attempts="),
    ("append", ("jobs", b"x"), {"key": "k"}, "'key'; did you mean idempotency_key="),
    ("append", ("jobs", b"x"), {"delay_s": 1}, "'delay_s'; did you mean deliver_at="),
    ("read", ("jobs",), {"limit": 1}, "'limit'; did you mean nothing: leave the loop with break, or give deliver_policy=Last"),
    ("read", ("jobs",), {"start": 1}, "'start'; did you mean deliver_policy="),
    ("read", ("jobs",), {"zzz": 1}, "'zzz'; it takes vchannel, deliver_policy"),
]


async def test_wrong_keyword_says_the_right_one(log: WALAccesser) -> None:
    for call, arguments, keywords, text in WRONG_KEYWORDS:
        with pytest.raises(TypeError, match=re.escape(f"{call}() got an unexpected keyword argument {text}")):
            outcome = getattr(log, call)(*arguments, **keywords)
            await outcome
    with pytest.raises(TypeError, match=r"filters must be deliver filters.*filter by payload or properties in the loop"):
        log.read("jobs", filters=lambda message: True)  # type: ignore[arg-type]


def test_wrong_keyword_without_a_loop() -> None:
    with bridge.blocking("memory:") as log:
        for call, arguments, keywords, text in WRONG_KEYWORDS:
            with pytest.raises(TypeError, match=re.escape(text)):
                getattr(log, call)(*arguments, **keywords)


async def test_wrong_attribute_says_the_right_one(log: WALAccesser) -> None:
    def error_of(owner: object, name: str) -> str:
        with pytest.raises(AttributeError) as caught:
            getattr(owner, name)
        return str(caught.value)

    await log.append("jobs", b"1")
    async with log.read("jobs", follow=False) as scanner:
        message = await anext(scanner)
    texts: list[str] = []

    def handle(delivery: Delivery) -> None:
        texts.extend(error_of(delivery, name) for name in ("payload", "ack", "nack"))

    async with log.consume("jobs", handle, cursor="c") as consumer:
        await consumer.caught_up()
    texts += [error_of(message, name) for name in ("data", "value", "id")]
    meant = ("value, or message.payload", "nothing: a handler", "raise Reject", "payload", "payload", "message_id")
    assert [text.partition("; did you mean ")[2].startswith(part) for text, part in zip(texts, meant, strict=True)] == [True] * 6
    assert not hasattr(message, "data")
