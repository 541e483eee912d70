"""A process that writes a journal until it is killed, and reports each acknowledged frame to its parent.

python -m tests.storage.journal.child acknowledge DIRECTORY TERM     through a JournalBackend; a line "position sequence" per frame
python -m tests.storage.journal.child fence DIRECTORY TERM COUNT     past the directory's lock, as a process that does not know it;
                                                              prints the first sequence that was refused, and by what
python -m tests.storage.journal.child stop DIRECTORY TERM COUNT      does so from the loop, and stops itself while frame COUNT is in flight
python -m tests.storage.journal.child lock DIRECTORY                 holds the directory until its input ends
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import random
import signal
import sys
from pathlib import Path

from tests.storage.frames import INCARNATION, FrameMaker, append
from tests.storage.journal.journals import PCHANNEL, folder
from wal.errors import ChannelFencedError
from wal.storage.journal import log_tail, loop_path
from wal.storage.journal.backend import JournalBackend, hold
from wal.storage.journal.disk import Disk
from wal.storage.journal.log import JournalLog
from wal.storage.journal.loop_path import WritePath
from wal.storage.journal.recovery import recover_log


def payload(term: int, sequence: int) -> bytes:
    """Returns the content of the frame with this term and sequence, so that every test can compute it."""
    rng = random.Random(term << 32 | sequence)
    return rng.randbytes(rng.randrange(1, 5_000))


async def open_past_the_lock(
    place: Path, term: int, pool: concurrent.futures.ThreadPoolExecutor, *, write_path: WritePath = "auto"
) -> JournalLog:
    """Opens a handle without the directory's lock."""
    disk = Disk()
    recovered = await asyncio.to_thread(recover_log, disk, folder(place), pchannel=PCHANNEL, incarnation=INCARNATION, term=term)
    _, held = await asyncio.to_thread(hold, recovered, folder(place))
    return JournalLog(
        disk,
        folder(place),
        recovered,
        pool,
        held,
        pchannel=PCHANNEL,
        incarnation=INCARNATION,
        term=term,
        segment_bytes=32 << 10,
        frame_bytes_limit=1 << 20,
        write_path=write_path,
    )


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def acknowledge(place: Path, term: int) -> None:
    backend = JournalBackend(place, first_segment_bytes=8 << 10, segment_bytes=32 << 10)
    log = await backend.open(PCHANNEL, incarnation=INCARNATION, term=term)
    maker = FrameMaker(term)
    say("open")

    async def writer() -> None:
        while True:
            sequence = maker.sequence
            position = await append(log, maker.data(("v", payload(term, sequence))))
            say(f"{position} {sequence}")

    await asyncio.gather(*[writer() for _ in range(3)])


async def fence(place: Path, term: int, count: int, *, stop_at: int = -1, write_path: WritePath = "auto") -> None:
    with concurrent.futures.ThreadPoolExecutor() as pool:
        log = await open_past_the_lock(place, term, pool, write_path=write_path)
        maker = FrameMaker(term)
        say("open")
        for sequence in range(count):
            try:
                future = append(log, maker.data(("v", payload(term, sequence))))
                if sequence == stop_at:
                    os.kill(os.getpid(), signal.SIGSTOP)
                say(f"{await future} {sequence}")
            except ChannelFencedError:
                say(f"fenced {sequence}")
                break
        await log.close()


async def stop(place: Path, term: int, stop_at: int) -> None:
    # However slow this process is, the loop writes the frames, and only the loop can finish one.
    log_tail.PAUSE_S = loop_path.YIELD_S = 3600.0  # type: ignore[misc]
    await fence(place, term, 1_000_000, stop_at=stop_at, write_path="loop")


async def lock(place: Path) -> None:
    backend = JournalBackend(place)
    await backend.start()
    say("open")
    await asyncio.to_thread(sys.stdin.read)
    await backend.close()


def main() -> None:
    kind, place, *numbers = sys.argv[1:]
    calls = {"acknowledge": acknowledge, "fence": fence, "stop": stop, "lock": lock}
    asyncio.run(calls[kind](Path(place), *map(int, numbers)))  # type: ignore[operator]


if __name__ == "__main__":
    main()
