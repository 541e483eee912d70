"""Two services change the schema of one collection, which is spread over 16 vchannels.

    python -m examples.schema_change [directory]      (default: data/schema_change/)

Each change is a broadcast that holds the collection's resource key until all 16 consumers have applied it. So the changes of the two
services are applied in the same order everywhere. One consumer crashes after its work, before the acknowledgement.
"""

from __future__ import annotations

import asyncio
import sys

from wal import BroadcastMessage, Message, MessageType, ResourceKey, WALAccesser, open_wal
from wal.errors import ResourceAcquiredError

SHARDS = [f"orders-{number:02d}" for number in range(16)]
ORDERS = ResourceKey("collection", "orders")
CHANGES = 3
"""The number of changes that each service makes."""
CRASHES = "orders-07"


class CrashError(Exception):
    """Raised where a consumer crashes."""


class Shard:
    """The state of one consumer: the columns of its shard, in the order in which they were added."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.columns: list[str] = []
        self.seen_again = 0
        self.crashes = name == CRASHES

    async def consume(self, log: WALAccesser) -> None:
        """Applies schema changes. The loop acknowledges a change when it requests the next message."""
        async with log.read(self.name, cursor="schema", auto_ack=True) as scanner:
            async for message in scanner:
                if message.message_type is not MessageType.SCHEMA_CHANGE:
                    continue
                column = message.payload.decode()
                if column in self.columns:
                    self.seen_again += 1  # it was applied before the crash: applying it twice must do no harm
                else:
                    self.columns.append(column)
                if self.crashes:
                    self.crashes = False
                    raise CrashError
                await scanner.save()

    async def run(self, log: WALAccesser) -> None:
        """Restarts the consumer whenever it crashes; it continues from its cursor."""
        while True:
            try:
                await self.consume(log)
            except CrashError:
                print(f"the consumer of {self.name} crashed before it could acknowledge {self.columns[-1]!r}")


async def change(log: WALAccesser, service: str) -> int:
    """Adds the columns of one service. Returns how often the other service was changing the collection."""
    refused = 0
    for number in range(CHANGES):
        column = BroadcastMessage(
            vchannels=SHARDS, payload=f"{service}_{number}".encode(), message_type=MessageType.SCHEMA_CHANGE, resource_keys=[ORDERS]
        )
        try:
            await log.broadcast().append(column)
        except ResourceAcquiredError:
            refused += 1
            await log.broadcast().append(column, wait=True)  # waits until earlier broadcasts have freed the key
    return refused


async def main(directory: str = "data/schema_change/") -> None:
    async with open_wal(directory, pchannels=4) as log:
        for name in SHARDS:
            await log.raw_append(Message(name, b"a row"))
        shards = [Shard(name) for name in SHARDS]
        consumers = [asyncio.ensure_future(shard.run(log)) for shard in shards]

        refused = sum(await asyncio.gather(change(log, "billing"), change(log, "shipping")))
        await log.broadcast().block_until_resource_key_ack_all(ORDERS)
        print(f"a service found the collection held by the other one: {refused > 0}")

        order = shards[0].columns
        print(f"{len(order)} columns, the same on all {len(SHARDS)} vchannels: {all(s.columns == order for s in shards)}")
        billing = [column for column in order if column.startswith("billing")]
        print(f"each service's own in its order: {billing == sorted(billing)}")
        print(f"seen again after the crash: {sum(shard.seen_again for shard in shards)}")
        print(f"broadcasts that are not over: {len(await log.broadcast().tasks())}")
        for consumer in consumers:
            consumer.cancel()
        await asyncio.wait(consumers)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
