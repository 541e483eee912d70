"""Journals that hold messages of every kind, and processes that write a journal."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any, Self

from tests.processes import Child
from wal import ImmutableMessage, Message, MessageType, bridge

WRITER = """
import asyncio, sys
from wal import Message, open_wal

async def main() -> None:
    async with open_wal(sys.argv[1], segment_bytes=int(sys.argv[2])) as log:
        print("open", flush=True)
        loop = asyncio.get_running_loop()
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            command, _, rest = line.strip().partition(" ")
            if command == "append":
                await log.append_bulk([Message("orders", text.encode()) for text in rest.split()])
            elif command == "drop":
                await log.drop_vchannel(rest)
            elif command == "make":
                await log.create_vchannel(*rest.split()[:1], pchannel=rest.split()[1])
            elif command == "truncate":
                from wal import MessageID
                await log.truncate(up_to=MessageID.parse(rest))
            print("done", flush=True)

asyncio.run(main())
"""


class Writer:
    """A process that has the journal open and appends numbers to `orders` on request; they are durable when `append` returns."""

    def __init__(self, data: str, *, segment_bytes: int = 1 << 20) -> None:
        self._child = Child("-c", WRITER, data, segment_bytes)
        assert self._child.line_now() == "open"

    def append(self, *numbers: int) -> None:
        self.tell("append " + " ".join(map(str, numbers)))

    def tell(self, line: str) -> None:
        """Sends the process a command, and waits until it is done."""
        self._child.tell(line)
        assert self._child.line_now() == "done"

    def kill(self) -> None:
        """Sends SIGKILL; returns when the process is gone."""
        self._child.__exit__()

    def close(self) -> None:
        """Has the process close the log and end."""
        self._child.close_input()
        self._child.end_now()
        self._child.__exit__()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.__exit__()


def numbers(messages: Iterable[ImmutableMessage]) -> list[int]:
    return [int(body.payload) for message in messages for body in message.bodies()]


def write_mixture(data: str, random: Random, *, steps: int = 60) -> None:
    """Writes messages singly and in bulk, narrow and wide transactions, types, properties, sizes, a vchannel dropped and recreated."""
    names = ["orders", "payments", "ü"]
    with bridge.blocking(data, segment_bytes=1 << 20) as log:
        for name in names:
            log.create_vchannel(name, pchannel="p0")
        for step in range(steps):
            kind = random.randrange(7)
            name = random.choice(names)
            if kind <= 1:
                log.append_bulk([message(random, random.choice(names)) for _ in range(random.choice((1, 3, 40)))])
            elif kind == 2:
                log.append_bulk([message(random, name) for _ in range(random.choice((1, 100, 300)))])
            elif kind == 3:
                log.append_bulk([Message(name, bytes(random.choice((0, 100, 30_000)))) for _ in range(30)])
            elif kind == 4:
                with log.txn(name) as txn:
                    for _ in range(random.randrange(4)):
                        txn.append(message(random, name, dml=True))
            elif kind == 5:
                pair = random.sample(names, 2)
                with log.txn(vchannels=pair) as txn:
                    for _ in range(random.randrange(5)):
                        txn.append(message(random, random.choice(pair), dml=True))
            elif step == steps // 2:
                log.drop_vchannel("ü")
                log.create_vchannel("ü", pchannel="p0")
            else:
                log.raw_append(message(random, name))


def message(random: Random, name: str, *, dml: bool = False) -> Message:
    given: dict[str, Any] = {}
    if random.random() < 0.3:
        given["properties"] = {key: "wört" * random.randrange(3) for key in random.sample(["a", "b", "ü"], 2)}
    if random.random() < 0.2:
        given["message_type"] = MessageType.DELETE if dml else random.choice((MessageType.DELETE, MessageType.IMPORT))
    return Message(name, random.randbytes(random.choice((0, 1, 7, 100))), **given)
