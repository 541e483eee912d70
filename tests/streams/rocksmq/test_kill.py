"""kill -9 in the middle of producing and consuming: answered messages are there, batches are whole, positions hold."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Iterator
from pathlib import Path

from tests.processes import Child
from wal.streams.rocksmq import RocksMQ

CHANNELS = ("a", "a/b")


def test_answered_calls_survive_and_batches_are_whole(directory: Path, soak: int) -> None:
    rounds = 10

    async def produce_and_consume(directory: Path, seed: int) -> None:
        """Produces, consumes and reports until it is killed."""
        draw = random.Random(seed)
        number = 0
        async with await RocksMQ.open(directory) as mq:
            for name in CHANNELS:
                if name not in {channel.name for channel in mq.channels()}:
                    await mq.create_channel(name)
                if not any(group.name == "g" for channel in mq.channels() if channel.name == name for group in channel.groups):
                    await mq.create_consumer_group("g", name)
            print("ready", flush=True)

            async def produce(name: str) -> None:
                nonlocal number
                while True:
                    count = draw.randrange(1, 20)
                    batch = [f"{seed}:{number + index}".encode() for index in range(count)]
                    number += count
                    print("sent", name, *(payload.decode() for payload in batch), flush=True)
                    ids = await mq.produce(name, batch)
                    print("done", name, batch[0].decode(), ids.start, ids.stop, flush=True)

            async def consume(name: str) -> None:
                while True:
                    messages = await mq.consume("g", name, 50, timeout_s=None, auto_ack=False)
                    await mq.ack("g", name, messages[-1].message_id)
                    print("acked", name, messages[-1].message_id, flush=True)

            await asyncio.gather(*(produce(name) for name in CHANNELS for _ in range(4)), *map(consume, CHANNELS))

    def killed(directory: Path, seed: int, lines_max: int) -> Iterator[list[str]]:
        """Yields the reports of a child before it was killed, about `lines_max` lines into its work."""
        with Child(produce_and_consume, directory, seed) as child:
            assert child.line_now() == "ready"
            for line in child.lines_now(kill_after=lines_max):
                yield line.split()
            child.end_now(-signal.SIGKILL)

    async def check(
        directory: Path, sent: dict[str, list[tuple[str, ...]]], done: dict[str, dict[int, str]], acked: dict[str, int]
    ) -> None:
        async with await RocksMQ.open(directory) as mq:
            for name in CHANNELS:
                (group,) = next(info for info in mq.channels() if info.name == name).groups
                assert group.current_id >= acked[name]
                await mq.create_consumer_group("check", name)
                messages = []
                while found := await mq.consume("check", name, 1000):
                    messages += found
                await mq.destroy_consumer_group("check", name)
                ids = {message.message_id: message.payload.decode() for message in messages}
                assert sorted(ids) == [message.message_id for message in messages]
                for first_id, payload in done[name].items():
                    assert ids[first_id] == payload
                stored = [message.payload.decode() for message in messages]
                assert len(stored) == len(set(stored))
                at = {payload: index for index, payload in enumerate(stored)}
                for batch in sent[name]:
                    there = [payload for payload in batch if payload in at]
                    assert not there or len(there) == len(batch)
                    assert [at[payload] for payload in there] == list(range(at[batch[0]], at[batch[0]] + len(there)) if there else [])
                assert set(stored) <= {payload for batch in sent[name] for payload in batch}

    draw = random.Random(7)
    sent: dict[str, list[tuple[str, ...]]] = {name: [] for name in CHANNELS}
    done: dict[str, dict[int, str]] = {name: {} for name in CHANNELS}
    acked = dict.fromkeys(CHANNELS, -1)
    for seed in range(rounds * soak):
        for what, name, *rest in killed(directory, seed, draw.randrange(1, 400)):
            if what == "sent":
                sent[name].append(tuple(rest))
            elif what == "done":
                done[name][int(rest[1])] = rest[0]
            else:
                acked[name] = int(rest[0])
        if seed % 5 and seed < rounds * soak - 1:
            continue  # only the next child opens it
        asyncio.run(check(directory, sent, done, acked))
