"""Helpers of the bridge's tests: a log with messages of every kind, and waiting without a loop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.processes import Line
from wal import Message, MessageType, bridge, open_wal

WAIT_TIMEOUT_S = 60.0


def write(data: str, count: int = 100, **overrides: Any) -> None:
    """Appends plain messages with and without properties, a transaction, a transaction over several vchannels, and one of another type."""
    with bridge.blocking(data, **overrides) as log:
        for number in range(5):
            log.raw_append(Message("orders", b"%d" % number, properties={"n": str(number), "ü": "☃"}))
        with log.txn("orders") as txn:
            txn.append(b"5")
            txn.append(Message("orders", b"6", properties={"in": "txn"}))
        with log.txn(vchannels=["orders", "payments"]) as wide:
            wide.append(Message("payments", b"p7"))
            wide.append(Message("orders", b"7"))
        log.raw_append(Message("orders", b"8", message_type=MessageType.DELETE))
        log.append_bulk([Message("orders", b"%d" % number) for number in range(9, count)])


def numbers(messages: Any) -> list[int]:
    return [int(body.payload) for message in messages for body in message.bodies()]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + WAIT_TIMEOUT_S
    while left := [thread for thread in threading.enumerate() if thread not in before and not thread.daemon]:
        assert time.monotonic() < end, f"threads are left: {left}"
        time.sleep(0.005)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_TIMEOUT_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def until_there(messages: Iterator[Any]) -> bytes:
    """Returns the next message, through as many timeouts as it takes."""
    end = time.monotonic() + WAIT_TIMEOUT_S
    while time.monotonic() < end:
        try:
            return bytes(next(messages).payload)
        except TimeoutError:
            continue
    raise AssertionError("nothing came")


async def append_what_is_told(line: Line, data: str) -> None:
    async with open_wal(data) as log:
        while True:
            result = await log.raw_append(Message("orders", await line.hear()))
            line.tell(str(result.message_id))
