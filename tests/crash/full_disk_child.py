"""A process that appends until the log has no room for its next segment, reports that, and waits to be killed.

    python -m tests.crash.full_disk_child <directory> <settings in JSON> [keyed]

It prints the number of acknowledged events on its standard output.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from wal import Message, WALAccesser, open_wal
from wal.errors import NoSpaceError

SIZES = (60_000, 300)
"""Payload sizes in bytes: large ones fill the disk, then small ones the rest of the last segment."""


async def append_until_full(log: WALAccesser, *, keyed: bool) -> int:
    """Appends until events of every size are refused, and returns the number of acknowledged ones. With `keyed` each event has a key."""
    acknowledged = 0
    for size in SIZES:
        while True:
            try:
                message = Message("orders", b"%08d" % acknowledged + bytes(size))
                await log.raw_append(message, idempotency_key=f"{acknowledged:040}" if keyed else None)
            except NoSpaceError:
                break
            acknowledged += 1
    return acknowledged


async def run(directory: str, settings: dict[str, Any], *, keyed: bool) -> None:
    log = await open_wal(directory, **settings)
    os.write(1, b"%d\n" % await append_until_full(log, keyed=keyed))
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], json.loads(sys.argv[2]), keyed=sys.argv[3:] == ["keyed"]))
