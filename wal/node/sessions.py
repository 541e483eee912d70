"""Sessions: the newest Produce stream of each session. A client keeps its session across connections.

A client that has lost a connection cannot know whether the server has noticed. Requests from the old connection might be executed after
those of the new one, so a new stream ends the older one of its session.
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
    """A stream that a newer one of its session can end."""

    async def replaced(self) -> None:
        """Ends the stream. After the return none of its requests is executed any more."""
        ...


def replaced() -> ClosedError:
    """Returns the error of a stream that a newer one of its session has ended."""
    return ClosedError("the client has opened another stream of the same session: use that one")


class Sessions:
    """The streams that have a session, by pchannel and the id of the session."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, bytes], Replaceable] = {}
        self._replacing = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def newest(self, pchannel: str, session: bytes, stream: Replaceable) -> AsyncIterator[None]:
        """A block in which this is the newest stream of its session, and the older one executes nothing. An empty id means no session."""
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
