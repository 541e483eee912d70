"""Child: the parent's handle of a loading process.

Owns the process, and reads its reports as they come until the pipe is empty, even after its death: an acknowledged append is known here as
soon as the child has reported it.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from tests.crash.report import Acked, LeasePlan, Plan, Report

WAIT_TIMEOUT_S: Final = 60.0
_LINE_BYTES_MAX: Final = 1 << 26
_ROOT: Final = Path(__file__).parents[2]


class Child:
    """Starts a process of `module` with this plan; it waits for `go`."""

    def __init__(self, process: Process) -> None:
        self.reports: list[Report] = []
        self.acked = 0
        """Returns the number of events acknowledged so far."""
        self._process = process
        self._errors = b""
        self._news = asyncio.Event()
        self._ended = False
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def start(cls, plan: Plan | LeasePlan, *, module: str = "tests.crash.child") -> Child:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            module,
            msgspec.json.encode(plan).decode(),
            cwd=_ROOT,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=_LINE_BYTES_MAX,
        )
        return cls(process)

    def tell(self, command: str) -> None:
        """Writes a line to the child's standard input; does nothing if the child is gone."""
        assert self._process.stdin is not None
        self._process.stdin.write(command.encode() + b"\n")

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits until the reports make this true; AssertionError when the child ends earlier, or takes too long."""
        try:
            async with asyncio.timeout(WAIT_TIMEOUT_S):
                while not condition():
                    if self._ended:
                        raise AssertionError(f"the child ended before {what}:\n{self._errors.decode()}")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"waited {WAIT_TIMEOUT_S} s for {what}; heard last: {self.reports[-3:]}") from None

    async def until_told(self, kind: type[Report], what: str) -> None:
        """Waits for the first report of this kind."""
        await self.until(lambda: self.has_told(kind), what)

    def has_told(self, kind: type[Report]) -> bool:
        return any(isinstance(report, kind) for report in self.reports)

    async def stop(self) -> None:
        """Sends SIGSTOP; returns when the kernel says that the child is stopped."""
        self._send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self._process.pid}/stat")
        async with asyncio.timeout(WAIT_TIMEOUT_S):
            while (await asyncio.to_thread(stat.read_text)).rpartition(")")[2].split()[0] != "T":
                pass

    def cont(self) -> None:
        """Sends SIGCONT."""
        self._send_signal(signal.SIGCONT)

    async def kill(self) -> None:
        """Sends SIGKILL; returns when every report is read. AssertionError when the child had failed by itself."""
        self._send_signal(signal.SIGKILL)
        await self.end()

    async def end(self) -> None:
        """Waits until the child has ended, by SIGKILL or cleanly."""
        code = await self._process.wait()
        await self._reading
        assert self._process.stdin is not None
        self._process.stdin.close()
        with contextlib.suppress(ConnectionError):
            await self._process.stdin.wait_closed()
        if code not in (0, -signal.SIGKILL):
            raise AssertionError(f"the child failed with exit code {code}:\n{self._errors.decode()}")

    def _send_signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _read(self) -> None:
        stdout, stderr = self._process.stdout, self._process.stderr
        assert stdout is not None
        assert stderr is not None
        errors = asyncio.ensure_future(stderr.read())
        decode = msgspec.json.Decoder(Report).decode
        while (line := await stdout.readline()).endswith(b"\n"):
            report = decode(line)
            self.reports.append(report)
            if isinstance(report, Acked):
                self.acked += len(report.events)
            self._news.set()
        self._errors = await errors
        self._ended = True
        self._news.set()
