"""NatsServer: a real nats-server with JetStream, and the source of its program.

Owns the server's directory and port. Listens on 127.0.0.1 only. Only benchmarks use it.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

from tests.servers.golang import GoProgram
from tests.servers.process import ServerProcess, free_ports

VERSION: Final = "2.15.2"
ADDRESS_VARIABLE: Final = "WAL_TEST_NATS"
"""`host:port` of a nats-server that already runs, with JetStream."""
_PROGRAM: Final = GoProgram("nats-server", "github.com/nats-io/nats-server/v2", VERSION, ADDRESS_VARIABLE)
find_nats = _PROGRAM.find
install = _PROGRAM.install


class NatsServer(ServerProcess):
    """One server on a free port. `address` is `host:port`; its streams are in `folder`, and every message is synced before its ack."""

    def __init__(self, *, folder: Path | None = None) -> None:
        self.folder = self._own(folder, "nats")
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        configuration = self.folder / "nats.conf"
        configuration.write_text(
            f"listen: {json.dumps(self.address)}\n"
            f"jetstream {{ store_dir: {json.dumps(str(self.folder / 'data'))}, sync_interval: always }}\n"
        )
        super().__init__(
            "nats-server", [str(find_nats()), "--config", str(configuration)], log=self.folder / "nats.log", is_ready=lambda: _answers(port)
        )


def started() -> AbstractContextManager[Mapping[str, str]]:
    """Runs a server during a block; see `GoProgram.started`."""
    return _PROGRAM.started(NatsServer)


def _answers(port: int) -> bool:
    """Returns whether the server greets a client."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            return connection.recv(5) == b"INFO "
    except OSError:
        return False
