"""The fixtures of the remote engine: a client of a log in this process, and a client of a server that can be killed."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.fixtures import watchdog
from tests.locations import begin_time
from tests.serve.servers import Child, Serving, child, serving
from wal import WALAccesser, open_wal

__all__ = ["served", "server", "watchdog"]


def pytest_runtest_call() -> None:
    """Gives a test its whole time from when its server runs: starting a process has its own bound, and takes long on a busy machine."""
    begin_time()


@pytest.fixture
async def served() -> AsyncIterator[Serving]:
    """A node of a log of three pchannels in memory, in this process."""
    async with serving(pchannels=3) as one:
        yield one


@pytest.fixture
async def log(served: Serving) -> AsyncIterator[WALAccesser]:
    """A client of `served`."""
    async with open_wal(f"wal://{served.address}") as one:
        yield one


@pytest.fixture
async def server(data_dir: object) -> AsyncIterator[Child]:
    """`wal standalone` with a journal, as a process of its own."""
    async with child(str(data_dir)) as one:
        yield one
