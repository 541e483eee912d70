"""Sessions: the newest Produce stream of each session. A client keeps its session across connections.

A client that has lost a connection cannot know whether the server has noticed. Requests from the old connection might be executed after
those of the new one, so a new stream ends the older one of its session.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final, Protocol

import grpc.aio

from actors import ActorError, InboxFullError
from wal.errors import ClosedError, InvalidArgumentError
from wal.write.pchannel import PChannel


class Requests:
    """The requests of a stream. A stopping node hands out no more of them.

    Later requests are read and dropped until the client ends its stream. In gRPC for Python, a client that is writing when its stream ends
    gets an internal error and loses its unread answers.

    The requests that `context` receives. One task calls `next`. `on_change` is called when `begin_no_more` may have become true.
    """

    def __init__(self, context: Any, on_change: Callable[[], None]) -> None:
        self.stopped: bool = False
        """Whether the node is stopping."""
        self._read = context.read
        self._waits = False
        self._on_change = on_change

    @property
    def begin_no_more(self) -> bool:
        """Whether no request is executed, and none will be handed out to be."""
        return self.stopped and self._waits

    async def next(self) -> Any:
        """Returns the next request, or EOF; once the node is stopping only the one with which the client ends the stream."""
        self._waits = True
        if self.stopped:
            self._on_change()
        request = await self._read()
        while self.stopped and request is not grpc.aio.EOF and not request.HasField("close"):
            request = await self._read()
        self._waits = self.stopped
        return request

    def stop(self) -> None:
        """Records that the node is stopping."""
        self.stopped = True
        self._on_change()


class ServedWithdrawals:
    """The appends of a Produce stream that a client may withdraw, because they may wait at the server for long.

    The requests of one stream that have a barrier or a key, with the futures of their outcomes, until these are known.
    """

    def __init__(self, pchannel: PChannel) -> None:
        self._pchannel = pchannel
        self._futures: dict[int, asyncio.Future[Any]] = {}

    def add(self, number: int, future: asyncio.Future[Any]) -> None:
        """Notes that this request may be withdrawn."""
        self._futures[number] = future

    def settled(self, number: int) -> None:
        """Forgets a request, since its outcome is known."""
        self._futures.pop(number, None)

    async def withdraw(self, numbers: Iterable[int]) -> None:
        """Has the pchannel withdraw these requests, after everything that it was told before; their futures get the outcomes.

        Nothing becomes of a number that no such request has, or whose outcome is known.
        """
        pchannel = self._pchannel
        for number in numbers:
            if (future := self._futures.get(number)) is None:
                continue
            while True:
                try:
                    pchannel.actor_group.tell(pchannel, future)
                    break
                except InboxFullError:
                    await asyncio.sleep(0)  # the group takes its turn
                except ActorError:
                    return  # the pchannel has failed or is being closed, which ends what waits


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
