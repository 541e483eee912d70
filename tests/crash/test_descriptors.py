"""A process at its limit of open files: appends that need a new segment are refused and can be retried; none is lost."""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path

from tests.probes import payloads
from tests.processes import run_python
from wal import Message, open_wal
from wal.errors import UnavailableError, WALError, WouldBlockError


async def test_limit_of_open_files_that_is_met_and_raised_again(data_dir: Path) -> None:
    async def append_without_descriptors(directory: Path) -> None:
        """Prints the number of refused appends, all of which must be retryable, and the number of acknowledged ones."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        refused: list[WALError] = []
        acknowledged = 0
        payload = bytes(60_000)
        async with open_wal(directory, segment_bytes=1 << 20) as log:
            await log.raw_append(Message("orders", payload))
            acknowledged += 1
            for number in range(120):
                scarce = number % 40 < 30
                # Every descriptor below the limit is in use, so that no file can be opened while the limit holds.
                resource.setrlimit(resource.RLIMIT_NOFILE, (0 if scarce else min(hard, 1024), hard))
                try:
                    if number % 4:
                        await log.raw_append(Message("orders", payload))
                    else:
                        async with log.txn("orders") as txn:
                            await txn.append(payload)
                    acknowledged += 1
                except (WouldBlockError, UnavailableError) as error:
                    assert isinstance(error, WouldBlockError if number % 4 else UnavailableError), "a transaction is over"
                    assert error.retryable
                    assert not error.outcome_unknown
                    refused.append(error)
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1024), hard))
        os.write(1, b"%d %d\n" % (len(refused), acknowledged))

    done = await asyncio.to_thread(run_python, append_without_descriptors, data_dir)
    refused, acknowledged = map(int, done.out.split())
    assert refused > 0, "no append met the limit"
    async with open_wal(data_dir) as log:
        assert len(await payloads(log, "orders")) == acknowledged
