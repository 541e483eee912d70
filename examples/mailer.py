"""A mailer that sends each order's mail once, although it is killed after a mail was sent and before that was recorded.

    python -m examples.mailer [directory]      (default: data/mailer/)

A handler is called at least once, and no log can undo a mail. So the handler passes the id of the message to the provider as the key of the
request, and the provider ignores a key that it has processed before. The provider here is a directory with a file for each mail.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

from wal import Delivery, open_wal

ORDERS = 20


def main(directory: str = "data/mailer/") -> None:
    asyncio.run(fill(directory))
    asked = kills = 0
    code = 1
    while code:
        kill_at = 0 if kills else ORDERS // 2
        command = [sys.executable, "-m", "examples.mailer", "--run", directory, str(kill_at)]
        worker = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        asked += len(worker.stdout.splitlines())
        code = worker.returncode
        kills += code != 0
    print(f"{kills} kill, and the provider was asked again: {asked > ORDERS}")
    print(f"{len(list(provider(directory).iterdir()))} mails for {ORDERS} orders")


def provider(directory: str) -> Path:
    """Returns the directory that stands for the provider."""
    return Path(f"{directory.rstrip('/')}-mails")


def send(mails: Path, key: str, text: bytes) -> None:
    """Sends a mail as a provider with request keys does: once for each key."""
    try:
        with (mails / key).open("xb") as mail:
            mail.write(text)
    except FileExistsError:
        pass  # it was sent before


async def fill(directory: str) -> None:
    provider(directory).mkdir(parents=True, exist_ok=True)
    async with open_wal(directory) as log:
        await log.append_txn("orders", [b"order %d" % number for number in range(ORDERS)], idempotency_key="orders")


async def run(directory: str, kill_at: int) -> None:
    """Sends the mails. The process kills itself after it has sent the mail with the number `kill_at`, counted from 1."""
    mails = provider(directory)
    numbers = itertools.count(1)

    async def mail(delivery: Delivery) -> None:
        await asyncio.to_thread(send, mails, delivery.message.message_id.key, b"Thank you for " + delivery.value)
        print("asked", flush=True)
        if next(numbers) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        delivery.append("mailed", delivery.value)

    async with open_wal(directory) as log, log.consume("orders", mail, cursor="mailer", dead_letter="unmailed") as consumer:
        await consumer.caught_up()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        asyncio.run(run(sys.argv[2], int(sys.argv[3])))
    else:
        main(*sys.argv[1:])
