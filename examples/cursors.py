"""Two consumers of one vchannel, each with its own cursor; one of them is another process, and is killed.

    python -m examples.cursors [directory]      (default: data/cursors/)

The writer bills orders and saves its cursor after each page. Meanwhile a second process audits the same orders, reading the files of the
running writer (`read_only=True`), until it is killed. A third process with the same cursor continues from the last save.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE

from wal import Message, WALAccesser, open_wal
from wal.errors import InvalidArgumentError

ORDERS = 500
PAGE = 50
KILL_AFTER = 3
"""The first auditor is killed after it has reported this many pages."""


async def main(directory: str = "data/cursors/") -> None:
    async with open_wal(directory) as log:
        results = await log.append_bulk(Message("orders", b"%d" % number) for number in range(ORDERS))

        billed = await bill(log, 100) + await bill(log, ORDERS)
        print(f"billing: {len(billed)} orders in two goes, in order: {billed == list(range(ORDERS))}")

        first = await audit(directory, kill_after=KILL_AFTER)
        print(f"the first auditor was killed, with {len(first)} orders reported")
        last = first[-1]
        try:
            await log.truncate(up_to=results[last + PAGE].message_id)
        except InvalidArgumentError as error:
            print(f"truncating unread events raises an error: {'audit' in str(error)}")

        second = await audit(directory)
        again = len(set(first) & set(second))
        print(f"the second one missed none: {sorted({*first, *second}) == list(range(ORDERS))}")
        print(f"it saw again at most the page that was not saved: {again <= PAGE}")

        for info in await log.cursors():
            print(f"cursor {info.name} of {', '.join(info.vchannels)}: {info.lag_bytes} bytes behind")
        await log.truncate(up_to=results[-1].message_id)
        print("now nobody needs them, and they are truncated")


async def bill(log: WALAccesser, count: int) -> list[int]:
    """Reads up to this many orders, and saves the cursor after processing each page."""
    numbers: list[int] = []
    async with log.read("orders", cursor="billing", follow=False) as scanner:
        async for page in scanner.batches(size_max=PAGE):
            numbers += [int(body.payload) for message in page for body in message.bodies()]
            await scanner.save()
            if len(numbers) >= count:
                break
    return numbers


async def audit(directory: str, *, kill_after: int | None = None) -> list[int]:
    """Runs an auditor in its own process. Returns all its reports."""
    auditor = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "examples.cursors", "--audit", directory, str(kill_after or 0), stdout=PIPE
    )
    reported: list[int] = []
    pages = 0
    assert auditor.stdout is not None
    async for line in auditor.stdout:
        reported += range(*map(int, line.split()))
        pages += 1
        if pages == kill_after:
            auditor.kill()
            break
    await auditor.wait()
    return reported


async def auditor(directory: str, killed_at: str) -> None:
    """Reads while another process writes, without a lock that could delay the writer."""
    pages = 0
    async with open_wal(directory, read_only=True) as log, log.read("orders", cursor="audit", follow=False) as scanner:
        async for page in scanner.batches(size_max=PAGE):
            print(int(page[0].payload), int(page[-1].payload) + 1, flush=True)
            pages += 1
            if pages == int(killed_at):
                await asyncio.Event().wait()  # the kill comes here, after the page was reported and before it is saved
            await scanner.save()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--audit"]:
        asyncio.run(auditor(*sys.argv[2:]))
    else:
        asyncio.run(main(*sys.argv[1:]))
