"""Writes the log of `test_formats` with the version of this package that runs: `python -m tests.formats.write_log data`.

Its archive, `tar -cJf format-<version of FORMAT>.tar.xz data`, is added when a format is new, and never made again.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Literal

from wal import BroadcastMessage, Message, ProducerKey, open_wal


async def write(directory: str) -> None:
    compressions: tuple[Literal["none", "zstd"], ...] = ("none", "zstd")
    for turn, compression in enumerate(compressions, start=1):
        async with open_wal(directory, compression=compression, segment_bytes=1 << 20) as log:
            for number in range(30):
                payload = b'{"order": %d, "state": "created"}' % number * 20
                message = Message("orders", payload, properties={"n": str(number)})
                await log.raw_append(message, idempotency_key=f"{compression}-{number}")
            await log.raw_append(Message("stock", b"taken"), idempotency_key=ProducerKey("till", turn))
            await log.append_txn("orders", b"paid", b"shipped")
            await log.broadcast().append(BroadcastMessage(vchannels=["orders", "stock"], payload=b"to all", needs_ack=False))
            await log.create_vchannel("dropped")
            await log.drop_vchannel("dropped")
            if turn == 1:
                async with log.read("orders", cursor="billing", follow=False) as scanner:
                    await anext(scanner)
                    await anext(scanner)
                    await scanner.save()
                async with log.read("stock", cursor="moving", follow=False) as scanner:
                    await anext(scanner)
                    async with log.txn(vchannel="moved") as txn:
                        await txn.append(Message("moved", b"taken"))
                        txn.save(scanner)


if __name__ == "__main__":
    asyncio.run(write(sys.argv[1]))
