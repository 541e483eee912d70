"""A server of a log as a process of its own, `wal standalone`, which can be killed and started again at the same address."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType
from typing import Self


class Server:
    """Serves the journal in a directory inside a `with` block; clients connect to `location`."""

    def __init__(self, directory: str, *flags: str) -> None:
        self._directory = directory
        self._flags = flags
        self._address = "127.0.0.1:0"
        self._process: subprocess.Popen[str] | None = None

    @property
    def location(self) -> str:
        return f"wal://{self._address}"

    def start(self) -> None:
        """Starts the process; returns when it listens."""
        command = [sys.executable, "-m", "wal", "standalone", self._directory, "--listen", self._address, *self._flags]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.startswith("listening on "):
            _, said = self._process.communicate()
            raise SystemExit(f"the server did not start: {said}")
        self._address = line.split()[-1]

    def kill(self) -> None:
        """Kills it with SIGKILL: it closes, flushes and reports nothing."""
        self._end(kill=True)

    def stop(self) -> None:
        """Requests its stop: it finishes running calls, and closes the log."""
        self._end(kill=False)

    def _end(self, *, kill: bool) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill() if kill else process.terminate()
            process.communicate()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.stop()
