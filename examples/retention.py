"""A log that bounds its own size, and the cursor of a lost reader, which holds the log until the cursor turns stale.

    python -m examples.retention [directory]      (default: data/retention/)

Sensors write without end; the log keeps 4 MiB of it. A reader with a cursor makes it keep more, up to `cursor_lag_bytes_max`.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

from wal import Message, PChannelRetention, WALAccesser, open_wal
from wal.errors import TruncatedError

MIB = 1 << 20
KEPT = 4 * MIB
LAG_MAX = 16 * MIB


async def main(directory: str = "data/retention/") -> None:
    async with open_wal(directory, segment_bytes=MIB, retention_bytes=KEPT, cursor_lag_bytes_max=LAG_MAX) as log:
        await write(log, 32)
        state = await until(log, lambda state: state.bytes <= KEPT + MIB)
        print(f"32 MiB written, at most 5 MiB held: {state.bytes <= KEPT + MIB}")

        async with log.read("readings", cursor="dashboard") as scanner:
            await anext(scanner)
            await scanner.save()
        await write(log, 8)
        state = await until(log, lambda state: state.bytes > KEPT + MIB)
        readers = [holder for holder in state.holders if holder.kind == "cursor"]
        print(f"held back by: {', '.join(f'{holder.kind} {holder.name}' for holder in readers)}")

        await write(log, 16)
        await until(log, lambda state: state.bytes <= KEPT + MIB)
        for info in await log.cursors():
            print(f"cursor {info.name} is stale: {info.stale}")
        try:
            async with log.read("readings", cursor="dashboard"):
                pass
        except TruncatedError as error:
            print(f"its reader gets a TruncatedError with the earliest event: {error.earliest is not None}")
        await log.delete_cursor("dashboard")
        async with log.read("readings", cursor="dashboard", follow=False) as scanner:
            await anext(scanner)
            print("deleted, the cursor starts again")


async def write(log: WALAccesser, mib: int) -> None:
    for _ in range(16 * mib):
        await log.raw_append(Message("readings", bytes(1 << 16)))


async def until(log: WALAccesser, condition: Callable[[PChannelRetention], bool]) -> PChannelRetention:
    """Waits until a condition holds; retention runs every second, and whenever a segment is full."""
    while True:
        (state,) = await log.retention()
        if condition(state):
            return state
        await asyncio.sleep(0.01)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
