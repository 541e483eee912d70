"""RequestStream: a stream of requests that write a pchannel, from its first request to its end, in either form of the protocol.

How it works. A client opens a stream for one pchannel; a stream has one reader and one writer:

* the reader takes requests in their order and executes them (`_execute`, which each form has of its own); it never waits for an outcome. It
  stops reading without room in flight, or while the client leaves `UNANSWERED_MAX` answers unread: HTTP/2 makes the client wait, and other
  streams do not notice;
* each outcome becomes known in a future, and goes to the `StreamAnswers`; the writer sends the outcomes of one turn of the loop.
  A result is made only while the lease of the pchannel is alive. It may leave later, since its frame is in the log.

States: reading; refusing, after a request was refused for the state of the pchannel (moved, fenced, closing): every later one is refused
for the same reason, so the order holds; draining, after `close` or while the node stops: no request is read, every accepted one is
answered, then the stream ends.

What can go wrong: an invalid request ends the stream with its error after the answers to all earlier ones; an invalid message gets its own
error. If the stream or the client is lost, accepted messages are still written, without an answer. The client finds the outcome by a key,
or by reading.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Sequence
from typing import Any, Final

import grpc.aio

from wal.errors import (
    ChannelFencedError,
    ChannelNotExistError,
    ClosedError,
    InvalidRequestSeqError,
    SessionLostError,
    UnmatchedChannelTermError,
    WALError,
)
from wal.node.node import StreamingNode
from wal.node.routes import Routes
from wal.rpc.appends import Answered, Outcome
from wal.rpc.draining import Draining
from wal.serve.hosted import Hosted, identity_of
from wal.serve.produce_requests import Requests, replaced
from wal.write.operations import Together, with_outcome
from wal.write.pchannel import PChannel

TAKEN_MAX: Final = 1024
"""The most requests whose outcomes become one message: about 5 ms, before other tasks get their turn."""
UNANSWERED_MAX: Final = 65_536
"""The most messages of a stream whose outcomes the client has not taken yet; it is also the most that a request may have."""
_STATE_ERRORS: Final = (ChannelFencedError, ClosedError, SessionLostError, UnmatchedChannelTermError)
"""The errors of a pchannel that takes nothing any more, here or in this term: clients send such a request again, so none may overtake it.
Not a StorageError: its caller gets it, and a pchannel whose storage has failed refuses every later request by itself."""
LET_END_S: Final = 1.0
"""How long a client that was told that the node is stopping may take to end its stream."""


class StreamAnswers(abc.ABC):
    """The answers of one stream."""

    def __init__(self) -> None:
        self.outcomes: list[Answered] = []

    @abc.abstractmethod
    def __bool__(self) -> bool:
        """Whether there is any answer."""

    @abc.abstractmethod
    def take(self) -> tuple[Sequence[Any], int]:
        """Removes answers, about `TAKEN_MAX`; returns the messages to send, and how many requests they answer.

        Each message of an append counts as a request.
        """


class RequestStream(abc.ABC):
    """One stream that writes `pchannel`. `run` it. `answers` gets the outcomes, and `closing` is what ends the answers."""

    def __init__(
        self,
        context: Any,
        node: StreamingNode,
        hosted: Hosted,
        draining: Draining,
        pchannel: PChannel,
        *,
        answers: StreamAnswers,
        closing: Any,
    ) -> None:
        self._context = context
        self._node = node
        self._appends = node.appends
        self._hosted = hosted
        self._draining = draining
        self._pchannel = pchannel
        self._places = Places(node.routes, pchannel.channel)
        self._info = identity_of(pchannel).pchannel
        self._answered = answers
        self._closing = closing
        self._unanswered = 0
        self._refusal: WALError | None = None
        """Why every later request is refused."""
        self._reader: asyncio.Task[bool] | None = None
        self._replaced = False
        self._wake = asyncio.Event()
        self._taken = asyncio.Event()
        """Set when the client took answers."""
        self._requests = Requests(context, self._look)

    async def run(self) -> None:
        """Serves the stream to its end. Raises the reader's error once all before it is answered; ClosedError if the node is stopping."""
        if self._replaced:
            raise replaced()
        reader = asyncio.get_running_loop().create_task(self._read(), name=f"requests for {self._pchannel.channel}")
        reader.add_done_callback(lambda _: self._wake.set())
        self._reader = reader
        forget = self._draining.on_begin(self._requests.stop)
        try:
            while not self._replaced and (not (reader.done() or self._requests.begin_no_more) or self._unanswered):
                await self._wake.wait()
                self._wake.clear()
                await self._answer()
            if self._replaced:
                raise replaced()
            if not reader.done() or reader.result():
                await self._context.write(self._closing)
            await asyncio.wait((reader,), timeout=LET_END_S)
            if self._replaced:
                raise replaced()
            if not reader.done():
                raise self._draining.error()
            reader.result()
        finally:
            forget()
            await self._context.end(reader)

    async def replaced(self) -> None:
        """Ends the stream. When the call returns, accepted requests are written and no other request is executed."""
        self._replaced = True
        self._wake.set()
        if self._reader is not None:
            await self._context.end(self._reader)

    # -- answers

    async def _answer(self) -> None:
        """Sends the outcomes that are known; waits while the client does not read them."""
        while self._answered:
            messages, count = self._answered.take()
            for message in messages:
                await self._context.write(message)
            self._unanswered -= count
            self._taken.set()
            if self._answered:
                await asyncio.sleep(0)  # a write need not wait

    def _told(self, number: int, outcome: Outcome | Together, count: int = 1) -> None:
        """Answers consecutive requests, the first of which has this number."""
        self._answered.outcomes.append((number, count, outcome))
        if isinstance(outcome, _STATE_ERRORS) and self._refusal is None:
            self._refusal = with_outcome(outcome, unknown=False)
        self._wake.set()

    def _settled(self, number: int, count: int, future: asyncio.Future[Any]) -> None:
        self._told(number, future.exception() or future.result(), count)

    # -- requests

    @abc.abstractmethod
    async def _execute(self, request: Any) -> None:
        """Executes a request. Raises InvalidArgumentError for a request that ends the stream."""

    async def _read(self) -> bool:
        """Executes the requests; returns whether the client asked for the end. Raises for a request that ends the stream."""
        while (request := await self._next()) is not grpc.aio.EOF:
            if request.HasField("close"):
                await self._nothing_follows()
                return True
            await self._execute(request)
        return False

    async def _next(self) -> Any:
        """Returns the next request, or EOF. While the client leaves too many answers unread it reads nothing."""
        while self._unanswered >= UNANSWERED_MAX and not self._requests.stopped:
            self._taken.clear()
            await self._taken.wait()
        return await self._requests.next()

    def _look(self) -> None:
        self._taken.set()
        self._wake.set()

    async def _nothing_follows(self) -> None:
        """Waits until everything is answered. Raises InvalidRequestSeqError if the client sends anything meanwhile."""
        following = asyncio.ensure_future(self._context.read())
        following.add_done_callback(lambda _: self._taken.set())
        try:
            while self._unanswered and not following.done():
                self._taken.clear()
                await self._taken.wait()
            await asyncio.sleep(0)
            if following.done() and following.result() is not grpc.aio.EOF:
                raise InvalidRequestSeqError("a request follows the close of the producer: open another producer")
        finally:
            await self._context.end(following)

    # -- the state of the pchannel

    async def _begin_seen(self, seen_time_tick: int) -> WALError | None:
        """Does the same as `_begin`. From now on ticks are larger than the last tick of the client.

        A tick of this log is accepted from any node, however far that node's clock is ahead.
        """
        if seen_time_tick > self._node.oracle.last:
            try:
                await self._node.oracle.observe_seen(seen_time_tick)
            except WALError as error:
                return error
        return self._begin()

    def _begin(self) -> WALError | None:
        """Returns why a request is refused as a whole, else None."""
        try:
            if self._refusal is None and self._hosted.find(self._info) is not self._pchannel:
                raise ChannelFencedError(f"pchannel {self._pchannel.channel!r} was reopened: open another stream")
        except ChannelNotExistError as moved:  # not a vchannel: the pchannel was here when the stream began
            self._refusal = ClosedError(str(moved))
        except WALError as error:
            self._refusal = error
        return self._refusal

    def _is_here(self, vchannel: str) -> bool:
        """Returns whether a vchannel was used on this pchannel before, and needs no check."""
        route = self._node.routes.actors.get(vchannel)
        return route is not None and route.pchannel is self._pchannel


