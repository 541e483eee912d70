"""Sessions: the newest Produce stream of each session, which a client keeps while its connections come and go.

A client that has lost a connection does not know whether the server has noticed. What it sent there may still arrive, after what it sends
on its next connection; so the next stream ends the one before it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final, Protocol

from wal.errors import ClosedError, InvalidArgumentError

__all__ = ["Sessions", "replaced"]

SESSION_BYTES_MAX: Final = 64


class Replaceable(Protocol):
    """A stream that the next one of its session ends."""

    async def replaced(self) -> None:
        """Ends the stream: when it returns nothing more of it is executed."""
        ...


def replaced() -> ClosedError:
    """Returns the error of a stream that was ended by the next one of its session."""
    return ClosedError("the client has opened another stream of the same session: use that one")


class Sessions:
    """The streams that have a session, by pchannel and the id of the session."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, bytes], Replaceable] = {}
        self._replacing = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def newest(self, pchannel: str, session: bytes, stream: Replaceable) -> AsyncIterator[None]:
        """A block in which this is the stream of its session, and the one before it executes nothing. An empty session is none."""
        if not session:
            yield
            return
        if len(session) > SESSION_BYTES_MAX:
            raise InvalidArgumentError(
                f"the session has {len(session)} bytes, at most {SESSION_BYTES_MAX} are accepted: choose for example 16 random bytes"
            )
        key = (pchannel, session)
        try:
            async with self._replacing:
                older, self._newest[key] = self._newest.get(key), stream
                if older is not None:
                    await older.replaced()
            yield
        finally:
            if self._newest.get(key) is stream:
                del self._newest[key]
