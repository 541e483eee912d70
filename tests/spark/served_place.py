"""Places for logs that a server in this process serves over a loopback connection with a token."""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.node.servers import serving
from tests.spark.place import Place
from wal.loop_thread import LoopThread
from wal.node.access import Access
from wal.secret import Secret

__all__ = ["ServedPlace", "ServerProcess", "served"]


class ServedPlace(Place):
    """The log of a server."""

    def __init__(self, address: str, token: str) -> None:
        self.address = address
        self.token = token

    @property
    def location(self) -> str:
        return f"wal://{self.address}"

    @property
    def settings(self) -> Mapping[str, Any]:
        return {"token": Secret(self.token)}

    @property
    def options(self) -> dict[str, str]:
        return {"address": self.location, "token": self.token}

    @property
    def secrets(self) -> Sequence[str]:
        return [self.token]


@contextlib.contextmanager
def served(location: str | Path = "memory:", **settings: Any) -> Iterator[ServedPlace]:
    """Serves the log at this location in a thread of this process."""
    token = secrets.token_hex(8)
    access = Access(listen="127.0.0.1:0", tokens=[Secret(token)])
    thread, stack = LoopThread(), contextlib.AsyncExitStack()
    thread.closing = stack.aclose
    try:
        node = thread.call(stack.enter_async_context, serving(location, access=access, **settings))
        yield ServedPlace(node.address, token)
    finally:
        thread.stop()


class ServerProcess:
    """`wal standalone` as a process on one port, which can be killed and started again; a context manager."""

    def __init__(self, data: Path, *flags: str) -> None:
        self._data = data
        self._flags = flags
        self.address = "127.0.0.1:0"
        self._process: subprocess.Popen[str] | None = None
        self.start()

    @property
    def location(self) -> str:
        return f"wal://{self.address}"

    def start(self) -> None:
        """Starts it; returns when it listens."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "wal", "standalone", str(self._data), "--listen", self.address, *self._flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("listening on "), f"exit code {self._process.wait()}"
        self.address = line.split()[-1]

    def kill(self) -> None:
        """Kills it with SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
