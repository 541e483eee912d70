"""NatsServer: a real nats-server with JetStream, and the source of its program.

Owns the server's directory and port. `find_nats` looks on PATH, then builds VERSION with Go into the cache (about a minute, once).
Listens on 127.0.0.1 only. Only benchmarks use it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.servers.cache import MissingServerError, installed, say
from tests.servers.golang import build
from tests.servers.process import ServerProcess, free_ports

__all__ = ["ADDRESS_VARIABLE", "VERSION", "NatsServer", "find_nats", "install", "started"]

VERSION: Final = "2.15.2"
ADDRESS_VARIABLE: Final = "WAL_TEST_NATS"
"""`host:port` of a nats-server that already runs, with JetStream."""


class NatsServer(ServerProcess):
    """One server on a free port. `address` is `host:port`; its streams are in `folder`, and every message is synced before its ack."""

    def __init__(self, *, folder: Path | None = None) -> None:
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="wal-nats-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        configuration = self.folder / "nats.conf"
        configuration.write_text(
            f"listen: {json.dumps(self.address)}\n"
            f"jetstream {{ store_dir: {json.dumps(str(self.folder / 'data'))}, sync_interval: always }}\n"
        )
        super().__init__(
            "nats-server",
            [str(find_nats()), "--config", str(configuration)],
            log=self.folder / "nats.log",
            is_ready=lambda: _answers(port),
        )

    def close(self) -> None:
        """Kills the server and removes its directory, if it created that."""
        self.kill()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> NatsServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def install() -> None:
    """Makes sure that `started` finds its program."""
    if ADDRESS_VARIABLE not in os.environ:
        find_nats()


@contextlib.contextmanager
def started() -> Iterator[Mapping[str, str]]:
    """Runs a server during the block and yields the variable that names it; uses the environment's server if it names one."""
    named = os.environ.get(ADDRESS_VARIABLE)
    if named is not None:
        yield {ADDRESS_VARIABLE: named}
        return
    with NatsServer() as server:
        yield {ADDRESS_VARIABLE: server.address}


def find_nats() -> Path:
    """Returns the program `nats-server` on PATH, or the one in the cache, built first if missing. MissingServerError without Go."""
    on_path = shutil.which("nats-server")
    if on_path is not None:
        return Path(on_path)
    return installed(f"nats-{VERSION}", _build) / "nats-server"


def _build(folder: Path) -> None:
    if shutil.which("go") is None:
        raise MissingServerError(
            f"nats-server is not on PATH and there is no Go to build it with: install either, or name a running one in {ADDRESS_VARIABLE}"
        )
    say(f"building nats-server {VERSION} with Go; this takes about a minute, once")
    build("github.com/nats-io/nats-server/v2", VERSION, folder / "nats-server")


def _answers(port: int) -> bool:
    """Returns whether the server greets a client."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            return connection.recv(5) == b"INFO "
    except OSError:
        return False
