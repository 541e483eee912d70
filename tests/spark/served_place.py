"""Places for logs that a server in this process serves over a loopback connection with a token."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.serve.servers import ServerProcess, serving
from tests.spark.place import Place, close_logs
from wal.rpc.auth import Token
from wal.runtime.loop_thread import LoopThread
from wal.runtime.secret import Secret
from wal.serve.access import Access

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
def served(location: str | Path = "memory:", *, token: str | None = None, **settings: Any) -> Iterator[ServedPlace]:
    """Serves the log at this location in a thread of this process, to clients with this token or with a new one."""
    token = token or secrets.token_hex(8)
    access = Access(listen="127.0.0.1:0", tokens=[Token(Secret(token))])
    thread, stack = LoopThread(), contextlib.AsyncExitStack()
    thread.closing = stack.aclose
    with contextlib.ExitStack() as ending:
        ending.callback(thread.stop)
        node = thread.call(stack.enter_async_context, serving(location, access=access, **settings))
        place = ServedPlace(node.address, token)
        ending.callback(close_logs, place.location)
        yield place
