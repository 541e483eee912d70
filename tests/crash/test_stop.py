"""A stopped process does not lose its transactions: a gap counts for at most twice `time_tick_interval_s`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.crash.process import Child
from tests.crash.report import Committed, LeasePlan, RanOut, TxnOpen
from tests.processes import eventually, is_stopped
from wal import open_wal


async def test_stopped_for_longer_than_the_keepalive(data_dir: Path) -> None:
    plan = LeasePlan(directory=str(data_dir), time_tick_interval_s=0.05, control_keepalive_s=0.2, keepalive_s=1.0)
    child = Child(plan, module="tests.crash.lease")
    try:
        await child.until_told(TxnOpen, "its transaction was open")
        (ran_out,) = [report for report in child.reports if isinstance(report, RanOut)]
        assert ran_out.seconds >= plan.control_keepalive_s
        await eventually(lambda: is_stopped(child.pid))
        await asyncio.sleep(1.2 * plan.keepalive_s)  # the test is about being stopped for this long
        child.cont()
        await child.until_told(Committed, "it had tried to commit")
        (outcome,) = [report for report in child.reports if isinstance(report, Committed)]
        assert outcome.idle_s >= 1.2 * plan.keepalive_s
        assert outcome.committed, outcome.error
        await child.end()
    finally:
        child.cont()
        await child.kill()
    async with open_wal(data_dir) as log, log.read("orders", follow=False) as scanner:
        messages = [message async for message in scanner]
    assert [[body.payload for body in message.bodies()] for message in messages] == [[b"before", b"after"]]
