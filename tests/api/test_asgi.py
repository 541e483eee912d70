"""The lifespan of a web application: its log and its consumers, and a consumer that ends, also in a real server."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.served_application import application
from tests.processes import eventually
from wal import Consumer, Delivery, WALAccesser, open_wal
from wal.asgi import lifespan
from wal.errors import HandlerFailedError, InvalidArgumentError

ROOT = Path(__file__).parents[2]


async def fail(delivery: Delivery) -> None:
    raise ValueError(f"cannot handle {delivery.value!r}")


@contextlib.contextmanager
def stopped() -> Iterator[asyncio.Event]:
    """An event that SIGTERM sets, in the place of a server."""
    loop, event = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, event.set)
    try:
        yield event
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


async def test_lifespan_runs_and_drains_consumers(data_dir: Path) -> None:
    began, handled = asyncio.Event(), []

    async def handle(delivery: Delivery) -> None:
        began.set()
        await asyncio.sleep(0.05)
        handled.append(delivery.value)

    app = application(lifespan(f"journal:{data_dir}", lambda log: log.consume("jobs", handle, cursor="worker")))
    async with app.router.lifespan_context(app):
        log: WALAccesser = app.state.log
        await log.append("jobs", b"a")
        await began.wait()
    assert handled == [b"a"]
    async with open_wal(data_dir) as log:  # the lock is free, and the position saved
        assert [cursor.lag_bytes for cursor in await log.cursors()] == [0]
    async with app.router.lifespan_context(app):  # an application may be started again
        await eventually(lambda: [info.state for info in app.state.log.consumers()] == ["running"])


async def test_ended_consumer_stops_the_application(data_dir: Path) -> None:
    def consumers(log: WALAccesser) -> list[Consumer]:
        return [log.consume("jobs", fail, cursor=name, attempts=1) for name in ("one", "two")]

    app = application(lifespan(f"journal:{data_dir}", consumers))
    with stopped() as event, pytest.raises(ExceptionGroup) as group:
        async with app.router.lifespan_context(app):
            await app.state.log.append("jobs", b"a")
            await event.wait()
            await eventually(lambda: [info.state for info in app.state.log.consumers()] == ["ended", "ended"])
    assert [type(error) for error in group.value.exceptions] == [HandlerFailedError] * 2


async def test_application_goes_on_without_its_consumer(data_dir: Path) -> None:
    app = application(
        lifespan(f"journal:{data_dir}", lambda log: log.consume("jobs", fail, cursor="worker", attempts=1), stop_on_error=False)
    )
    with stopped() as event:
        async with app.router.lifespan_context(app):
            sent = await app.state.log.append("jobs", b"a")
            await eventually(lambda: app.state.log.consumers()[0].state == "ended")
            assert app.state.log.consumers()[0].message_id == sent.message_id
            await app.state.log.append("jobs", b"b")
        assert not event.is_set()


def test_wrong_settings_raise_before_the_start() -> None:
    with pytest.raises(InvalidArgumentError, match="pchannels=0"):
        lifespan("data/", pchannels=0)


def test_server_ends_with_its_consumer(data_dir: Path) -> None:
    """A supervisor gets an end by SIGTERM, and the log of the server the error."""
    server = subprocess.run(
        [sys.executable, "-m", "uvicorn", "--port", "0", "tests.api.served_application:failing"],
        cwd=ROOT,
        env={"LOCATION": str(data_dir), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert server.returncode == -signal.SIGTERM, server.stderr
    assert "Application startup complete" in server.stderr
    assert "cannot handle b'a'" in server.stderr
    assert "Application shutdown failed" in server.stderr
