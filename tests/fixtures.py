"""The fixtures of every acceptance test: an open log at the location under test, and a watchdog for tests that hang."""

from __future__ import annotations

import asyncio
import contextlib
import io
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.locations import HANG_S, open_wal
from wal import WALAccesser


class HangsError(Exception):
    """The test took far too long: it waits for something that never happens, or spins on the loop."""


@pytest.fixture(autouse=True)
def watchdog() -> Iterator[None]:
    """Ends a test that hangs, even if its loop no longer runs (which a timeout of the loop could not do)."""

    def hang(*_: object) -> None:
        raise HangsError(f"nothing came of it in {HANG_S} s; what waits:\n{_waiting()}")

    before = signal.signal(signal.SIGALRM, hang)
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture
async def log(location: str) -> AsyncIterator[WALAccesser]:
    async with open_wal(location) as opened:
        yield opened


@pytest.fixture
async def log4(location: str) -> AsyncIterator[WALAccesser]:
    """Yields an open log of four pchannels."""
    async with open_wal(location, pchannels=4) as opened:
        yield opened


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Returns a directory for a journal."""
    return str(tmp_path / "data")


def _waiting() -> str:
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return "no loop runs"
    stacks = io.StringIO()
    for task in tasks:
        with contextlib.suppress(TypeError):  # linecache has no lines of compiled modules such as grpc's
            task.print_stack(file=stacks)
    return stacks.getvalue()
