"""RemotePChannel: a pchannel on a server, as the scanners of this process see it.

Owns the FollowTail stream with the end of the log and the promised ticks, and the task that keeps it open. The stream
begins with the first reader. When it ends it is opened again for as long as the log is open: a reader waits for a server that is restarted,
and continues exactly where it stopped. In a cluster it also waits for the next owner of a pchannel whose log has failed at a node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import msgspec

from wal.client.pauses import Pauses
from wal.client.remote_log import LATER, PAGE_BYTES, RemoteReadableLog
from wal.client.supervision import Supervision
from wal.errors import LogWentBackError, StorageError, UnknownError, WALError
from wal.message import LogPosition
from wal.read.options import ReadPosition, Selection, ServedSelection
from wal.read.pchannel import Moment, ShownPChannel
from wal.read.truncated import check_seen, shrinkage, went_back
from wal.rpc.api import append_pb2, frames_pb2, pchannel_pb2
from wal.rpc.connection import Connection, Stream
from wal.rpc.converters import identity_from_proto, lineage_from_proto
from wal.rpc.methods import FOLLOW_TAIL
from wal.runtime.tasks import end_tasks, keep_task
from wal.storage.base import FramePage, LogSnapshot
from wal.storage.search import MomentRequest, PageRequest, TickRequest, run_async

FAILED: Final = (StorageError, UnknownError)
"""With these errors a node says that a pchannel has failed there: it is opened anew, there or elsewhere."""
TailStream = Stream[frames_pb2.FollowTailRequest, frames_pb2.TailUpdate]
Created = frames_pb2.TailUpdate | append_pb2.ProducerOpened


class _Known(msgspec.Struct, frozen=True):
    """A client's view of the log at a moment."""

    shown: LogSnapshot
    seen: ReadPosition | None
    losses: int


