"""`wal bench DIRECTORY`: the speed of a log on the disk of a directory, beside SQLite, in about ten seconds.

Every append is on the disk when its call returns, in both: SQLite commits with `synchronous=FULL` in its WAL mode, and all waiting appends
in one transaction. Both write into a temporary directory, which is removed. A single writer measures the cost of a sync, many writers the
effect of a group commit. The loop of the commands is the only other load; benchmarks/ in the source measures with more care.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import queue
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

from wal.errors import InvalidArgumentError, StorageError
from wal.operate.cli.commands import EXIT_STATUS
from wal.operate.cli.output import note, seconds, show, whole
from wal.operate.inspect.rows import Row
from wal.runtime.threads import in_thread
from wal.settings import setting_from_text

Append = Callable[[bytes], Awaitable[object]]
_GROUP_MAX: Final = 1024
_ROOM_BYTES: Final = 2 << 30
"""More than the fastest disk needs in the default time; a benchmark never fills a disk with less room."""


class BenchRow(Row, frozen=True, kw_only=True, tag="bench"):
    """Durable appends of `message_bytes` by several writers at once: appends per second, and the duration of one (median, 99 %)."""

    system: str
    writers: int
    message_bytes: int
    seconds: float
    messages: int
    messages_per_s: float
    bytes_per_s: float
    p50_s: float
    p99_s: float


def fill_bench(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal bench`."""
    parser.description = "Measures durable appends on the disk of a directory, beside SQLite on the same disk. It leaves nothing there."
    parser.epilog = EXIT_STATUS
    parser.add_argument("location", metavar="DIRECTORY", nargs="?", default=".", help="a directory on the disk (default: this one)")
    parser.add_argument("--time", metavar="TIME", type=seconds(0.04), default=10.0, help="for how long it measures in all (default 10s)")
    parser.add_argument("--writers", metavar="N", type=whole(1, 10_000), default=256, help="how many writers append at once (default 256)")
    parser.add_argument("--bytes", metavar="SIZE", default="1KiB", help="how large a message is (default 1KiB)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, with the same content")
    parser.set_defaults(run=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    size = setting_from_text("--bytes", "cursor_lag_bytes_max", arguments.bytes)
    if not 1 <= size <= 1 << 20:
        raise InvalidArgumentError(f"--bytes {arguments.bytes} is out of range: 1 byte to 1 MiB")
    place = Path(arguments.location)
    if not place.is_dir():
        raise InvalidArgumentError(f"{place} is not a directory: name one on the disk to measure")
    if shutil.disk_usage(place).free < _ROOM_BYTES:
        raise StorageError(f"{place} has less than {_ROOM_BYTES >> 30} GiB of free space, which a benchmark must not fill")
    for writers in dict.fromkeys((1, arguments.writers)):
        for system, opened in (("wal", _wal), ("sqlite", _sqlite)):
            row = asyncio.run(_measured(system, opened, place, writers, size, arguments.time / 4))
            show([row], arguments) if arguments.json else note(f"{system}, {writers} writers: {row.messages_per_s:.0f} messages/s")
            arguments.rows = [*getattr(arguments, "rows", ()), row]
    if not arguments.json:
        show(arguments.rows, arguments)
    return 0


async def _measured(
    system: str,
    opened: Callable[[Path], contextlib.AbstractAsyncContextManager[Append]],
    place: Path,
    writers: int,
    size: int,
    seconds: float,
) -> BenchRow:
    took: list[float] = []
    payload = b"x" * size

    async def write(append: Append, end: float) -> None:
        """Appends at least once, so that there is a result however late it begins."""
        now = time.perf_counter()
        while True:
            began = now
            await append(payload)
            now = time.perf_counter()
            took.append(now - began)
            if now >= end:
                return

    folder = Path(await in_thread(tempfile.mkdtemp, prefix="wal-bench-", dir=place))
    try:
        async with opened(folder) as append:
            await append(payload)  # so that first-time costs are not measured
            began = time.perf_counter()
            await asyncio.gather(*(write(append, began + seconds) for _ in range(writers)))
            lasted = time.perf_counter() - began
    finally:
        await in_thread(shutil.rmtree, folder, True)
    took.sort()
    return BenchRow(
        system=system,
        writers=writers,
        message_bytes=size,
        seconds=round(lasted, 3),
        messages=len(took),
        messages_per_s=round(len(took) / lasted, 1),
        bytes_per_s=round(len(took) * size / lasted),
        p50_s=took[len(took) // 2],
        p99_s=took[len(took) * 99 // 100],
    )


@contextlib.asynccontextmanager
async def _wal(folder: Path) -> AsyncIterator[Append]:
    from wal.api.opening import open_wal

    async with open_wal(folder / "log") as log:
        yield lambda payload: log.append("bench", payload)


@contextlib.asynccontextmanager
async def _sqlite(folder: Path) -> AsyncIterator[Append]:
    loop = asyncio.get_running_loop()
    waiting: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]] | None] = queue.SimpleQueue()

    def settle(futures: list[asyncio.Future[None]]) -> None:
        for future in futures:
            if not future.done():
                future.set_result(None)

    def commit() -> None:
        with contextlib.closing(sqlite3.connect(folder / "bench.sqlite3", isolation_level=None)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, vchannel TEXT, payload BLOB)")
            while (first := waiting.get()) is not None:
                group = [first]
                while len(group) < _GROUP_MAX:
                    try:
                        following = waiting.get_nowait()
                    except queue.Empty:
                        break
                    if following is None:
                        waiting.put(None)
                        break
                    group.append(following)
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany("INSERT INTO log (vchannel, payload) VALUES ('bench', ?)", [(payload,) for payload, _ in group])
                connection.execute("COMMIT")
                loop.call_soon_threadsafe(settle, [future for _, future in group])

    def append(payload: bytes) -> Awaitable[None]:
        future = loop.create_future()
        waiting.put((payload, future))
        return future

    thread = threading.Thread(target=commit, name="sqlite")
    thread.start()
    try:
        yield append
    finally:
        waiting.put(None)
        await in_thread(thread.join)
