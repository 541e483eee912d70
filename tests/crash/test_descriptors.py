"""A process at its limit of open files: appends that need a new segment are refused and can be retried; none is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from tests.probes import payloads
from tests.processes import run_python
from wal import open_wal

ROOT: Final = Path(__file__).parents[2]


async def test_limit_of_open_files_that_is_met_and_raised_again(data_dir: Path) -> None:
    done = await asyncio.to_thread(run_python, "-m", "tests.crash.descriptors_child", data_dir)
    refused, acknowledged = map(int, done.out.split())
    assert refused > 0, "no append met the limit"
    async with open_wal(data_dir) as log:
        assert len(await payloads(log, "orders")) == acknowledged
