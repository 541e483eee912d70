"""A process that reads a journal while another one writes it: `python -m tests.crash.observer HOW DIRECTORY`.

HOW: `pages` reads the log's pages without a loop, `scanner` by `open_wal(…, read_only=True)`. It starts at the earliest event, checks that
every message has the content of its number and that no number is missing, and begins again at the earliest event after a TruncatedError.
Lines on its standard output: `ready`, `at N` for the number that it has reached, `truncated N` (the earliest remaining number, from the
error), and `wrong …` for anything else, after which it ends.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from pathlib import Path

from wal import ImmutableMessage, MessageID, StartFrom, WALAccesser, open_wal
from wal.errors import TruncatedError
from wal.message import FORM_JOURNAL, Origin
from wal.read.assembly import assemble
from wal.read.options import EventFilter, Selection
from wal.storage.journal.read_only_journal import ReadOnlyJournal

VCHANNEL = "v"
PAGE_BYTES = 48 << 10
"""The page size is small, so that a segment is read in many steps."""


def payload(number: int) -> bytes:
    """Returns the content of this number, which every process can compute."""
    rng = random.Random(number)
    return b"%012d" % number + rng.randbytes(rng.randrange(1_000, 60_000))


class Checker:
    """Compares the read messages with the written ones."""

    def __init__(self) -> None:
        self.following: int | None = None

    def read(self, message: ImmutableMessage) -> None:
        number = int(message.payload[:12])
        if message.payload != payload(number):
            raise AssertionError(f"number {number} is not what was written")
        if self.following is not None and number != self.following:
            raise AssertionError(f"number {number} follows {self.following - 1}")
        self.following = number + 1

    def tell(self) -> None:
        if self.following is not None:
            say(f"at {self.following - 1}")

    def truncated(self, number: int | None) -> None:
        """Begins the read again."""
        if number is not None and self.following is not None and number < self.following - 1:
            raise AssertionError(f"truncated up to {number}, but {self.following - 1} was read already")
        say(f"truncated {number}")
        self.following = None


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def read_pages(directory: Path) -> None:
    checker = Checker()
    log = ReadOnlyJournal(directory).open("p0")
    selection = Selection({VCHANNEL: None}, floor=0)
    everything = EventFilter.of(())
    say("ready")
    at, first = log.refresh().earliest[0], log.refresh().earliest
    while True:
        end = log.refresh().durable_end
        if at >= end:
            time.sleep(0.001)
            continue
        try:
            page = log.page(at, end, frozenset((VCHANNEL,)), PAGE_BYTES)
        except TruncatedError as error:
            assert error.earliest is None or isinstance(error.earliest, MessageID)
            checker.truncated(None)
            first = log.refresh().earliest
            at = first[0]
            continue
        for frame in page.frames:
            origin = Origin("p0", log.incarnation, frame.position, FORM_JOURNAL)
            for message in assemble(frame, origin, selection, everything):
                if (frame.position, message.message_id.index) >= first:
                    checker.read(message)
        at = page.next_position
        checker.tell()


async def read_scanner(directory: Path) -> None:
    checker = Checker()
    async with open_wal(directory, read_only=True) as log:
        say("ready")
        scanner = log.read(VCHANNEL)
        while True:
            try:
                async for page in scanner.batches(4):
                    for message in page:
                        checker.read(message)
                    checker.tell()
            except TruncatedError as error:
                checker.truncated(await _number(log, error))
                scanner = log.read(VCHANNEL)


async def _number(log: WALAccesser, error: TruncatedError) -> int | None:
    """Returns the number of the earliest event that the error names; None when that event is gone by now as well."""
    assert isinstance(error.earliest, MessageID)
    try:
        async with log.read(VCHANNEL, deliver_policy=StartFrom(error.earliest), follow=False) as scanner:
            return int((await anext(scanner)).payload[:12])
    except TruncatedError:
        return None


def main() -> None:
    how, directory = sys.argv[1], Path(sys.argv[2])
    try:
        if how == "pages":
            read_pages(directory)
        else:
            asyncio.run(read_scanner(directory))
    except BaseException as error:
        say(f"wrong {error!r}")
        raise


if __name__ == "__main__":
    main()
