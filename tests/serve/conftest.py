"""A real server for each test: in this process, or as a child process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.rpc.conftest import contract  # noqa: F401 - a fixture
from tests.rpc.contract import Contract
from tests.serve.foreign import Foreign
from tests.serve.servers import Child, Serving, child, connected, serving
from wal.rpc.connection import Connection


@pytest.fixture
async def served() -> AsyncIterator[Serving]:
    """A node of a log in memory, in this process."""
    async with serving() as one:
        yield one


@pytest.fixture
async def connection(served: Serving) -> AsyncIterator[Connection]:
    """A connection to `served`."""
    async with connected(served.address) as one:
        yield one


@pytest.fixture
async def server(data_dir: object) -> AsyncIterator[Child]:
    """`wal standalone` with a journal, as a process of its own."""
    async with child(str(data_dir)) as one:
        yield one


@pytest.fixture
async def foreign(served: Serving, contract: Contract) -> AsyncIterator[Foreign]:  # noqa: F811
    """A client of Milvus' protocol, connected to `served`."""
    async with Foreign(served.address, contract) as one:
        yield one
