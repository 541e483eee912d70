"""A log without an event loop: threads that append through `blocking`, a report that reads the files with `iterate`.

    python -m examples.blocking [directory]          (default: data/blocking/)

Shows the blocking calls from several threads, a transaction as a context manager, a plain iterator with a cursor, and a timeout.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from wal import Message, bridge


def main(directory: str = "data/blocking/") -> None:
    with bridge.blocking(directory) as log:
        take_orders(log)
        report(directory)  # the log is still open for writing; this could be another process
    report(directory)


def take_orders(log: bridge.BlockingWAL) -> None:
    """Eight threads share one log; each call returns when it is durable."""

    def take(number: int) -> None:
        with log.txn("orders") as txn:  # commits at the end, rolls back on an exception
            txn.append(b"order %d" % number)
            txn.append(b"paid")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(take, range(100)))
    log.raw_append(Message("orders", b"closed for today"))
    with log.read("orders", follow=False) as scanner:
        print(f"{len(list(scanner))} messages in the {log.wal_name}")


def report(directory: str) -> None:
    """Reads from the end of the last report on."""
    with bridge.iterate(directory, "orders", cursor="report", timeout_s=0.1) as messages:
        count = 0
        try:
            for message in messages:
                count += len(message.bodies())
        except TimeoutError:  # no message arrived for a while; the iteration could continue
            messages.save()
        print(f"{count} new entries")


if __name__ == "__main__":
    main(*sys.argv[1:2])
