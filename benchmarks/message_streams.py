"""Consuming message streams compared with their media: `python -m benchmarks.message_streams [rocksmq] [pulsar] [wal] [--quick]`.

Messages of 200 bytes are in a channel, produced 1,000 at once. A MsgStream consumes them: it decodes them and acknowledges every pack. The
bare reader of the same system reads the same messages as bytes, 1,000 at once: `RocksMQ.consume`, `batch_receive` of Pulsar's client,
`scanner.batches` of a log. The acknowledging reader also records every batch as consumed, as the stream does: `RocksMQ.ack`, `acknowledge`,
`scanner.save`.

The rounds alternate, each under a new subscription. The output is medians: messages per second, µs of processor time a message, and the
ratios of the rounds. Targets: 0.35 of RocksMQ, 0.25 of Pulsar, 0.3 of the log. The exit status is 1 if a target is missed in comparison
with the acknowledging reader. Pulsar is the broker in WAL_TEST_PULSAR and WAL_TEST_PULSAR_ADMIN, or a new one.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import uvloop

from wal import open_wal
from wal.streams.msgstream import InsertMsg, Medium, MsgPack, MsgStream
from wal.streams.rocksmq import RocksMQ

TARGETS: Final = {"rocksmq": 0.35, "pulsar": 0.25, "wal": 0.3}
BATCH: Final = 1_000
MESSAGE_BYTES: Final = 200
CHANNEL: Final = "orders"

Reader = Callable[[int], Awaitable[int]]
"""Reads this many messages from the beginning, under a name that is new in each call; returns the number read, which can be larger."""


class Readers(NamedTuple):
    """The readers that are compared."""

    bare: Reader
    acknowledging: Reader
    stream: Reader


def messages(first: int) -> list[InsertMsg]:
    """Returns a batch of messages of one row, of MESSAGE_BYTES on the wire each."""
    row = InsertMsg([1 << 60], [1], [b""], hash_keys=[0], id=1 << 20)
    fill = bytes(MESSAGE_BYTES - len(row.marshal()) - 1)
    return [InsertMsg([(1 << 60) + n], [n + 1], [fill], hash_keys=[0], id=(1 << 20) + n) for n in range(first, first + BATCH)]


async def fill(medium: Medium, count: int) -> None:
    """Produces that many messages."""
    async with MsgStream(medium) as stream:
        await stream.as_producer([CHANNEL])
        for first in range(0, count, BATCH):
            await stream.produce(MsgPack([*messages(first)]))


def streamed(medium: Medium) -> Reader:
    """Returns a reader that uses a stream."""

    async def read(count: int) -> int:
        count_read = 0
        async with MsgStream(medium) as stream:
            await stream.as_consumer([CHANNEL], f"stream-{secrets.token_hex(4)}")
            while count_read < count:
                pack = await stream.consume()
                assert pack is not None
                count_read += len(pack.msgs)
        return count_read

    return read


async def rocksmq(directory: Path, stack: AsyncExitStack, count: int) -> Readers:
    from wal.streams.msgstream.media.rocksmq import RocksMQMedium

    mq = await stack.enter_async_context(await RocksMQ.open(directory / "mq"))
    medium = await stack.enter_async_context(RocksMQMedium(mq))
    await fill(medium, count)

    async def read(count: int, *, acks: bool) -> int:
        group = f"bare-{secrets.token_hex(4)}"
        count_read = 0
        await mq.create_consumer_group(group, CHANNEL)
        while count_read < count:
            batch = await mq.consume(group, CHANNEL, BATCH, auto_ack=not acks)
            if acks:
                await mq.ack(group, CHANNEL, batch[-1].message_id)
            count_read += len(batch)
        return count_read

    return Readers(partial(read, acks=False), partial(read, acks=True), streamed(medium))


async def wal(directory: Path, stack: AsyncExitStack, count: int) -> Readers:
    from wal.streams.msgstream.media.wal import WalMedium

    log = await stack.enter_async_context(open_wal(directory / "data"))
    medium = WalMedium(log)
    await fill(medium, count)

    async def read(count: int, *, acks: bool) -> int:
        cursor = f"bare-{secrets.token_hex(4)}" if acks else None
        count_read = 0
        async with log.read(CHANNEL, cursor=cursor) as scanner:
            async for page in scanner.batches(BATCH):
                if acks:
                    await scanner.save()
                for message in page:
                    for body in message.bodies():
                        assert body.payload
                        count_read += 1
                if count_read >= count:
                    break
        return count_read

    return Readers(partial(read, acks=False), partial(read, acks=True), streamed(medium))


async def pulsar(directory: Path, stack: AsyncExitStack, count: int) -> Readers:
    import pulsar as client_module

    from tests.servers.pulsar import ADDRESS_VARIABLE, ADMIN_VARIABLE, started
    from tests.servers.pulsar_fixtures import keeping_namespace
    from wal.storage.pulsar.address import PulsarAddress
    from wal.streams.msgstream.media.pulsar import PulsarMedium

    servers = stack.enter_context(started())
    url, admin = servers[ADDRESS_VARIABLE], servers[ADMIN_VARIABLE]
    tenant, _, namespace = keeping_namespace(admin, "").partition("/")
    address = PulsarAddress(url, tenant, namespace, admin_url=admin)
    medium = await stack.enter_async_context(PulsarMedium(address))
    await fill(medium, count)
    client = client_module.Client(url, logger=client_module.ConsoleLogger(client_module.LoggerLevel.Error))
    stack.callback(client.close)

    def receive(count: int, acks: bool) -> int:
        consumer = client.subscribe(
            f"persistent://{tenant}/{namespace}/{CHANNEL}",
            f"bare-{secrets.token_hex(4)}",
            consumer_type=client_module.ConsumerType.Shared,
            initial_position=client_module.InitialPosition.Earliest,
            batch_receive_policy=client_module.ConsumerBatchReceivePolicy(BATCH, 4 << 20, 100),
        )
        count_read = 0
        while count_read < count:
            batch = consumer.batch_receive()
            if acks:
                for message in batch:
                    consumer.acknowledge(message)
            count_read += len(batch)
        consumer.close()
        return count_read

    async def read(count: int, *, acks: bool) -> int:
        return await asyncio.to_thread(receive, count, acks)

    return Readers(partial(read, acks=False), partial(read, acks=True), streamed(medium))


async def measure(name: str, *, count: int, rounds: int) -> bool:
    """Prints the figures of a system; returns whether the target is met."""
    prepare: dict[str, Callable[..., Awaitable[Readers]]] = {"rocksmq": rocksmq, "pulsar": pulsar, "wal": wal}
    rates: dict[str, list[float]] = {who: [] for who in Readers._fields}
    worked_us: dict[str, list[float]] = {who: [] for who in Readers._fields}
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=".") as directory:
        async with AsyncExitStack() as stack:
            readers = (await prepare[name](Path(directory), stack, count))._asdict()
            for index in range(rounds + 1):
                for who in sorted(readers, reverse=bool(index % 2)):
                    began, worked = time.perf_counter(), time.process_time()
                    await readers[who](count)
                    if index:  # the first round warms up
                        rates[who].append(count / (time.perf_counter() - began))
                        worked_us[who].append((time.process_time() - worked) / count * 1e6)
    print(f"{name}, {count:,} messages:")
    met = True
    for who, each in rates.items():
        ratio = statistics.median(mine / theirs for mine, theirs in zip(rates["stream"], each, strict=True))
        line = f"  {who:<14}{statistics.median(each):12,.0f}/s {statistics.median(worked_us[who]):8.2f} µs of processor"
        if who != "stream":
            line += f"   the stream is {ratio:.2f} of it"
        if who == "acknowledging":
            met = ratio >= TARGETS[name]
            line += f" (asked {TARGETS[name]}){'' if met else '  NOT MET'}"
        print(line, flush=True)
    return met


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.message_streams", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("systems", nargs="*", choices=[[], *TARGETS], help="some of them (all)")
    parser.add_argument("--quick", action="store_true", help="three rounds of fewer messages")
    options = parser.parse_args()
    count, rounds = (20_000, 3) if options.quick else (100_000, 7)
    met = [uvloop.run(measure(name, count=count, rounds=rounds)) for name in options.systems or TARGETS]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
