"""An application with a lifespan of `wal.asgi`, and one for a server process whose consumer fails."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette

from wal import Consumer, Delivery, Message, WALAccesser
from wal.asgi import lifespan


def application(opened: Callable[[Any], contextlib.AbstractAsyncContextManager[None]]) -> Starlette:
    """Returns an application without routes."""
    return Starlette(lifespan=opened)


def _consumers(log: WALAccesser) -> Consumer:
    async def fail(delivery: Delivery) -> None:
        raise ValueError(f"cannot handle {delivery.value!r}")

    log.append_nowait(Message("jobs", b"a"))
    return log.consume("jobs", fail, cursor="worker", attempts=1)


failing = application(lifespan(os.environ.get("LOCATION", "memory:"), _consumers))
