"""A process at its limit of open files: appends that need a new segment are refused and can be retried; none is lost."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Final

from tests.probes import payloads
from wal import open_wal

ROOT: Final = Path(__file__).parents[2]


async def test_limit_of_open_files_that_is_met_and_raised_again(data_dir: Path) -> None:
    command = [sys.executable, "-m", "tests.crash.descriptors_child", str(data_dir)]
    child = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE, stderr=PIPE)
    said, errors = await child.communicate()
    assert child.returncode == 0, errors.decode()
    refused, acknowledged = map(int, said.split())
    assert refused > 0, "no append met the limit"
    async with open_wal(data_dir) as log:
        assert len(await payloads(log, "orders")) == acknowledged
