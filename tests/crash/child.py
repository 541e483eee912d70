"""A process that loads a log until it is killed: `python -m tests.crash.child '<json of a Plan>'`.

It waits for `go` on its standard input, so that its imports cost the test no time; `close` makes it close the log under load; at the end of
the input (its parent died) it ends. It writes reports to its standard output, which never blocks the loop.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Final, cast

import msgspec
import uvloop

from tests.crash.load import SIDES, follow, make_vchannels, work
from tests.crash.report import Closed, Closing, Opened, Opening, Plan, Report
from wal import open_wal

_encode: Final = msgspec.json.Encoder().encode


class Reporter(asyncio.Protocol):
    """Standard output as lines of JSON; waits while the parent does not read."""

    def __init__(self) -> None:
        self._room = asyncio.Event()
        self._room.set()
        self._transport: asyncio.WriteTransport

    @classmethod
    async def open(cls) -> Reporter:
        _, reporter = await asyncio.get_running_loop().connect_write_pipe(cls, sys.stdout.buffer)
        return reporter

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's transport is not a subclass

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:  # the parent reads no more
            os._exit(1)

    async def tell(self, report: Report) -> None:
        self._transport.write(_encode(report) + b"\n")
        await self._room.wait()

    async def flush(self) -> None:
        """Returns when all reports are in the pipe."""
        self._transport.set_write_buffer_limits(high=0)
        await self._room.wait()


async def commands() -> asyncio.StreamReader:
    """Reads standard input as lines; its end ends this process."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin.buffer)
    return reader


async def run(plan: Plan) -> None:
    """Opens the log, loads it, and closes it on request."""
    reporter = await Reporter.open()
    orders = await commands()
    if await orders.readline() != b"go\n":
        return
    await reporter.tell(Opening())
    log = await open_wal(plan.directory, **plan.settings)
    await make_vchannels(log)
    await reporter.tell(Opened())
    async with asyncio.TaskGroup() as group:
        for side in SIDES:
            group.create_task(follow(log, side, reporter.tell))
        for worker in range(plan.workers):
            group.create_task(work(log, plan, worker, reporter.tell))
        if await orders.readline() != b"close\n":
            os._exit(1)
        await reporter.tell(Closing())
        await log.close()
    await reporter.tell(Closed())
    await reporter.flush()


def main() -> None:
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    factory = uvloop.new_event_loop if plan.uvloop else asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(run(plan))


if __name__ == "__main__":
    main()
