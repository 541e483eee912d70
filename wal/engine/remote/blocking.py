"""BlockingRemote: a log on the network for threads without an event loop.

Owns a `RemoteLog` that is open for reading, and the thread whose event loop runs it. A call waits for a server that is being restarted, for
a bounded time. `end_calls` and `close` end calls under way, from any thread. A forked child has to open the log again.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from wal.channels import VChannelInfo, VChannelMap, VChannelView
from wal.engine.remote.log import RemoteLog
from wal.engine.remote.pauses import Pauses
from wal.engine.remote.remote_log import MOVED
from wal.errors import ClosedError, UnavailableError, UnknownOutcomeError
from wal.location import ServerLocation
from wal.loop_thread import LoopThread
from wal.network import Method
from wal.settings import Settings

__all__ = ["PATIENCE_S", "BlockingRemote"]

_T = TypeVar("_T")

PATIENCE_S: Final = 30.0
"""How long a call waits for a server, as an append does (`wal.engine.remote.producer`)."""


class BlockingRemote:
    """The log that these servers serve, open until `close`. Any number of threads may call.

    The constructor connects, and raises the errors of `open_wal`; without a server, after at least `wait_s`. An object that is
    garbage-collected without `close` closes itself.
    """

    def __init__(self, servers: ServerLocation, settings: Settings, *, wait_s: float = 0.0) -> None:
        opened = _Opened()
        self._thread = LoopThread(collected=opened.close_in)
        self._running: dict[concurrent.futures.Future[Any], object] = {}
        try:
            self.log: RemoteLog = self._thread.call(opened.open, servers, settings, wait_s)
        except BaseException:
            self._thread.stop()
            raise
        self._thread.closing = opened.close

    def start(
        self, call: Callable[[], Awaitable[_T]], what: str, *, owner: object = None
    ) -> concurrent.futures.Future[_T]:
        """Starts a call in the loop and returns the future of its result. The call is repeated while no server answers.

        `what` names the call in errors; `end_calls` ends the calls of an `owner`. The future raises UnavailableError after `PATIENCE_S`.
        """
        future = self._thread.start(_patient, call, f"{what} of {self.log.place}")
        self._running[future] = owner
        future.add_done_callback(lambda done: self._running.pop(done, None))
        return future

    def result(self, future: concurrent.futures.Future[_T]) -> _T:
        """Waits for a started call and returns its result. An interrupt cancels the call; a call that was ended raises ClosedError."""
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ClosedError(f"the log at {self.log.place} was closed while a call was under way") from None
        except BaseException:
            future.cancel()
            raise

    def call(self, call: Callable[[], Awaitable[_T]], what: str, *, owner: object = None) -> _T:
        """Returns the result of a call; see `start`."""
        return self.result(self.start(call, what, owner=owner))

    def ask(self, method: Method[Any, _T], request: object, what: str, *, pchannel: str) -> _T:
        """Returns the answer of the server that has this pchannel to a call that may be sent twice."""
        connection = self.log.pchannels[pchannel].log.connection
        return self.call(lambda: connection().read(method, request, what), what)

    def end_calls(self, owner: object) -> None:
        """Ends the calls of this owner that are under way."""
        for future, its in list(self._running.items()):
            if its is owner:
                future.cancel()

    def view(self, records: Mapping[str, VChannelInfo], floors: Mapping[str, int]) -> VChannelView:
        """Returns these vchannels as a view; `floors` has the smallest incarnation that an unknown one can have, by pchannel."""
        by_pchannel: dict[str, dict[str, int]] = {name: {} for name in list(self.log.pchannels)}
        for info in records.values():
            by_pchannel[info.pchannel][info.name] = info.incarnation
        maps = {
            name: VChannelMap(self.log.pchannels[name].log.incarnation, floors.get(name, 0), found)
            for name, found in by_pchannel.items()
        }
        return VChannelView(records, maps)

    def close(self) -> None:
        """Ends the calls under way and disconnects. Idempotent."""
        for future in list(self._running):
            future.cancel()
        self._thread.stop()


class _Opened:
    """The open log as its loop holds it: without a reference to the BlockingRemote, which can therefore be garbage-collected."""

    def __init__(self) -> None:
        self._log: RemoteLog | None = None

    async def open(self, servers: ServerLocation, settings: Settings, wait_s: float) -> RemoteLog:
        log = RemoteLog(servers, settings, read_only=True, wait_s=wait_s)
        await log.open()
        self._log = log
        return log

    async def close(self) -> None:
        log, self._log = self._log, None
        if log is not None:
            await log.close()

    async def close_in(self, _loop: asyncio.AbstractEventLoop) -> None:
        await self.close()


async def _patient(call: Callable[[], Awaitable[_T]], what: str) -> _T:
    """Repeats the call, which does no harm, until it succeeds. An error other than a missing server is raised at once.

    After `PATIENCE_S` it raises UnknownOutcomeError if the call may have changed something, else UnavailableError.
    """
    pauses, why, unknown = Pauses(), "no answer came", False
    try:
        async with asyncio.timeout(PATIENCE_S) as patience:
            while True:
                try:
                    return await call()
                except MOVED as error:
                    why = str(error)
                except UnknownOutcomeError as error:
                    why, unknown = str(error), True
                await asyncio.sleep(pauses.next())
    except TimeoutError as error:
        if not patience.expired():
            raise
        text = f"{what}: no server answered within {PATIENCE_S:g} s, the last one said: {why}"
        if unknown:
            raise UnknownOutcomeError(f"{text}; it may have been carried out: it may be repeated") from error
        raise UnavailableError(f"{text}; nothing was changed: try again") from error
