"""Common mistakes: `with` for `async with`, `for` for `async for`, a read of nothing. The error says what to write instead."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.locations import open_wal
from wal import Message, WALAccesser, bridge
from wal.errors import InvalidArgumentError


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
    (None, TypeError, "takes the name of a vchannel, or several names.*not None"),
    (3, TypeError, "takes the name of a vchannel, or several names.*not 3"),
    (b"orders", TypeError, "takes the name of a vchannel, or several names.*not b'orders'"),
    ([], InvalidArgumentError, "names no vchannel"),
    ([None], TypeError, "a vchannel is named by a str, not NoneType"),
    ([["orders"]], TypeError, "a vchannel is named by a str, not list"),
    ("", InvalidArgumentError, "vchannel is empty"),
]


@pytest.mark.parametrize(("vchannel", "error", "says"), WRONG)
async def test_error_of_a_read_of_no_vchannel_says_what_to_give(log: WALAccesser, vchannel: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        log.read(vchannel)


@pytest.mark.parametrize(("vchannel", "error", "says"), WRONG)
def test_error_of_a_blocking_read_of_no_vchannel_says_what_to_give(data: str, vchannel: Any, error: type[Exception], says: str) -> None:
    with bridge.blocking(data) as log:
        log.raw_append(Message("orders", b""))
        with pytest.raises(error, match=says):
            log.read(vchannel)
    for read in (bridge.iterate, bridge.record_batches):
        with pytest.raises(error, match=says):
            read(data, vchannel)


async def test_error_of_a_transaction_over_no_vchannels_says_what_to_give(log: WALAccesser) -> None:
    with pytest.raises(TypeError, match=r"takes several names.*not 3"):
        log.txn(vchannels=3)  # type: ignore[call-overload]
