"""Other processes: each runs one function of a test, with a pipe to the test.

They are forked from a process that has imported the product and started nothing, so that a hundred of them cost little. An exception of the
function becomes an AssertionError here, with its traceback; a process whose test has died sees the end of its pipe and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import msgspec

WAIT_TIMEOUT_S: Final = 60.0
START_TIMEOUT_S: Final = 60.0
"""The maximum time until a process runs its job: the first one waits for the imports of the process that it is forked from."""

context: Final = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "wal.bridge",
        "wal.spark.sink.locks",
        "pyarrow",
        "pytest",
        "hypothesis",
        "tests.processes",
        "tests.files.other_user",
        "tests.broadcaster.served_child",
    ]
)


class Other:
    """Starts a process that runs `job(line, *args)`; a job is a function or a coroutine function of a module."""

    def __init__(self, job: Callable[..., Any], *args: Any, fresh: bool = False, prepare: Callable[[], None] | None = None) -> None:
        """With `fresh` the process imports what it needs by itself: for one that lives as long as the tests. It calls `prepare` before the
        job."""
        self._line, theirs = context.Pipe()
        self._has_started = False
        chosen = multiprocessing.get_context("spawn") if fresh else context
        self._process = chosen.Process(target=_run, args=(job, theirs, args, prepare), daemon=True)
        self._process.start()
        theirs.close()

    async def __aenter__(self) -> Other:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def tell(self, word: Any = "") -> None:
        self._line.send(word)

    async def hear(self) -> Any:
        """Returns the next message of the process; AssertionError if it fails, ends, or sends nothing for too long."""
        return await asyncio.to_thread(self.hear_now)

    def hear_now(self) -> Any:
        """`hear` for a test without a loop."""
        self._wait_for_start()
        return self._next(WAIT_TIMEOUT_S)

    def _wait_for_start(self) -> None:
        if not self._has_started:
            started = self._next(START_TIMEOUT_S)
            assert isinstance(started, _Started), f"the process sent {started!r} before its job began"
            self._has_started = True

    def _next(self, timeout_s: float) -> Any:
        if not self._line.poll(timeout_s):
            raise AssertionError(f"the other process said nothing for {timeout_s} s")
        try:
            word = self._line.recv()
        except EOFError:
            raise AssertionError("the other process ended without a word") from None
        if isinstance(word, _Failure):
            raise AssertionError(f"the other process failed:\n{word.text}")
        return word

    async def kill(self) -> None:
        """Sends SIGKILL; returns when the process is gone."""
        await asyncio.to_thread(self.kill_now)

    async def kill_and_hear(self) -> list[Any]:
        """Sends SIGKILL; returns the messages of the process that were not read yet."""
        return await asyncio.to_thread(self._kill_and_hear)

    def _kill_and_hear(self) -> list[Any]:
        self._process.kill()
        self._process.join()
        words = []
        with contextlib.suppress(EOFError, OSError):  # the last message may be cut off
            while self._line.poll():
                words.append(self._line.recv())
        self._line.close()
        return [word for word in words if not isinstance(word, _Started)]

    def kill_now(self) -> None:
        """`kill` for a test without a loop."""
        self._process.kill()
        self._process.join()
        self._line.close()

    async def stop(self) -> None:
        """Sends SIGSTOP; returns when the kernel says that the process is stopped."""
        os.kill(self.pid, signal.SIGSTOP)
        stat = Path(f"/proc/{self.pid}/stat")
        await eventually(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")

    def cont(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    async def end(self) -> None:
        """Waits until the process has ended by itself, without a further message."""
        await asyncio.to_thread(self._wait_for_start)
        await asyncio.to_thread(self._process.join, WAIT_TIMEOUT_S)
        assert self._process.exitcode == 0, f"exit code {self._process.exitcode}"
        self._line.close()


class Line:
    """The other process's end."""

    def __init__(self, line: Connection) -> None:
        self._line = line

    def tell(self, word: Any) -> None:
        self._line.send(word)

    def hear_now(self) -> Any:
        return self._line.recv()

    async def hear(self) -> Any:
        return await asyncio.to_thread(self._line.recv)


async def eventually(condition: Callable[[], Any], *, timeout_s: float = WAIT_TIMEOUT_S) -> Any:
    """Waits until the condition's value, or its awaitable's result, is true, and returns it."""
    async with asyncio.timeout(timeout_s):
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(0.005)


class _Failure(msgspec.Struct):
    text: str


class _Started(msgspec.Struct):
    """The first message of a process: its job begins."""


def _run(job: Callable[..., Any], line: Connection, args: tuple[Any, ...], prepare: Callable[[], None] | None) -> None:
    try:
        if prepare is not None:
            prepare()
        line.send(_Started())
        if asyncio.iscoroutinefunction(job):
            asyncio.run(job(Line(line), *args))
        else:
            job(Line(line), *args)
    except (EOFError, BrokenPipeError):
        os._exit(1)  # the test is gone
    except BaseException:  # the test must learn of any exception
        line.send(_Failure(traceback.format_exc()))
        raise
