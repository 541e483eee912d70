"""Rounds: takes one directory through many crashes. In each round a child loads the log and dies; then the whole log is read and judged.

Owns the seed (the same in each run, or a soak's; WAL_TEST_SEED chooses it), the ledger, and the children of the next
rounds, which are started ahead so that their imports cost no time.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

from tests.crash.ledger import Ledger
from tests.crash.process import Child
from tests.crash.reading import check_resuming, read_log
from tests.crash.report import Absent, Acked, Closed, Closing, Delivered, Opened, Opening, Plan
from wal import open_wal

AHEAD: Final = 2
"""The number of children that wait for their round."""
SETTINGS: Final[dict[str, Any]] = {"pchannels": 2, "time_tick_interval_s": 0.05}


class Rounds:
    """A log in `directory` whose process is killed repeatedly. Use it with `async with`, so that no child outlives it."""

    def __init__(self, directory: Path, *, settings: dict[str, Any] | None = None, **plan: Any) -> None:
        self.seed = random.randrange(1 << 32)
        self.rng = random.Random(self.seed)
        self.ledger = Ledger()
        self.killed_while_opening = self.killed_while_closing = 0
        self._directory = str(directory)
        self._settings = SETTINGS | (settings or {})
        self._plan = plan
        self._begun = self._started = 0
        self._ahead: deque[asyncio.Task[Child]] = deque()
        self._children: list[Child] = []
        self._positions: list[str] = []
        self._open_s = self._close_s = 0.05

    async def __aenter__(self) -> Rounds:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.gather(*self._ahead)
        for child in self._children:
            await child.kill()

    async def load_and_kill(self, acked: int) -> None:
        """Runs a round that kills the child when it has acknowledged about this many events."""
        child = await self._go()
        await child.until(lambda: child.acked >= acked, f"{acked} events were acknowledged")
        await self._collect(child, killed=True)

    async def kill_while_opening(self) -> None:
        """Runs a round that kills the child at a random moment of its opening."""
        child = await self._go()
        await child.until_told(Opening, "it began to open the log")
        await asyncio.sleep(self.rng.uniform(0, self._open_s))  # the moment is the point, nothing is waited for
        opened = await self._collect(child, killed=True, wanted=Opened)
        self.killed_while_opening += not opened
        self._open_s *= 0.7 if opened else 1.2  # adjusts the next aim: this kill was too late, or in time

    async def load_and_close(self, acked: int, *, kill: bool) -> None:
        """Runs a round in which the child closes its log under load, and kills it at a random moment of the close."""
        child = await self._go()
        await child.until(lambda: child.acked >= acked, f"{acked} events were acknowledged")
        child.tell("close")
        await child.until_told(Closing, "it began to close the log")
        if kill:
            await asyncio.sleep(self.rng.uniform(0, self._close_s))  # the moment is the point, nothing is waited for
            closed = await self._collect(child, killed=True, wanted=Closed)
            self.killed_while_closing += not closed
            self._close_s *= 0.7 if closed else 1.2
            return
        began = time.monotonic()
        await child.until_told(Closed, "the log was closed")
        self._close_s = time.monotonic() - began
        await self._collect(child, killed=False)

    async def check(self) -> None:
        """Reads and judges the log; then resumes in every way and compares."""
        self._start_ahead()
        async with open_wal(self._directory, **self._settings) as log:
            whole = await read_log(log)
            self.ledger.check(whole)
            stored = self.rng.sample(self._positions, min(2, len(self._positions)))
            await check_resuming(log, whole, stored, self.rng)

    async def _go(self) -> Child:
        self._start_ahead()
        child = await self._ahead.popleft()
        self.ledger.round_begins(self._begun)
        self._begun += 1
        began = time.monotonic()
        child.tell("go")
        if self._begun == 1:  # the duration of an opening is needed to choose a moment in it
            await child.until_told(Opened, "the log was open")
            self._open_s = time.monotonic() - began
        return child

    def _start_ahead(self) -> None:
        while len(self._ahead) < AHEAD:
            self._ahead.append(asyncio.ensure_future(self._start(self._started)))
            self._started += 1

    async def _start(self, number: int) -> Child:
        child = Child(
            Plan(directory=self._directory, seed=self.seed, round=number, settings=self._settings, uvloop=number % 2 == 0, **self._plan)
        )
        self._children.append(child)
        return child

    async def _collect(self, child: Child, *, killed: bool, wanted: type[Opened | Closed] = Opened) -> bool:
        """Ends the child and passes its reports to the ledger; returns whether `wanted` was among them."""
        await (child.kill() if killed else child.end())
        self._children.remove(child)
        newest: dict[str, str] = {}
        for report in child.reports:
            if isinstance(report, Acked):
                self.ledger.acked(report)
            elif isinstance(report, Absent):
                self.ledger.absent(report)
            elif isinstance(report, Delivered):
                self.ledger.delivered(report)
                newest[report.position.partition(":")[0]] = report.position
        self._positions += newest.values()
        return child.has_told(wanted)
