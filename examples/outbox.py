"""A service with a database of its own: its changes reach the log once, and its messages from the log reach the database once.

    python -m examples.outbox [directory]      (default: data/outbox/)

**Out:** a change and its message are one transaction of the database, in the table `outbox`. A relay appends its rows to the log, each with
the number of the row as its sequence, and deletes them afterwards; a row that is appended again after a kill is a duplicate. **In:** the
handler writes the change of a message together with the id of the message. An id that exists already is skipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

from wal import Delivery, Log, Message, ProducerKey, open_wal

ORDERS = 30
TABLES = """
    CREATE TABLE IF NOT EXISTS orders (number INTEGER PRIMARY KEY, state TEXT);
    CREATE TABLE IF NOT EXISTS outbox (number INTEGER PRIMARY KEY AUTOINCREMENT, payload BLOB);
    CREATE TABLE IF NOT EXISTS inbox (message_id TEXT PRIMARY KEY);
    CREATE TABLE IF NOT EXISTS stock (taken INTEGER);
"""


def main(directory: str = "data/outbox/") -> None:
    kills, code = 0, 1
    while code:
        kill_at = ORDERS // 2 if kills < 2 else 0
        code = subprocess.run([sys.executable, "-m", "examples.outbox", "--run", directory, str(kill_at)], check=False).returncode
        kills += code != 0
    with contextlib.closing(database(directory)) as rows:
        orders, stock = (rows.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("orders", "stock"))
    messages = asyncio.run(count_messages(directory))
    print(f"killed: {kills > 0}; {orders} orders, {messages} messages, {stock} taken from stock")


def database(directory: str) -> sqlite3.Connection:
    path = Path(f"{directory.rstrip('/')}-service.sqlite3")
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    rows.executescript(TABLES)
    return rows


def take_order(rows: sqlite3.Connection, number: int) -> None:
    """The change of the service and its message: one transaction of the database."""
    rows.execute("BEGIN IMMEDIATE")
    if rows.execute("INSERT OR IGNORE INTO orders VALUES (?, 'new')", (number,)).rowcount:
        rows.execute("INSERT INTO outbox (payload) VALUES (?)", (b"order %d" % number,))
    rows.execute("COMMIT")


async def relay(log: Log, rows: sqlite3.Connection) -> None:
    """Appends the rows of the outbox, and deletes them there."""
    for number, payload in rows.execute("SELECT number, payload FROM outbox ORDER BY number").fetchall():
        await log.raw_append(Message("orders", payload), idempotency_key=ProducerKey("outbox", number))
        rows.execute("DELETE FROM outbox WHERE number <= ?", (number,))


def take_from_stock(rows: sqlite3.Connection, deliveries: list[Delivery]) -> None:
    """Stores the changes of messages and their ids in one transaction of the database."""
    rows.execute("BEGIN IMMEDIATE")
    for delivery in deliveries:
        if rows.execute("INSERT OR IGNORE INTO inbox VALUES (?)", (delivery.message.message_id.key,)).rowcount:
            rows.execute("INSERT INTO stock VALUES (?)", (int(delivery.value.split()[1]),))
    rows.execute("COMMIT")


async def run(directory: str, kill_at: int) -> None:
    """Takes the orders and follows them. The process kills itself after `kill_at` orders, unless that is 0."""
    rows, rows_of_thread = database(directory), database(directory)

    def handle(deliveries: list[Delivery]) -> None:  # not async: it runs in a thread, since it waits for a disk
        take_from_stock(rows_of_thread, deliveries)

    async with open_wal(directory) as log, log.consume("orders", handle, cursor="stock", batch=10) as consumer:
        for number in range(1, ORDERS + 1):
            await asyncio.to_thread(take_order, rows, number)
            await relay(log, rows)
            if number == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
        await consumer.caught_up()
    rows.close()
    rows_of_thread.close()


async def count_messages(directory: str) -> int:
    async with open_wal(directory) as log, log.read("orders", follow=False) as scanner:
        return len([message async for message in scanner])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        asyncio.run(run(sys.argv[2], int(sys.argv[3])))
    else:
        main(*sys.argv[1:])
