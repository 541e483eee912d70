"""Measures the share of the disk's own rate that the journal backend reaches: the same frames, written bare and through
JournalBackend.append.

The floor is the minimum cost of a durable frame: one pwritev of the frame and its envelope into space that was zeroed before, the CRC of
its body, one fdatasync. Both run in turns in one process and one directory, so that they run under the same conditions; the ratio counts.
Run: python -m benchmarks.journal_floor [--directory DIR] [--frames N] [--rounds N]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

import google_crc32c

from wal.frame import EncodedFrame, FrameDraft, Record, encode_frame
from wal.storage.journal.backend import JournalBackend
from wal.storage.journal.layout import ENVELOPE_BYTES, Envelope, padding, slot_bytes
from wal.storage.journal.log import JournalLog

RECORDS = 256
PAYLOAD_BYTES = 1024
IN_FLIGHT = 2
"""The number of frames in flight, as in the log's write path: one is written while the next one waits."""


def make_frame(sequence: int, payloads: list[bytes]) -> EncodedFrame:
    draft = FrameDraft()
    draft.append(("orders", 1), [Record(payload) for payload in payloads])
    return encode_frame(draft, incarnation=1, term=1, sequence=sequence, first_tick=1 + sequence * RECORDS)


def floor(path: Path, frames: list[EncodedFrame]) -> float:
    """Returns the seconds for these frames, written one after the other by a thread into a zeroed file."""
    total = sum(slot_bytes(frame.length) for frame in frames)
    zeros = bytes(1 << 20)
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    for offset in range(0, total, len(zeros)):
        os.pwrite(fd, zeros, offset)
    os.fdatasync(fd)
    took = 0.0

    def write() -> None:
        nonlocal took
        began = time.perf_counter()
        offset = 0
        for frame in frames:
            for block in frame.buffers[1:]:
                google_crc32c.value(block)
            envelope = Envelope(frame.length, 1, offset).pack()
            assert len(envelope) == ENVELOPE_BYTES
            os.pwritev(fd, [envelope, *frame.buffers, padding(frame.length)], offset)
            os.fdatasync(fd)
            offset += slot_bytes(frame.length)
        took = time.perf_counter() - began

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    os.close(fd)
    os.unlink(path)
    return took


async def journal(log: JournalLog, frames: list[EncodedFrame]) -> float:
    """Returns the seconds for the same frames through the backend, with `IN_FLIGHT` of them at once, each acknowledged on the loop."""
    finished = asyncio.get_running_loop().create_future()
    waiting = iter(frames)
    remaining = len(frames)

    def done(_position: int, error: BaseException | None) -> None:
        nonlocal remaining
        remaining -= 1
        if error is not None and not finished.done():
            finished.set_exception(error)
        elif remaining == 0:
            finished.set_result(None)
        elif (frame := next(waiting, None)) is not None:
            log.append(frame, done)

    began = time.perf_counter()
    for _ in range(IN_FLIGHT):
        log.append(next(waiting), done)
    await finished
    return time.perf_counter() - began


async def run(directory: Path, count: int, rounds: int) -> None:
    payloads = [os.urandom(PAYLOAD_BYTES) for _ in range(RECORDS)]
    backend = JournalBackend(directory / "journal")
    await backend.create("p", incarnation=1)
    log = await backend.open("p", incarnation=1, term=1)
    results: list[tuple[float, float]] = []
    sequence = 0
    for _ in range(rounds):
        frames = [make_frame(sequence + i, payloads) for i in range(count)]
        sequence += count
        bare = await asyncio.to_thread(floor, directory / "floor", frames)
        through = await journal(log, frames)
        await log.truncate(log.durable_end, 0)
        results.append((count / bare, count / through))
        print(
            f"floor {count / bare:8.0f} frames/s {count * RECORDS / bare:10.0f} msg/s   "
            f"journal {count / through:8.0f} frames/s {count * RECORDS / through:10.0f} msg/s   ratio {bare / through:.2f}",
            flush=True,
        )
    statistics_ = log.statistics()
    print(
        f"median ratio {statistics.median(through / bare for bare, through in results):.2f} over {rounds} rounds of {count} "
        f"frames of {RECORDS} x {PAYLOAD_BYTES} B; {statistics_.syncs} syncs for {statistics_.frames} frames, "
        f"{statistics_.segments} segments begun, {statistics_.recycled} recycled"
    )
    await log.close()
    await backend.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, default=None, help="where to write (default: a temporary directory here)")
    parser.add_argument("--frames", type=int, default=600, help="frames a round")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory or Path.cwd(), prefix="journal-floor-") as directory:
        asyncio.run(run(Path(directory), arguments.frames, arguments.rounds))


if __name__ == "__main__":
    main()