class Places:
    """The vchannels of a log, for the streams that write its pchannel `pchannel`."""

    def __init__(self, vchannels: Routes, pchannel: str) -> None:
        self._vchannels = vchannels
        self._pchannel = pchannel

    async def check(self, vchannel: str) -> None:
        """Raises ChannelNotExistError for a vchannel that is on another pchannel, or would be created there.

        A client that is right may get it: another one drops the vchannel, or creates it elsewhere, while the request is on its way. What is
        known here may lag, so the coordinator's half is asked before a name is refused.
        """
        known = self._vchannels.known
        place = known.pchannel_of(vchannel)
        if place != self._pchannel or vchannel not in known.records:
            info = await known.look_up(vchannel)
            place = known.pchannel_of(vchannel) if info is None else info.pchannel
        if place != self._pchannel:
            raise ChannelNotExistError(
                f"vchannel {vchannel!r} is on pchannel {place}, and this stream writes {self._pchannel}: nothing was written; "
                f"if it was dropped meanwhile, append to it again, otherwise open a stream for {place}"
            )

    async def check_existing(self, vchannel: str) -> None:
        """Raises ChannelNotExistError for a vchannel on another pchannel. The commit refuses a dropped vchannel."""
        if self._vchannels.incarnation(vchannel) is not None or await self._vchannels.known.look_up(vchannel) is not None:
            await self.check(vchannel)
