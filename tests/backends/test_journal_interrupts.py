"""An interrupt (Ctrl-C) at any line of the loop's write path: the log can be closed, nothing is lost, and nothing follows a gap."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.backends.frames import INCARNATION, FrameMaker, append, read_all
from tests.backends.journals import PCHANNEL, journal
from wal.backends.journal import JournalBackend, fence, linux_aio, loop_path, writer

CLOSE_S = 20.0
FILES = frozenset(str(module.__file__) for module in (fence, linux_aio, loop_path, writer))
Line = tuple[str, int]


@contextmanager
def traced(lines: list[Line], interrupt_at: Line | None) -> Iterator[None]:
    """Notes the lines of FILES that this thread runs; raises KeyboardInterrupt, once, before it runs that one."""

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        line = (frame.f_code.co_filename, frame.f_lineno)
        if event == "line" and line not in lines:
            lines.append(line)
            if line == interrupt_at:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def run_interrupted(place: Path, interrupt_at: Line | None) -> list[Line]:
    """Has one frame in flight and one that waits when the interrupt comes; returns the lines that ran until then."""
    loop = asyncio.new_event_loop()
    backend = JournalBackend(place, segment_bytes=64 << 10, write_path="loop")
    maker, lines = FrameMaker(1), list[Line]()

    async def begin() -> Any:
        await backend.create(PCHANNEL, incarnation=INCARNATION)
        log = await backend.open(PCHANNEL, incarnation=INCARNATION, term=1)
        await append(log, maker.data(("v", b"first")))
        return log, [append(log, maker.data(("v", b"in flight"))), append(log, maker.data(("v", b"waiting")))]

    async def end() -> None:
        futures.append(append(log, maker.data(("v", b"after the interrupt"))))
        async with asyncio.timeout(CLOSE_S):
            await log.close()
            await backend.close()

    log, futures = loop.run_until_complete(begin())
    try:
        with traced(lines, interrupt_at):
            loop.run_until_complete(asyncio.wait(futures))
    except KeyboardInterrupt:
        assert interrupt_at is not None
    loop.run_until_complete(end())
    acked = [future.result() for future in futures if future.done() and future.exception() is None]
    loop.close()

    async def look() -> None:
        async with journal(place, 2) as log:
            found = await read_all(log)
            assert set(acked) <= {frame.position for frame in found}
            assert [frame.view.header.sequence for frame in found] == list(range(len(found))), "no frame follows a gap"

    asyncio.run(look())
    return lines


@pytest.mark.usefixtures("always_by_loop")
def test_an_interrupt_at_any_line_of_the_loop(tmp_path: Path) -> None:
    lines = run_interrupted(tmp_path / "none", None)
    assert {Path(file).name for file, _ in lines} == {"fence.py", "linux_aio.py", "loop_path.py", "writer.py"}
    for number, line in enumerate(lines):
        run_interrupted(tmp_path / str(number), line)
