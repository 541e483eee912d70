"""WALAccesser: the log as its users see it. Every public call begins here.

Owns the checks of arguments: a wrong type is a TypeError, a wrong value an InvalidArgumentError, both before anything is sent. It has
no state of its own: `Lifecycle` knows whether the log is open, and the engine that it opened serves the calls (`wal/engine/base.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, overload

from actors import Actor, ActorRef
from wal.accesser.broadcast import LogBroadcast
from wal.accesser.lifecycle import Lifecycle
from wal.accesser.responses import AppendOption, AppendResponses, append_groups
from wal.accesser.txn import Txn, TxnOpening
from wal.channels import VChannelInfo, check_vchannel, check_vchannels
from wal.cursors import CursorInfo, CursorKey, CursorService, CursorUse, check_cursor
from wal.engine.base import LogStatistics
from wal.errors import InvalidArgumentError
from wal.message import AppendResult, ForgottenResult, Message, MessageID
from wal.pchannel import (
    AckingScanner,
    Handler,
    ProducerInfo,
    ProducerKey,
    ReadablePChannel,
    Scanner,
    check_handler,
    check_key,
)
from wal.reading import READ_TAKES, DeliverFilter, DeliverPolicy, ReadOptions, ReadPosition, Selection
from wal.ticks import check_tick

if TYPE_CHECKING:
    from wal.engine.base import ReadableEngine
    from wal.retention import PChannelRetention

__all__ = ["LogStatistics", "WALAccesser"]

KEEPALIVE_MIN: Final = 0.001
"""The shortest keepalive, of the seeds' system: 1 ms."""


