"""A process that appends while it has no file descriptor left, and counts the outcomes.

    python -m tests.crash.descriptors_child <directory>

It prints the number of refused appends and the number of acknowledged ones. All its refusals must be retryable.
"""

from __future__ import annotations

import asyncio
import os
import resource
import sys

from wal import Message, open_wal
from wal.errors import UnavailableError, WALError, WouldBlockError

PAYLOAD = bytes(60_000)
APPENDS = 120
SEGMENT_BYTES = 1 << 20


async def run(directory: str) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    refused: list[WALError] = []
    acknowledged = 0
    async with open_wal(directory, segment_bytes=SEGMENT_BYTES) as log:
        await log.raw_append(Message("orders", PAYLOAD))
        acknowledged += 1
        for number in range(APPENDS):
            scarce = number % 40 < 30
            # Every descriptor below the limit is in use, so that no file can be opened while the limit holds.
            resource.setrlimit(resource.RLIMIT_NOFILE, (0 if scarce else min(hard, 1024), hard))
            try:
                if number % 4:
                    await log.raw_append(Message("orders", PAYLOAD))
                else:
                    async with log.txn("orders") as txn:
                        await txn.append(PAYLOAD)
                acknowledged += 1
            except (WouldBlockError, UnavailableError) as error:
                assert isinstance(error, WouldBlockError if number % 4 else UnavailableError), "a transaction is over"
                assert error.retryable
                assert not error.outcome_unknown
                refused.append(error)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 1024), hard))
    os.write(1, b"%d %d\n" % (len(refused), acknowledged))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1]))
