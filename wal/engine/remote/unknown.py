"""UnknownOutcomes: requests that were sent on a lost connection and not answered, until their callers get the error.

That is when a new stream has ended the lost one on the server: after that the server executes nothing of the lost stream, so a caller that
does not find its message in the log may send it again. Without a server the callers get the error after `UNKNOWN_S`.
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
    """Keeps requests whose outcome is unknown. `fail` resolves requests with an error, and releases their room in flight."""

    def __init__(self, fail: Callable[[list[Sending], BaseException], None]) -> None:
        self._fail = fail
        self._kept: list[tuple[list[Sending], UnknownOutcomeError]] = []
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add(self, sendings: list[Sending], error: UnknownOutcomeError) -> None:
        """Keeps requests until `tell`, but no longer than `UNKNOWN_S` after the first `add`."""
        self._kept.append((sendings, error))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(UNKNOWN_S, self.tell)

    def tell(self) -> None:
        """Fails all kept requests."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        kept, self._kept = self._kept, []
        for sendings, error in kept:
            self._fail(sendings, error)
