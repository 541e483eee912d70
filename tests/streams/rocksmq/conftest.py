"""Fixtures: a RocksMQ for each test, and a way to reopen it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from wal.streams.rocksmq import RocksMQ


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "mq"


@pytest.fixture
async def mq(directory: Path) -> AsyncIterator[RocksMQ]:
    async with await RocksMQ.open(directory) as opened:
        yield opened