class WALAccesser:
    """A log that is open or being opened. Get one from `open_wal` or `WAL()`; use it from the loop that opened it."""

    def __init__(
        self,
        location: str,
        make_engine: Callable[[], Awaitable[ReadableEngine]],
        *,
        read_only: bool = False,
    ) -> None:
        self._lifecycle = Lifecycle(location, make_engine, read_only=read_only)
        self._broadcast = LogBroadcast(self._lifecycle)

    # -- writing

    @overload
    async def raw_append(
        self, message: Message, *, barrier_time_tick: int = 0, idempotency_key: str | None = None
    ) -> AppendResult: ...

    @overload
    async def raw_append(
        self, message: Message, *, barrier_time_tick: int = 0, idempotency_key: ProducerKey
    ) -> AppendResult | ForgottenResult: ...

    async def raw_append(
        self, message: Message, *, barrier_time_tick: int = 0, idempotency_key: str | ProducerKey | None = None
    ) -> AppendResult | ForgottenResult:
        """Appends a message; durable when it returns.

        With a barrier the tick is above it, and everything at or below the barrier is in the log before. Waits for room when too
        much is in flight. Cancelling the caller does not take the append back. With an idempotency key that this vchannel has seen
        nothing is written: the result is the first one, with `duplicate`; a key in flight shares its result, also its failure. An older
        duplicate of a producer, whose result is no longer kept, is a ForgottenResult.
        InvalidRequestSeqError for a sequence below one in flight, or behind one that failed; WouldBlockError past `producers_max`.
        """
        lifecycle = self._lifecycle
        engine = lifecycle.engine
        if engine is None or get_ident() != lifecycle.thread or not lifecycle.is_running():
            engine = await lifecycle.ready()
        if idempotency_key is not None:
            keyed = engine.appends.append_keyed(message, barrier_time_tick, idempotency_key)
            return await (keyed or engine.appends.append_keyed_waiting(message, barrier_time_tick, idempotency_key))
        future = engine.appends.append(message, barrier_time_tick)
        if future is None:
            return await engine.appends.append_waiting(message, barrier_time_tick)
        return await future

    @overload
    def append_nowait(
        self, message: Message, *, barrier_time_tick: int = 0, idempotency_key: str | None = None
    ) -> asyncio.Future[AppendResult]: ...

    @overload
    def append_nowait(
        self, message: Message, *, barrier_time_tick: int = 0, idempotency_key: ProducerKey
    ) -> asyncio.Future[AppendResult | ForgottenResult]: ...

    def append_nowait(
        self, message: Message, *, barrier_time_tick: int = 0, idempotency_key: str | ProducerKey | None = None
    ) -> asyncio.Future[Any]:
        """Appends a message without waiting: a future of the result.

        Calls are ordered within a pchannel; only an append that waits for its barrier is set aside. WouldBlockError when too
        much is in flight, or while the log is still being opened.
        """
        appends = self._lifecycle.ready_nowait().appends
        future: asyncio.Future[Any] | None
        if idempotency_key is None:
            future = appends.append(message, barrier_time_tick)
        else:
            future = appends.append_keyed(message, barrier_time_tick, idempotency_key)
        if future is None:
            raise appends.no_room(message)
        return future

    async def append_messages(self, *messages: Message) -> AppendResponses:
        """Appends messages; those of one vchannel, if two or more, as one transaction with its bodies in input order.

        One response a message, in input order: its vchannel's result or error. Vchannels are independent of each other.
        """
        return await self.append_messages_with_option(AppendOption(), *messages)

    async def append_messages_with_option(self, option: AppendOption, *messages: Message) -> AppendResponses:
        """`append_messages` with a barrier for each of its appends."""
        if not isinstance(option, AppendOption):
            raise TypeError(f"the first argument is an AppendOption, not {type(option).__name__}")
        barrier = check_tick("barrier_time_tick", option.barrier_time_tick)
        return await append_groups((await self._lifecycle.ready()).appends, messages, barrier)

    async def append_bulk(self, messages: Iterable[Message]) -> list[AppendResult]:
        """Appends any number of messages in order, without a transaction, split into frames as they come.

        Failing midway it is a BulkAppendError, which is also of the class of its cause; its `.results` are those of the messages that are
        durable, in order.
        """
        return await (await self._lifecycle.ready()).appends.append_bulk(messages)

    @overload
    def txn(
        self,
        vchannel: str | None = None,
        *,
        vchannels: Sequence[str] | None = None,
        keepalive: float = 0.0,
        idempotency_key: str | None = None,
    ) -> TxnOpening[AppendResult]: ...

    @overload
    def txn(
        self,
        vchannel: str | None = None,
        *,
        vchannels: Sequence[str] | None = None,
        keepalive: float = 0.0,
        idempotency_key: ProducerKey,
    ) -> TxnOpening[AppendResult | ForgottenResult]: ...

    def txn(
        self,
        vchannel: str | None = None,
        *,
        vchannels: Sequence[str] | None = None,
        keepalive: float = 0.0,
        idempotency_key: str | ProducerKey | None = None,
    ) -> TxnOpening[AppendResult | ForgottenResult]:
        """A transaction on one vchannel, or on several that lie on one pchannel.

        `keepalive`: seconds without an append after which it expires; 0 means the setting `txn_keepalive`, otherwise at least
        1 ms. Await it, or use `async with`: commits at the end, rolls back on an exception. An idempotency key is judged at the
        commit, for the vchannel or the set of vchannels: a commit with a key that was seen answers the first result.
        """
        self._lifecycle.check_writable()
        if idempotency_key is not None:
            check_key(idempotency_key)
        if (vchannel is None) == (vchannels is None):
            raise InvalidArgumentError("txn() takes either vchannel=… or vchannels=[…]")
        if isinstance(vchannels, str):
            raise TypeError(f"vchannels must be a sequence of names, not the str {vchannels!r}: use vchannel=…")
        names = (
            (check_vchannel(vchannel),)
            if vchannels is None
            else check_vchannels(vchannels, "txn(vchannels=…) takes several names")
        )
        if not names:
            raise InvalidArgumentError("txn(vchannels=[]) names no vchannel: name at least one")
        if not isinstance(keepalive, int | float) or isinstance(keepalive, bool):
            raise TypeError(f"keepalive must be a number of seconds, not {keepalive!r}")
        if keepalive != 0 and not KEEPALIVE_MIN <= keepalive < float("inf"):
            raise InvalidArgumentError(
                f"keepalive={keepalive} is out of range: 0 for the default, otherwise at least {KEEPALIVE_MIN} s"
            )

        async def begin() -> Txn[AppendResult | ForgottenResult]:
            appends = (await self._lifecycle.ready()).appends
            return Txn(self._lifecycle, await appends.begin_txn(names, float(keepalive), idempotency_key), names)

        return TxnOpening(begin)

    async def producers(self) -> list[ProducerInfo]:
        """The producers that are remembered, by name: one entry for each vchannel (or set of them) that a producer appends to."""
        found = await (await self._lifecycle.ready()).appends.producers()
        return sorted(found, key=lambda info: (info.name, info.vchannels))

    async def forget_producer(self, name: str) -> None:
        """Forgets a producer on all vchannels, durably: it makes room under `producers_max`, and its sequences may begin anew.

        InvalidArgumentError when it is not known, WouldBlockError while appends of it are in flight.
        """
        if not isinstance(name, str):
            raise TypeError(f"a producer is named by a str, not {type(name).__name__}")
        await (await self._lifecycle.ready()).appends.forget_producer(name)

    async def allocate_time_tick(self) -> int:
        """A time tick above every one given before, for use as a barrier."""
        return await (await self._lifecycle.ready()).allocate_time_tick()

    def broadcast(self) -> LogBroadcast:
        """One message to many vchannels, on any pchannels: see `LogBroadcast`."""
        self._lifecycle.check_writable()
        return self._broadcast

    # -- reading

    def read(
        self,
        vchannel: str | Sequence[str],
        *,
        deliver_policy: DeliverPolicy | None = None,
        filters: DeliverFilter | Iterable[DeliverFilter] = (),
        handler: Handler | None = None,
        follow: bool = True,
        until_time_tick: int | None = None,
        resume: ReadPosition | None = None,
        cursor: str | None = None,
        include_time_ticks: bool = False,
        auto_ack: bool = False,
    ) -> Scanner:
        """A scanner over one vchannel, or several of one pchannel in tick order. It begins when it is entered.

        `follow=False` ends behind what is durable at entry, `until_time_tick=T` behind everything at or below T. `resume`
        continues exactly behind a `scanner.position` and excludes a policy. `cursor` continues behind what `scanner.save()` stored under
        that name for these vchannels, else it begins as the policy says. With a `handler` it runs by itself from entry. `auto_ack`
        acknowledges copies of broadcasts: each when the handler has returned, or when the loop asks for the next message or page.
        """
        names = check_vchannels(vchannel, READ_TAKES)
        check_handler(handler)
        options = ReadOptions.of(
            names,
            deliver_policy=deliver_policy,
            filters=filters,
            follow=follow,
            until_time_tick=until_time_tick,
            resume=resume,
            include_time_ticks=include_time_ticks,
        )
        use = None
        if cursor is not None:
            if resume is not None:
                raise InvalidArgumentError("resume=… and cursor=… both say where to go on: give one of them")
            use = CursorUse(check_cursor(cursor), names, self._cursor_service)
        if not isinstance(auto_ack, bool):
            raise TypeError(f"auto_ack must be a bool, not {auto_ack!r}")
        if not auto_ack:
            return Scanner(options, attach=self._attach, handler=handler, cursor=use)
        self._lifecycle.check_writable()
        return AckingScanner(options, attach=self._attach, ack=self._broadcast.ack, handler=handler, cursor=use)

    async def get_latest_mvcc_timestamp_if_local(self, vchannel: str) -> int:
        """A tick that covers every write to this vchannel that has returned; with `scanner.wait_for` it gives read-your-writes."""
        check_vchannel(vchannel)
        return await (await self._lifecycle.readable()).latest_tick(vchannel)

    async def cursors(self) -> list[CursorInfo]:
        """All cursors, by name and vchannels. One whose file is damaged is missing here, with a warning, and named by `retention()`."""
        return await (await self._cursor_service()).infos()

    async def delete_cursor(self, name: str, *, vchannels: str | Sequence[str] | None = None) -> None:
        """Deletes the cursor of this name and these vchannels, or (None) all of this name, stale and damaged ones too.

        Durable when it returns. That there is none is fine: somebody else may have deleted it. A reader that uses it is not disturbed,
        and makes it anew with its next `save()`.
        """
        check_cursor(name)
        names: tuple[str, ...] | None = None
        if vchannels is not None:
            if not isinstance(vchannels, str | Sequence):
                raise TypeError(f"vchannels must be a name or a sequence of names, not {type(vchannels).__name__}")
            given = (vchannels,) if isinstance(vchannels, str) else vchannels
            names = CursorKey.of(name, map(check_vchannel, given)).vchannels
            if not names:
                raise InvalidArgumentError(
                    "delete_cursor(vchannels=[]) names no vchannel: name them, or None for all cursors of this name"
                )
        await (await self._cursor_service()).delete(name, names)

    # -- housekeeping

    async def vchannels(self) -> list[VChannelInfo]:
        """All vchannels, by name. With `read_only=True` those that this process knows of; it hears of others soon."""
        return sorted(await (await self._lifecycle.readable()).list_vchannels(), key=lambda info: info.name)

    async def create_vchannel(self, name: str, *, pchannel: str | None = None) -> VChannelInfo:
        """Makes a vchannel, durably; ChannelExistError when there is one of that name."""
        return await (await self._lifecycle.ready()).create_vchannel(name, pchannel)

    async def drop_vchannel(self, name: str) -> None:
        """Drops a vchannel: its transactions fail, its readers end; a new one of that name shows nothing of it.

        When it returns, no reader in another process that begins shows anything of it, also after a crash. If they cannot be told, that is
        a NoSpaceError or StorageError: the vchannel is gone here, and the call may be made again when there is room.
        """
        await (await self._lifecycle.ready()).drop_vchannel(name)

    async def truncate(self, *, up_to: MessageID) -> None:
        """Truncates a pchannel up to this event, inclusive. Exact in what is answered; files go segment by segment.

        An id that is truncated already is fine; one above the durable end, or of another log, is an InvalidArgumentError. So is one
        past what a live cursor or a broadcast that is not over still needs: nothing is truncated then, and the error names the holders.
        """
        if not isinstance(up_to, MessageID):
            raise TypeError(f"up_to must be a MessageID, not {type(up_to).__name__}")
        await (await self._lifecycle.ready()).truncate(up_to)

    async def retention(self) -> list[PChannelRetention]:
        """Where the log of each pchannel stands: what is held, of which bounds, and who holds it."""
        return await (await self._lifecycle.readable()).retention_report()

    def statistics(self) -> LogStatistics:
        """A snapshot of counts since opening; with `read_only=True` those of writing are 0."""
        return self._lifecycle.readable_nowait().statistics()

    @property
    def wal_name(self) -> str:
        """The name of the backend: "journal", "memory" or "pulsar"."""
        return self._lifecycle.readable_nowait().name

    async def close(self) -> None:
        """Drains what is in flight, then closes. Idempotent; concurrent calls all wait, and a cancelled one does not stop it.

        Once the event loop that opened the log has ended, any other one may call it: files, threads and locks are released, and the next
        opening recovers as after a crash. Of what was in flight when the loop ended nobody knows the outcome.
        """
        await self._lifecycle.close()

    def begin(self) -> None:
        """Starts opening, in the running loop; without it the first call that needs the log does."""
        self._lifecycle.begin()

    async def wait_open(self) -> None:
        """Waits until the log is open; raises the error of the opening."""
        await self._lifecycle.readable()

    async def _cursor_service(self) -> CursorService:
        return (await self._lifecycle.readable()).cursors

    async def _attach(
        self, vchannels: tuple[str, ...]
    ) -> tuple[ReadablePChannel, Selection, Callable[[Actor, str], ActorRef]]:
        """Returns the pchannel that these vchannels are read on, and the vchannels as they are now."""
        return await (await self._lifecycle.readable()).attach(vchannels)
