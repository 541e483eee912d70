"""A process that appends transactions, plain messages and rollbacks to each pchannel of a journal until it gets the request to stop.

    python -m tests.spark.writer <journal> <pchannels> <pause between transactions, seconds> <name of this run>

A payload is `run pchannel number at count outcome`: the `at`th of `count` bodies of a transaction, whose outcome is known from the start.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from random import Random
from typing import NamedTuple

from tests.processes import Child
from wal import Message, WALAccesser, bridge, open_wal


class Payload(NamedTuple):
    run: str
    pchannel: int
    number: int
    at: int
    count: int  # type: ignore[assignment]  # instead of the method of a tuple
    outcome: str

    @property
    def txn(self) -> tuple[str, int, int]:
        return self.run, self.pchannel, self.number

    @classmethod
    def parse(cls, payload: bytes) -> Payload:
        run, pchannel, number, at, count, outcome = payload.decode().split()
        return cls(run, int(pchannel), int(number), int(at), int(count), outcome)

    def __bytes__(self) -> bytes:
        return " ".join(map(str, self)).encode()


class Writer(Child):
    """The process, which has appended to every pchannel when this returns."""

    def __init__(self, data: Path, *, pchannels: int = 2, pause_s: float = 0.005, run: str = "0") -> None:
        super().__init__("-m", "tests.spark.writer", data, pchannels, pause_s, run)
        assert self.line_now() == "writing"

    def finish(self) -> None:
        """Has the process close the log and end."""
        self.close_input()
        self.end_now()


def names_of(pchannel: int) -> list[str]:
    """Returns the vchannels that are written on this pchannel."""
    return [f"v{pchannel}-{at}" for at in range(3)]


def make_vchannels(data: Path, *, pchannels: int = 2) -> list[str]:
    """Creates a journal with these vchannels, and returns their names."""
    with bridge.blocking(data, pchannels=pchannels) as log:
        for pchannel in range(pchannels):
            for name in names_of(pchannel):
                log.create_vchannel(name, pchannel=f"p{pchannel}")
    return [name for pchannel in range(pchannels) for name in names_of(pchannel)]


async def _load(log: WALAccesser, pchannel: int, run: str, pause_s: float, stop: asyncio.Future[str]) -> None:
    random = Random(f"{run} {pchannel}")
    names = names_of(pchannel)
    number = 0
    while not stop.done():
        number += 1
        outcome = "back" if random.random() < 0.2 else "done"
        count = random.randrange(1, 9)
        some = random.sample(names, random.choice((1, 2, 3)))
        txn = await (log.txn(vchannels=some) if len(some) > 1 else log.txn(some[0]))
        for at in range(count):
            payload = Payload(run, pchannel, number, at, count, outcome)
            await txn.append(Message(random.choice(some), bytes(payload)))
        await (txn.commit() if outcome == "done" else txn.rollback())
        number += 1
        await log.raw_append(Message(names[0], bytes(Payload(run, pchannel, number, 0, 1, "done"))))
        if number == 2:
            print("writing", flush=True)
        await asyncio.sleep(pause_s)


async def _main(data: str, pchannels: int, pause_s: float, run: str) -> None:
    stop = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    async with open_wal(data, segment_bytes=1 << 20) as log:
        await asyncio.gather(*[_load(log, pchannel, run, pause_s, stop) for pchannel in range(pchannels)])


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]))
