"""LocalTxn: an open transaction of a local log. Its bodies wait in the pchannel's transaction table until the commit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from wal.errors import ChannelNotExistError, InvalidArgumentError, UnavailableError, WALError
from wal.frame import Record
from wal.message import AppendResult, ForgottenResult, LogPosition, Message, MessageType, TxnContext, encode_properties
from wal.node.routes import Routes, tell
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.requests.appends import NO_BARRIER, WriteOptions
from wal.timestamp.checks import check_tick
from wal.write.checks import bodies_of, check_body_type, check_size
from wal.write.cursor_table import CursorChange
from wal.write.operations import Commit, Expected, KeyedCommit, Rollback
from wal.write.txn_table import BODY_OVERHEAD


class SavesCursors(Protocol):
    """The cursors of a log, as transactions use them."""

    def change_of(self, cursor: Cursor, after: LogPosition | None = None) -> CursorChange:
        """Returns the save of a cursor, as of now."""

    async def named(self, key: CursorKey, pchannel: str) -> None:
        """Names this pchannel as the home of a cursor that has none. Raises InvalidArgumentError if another one is its home."""


class LocalTxn:
    """See `wal.engine.EngineTxn`. The actor of the first of its vchannels ends the transaction."""

    __slots__ = ("_bytes_max", "_change", "_cursors", "_expected", "_loop", "_options", "_vchannel", "_vchannels", "context", "names")

    def __init__(
        self,
        vchannels: Routes,
        loop: asyncio.AbstractEventLoop,
        context: TxnContext,
        names: tuple[str, ...],
        options: WriteOptions,
        cursors: SavesCursors | None,
        *,
        bytes_max: int,
        expected: Callable[[WriteOptions], Expected],
    ) -> None:
        self.context: TxnContext = context
        self._vchannels = vchannels
        self._loop = loop
        self.names: tuple[str, ...] = names
        self._vchannel = names[0]
        self._options = options
        self._cursors = cursors
        self._change: CursorChange | None = None
        self._bytes_max = bytes_max
        self._expected = expected

    def append(self, message: Message, barrier_time_tick: int) -> int:
        """Adds a body; returns how many bodies there are."""
        size = message.estimate_size()
        if size > self._bytes_max:
            check_size(message, bytes_max=self._bytes_max)
        kind = _INSERT
        if message.message_type is not _INSERT_TYPE:
            kind = int(message.message_type)
            check_body_type(message)
        properties = encode_properties(message.properties) if message.properties else b""
        barrier = 0 if barrier_time_tick is NO_BARRIER else check_tick("barrier_time_tick", barrier_time_tick)
        vchannel = self._vchannels.actors.get(message.vchannel) or self._vchannels.existing(message.vchannel)
        stored = len(message.payload) + len(properties) + BODY_OVERHEAD
        return vchannel.add_bodies(
            self.context.txn_id,
            ((vchannel.run_name, Record(message.payload, kind, 0, properties)),),
            counted=size + BODY_OVERHEAD,
            stored=stored,
            barrier=barrier,
        )

    def append_many(self, messages: Sequence[Message | bytes], barrier_time_tick: int) -> int:
        """Adds bodies, all or none; returns how many bodies there are."""
        barrier = check_tick("barrier_time_tick", barrier_time_tick)
        bodies = bodies_of(messages, self.names, bytes_max=self._bytes_max)
        vchannels = {name: self._vchannels.existing(name) for name in self.names}
        for name in set(bodies.vchannels):
            if (closed := vchannels[name].closed) is not None:
                raise closed()
        return vchannels[self._vchannel].add_bodies(
            self.context.txn_id,
            [(vchannels[name].run_name, record) for name, record in zip(bodies.vchannels, bodies.records, strict=True)],
            counted=bodies.counted,
            stored=bodies.stored,
            barrier=barrier,
        )

    def save(self, cursor: Cursor, after: LogPosition | None = None) -> None:
        """Has the commit save this cursor; see `EngineTxn.save`."""
        if self._cursors is None:
            raise UnavailableError("the cursors of the log are not open here: try again when it is open")
        if self._change is not None and self._change.key != cursor.key:
            raise InvalidArgumentError(
                f"the transaction saves {self._change.key} already, and saves one cursor: save {cursor.key} in another one"
            )
        self._change = self._cursors.change_of(cursor, after)

    async def commit(self) -> AppendResult | ForgottenResult:
        """Has the vchannel's actor commit; the commit is durable on return."""
        if self._change is not None and self._cursors is not None:
            try:
                await self._cursors.named(self._change.key, self._vchannels.existing(self._vchannel).pchannel.channel)
            except BaseException:
                self._roll_back()
                raise
        return await self.send_commit(self._change)

    def send_commit(self, change: CursorChange | None = None) -> asyncio.Future[AppendResult | ForgottenResult]:
        """Has the vchannel's actor commit, with the save of a cursor if there is a `change`; returns the future of the result."""
        vchannel = self._vchannels.existing(self._vchannel)
        future: asyncio.Future[AppendResult | ForgottenResult] = self._loop.create_future()
        txn_id, key = self.context.txn_id, self._options.key
        expected = self._expected(self._options)
        if key is None:
            tell(vchannel, Commit(txn_id, future, expected, change))
        else:
            scope = tuple(sorted(self._vchannels.existing(name).run_name for name in self.names))
            tell(vchannel, KeyedCommit(txn_id, future, expected, change, key, scope))
        return future

    async def rollback(self) -> None:
        """Has the vchannel's actor forget the transaction."""
        try:
            vchannel = self._vchannels.existing(self._vchannel)
        except ChannelNotExistError:
            return
        future: asyncio.Future[None] = self._loop.create_future()
        tell(vchannel, Rollback(self.context.txn_id, future))
        await future

    def abandon(self) -> bool:
        """Rolls back without waiting; returns False if the transaction has ended. The garbage collector calls this, in any thread."""
        route = self._vchannels.actors.get(self._vchannel)
        if route is None or self.context.txn_id not in route.pchannel.table:
            return False
        try:
            self._loop.call_soon_threadsafe(self._roll_back)
        except RuntimeError:  # the loop has ended, and the transaction ends with the log
            return False
        return True

    def _roll_back(self) -> None:
        future: asyncio.Future[None] = self._loop.create_future()
        future.add_done_callback(asyncio.Future.exception)
        try:
            tell(self._vchannels.existing(self._vchannel), Rollback(self.context.txn_id, future))
        except WALError:
            pass  # the vchannel or the log is gone, and the transaction with it


_INSERT_TYPE: Final = MessageType.INSERT
_INSERT: Final = int(_INSERT_TYPE)
