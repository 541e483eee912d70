"""StatusServer: serves the status service of a log on the log's own loop, from `async with` to its end.

Guarantees: it listens on loopback only unless it has a token; it handles no signal of the process. While it serves a journal that this
process writes, the file `STATUS` beside `LOCK` has its host, port and process id, and no token; the file is removed at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import socket
from collections.abc import Generator
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from wal.errors import InvalidArgumentError, StorageError
from wal.operate.inspect.outside import STATUS_NAME
from wal.operate.status.access import StatusAccess, is_loopback
from wal.runtime.installation import Needed
from wal.runtime.secret import Secret
from wal.runtime.threads import in_thread
from wal.runtime.user_code import shielded
from wal.settings import Settings
from wal.storage.files.access import FileAccess

if TYPE_CHECKING:
    import uvicorn

    from wal.operate.status.app import StatusHandlers


class StatusServer:
    """The status service of an open log. `address` is its URL once it serves. Use it with `async with`, or await it and `close` it."""

    def __init__(
        self,
        log: Any,
        host: str,
        port: int,
        *,
        token: str | Secret | None = None,
        directory: Path | None = None,
        settings: Settings | None = None,
        publish: bool = False,
        readiness_needs_consumers: bool = True,
    ) -> None:
        """Raises InvalidArgumentError for an address beyond loopback without a token."""
        secret = None if token is None else Secret.of(token)
        loopback = is_loopback(host)
        if not loopback and secret is None:
            raise InvalidArgumentError(
                f"host={host!r} can be reached from other machines, without a token: give token=…, or serve on 127.0.0.1"
            )
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65_535:
            raise InvalidArgumentError(f"port={port!r}: name a port up to 65535, or 0 for a free one")
        self.address: str = ""
        self._host, self._port = host, port
        self._directory = directory if publish else None
        self._log, self._log_directory, self._settings = log, directory, settings
        self._readiness_needs_consumers = readiness_needs_consumers
        self._access = StatusAccess(secret, open_reads=loopback, loopback=loopback)
        self._status: StatusHandlers | None = None
        self._server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    def __await__(self) -> Generator[Any, None, Self]:
        return self.__aenter__().__await__()

    async def __aenter__(self) -> Self:
        """Starts to serve. Raises StorageError if it cannot listen at the address, ImportError without the extra."""
        app, uvicorn = await in_thread(_load_server)  # it takes longer than the loop of a log may be blocked
        listening = await in_thread(self._listen)
        self._status = app.StatusHandlers(
            self._log,
            self._access,
            directory=self._log_directory,
            settings=self._settings,
            readiness_needs_consumers=self._readiness_needs_consumers,
        )
        config = uvicorn.Config(self._status.app, log_config=None, access_log=False, lifespan="off", server_header=False, ws="none")
        await in_thread(config.load)
        self._server = server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # the signals are the process's
        self._serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listening]), name="status service")
        port = listening.getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        self.address = f"http://{host}:{port}"
        if self._directory is not None:
            await in_thread(_publish, self._directory, self._host, port)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        with shielded():
            await self.close()

    async def close(self) -> None:
        """Ends the running requests, and stops serving. Idempotent."""
        serving, self._serving = self._serving, None
        if serving is None or self._server is None or self._status is None:
            return
        self._status.close()
        if self._directory is not None:
            await in_thread(_withdraw, self._directory)
        self._server.should_exit = True
        await asyncio.wait((serving,), timeout=1.0)
        self._server.force_exit = True
        await asyncio.wait((serving,))

    def _listen(self) -> socket.socket:
        listening: socket.socket | None = None
        try:
            family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
            listening = socket.socket(family)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((self._host, self._port))
            listening.listen()  # a client that reads the address can connect at once
        except OSError as error:
            if listening is not None:
                listening.close()
            raise StorageError(f"the status service cannot listen at {self._host}:{self._port}: {error.strerror or error}") from error
        return listening


def load_app() -> ModuleType:
    """Imports the application, which blocks. Without the extra it raises ImportError with the remedy."""
    with Needed("the status page needs", "status"):
        return importlib.import_module("wal.operate.status.app")


def _load_server() -> tuple[ModuleType, ModuleType]:
    with Needed("the status page needs", "status"):
        return load_app(), importlib.import_module("uvicorn")


def _publish(directory: Path, host: str, port: int) -> None:
    """Writes the address beside the log. Best effort: the page is served without the file too."""
    path, fresh = directory / STATUS_NAME, directory / f"{STATUS_NAME}.new"
    with contextlib.suppress(OSError):
        fresh.unlink(missing_ok=True)
        fd = FileAccess.like(directory).create(fresh, os.O_WRONLY)
        try:
            os.write(fd, json.dumps({"version": 1, "host": host, "port": port, "pid": os.getpid()}).encode() + b"\n")
        finally:
            os.close(fd)
        fresh.replace(path)


def _withdraw(directory: Path) -> None:
    """Removes the address, if it is this process's."""
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        path = directory / STATUS_NAME
        if json.loads(path.read_text())["pid"] == os.getpid():
            path.unlink()
