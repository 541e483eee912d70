"""Child: the parent's handle of a loading process.

It reads the reports as they come until the pipe is empty, even after the death of the process: an acknowledged append is known here as soon
as the child has reported it.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

import msgspec

from tests import processes
from tests.crash.report import Acked, LeasePlan, Plan, Report
from tests.processes import WAIT_TIMEOUT_S


class Child(processes.Child):
    """Starts a process of `module` with this plan; it waits for `go`. Its reports are read on the loop that starts it."""

    def __init__(self, plan: Plan | LeasePlan, *, module: str = "tests.crash.child") -> None:
        super().__init__("-m", module, msgspec.json.encode(plan).decode())
        self.reports: list[Report] = []
        self.acked = 0
        """The number of events acknowledged so far."""
        self._news = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits until the reports make this true; AssertionError when the child ends earlier, or takes too long."""
        try:
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                while not condition():
                    if self._reading.done():
                        raise AssertionError(f"the child ended before {what}:\n{self._failure()}")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"waited {WAIT_TIMEOUT_S} s for {what}; heard last: {self.reports[-3:]}") from None

    async def until_told(self, kind: type[Report], what: str) -> None:
        """Waits for the first report of this kind."""
        await self.until(lambda: self.has_told(kind), what)

    def has_told(self, kind: type[Report]) -> bool:
        return any(isinstance(report, kind) for report in self.reports)

    async def kill(self) -> list[str]:
        """Sends SIGKILL; returns when every report is read. AssertionError when the child had failed by itself."""
        self.send_signal(signal.SIGKILL)
        await self.end()
        return []

    async def end(self, *codes: int) -> int:
        """Waits until the child has ended, by SIGKILL or cleanly."""
        try:
            await self._reading
            return await super().end(*(codes or (0, -signal.SIGKILL)))
        finally:
            await self.__aexit__()

    async def _read(self) -> None:
        decode = msgspec.json.Decoder(Report).decode
        try:
            async for line in self.lines():
                report = decode(line)
                self.reports.append(report)
                if isinstance(report, Acked):
                    self.acked += len(report.events)
                self._news.set()
        finally:
            asyncio.get_running_loop().call_soon(self._news.set)  # once this task is done
