"""A stage that is killed while it moves messages with its cursor: each message comes out once, and the cursor is where the output is."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
from pathlib import Path

from tests.processes import Child
from wal import All, Log, Message, SettingsOverrides, open_wal

SETTINGS: SettingsOverrides = {"segment_bytes": 1 << 20, "retention_bytes": 2 << 20, "pchannels": 2}


def test_killed_stage_moves_each_message_once(tmp_path: Path, soak: int) -> None:
    async def move_numbers(directory: str, first: int) -> None:
        """Appends numbers, and moves them from "in" to "out", page by page, with the cursor in the transaction.

        Prints `moved n` after each commit, where n is the next number. The input is on another pchannel than the output, and retention
        drops what the cursor has passed.
        """

        async def write(log: Log) -> None:
            for number in itertools.count(first):
                await log.raw_append(Message("in", b"%08d" % number + bytes(number % 5000)))

        async def move(log: Log) -> None:
            chance = random.Random()
            async with log.read("in", cursor="stage", deliver_policy=All()) as scanner:
                async for page in scanner.batches(size_max=7):
                    async with log.txn("out") as txn:
                        if chance.random() < 0.9:
                            await txn.append_many([message.payload[:8] for message in page])
                        else:
                            for message in page:
                                await txn.append(message.payload[:8])
                        txn.save(scanner)
                    print(f"moved {int(page[-1].payload[:8]) + 1}", flush=True)

        async with open_wal(directory, **SETTINGS) as log:
            if not first:
                await log.create_vchannel("in", pchannel="p0")
                await log.create_vchannel("out", pchannel="p1")
            await asyncio.gather(write(log), move(log))

    async def state(directory: str) -> tuple[list[int], list[int], int]:
        """Returns what came out, what a reader of the cursor gets still, and the last input."""
        async with open_wal(directory, **SETTINGS) as log:
            async with log.read("out", deliver_policy=All(), follow=False) as scanner:
                output = [int(body.payload) async for _, body in scanner.bodies()]
            async with log.read("in", cursor="stage", follow=False) as scanner:
                rest = [int(message.payload[:8]) async for message in scanner]
            async with log.read("in", deliver_policy=All(), follow=False) as scanner:
                return output, rest, [int(message.payload[:8]) async for message in scanner][-1]

    seed = random.randrange(1 << 32)
    chance = random.Random(seed)
    directory = str(tmp_path / "data")
    written = 0
    for round_number in range(2 * soak):
        with Child(move_numbers, directory, written) as child:
            lines = list(child.lines_now(kill_after=chance.randrange(1, 300)))
            child.end_now(-signal.SIGKILL)
        moved = max(int(line.split()[1]) for line in lines)
        output, rest, last = asyncio.run(state(directory))
        message = f"seed {seed}, round {round_number}: moved {moved}, output to {output[-1:]}, rest from {rest[:1]}, last {last}"
        assert output == list(range(output[0], len(output) + output[0])), message
        assert output[-1] + 1 >= moved, message
        assert rest == list(range(output[-1] + 1, last + 1)), message
        written = last + 1
