"""Transactions, which are read as a whole or not at all, over one vchannel or several of one pchannel.

    python -m examples.transactions [location]             (default: data/transactions/)

Shows commit, rollback on an exception, a transaction over two vchannels, the errors that end one, and how readers see it.
"""

from __future__ import annotations

import asyncio
import sys

from wal import ImmutableTxnMessage, Message, MessageType, WALAccesser, open_wal
from wal.errors import InvalidArgumentError, TransactionExpiredError


async def main(location: str = "data/transactions/") -> None:
    async with open_wal(location) as log:
        await commit_and_rollback(log)
        await over_two_vchannels(log)
        await expired(log)
        await read_back(log)


async def commit_and_rollback(log: WALAccesser) -> None:
    """Commits at the end of `async with`; an exception rolls back, and nothing of the transaction reaches the log."""
    async with log.txn("orders") as txn:
        await txn.append(b"order 1: created")
        await txn.append(b"order 1: paid")
    print(f"committed 2 bodies as one event, index {txn.result.message_id.index}")

    try:
        async with log.txn("orders") as txn:
            await txn.append(b"order 2: created")
            raise RuntimeError("the card was refused")
    except RuntimeError as error:
        print(f"rolled back: {error}")


async def over_two_vchannels(log: WALAccesser) -> None:
    """Writes to two vchannels of one pchannel: the transaction is one frame, so it is on both or on none."""
    await log.create_vchannel("stock", pchannel="p0")
    async with log.txn(vchannels=["orders", "stock"]) as txn:
        await txn.append(Message("orders", b"order 3: created"))
        await txn.append(Message("stock", b"apples: -3"))
    print("one transaction over orders and stock")

    result = await log.append_txn("orders", [b"order 3: paid", b"order 3: shipped"], idempotency_key="order 3")
    print(f"a whole transaction in one call, index {result.message_id.index}")

    responses = await log.append_messages(
        Message("orders", b"order 4: created"), Message("orders", b"order 4: paid"), Message("stock", b"pears: -1")
    )
    ids = {result.message_id for result in responses.unwrap()}
    print(f"append_messages: {len(responses)} messages, {len(ids)} events (two for one vchannel are one transaction)")


async def expired(log: WALAccesser) -> None:
    """Lets a transaction expire: after `keepalive` seconds without an append its next call raises an error."""
    txn = await log.txn("orders", keepalive=0.05)
    await txn.append(b"order 5: created")
    while True:
        await asyncio.sleep(0.1)
        try:
            await txn.commit()
        except TransactionExpiredError as error:
            print(f"expired: {str(error).partition(':')[0]}".replace(str(txn.context.txn_id), "N"))
            break

    txn = await log.txn("orders")
    try:
        await txn.append(Message("orders", b"", message_type=MessageType.CREATE_COLLECTION))
    except InvalidArgumentError as error:
        print(f"refused, and the transaction is still open: {error}")
    await txn.rollback()


async def read_back(log: WALAccesser) -> None:
    """Reads the transactions back: each reader gets one message for a transaction, with the bodies on its vchannels."""
    for vchannels in ("orders", "stock", ["orders", "stock"]):
        async with log.read(vchannels, follow=False) as scanner:
            messages = [message async for message in scanner]
        txns = [message for message in messages if isinstance(message, ImmutableTxnMessage)]
        bodies = [len(message.bodies()) for message in messages]
        print(f"{vchannels}: {len(messages)} messages, {len(txns)} of them transactions, bodies {bodies}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
