"""Accounts as vchannels of events, and a table of balances in SQLite that follows all of them, over a kill -9.

    python -m examples.accounts [directory]      (default: data/accounts/)

Each account is a vchannel, and its state is what its events make of it. A command loads it, from a snapshot and the events after that,
decides, and appends with `expected_last`: so no decision is made on an old state. The balances of all accounts are a projection: a table
whose position in the log is written in the same transaction of SQLite. So whatever is killed, each event is in it once, and the table can
be thrown away and made again from the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from wal import ImmutableMessage, Log, Matching, Message, MessageID, ReadPosition, StartAfter, open_wal
from wal.errors import ConflictError

ACCOUNTS = 20
COMMANDS = 400
SNAPSHOT_EVENTS = 10
"""After so many events of an account its state is stored, so that loading it reads no more than these."""
TABLES = """
    CREATE TABLE IF NOT EXISTS balances (account TEXT PRIMARY KEY, balance INTEGER NOT NULL, events INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS position (one INTEGER PRIMARY KEY CHECK (one = 1), text TEXT NOT NULL);
    CREATE TABLE IF NOT EXISTS snapshots (account TEXT PRIMARY KEY, balance INTEGER NOT NULL, last TEXT NOT NULL);
"""


def main(directory: str = "data/accounts/") -> None:
    kills, code = 0, 1
    while code:
        kill_at = COMMANDS // 4 if kills < 2 else 0
        code = subprocess.run([sys.executable, "-m", "examples.accounts", "--run", directory, str(kill_at)], check=False).returncode
        kills += code != 0
    followed, again = asyncio.run(compare(directory))
    print(f"{kills} kills; the table that followed is the one that is made again: {followed == again}")
    print(f"{len(again)} accounts, no balance below 0: {min(balance for balance, _ in again.values()) >= 0}")


# -- a projection: all accounts in one table


async def project(log: Log, database: sqlite3.Connection, *, follow: bool) -> None:
    """Brings the table up to date, and with `follow` keeps it so until it is cancelled."""
    stored = database.execute("SELECT text FROM position").fetchone()
    resume = None if stored is None else ReadPosition.parse(stored[0])
    async with log.read(Matching("account-*"), resume=resume, follow=follow) as scanner:
        async for page in scanner.batches():
            applied = asyncio.create_task(asyncio.to_thread(apply, database, page, str(scanner.position)))
            try:
                await asyncio.shield(applied)
            finally:  # a cancelled task leaves the thread running, and the caller closes the database
                await asyncio.wait((applied,))


def apply(database: sqlite3.Connection, messages: Iterable[ImmutableMessage], position: str) -> None:
    """Puts events into the table, with the position after them, all or nothing."""
    with database:
        for message in messages:
            for body in message.bodies():
                database.execute(
                    "INSERT INTO balances VALUES (?, ?, 1) "
                    "ON CONFLICT DO UPDATE SET balance = balance + excluded.balance, events = events + 1",
                    (body.vchannel, json.loads(body.payload)["amount"]),
                )
        database.execute("INSERT OR REPLACE INTO position VALUES (1, ?)", (position,))


# -- one account


async def load(log: Log, database: sqlite3.Connection, account: str) -> tuple[int, MessageID | None]:
    """Returns the balance of an account, and the id of the last event in it."""
    snapshot = database.execute("SELECT balance, last FROM snapshots WHERE account = ?", (account,)).fetchone()
    balance, last = (0, None) if snapshot is None else (snapshot[0], MessageID.parse(snapshot[1]))
    events = 0
    async with log.read(account, deliver_policy=StartAfter(last) if last else None, follow=False) as scanner:
        async for message, body in scanner.bodies():
            balance, last, events = balance + json.loads(body.payload)["amount"], message.message_id, events + 1
    if last is not None and events >= SNAPSHOT_EVENTS:
        with database:
            database.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?)", (account, balance, str(last)))
    return balance, last


async def change(log: Log, database: sqlite3.Connection, account: str, amount: int) -> bool:
    """Pays in or out, unless the balance would be below 0; decides again when another caller has changed the account meanwhile."""
    while True:
        balance, last = await load(log, database, account)
        if balance + amount < 0:
            return False
        with contextlib.suppress(ConflictError):
            await log.raw_append(Message(account, json.dumps({"amount": amount}).encode()), expected_last=last)
            return True


# -- the process that is killed


async def run(directory: str, kill_at: int) -> None:
    """Executes the commands. The process kills itself after the command with the number `kill_at`, counted from 1."""
    numbers = itertools.count(1)
    async with open_wal(f"{directory}/log", pchannels=4) as log:
        with contextlib.closing(connect(f"{directory}/balances.sqlite3")) as database:
            following = asyncio.create_task(project(log, database, follow=True))
            with contextlib.closing(connect(f"{directory}/snapshots.sqlite3")) as snapshots:
                await asyncio.gather(*[commands(log, snapshots, seed, numbers, kill_at) for seed in range(8)])
            following.cancel()
            await asyncio.wait((following,))


async def commands(log: Log, snapshots: sqlite3.Connection, seed: int, numbers: Iterator[int], kill_at: int) -> None:
    chosen = random.Random(seed)
    for _ in range(COMMANDS // 8):
        await change(log, snapshots, f"account-{chosen.randrange(ACCOUNTS)}", chosen.randrange(-50, 100))
        if next(numbers) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)


Table = dict[str, tuple[int, int]]


async def compare(directory: str) -> tuple[Table, Table]:
    """Returns the balance of each account and its number of events: of the table that followed the log, and of one made from nothing."""
    async with open_wal(f"{directory}/log") as log:
        tables = []
        for path in (f"{directory}/balances.sqlite3", ":memory:"):
            with contextlib.closing(connect(path)) as database:
                await project(log, database, follow=False)
                rows = database.execute("SELECT account, balance, events FROM balances").fetchall()
                tables.append({account: (balance, events) for account, balance, events in rows})
        return tables[0], tables[1]


def connect(path: str) -> sqlite3.Connection:
    if path != ":memory:":
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path, check_same_thread=False)
    database.executescript(TABLES)
    return database


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        asyncio.run(run(sys.argv[2], int(sys.argv[3])))
    else:
        main(*sys.argv[1:])
