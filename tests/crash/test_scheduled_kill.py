"""After kills at any moment, every scheduled message is in the log once, not before its time, and no cancelled one ever is."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from functools import partial
from pathlib import Path

import msgspec
import pytest

from tests.crash.scheduled_child import VCHANNELS, WORKERS, Cancelled, Scheduled, SchedulePlan, key_of
from tests.processes import Child, eventually
from wal import WALAccesser, open_wal


@pytest.mark.one_loop
async def test_killed_writers_deliver_each_message_once(data_dir: Path, soak: int) -> None:
    """Two kills on one directory by default, forty in a soak; messages are up to 0.4 s away, and many times pass while nobody writes."""
    reports_max = 300

    class Reports:
        """The reports of the processes: the durable messages and their times, the cancelled ones, and the progress of each worker."""

        def __init__(self) -> None:
            self.due_us: dict[str, int | None] = {}
            self.cancelled: set[str] = set()
            self.next = [0] * WORKERS
            self.cancellations = self.duplicates = 0

        def hear(self, line: str) -> None:
            kind, fields = msgspec.json.decode(line)
            if kind == "Cancelled":
                done = msgspec.convert(fields, Cancelled)
                key = key_of(done.worker, done.number)
                self.cancelled.add(key)
                self.cancellations += 1
                self.next[done.worker] = done.number + 1
                return
            message = msgspec.convert(fields, Scheduled)
            key = key_of(message.worker, message.number)
            self.next[message.worker] = message.number  # the next process calls again: its cancellation may have no report
            self.duplicates += message.due_us is None
            if message.due_us is not None or key not in self.due_us:
                self.due_us[key] = message.due_us
            self.cancelled.discard(key)  # the message before was cancelled, and this is another one

        async def check(self, log: WALAccesser) -> None:
            """Checks the log, once nothing waits any more. The last call of each worker may have been carried out without a report."""
            found: Counter[str] = Counter()
            ticks: dict[str, int] = {}
            for name in VCHANNELS:
                async with log.read(name, follow=False) as scanner:
                    async for message in scanner:
                        found[message.payload.decode()] += 1
                        ticks[message.payload.decode()] = message.time_tick
            assert [key for key, count in found.items() if count > 1] == []
            assert self.cancelled & found.keys() == set()
            unsure = {key_of(worker, number + more) for worker, number in enumerate(self.next) for more in (0, 1)}
            assert self.due_us.keys() - self.cancelled - found.keys() <= unsure
            assert found.keys() - self.due_us.keys() <= unsure
            early = [key for key, due_us in self.due_us.items() if key in ticks and due_us and (ticks[key] >> 18) * 1000 < due_us]
            assert early == []

    async def start(directory: Path, reports: Reports, seed: int) -> Child:
        return Child("-m", "tests.crash.scheduled_child", msgspec.json.encode(SchedulePlan(str(directory), reports.next, seed)).decode())

    def is_quiet(log: WALAccesser) -> bool:
        """Returns whether no message waits for its time."""
        return not any(pchannel.scheduled for pchannel in log.statistics().pchannels)

    kills = 2 if soak == 1 else 40
    rng = random.Random(random.getrandbits(32))
    reports = Reports()
    for kill in range(kills):
        async with asyncio.timeout(60), await start(data_dir, reports, rng.getrandbits(32)) as child:
            async for line in child.lines(kill_after=int(20 + reports_max * rng.random())):
                reports.hear(line)
            await child.end(-signal.SIGKILL)
        if kill % 4 == 3 or kill == kills - 1:
            async with open_wal(data_dir) as log:
                await eventually(partial(is_quiet, log))
                await reports.check(log)
    assert reports.cancellations > 0
    assert reports.duplicates > 0
    assert len(reports.due_us) > 20 * kills
