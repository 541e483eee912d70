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

from tests.storage.frames import INCARNATION, FrameMaker, append, read_all
from tests.storage.journal.journals import PCHANNEL, journal
from wal.storage.journal import control as fence
from wal.storage.journal import linux_aio, loop_path, writer
from wal.storage.journal.backend import JournalBackend
from wal.storage.journal.loop_path import WritePath

CLOSE_S = 20.0


@pytest.mark.usefixtures("always_by_loop")
def test_interrupt_at_any_line_of_the_loop(tmp_path: Path, soak: int) -> None:
    """A soak interrupts every line, the default run every fifth."""
    files = frozenset(str(module.__file__) for module in (fence, linux_aio, loop_path, writer))
    Line = tuple[str, int]

    @contextmanager
    def traced(lines: list[Line], interrupt_at: Line | None) -> Iterator[None]:
        """Records the lines of files that this thread runs; raises KeyboardInterrupt, once, before it runs `interrupt_at`."""

        def trace(frame: FrameType, event: str, arg: Any) -> Any:
            if frame.f_code.co_filename not in files:
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
        """Makes the interrupt come while one frame is in flight and another one waits; returns the lines that ran until then."""
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

    lines = run_interrupted(tmp_path / "none", None)
    assert {Path(file).name for file, _ in lines} == {"control.py", "linux_aio.py", "loop_path.py", "writer.py"}
    for number, line in enumerate(lines[:: 5 if soak == 1 else 1]):
        run_interrupted(tmp_path / str(number), line)


@pytest.mark.linux
@pytest.mark.parametrize("path", ["thread", "loop"])
def test_interrupted_answer_does_not_stop_other_answers(tmp_path: Path, path: WritePath) -> None:
    loop = asyncio.new_event_loop()
    maker = FrameMaker(1)

    def interrupted(position: int, error: BaseException | None) -> None:
        raise KeyboardInterrupt

    async def begin() -> Any:
        opened = journal(tmp_path, write_path=path)
        log = await opened.__aenter__()
        await append(log, maker.data(("v", b"first")))
        return opened, log

    async def work() -> None:
        log.append(maker.data(("v", b"interrupted")), interrupted)
        futures.extend(append(log, maker.data(("v", b"other"))) for _ in range(3))
        while log.statistics().frames < 5 and path == "thread":
            pass  # so that all outcomes are known when the loop continues
        await asyncio.wait(futures)

    async def end() -> None:
        async with asyncio.timeout(CLOSE_S):
            await asyncio.wait(futures)
            await opened.__aexit__(None, None, None)

    futures: list[asyncio.Future[int]] = []
    opened, log = loop.run_until_complete(begin())
    with pytest.raises(KeyboardInterrupt):
        loop.run_until_complete(work())
    loop.run_until_complete(end())
    loop.close()
