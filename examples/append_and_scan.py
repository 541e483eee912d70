"""Append messages and read them back: by policy, by filter, and live while they are written.

    python -m examples.append_and_scan [location]          (default: data/append_and_scan/)

Shows `raw_append`, `append_bulk`, `append_nowait`, deliver policies and filters, a follower, and read-your-writes.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

from wal import Latest, Message, MessageType, MessageTypes, StartAfter, TimeTickGTE, WALAccesser, open_wal


async def main(location: str = "data/append_and_scan/") -> None:
    async with open_wal(location) as log:
        await write(log)
        await read_back(log)
        await follow(log)


async def write(log: WALAccesser) -> None:
    """Appends in three ways. A message is durable when its append returns."""
    first = await log.raw_append(Message("sensors", b"21.5", properties={"room": "kitchen"}))
    print(f"appended {first.message_id.pchannel}:…:{first.message_id.index} durably")

    results = await log.append_bulk(Message("sensors", f"{21.5 + i / 10:.1f}".encode()) for i in range(1, 1000))
    in_order = all(a.time_tick < b.time_tick for a, b in itertools.pairwise(results))
    print(f"{len(results)} more in bulk, ticks ascending: {in_order}")

    deletions = [log.append_nowait(Message("sensors", b"", message_type=MessageType.DELETE)) for _ in range(3)]
    await asyncio.gather(*deletions)
    print("3 deletions without a task each")


async def read_back(log: WALAccesser) -> None:
    """Reads to the end: with `follow=False` the read ends after the last event that was durable when it began."""
    async with log.read("sensors", follow=False) as scanner:
        messages = [message async for message in scanner]
    print(f"{len(messages)} messages, the first {messages[0].payload!r} from the {messages[0].properties['room']}")

    middle = messages[500]
    async with log.read("sensors", deliver_policy=StartAfter(middle.message_id), follow=False) as scanner:
        after = [message async for message in scanner]
    print(f"{len(after)} after message 500, the next is {after[0].payload!r}")

    filters = (MessageTypes(MessageType.INSERT), TimeTickGTE(middle.time_tick))
    async with log.read("sensors", filters=filters, follow=False) as scanner:
        pages = [len(page) async for page in scanner.batches(size_max=400)]
    print(f"{sum(pages)} insertions from message 500 on")


async def follow(log: WALAccesser) -> None:
    """Follows the log with a handler; waiting for a tick gives read-your-writes."""
    payloads: list[bytes] = []
    scanner = log.read(
        "sensors", deliver_policy=Latest(), handler=lambda message: payloads.extend(body.payload for body in message.bodies())
    )
    async with scanner:
        for payload in (b"30.0", b"31.0", b"32.0"):
            await log.raw_append(Message("sensors", payload))
        await scanner.wait_for(await log.get_latest_mvcc_timestamp_if_local("sensors"))
        print(f"the follower has seen {payloads}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
