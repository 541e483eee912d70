"""After a kill at any moment while checkpoints are written and segments freed, a log opens, and has every key from its beginning."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest

from tests.crash.conftest import by_thread
from tests.processes import Child
from wal import Message, MessageID, ProducerKey, WALAccesser, open_wal
from wal.node.local.log import LocalLog
from wal.write.checkpoint_ledger import CheckpointRule
from wal.write.idempotency.producers import RESULTS_KEPT

WRITERS = 4


def key_of(number: int) -> str | ProducerKey:
    """Returns the key of an append; every fourth writer uses a producer's key."""
    writer, at = number % WRITERS, number // WRITERS
    return ProducerKey("p", at) if writer == 0 else f"{writer}-{at}"


@by_thread
@pytest.mark.usefixtures("write_path")
async def test_killed_while_checkpoints_are_written(data_dir: Path, soak: int) -> None:
    kills = 3
    acked_max = 150

    async def append_and_truncate(directory: Path, first: int) -> None:
        """Appends keyed messages, truncates them and writes checkpoints; prints number, message id and time tick of each result."""

        async def write(log: WALAccesser, number: int) -> None:
            """Appends every WRITERS-th number from this one on, each on the condition that the one before it is the last."""
            vchannel = f"v{number % WRITERS}"
            last = await log.last(vchannel)
            while True:
                result = await log.raw_append(Message(vchannel, bytes(20_000)), idempotency_key=key_of(number), expected_last=last)
                assert result.message_id is not None
                last = result.message_id
                os.write(1, b"%d %s %d\n" % (number, str(result.message_id).encode(), result.time_tick or 0))
                if number % 40 == 0:
                    await log.truncate(up_to=result.message_id)
                number += WRITERS

        LocalLog.checkpoint_rule = CheckpointRule(keyed_events=12)
        log = await open_wal(directory, segment_bytes=1 << 20, time_tick_interval_s=0.01)
        await asyncio.gather(*(write(log, first + writer) for writer in range(WRITERS)))

    async def run_and_kill(directory: Path, first: int, acked: int) -> dict[int, tuple[str, int]]:
        """Returns the results by number of a process that was killed after it had printed this many."""
        results: dict[int, tuple[str, int]] = {}
        async with Child(append_and_truncate, directory, first) as child:
            async for line in child.lines(kill_after=acked):
                number, message_id, tick = line.split()
                results[int(number)] = message_id, int(tick)
            await child.end(-signal.SIGKILL)
        return results

    async def check_last(log: WALAccesser, writer: int, acked: dict[int, tuple[str, int]]) -> None:
        """The last event of a vchannel is known after the kill: the one in the log, or, if all are truncated, the last acknowledged one."""
        vchannel = f"v{writer}"
        last = await log.last(vchannel)
        async with log.read(vchannel, follow=False) as scanner:
            stored = [message.message_id async for message in scanner]
        newest = max((number for number in acked if number % WRITERS == writer), default=None)
        if stored:
            assert last == stored[-1]
        elif newest is not None:
            assert str(last) == acked[newest][0]
        if newest is not None:
            assert last is not None
            assert last >= MessageID.parse(acked[newest][0])

    rng = random.Random(random.getrandbits(32))
    first: dict[int, tuple[str, int]] = {}
    checkpoints: set[str] = set()
    async with asyncio.timeout(60 * soak):
        for _ in range(kills * soak):
            begin = (max(first, default=-WRITERS) // WRITERS + 2) * WRITERS
            first |= await run_and_kill(data_dir, begin, rng.randint(acked_max // 2, acked_max))
            checkpoints |= {path.name for path in data_dir.glob("pchannels/p0/checkpoint-*")}
            async with open_wal(data_dir, segment_bytes=1 << 20) as log:
                for writer in range(WRITERS):
                    await check_last(log, writer, first)
                newest = max(number for number in first if number % WRITERS == 0) // WRITERS
                sample = rng.sample(sorted(first), min(len(first), 100)) + sorted(first)[:5] + sorted(first)[-5:]
                for number in sample:
                    message = Message(f"v{number % WRITERS}", b"again")
                    result = await log.raw_append(message, idempotency_key=key_of(number))
                    assert result.duplicate, f"{number} was written again"
                    if result.message_id is None:
                        assert isinstance(key_of(number), ProducerKey)
                        assert number // WRITERS <= newest + 1 - RESULTS_KEPT
                    else:
                        assert (str(result.message_id), result.time_tick) == first[number]
    assert len(checkpoints) > kills // 2
    assert not (data_dir / "pchannels/p0" / f"{0:016x}.wal").exists(), "segments were given back"
    assert len(list(data_dir.glob("pchannels/p0/*.wal"))) < 12
