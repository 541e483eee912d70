"""After kills at any moment and retries with the same keys, every keyed append is in the log exactly once, with its first result (D8)."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec
import pytest

from tests.crash.conftest import by_loop
from tests.crash.keyed_child import PIPELINED, WORKERS, Done, KeyedPlan, payloads_of
from tests.processes import Child
from wal import WALAccesser, open_wal
from wal.write.idempotency.producers import RESULTS_KEPT

ROOT: Final = Path(__file__).parents[2]


@by_loop
@pytest.mark.one_loop
@pytest.mark.usefixtures("write_path")
async def test_killed_and_retried(data_dir: Path, soak: int) -> None:
    """At least five kills on one directory, every fifth within the opening; fifty in a soak."""
    # Every process begins this many appends before the newest that was reported.
    retried = 30
    acked_max = 400
    # Every worker reaches this number before the kills end: on a slow disk the worker that pipelines is much faster than the others.
    newest_min = 40
    # The approximate duration of an opening: some processes are killed within it.
    opening_s = 0.05

    class Results:
        """The first result of every append, as the processes reported them."""

        def __init__(self) -> None:
            self.first: dict[tuple[int, int], Done] = {}
            self.newest = [0] * WORKERS
            self.duplicates = self.forgotten = self.unreported = 0

        def begin(self) -> list[int]:
            return [max(newest - retried, 0) for newest in self.newest]

        def hear(self, done: Done) -> None:
            """Records a report; AssertionError when it contradicts earlier ones."""
            place = done.worker, done.number
            first = self.first.get(place)
            if first is None:
                self.unreported += done.duplicate  # written by a process that was killed before it reported
                assert done.message_id is not None, f"the first result of {place} is gone: {done}"
                assert done.last_confirmed == done.message_id
                assert (done.txn is not None) == (done.worker >= 3)
                self.first[place] = done
                self.newest[done.worker] = max(self.newest[done.worker], done.number)
                return
            self.duplicates += 1
            assert done.duplicate, f"{place} was written again: first {first}, then {done}"
            if done.message_id is None:
                self.forgotten += 1
                assert done.worker in (2, 4), f"a plain key lost its result: {done}"
                assert done.number <= self.newest[done.worker] + PIPELINED - RESULTS_KEPT, f"it is not so old: {done}"
                assert (done.time_tick, done.last_confirmed) == (None, None)
            else:
                again = msgspec.structs.replace(done, duplicate=first.duplicate)
                assert again == first, f"another result for {place}: first {first}, then {done}"

        async def check(self, log: WALAccesser) -> None:
            """Checks that the log holds every reported append exactly once, at the reported position."""
            found: dict[tuple[int, int], tuple[str, int]] = {}
            seen: Counter[bytes] = Counter()
            for vchannels in (["keyed"], ["other"], ["produced"], ["txns", "wide"]):
                async with log.read(vchannels, follow=False) as scanner:
                    async for message in scanner:
                        payloads = [body.payload for body in message.bodies()]
                        seen.update(payloads)
                        worker, number, _ = map(int, payloads[0].split())
                        assert sorted(payloads) == payloads_of(worker, number)
                        found[worker, number] = str(message.message_id), message.time_tick
            assert [payload for payload, count in seen.items() if count > 1] == []
            for place, done in self.first.items():
                assert found.get(place) == (done.message_id, done.time_tick), f"{done} is at another position: {found.get(place)}"
            beyond = Counter(worker for worker, _ in found.keys() - self.first.keys())
            assert all(count <= PIPELINED for count in beyond.values())
            last = {worker: max(number for of, number in found if of == worker) for worker in (2, 4)}
            assert {info.name: info.last_sequence for info in await log.producers()} == {"p": last[2], "wide": last[4]}

    async def start(directory: Path, first: list[int]) -> Child:
        """Starts a process that has done its imports and waits for `go`."""
        child = Child("-m", "tests.crash.keyed_child", msgspec.json.encode(KeyedPlan(str(directory), first, 2)).decode())
        assert await child.line() == "ready"
        return child

    async def run_and_kill(child: Child, results: Results, *, acked: int, delay_s: float) -> int:
        """Starts the load, kills the child after this many reports or, for 0, after this time, and returns the number of reports read."""
        child.tell("go")
        if not acked:
            await asyncio.sleep(delay_s)  # the moment of the kill is the point, nothing is waited for
            child.send_signal(signal.SIGKILL)
        heard = 0
        async for line in child.lines(kill_after=acked):
            results.hear(msgspec.json.decode(line, type=Done))
            heard += 1
        await child.end(-signal.SIGKILL)
        return heard

    kills = 5 * soak
    rng = random.Random(random.getrandbits(32))
    results = Results()
    kill = 0
    while kill < kills or min(results.newest) <= newest_min or not results.unreported:
        async with asyncio.timeout(60):
            acked = 0 if kill % 5 == 4 else int(1 + acked_max * rng.random() ** 2)
            async with await start(data_dir, results.begin()) as child:
                await run_and_kill(child, results, acked=acked, delay_s=rng.uniform(0, 2 * opening_s))
        kill += 1
        if kill % 10 == 0:
            async with open_wal(data_dir) as log:
                await results.check(log)
    async with open_wal(data_dir) as log:
        await results.check(log)
    assert results.duplicates > kills * retried
    assert results.forgotten > 0
