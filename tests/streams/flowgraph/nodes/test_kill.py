"""kill -9 of RocksMQ → graph → log: the log has the same content as without a kill, whatever tick the process died in."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import Counter
from pathlib import Path

from tests.processes import Child
from tests.streams.flowgraph.nodes.kill_child import CHANNELS
from wal import open_wal
from wal.streams.msgstream import MsgType, UnmarshalDispatcher
from wal.streams.rocksmq import RocksMQ


def test_killed_copy_equals_one_that_was_not_killed(tmp_path: Path, soak: int) -> None:
    kills = 3
    LINES_MAX = 120

    def run(directory: Path, *args: str, lines_max: int | None = None) -> list[list[int]]:
        """Runs a child, and kills it after `lines_max` reported ticks; None: it has to end by itself. Returns its reports."""
        with Child("-m", "tests.streams.flowgraph.nodes.kill_child", directory, *args) as child:
            assert child.line_now() == "opening"
            if lines_max == 0:
                child.send_signal(signal.SIGKILL)
            reports = [[int(field) for field in line.split()] for line in child.lines_now(kill_after=lines_max)]
            child.end_now(0 if lines_max is None else -signal.SIGKILL)
        return reports

    async def sent(directory: Path) -> Counter[bytes]:
        """Returns the messages that the channels hold."""
        found: Counter[bytes] = Counter()
        decode = UnmarshalDispatcher().unmarshal
        async with await RocksMQ.open(directory / "mq") as mq:
            for channel in [channel for channels in CHANNELS.values() for channel in channels]:
                await mq.create_consumer_group("check", channel)
                while messages := await mq.consume("check", channel, 1000):
                    payloads = [message.payload for message in messages]
                    found.update(payload for payload in payloads if decode(payload).msg_type != MsgType.TIME_TICK)
        return found

    async def written(directory: Path) -> list[list[list[bytes]]]:
        """Returns the payloads of each transaction with payloads: of the copy, and of the undisturbed copy."""
        both = []
        async with open_wal(directory / "log") as log:
            for vchannel in ("copy", "undisturbed"):
                async with log.read(vchannel, follow=False) as scanner:
                    txns = [[body.payload for body in message.bodies()] async for message in scanner]
                both.append([payloads for payloads in txns if payloads])
        return both

    draw = random.Random(random.getrandbits(32))
    replayed = 0
    for kill in range(kills * soak):
        reports = run(tmp_path, "copy", lines_max=0 if kill % 5 == 4 else draw.randrange(1, LINES_MAX))
        replayed += reports[-1][1] if reports else 0
    reports = run(tmp_path, "copy", "0")
    replayed += reports[-1][1]
    last = reports[-1][0]
    run(tmp_path, "undisturbed", str(last))
    copy, undisturbed = asyncio.run(written(tmp_path))
    assert copy == undisturbed
    payloads = Counter(payload for txn in copy for payload in txn)
    all_sent = asyncio.run(sent(tmp_path))
    assert set(payloads.values()) == {1}
    assert not payloads - all_sent
    assert 0 < len(payloads) < len(all_sent), "some are matched, and some are not"
    assert replayed > 0, "no process died between a transaction and its acknowledgement"
