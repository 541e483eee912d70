"""UnknownOutcomes: requests that were sent on a lost connection and not answered, until their callers are told.

They are told when a new stream has ended the lost one on the server: from then on nothing of it is executed, so a caller that does not find
its message in the log may send it again. Without a server they are told after `UNKNOWN_S`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from wal.engine.remote.outbox import Sending
from wal.errors import UnknownOutcomeError

__all__ = ["UnknownOutcomes"]

UNKNOWN_S: Final = 5.0


class UnknownOutcomes:
    """`fail` fails requests, and releases their room."""

    def __init__(self, fail: Callable[[list[Sending], BaseException], None]) -> None:
        self._fail = fail
        self._kept: list[tuple[list[Sending], UnknownOutcomeError]] = []
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, sendings: list[Sending], error: UnknownOutcomeError) -> None:
        """Keeps requests until `tell`, or until their time is over: it begins with the first ones that are kept."""
        self._kept.append((sendings, error))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(UNKNOWN_S, self.tell)

    def tell(self) -> None:
        """Fails everything that is kept."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        kept, self._kept = self._kept, []
        for sendings, error in kept:
            self._fail(sendings, error)
