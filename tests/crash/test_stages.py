"""A stage that is killed while it moves messages with its cursor: each message comes out once, and the cursor is where the output is."""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

from tests.crash.stage_child import SETTINGS
from tests.processes import Child
from wal import All, open_wal


def test_killed_stage_moves_each_message_once(tmp_path: Path, soak: int) -> None:
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
        with Child("-m", "tests.crash.stage_child", directory, written) as child:
            lines = list(child.lines_now(kill_after=chance.randrange(1, 300)))
            child.end_now(-signal.SIGKILL)
        moved = max(int(line.split()[1]) for line in lines)
        output, rest, last = asyncio.run(state(directory))
        message = f"seed {seed}, round {round_number}: moved {moved}, output to {output[-1:]}, rest from {rest[:1]}, last {last}"
        assert output == list(range(output[0], len(output) + output[0])), message
        assert output[-1] + 1 >= moved, message
        assert rest == list(range(output[-1] + 1, last + 1)), message
        written = last + 1
