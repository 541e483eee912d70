"""A process whose transaction stays open while it is stopped: `python -m tests.crash.lease '<json of a LeasePlan>'`.

First it lets a transaction expire, to show that leases do run; then it opens the transaction under test, stops itself, and commits it when
it is continued. So no time in which it waits for its parent counts.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time

import msgspec

from tests.crash.child import Reporter
from tests.crash.report import Committed, LeasePlan, RanOut, TxnOpen
from wal import Latest, Message, WALAccesser, open_wal
from wal.errors import TransactionExpiredError


async def run(plan: LeasePlan) -> None:
    reporter = await Reporter.open()
    async with open_wal(plan.directory, time_tick_interval_s=plan.time_tick_interval_s) as log:
        await reporter.tell(RanOut(await _let_run_out(log, plan.control_keepalive_s)))
        txn = await log.txn("orders", keepalive=plan.keepalive_s)
        await txn.append(b"before")
        opened = time.monotonic()
        await reporter.tell(TxnOpen())
        await reporter.flush()
        os.kill(os.getpid(), signal.SIGSTOP)
        await _next_tick(log)  # the log has looked for expired transactions
        idle_s = time.monotonic() - opened
        try:
            await txn.append(b"after")
            await txn.commit()
        except TransactionExpiredError as error:
            await reporter.tell(Committed(False, idle_s, str(error)))
        else:
            await reporter.tell(Committed(True, idle_s, ""))
        await reporter.flush()


async def _next_tick(log: WALAccesser) -> None:
    """Returns when the log has made another tick."""
    async with log.read("orders", deliver_policy=Latest(), include_time_ticks=True) as scanner:
        await anext(scanner)


async def _let_run_out(log: WALAccesser, keepalive_s: float) -> float:
    """Opens a transaction, waits until the log reports that one expired, checks that it is this one, and returns how long it took."""
    began = time.monotonic()  # before the call, since the lease begins within it
    txn = await log.txn("orders", keepalive=keepalive_s)
    async with log.read("orders", include_time_ticks=True) as scanner:
        async for _ in scanner:  # a message at least every tick
            if sum(pchannel.expired_transactions for pchannel in log.statistics().pchannels):
                break
    took = time.monotonic() - began
    try:
        await txn.append(Message("orders", b"too late"))
    except TransactionExpiredError:
        return took
    raise AssertionError("a transaction was counted as expired and takes bodies")


if __name__ == "__main__":
    asyncio.run(run(msgspec.json.decode(sys.argv[1], type=LeasePlan)))