class RemotePChannel(ShownPChannel):
    """A pchannel of an open log. `close` it with the error for its readers.

    `moves` is True in a cluster, in which another node gets the pchannel after a failure.
    """

    log: RemoteReadableLog

    def __init__(self, log: RemoteReadableLog, supervision: Supervision, *, moves: Callable[[], bool]) -> None:
        shown = log.shown
        super().__init__(log, form=log.form, promised_tick=shown.promised_tick, newest=shown.newest)
        self._supervision = supervision
        self._moves = moves
        self._following: asyncio.Task[None] | None = None
        self._stream: TailStream | None = None
        self._awaited_tick = 0
        self._pauses = Pauses()
        self._asking: set[asyncio.Task[None]] = set()
        self._checking = asyncio.Lock()
        log.check_again = self.look
        self.on_new_term: Callable[[], Awaitable[None]] | None = None
        """Called before readers see what a server shows in a later term, which may have opened the log with more pchannels."""

    async def look(self) -> None:
        """Shows readers everything that is durable now. Raises LogWentBackError if the log went back."""
        before = self._known()
        snapshot = await self.log.moment()
        await self._check_back(before, snapshot)
        await self._note_term(snapshot.term)
        self.show_snapshot(snapshot)

    async def _note_term(self, term: int) -> None:
        if term != self.log.shown.term and self.on_new_term is not None:
            await self.on_new_term()

    def begin_stream(self) -> Callable[[Created], Awaitable[None]]:
        """Returns the check of a stream that is about to be opened: to be called with what the server answers, before the stream is used.

        It raises FormatError if the server has another log, and LogWentBackError if it has an older copy of this one. Either ends the
        client.
        """
        before = self._known()

        async def check(created: Created) -> None:
            self.log.check(identity_from_proto(created.log), lineage_from_proto(created.log))
            if created.HasField("tail"):
                snapshot = self.log.snapshot(created.tail, term=created.log.pchannel.term)
                await self._check_back(before, snapshot)

        return check

    def _known(self) -> _Known:
        """Returns what a snapshot that is asked for from now on must still have: later events may be missing in it."""
        return _Known(self.log.shown, self.log.seen, self.log.losses)

    async def _check_back(self, before: _Known, snapshot: LogSnapshot) -> None:
        """Ends the client, with LogWentBackError, unless the log of this snapshot still has what was known before it was asked for."""
        log, seen, shown = self.log, before.seen, before.shown
        try:
            if (what := shrinkage(shown, snapshot)) is not None:
                raise await run_async(went_back(snapshot, what, shown.promised_tick if seen is None else seen.time_tick), log.look_at)
            if log.checked < before.losses or snapshot.term != shown.term:
                async with self._checking:
                    if seen is not None and (log.checked < before.losses or snapshot.term != shown.term):
                        await run_async(check_seen(snapshot, seen), self.answer)
                    log.checked = max(log.checked, before.losses)
        except LogWentBackError as error:
            self._supervision.end(error)
            raise

    async def answer(self, request: PageRequest | TickRequest | MomentRequest) -> FramePage | LogPosition | Moment:
        """Returns what a question needs of this log. Waits for a server, as a read does."""
        if isinstance(request, PageRequest) and not request.whole:  # no read: it does not itself ask whether the log went back
            return await self.log.patiently(partial(self.log.look_at, request))
        return await super().answer(request)

    async def selected_page(self, start: int, selection: Selection) -> FramePage:
        """Returns the page that begins here; for a pattern the server selects its frames."""
        if isinstance(selection, ServedSelection):
            return await self.log.read(start, names=selection.pattern, bytes_max=PAGE_BYTES)
        return await super().selected_page(start, selection)

    async def catch_up(self) -> None:
        """Shows readers everything that is durable now, and follows the log from now on."""
        await self.look()
        self.follow()

    def follow(self) -> None:
        """Follows the log from now on, for its readers, until it is closed."""
        if self._following is None and self.tail.failure is None:
            self._following = self._supervision.keep(self._follow, f"follow {self.channel}")

    async def close(self, cause: WALError) -> None:
        """Ends the readers and the stream."""
        self.tail.fail(cause)
        await self.log.close()
        following, self._following = self._following, None  # its cancellation holds its stream, and a stream holds the connection
        await end_tasks(following, *self._asking)

    def advance_for(self, tick: int) -> bool:
        """Asks the server to promise this tick; the promise comes with the tail, so it returns False."""
        if tick > self._awaited_tick:
            self._awaited_tick = tick
            self._ask(tick)
        return False

    async def _follow(self) -> None:
        """Keeps a stream open and applies its messages to the view."""
        try:
            while True:
                report = self.log.reporter()
                try:
                    check = self.begin_stream()
                    stream = await self._open()
                    try:
                        await self._take(stream, check)
                    finally:
                        self.log.losses += 1
                        self._stream = None
                        stream.cancel()
                except (*LATER, *FAILED) as error:
                    if isinstance(error, FAILED) and not self._moves():
                        raise
                    report(error)
                    if self._pauses.to_tell():
                        _log.warning("readers of pchannel %s wait for a server: %s", self.channel, error)
                await asyncio.sleep(self._pauses.next())
        except WALError as error:  # the log was recreated, or the server does not allow it
            self.tail.fail(error)

    async def _open(self) -> TailStream:
        connection: Connection = self.log.connection()
        return await connection.stream(FOLLOW_TAIL, f"following pchannel {self.channel}")

    async def _take(self, stream: TailStream, check: Callable[[Created], Awaitable[None]]) -> None:
        info, term = pchannel_pb2.PChannelInfo(name=self.channel), self.log.shown.term
        await stream.write(frames_pb2.FollowTailRequest(pchannel=info, incarnation=self.log.incarnation))
        while (update := await stream.read()) is not None:
            if update.HasField("log"):
                await check(update)
                term = update.log.pchannel.term
                await self._note_term(term)
            self.show_snapshot(self.log.snapshot(update.tail, term=term))
            if self._stream is None:
                self._stream = stream
                self._pauses.reset()
                if self._awaited_tick > self.tail.promised_tick:
                    self._ask(self._awaited_tick)

    def _ask(self, tick: int) -> None:
        """Sends the tick that readers wait for. Without a stream the next one begins with it."""
        if self._stream is None:
            return
        request = frames_pb2.FollowTailRequest(await_tick=tick)
        keep_task(self._asking, self._supervision.start(partial(self._stream.write_if_open, request), f"await a tick of {self.channel}"))

    def show_snapshot(self, snapshot: LogSnapshot, newest: LogPosition | None = None) -> bool:
        if moved := super().show_snapshot(snapshot, newest):
            self.recent.restart(snapshot.durable_end)
        return moved


_log: Final = logging.getLogger("wal.remote")
