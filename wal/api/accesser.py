"""ChannelCalls: the calls of an open log that create, end and list its vchannels and channels.

AppendResponses: the result of `append_messages`, one entry for each message in input order, and how its messages are grouped.

WALAccesser: the log as its users see it. Every public call starts here.

Owns the checks of arguments: a wrong type is a TypeError, a wrong value an InvalidArgumentError, and both are raised before anything is
sent. It has no state of its own: `Lifecycle` knows whether the log is open, and the engine that it opened serves the calls
(`wal/engine.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, overload

import msgspec

from actors import Actor, ActorRef
from wal.api.broadcast import LogBroadcast
from wal.api.expected import UNCHECKED, Unchecked, check_expected_last, explained
from wal.api.lifecycle import Lifecycle
from wal.api.txn import TxnCalls
from wal.channels.channels import CHANNELS_MAX, ChannelDescription, check_channel_count, check_channel_names
from wal.channels.vchannels import OwnerDescription, VChannelInfo, check_owner, check_vchannel, check_vchannels
from wal.engine import LogStatistics
from wal.errors import ConflictError, InvalidArgumentError, WALError
from wal.message import AppendResult, ForgottenResult, Message, MessageID
from wal.read.cursors.cursor import CursorInfo, CursorKey, check_cursor
from wal.read.cursors.service import Cursors, CursorUse
from wal.read.options import READ_TAKES, DeliverFilter, DeliverPolicy, ReadOptions, ReadPosition, Selection
from wal.read.pchannel import ReadablePChannel
from wal.read.scanner import AckingScanner, Handler, Scanner, check_handler
from wal.ticks import check_tick
from wal.write.checks import check_client_type, record_of
from wal.write.idempotency.keys import ProducerInfo, ProducerKey

if TYPE_CHECKING:
    from wal.engine import Appends, ReadableEngine, WritableEngine
    from wal.retention.report import PChannelRetention

__all__ = [
    "AppendOption",
    "AppendResponses",
    "ChannelCalls",
    "LogStatistics",
    "WALAccesser",
    "append_groups",
]


class ChannelCalls:
    """The part of `WALAccesser` that concerns vchannels and channels."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def vchannels(self) -> list[VChannelInfo]:
        """Returns all vchannels, by name; with `read_only=True` those that this process knows of, which may lag by a moment."""
        return sorted(await (await self._lifecycle.readable()).list_vchannels(), key=lambda info: info.name)

    async def create_vchannel(self, name: str, *, pchannel: str | None = None) -> VChannelInfo:
        """Creates a vchannel durably; raises ChannelExistError if the name is taken."""
        return await (await self._lifecycle.ready()).create_vchannel(name, pchannel)

    async def drop_vchannel(self, name: str) -> None:
        """Drops a vchannel: its transactions fail, its readers end, and a recreated vchannel shows nothing of it.

        Once the call has returned, no new read in any process shows anything of it, even after a crash. If readers in other processes
        cannot be told, the call raises NoSpaceError or StorageError: the vchannel is gone here; repeat the call when there is room.
        """
        await (await self._lifecycle.ready()).drop_vchannel(name)

    async def create_channels(self, owner: OwnerDescription, count: int = 1) -> list[str]:
        """Creates so many channels (1 … 60) durably, all or none, and returns their names.

        A channel is a vchannel with a generated name, which the log gives only once, and with an owner. Once the call has returned,
        processes that read the log know the channels too. A cancelled caller does not learn the names: `describe_channels` lists them.
        """
        check_owner(owner)
        check_channel_count(count)
        return await (await self._lifecycle.ready()).create_channels(owner, count)

    async def destroy_channels(self, names: Iterable[str]) -> None:
        """Destroys channels (at most 60), all or none: each ends as `drop_vchannel` ends a vchannel.

        Raises ChannelNotExistError if one of the names is not that of a channel: then none is destroyed. If the metadata cannot be written,
        or readers in other processes cannot be told, the call raises the error and may be repeated.
        """
        checked = check_channel_names(names, names_max=CHANNELS_MAX)
        await (await self._lifecycle.ready()).destroy_channels(checked)

    async def describe_channels(self, names: Iterable[str] | None = None) -> list[ChannelDescription]:
        """Returns these channels and their owners, in the order of the names; None means all, in the order of their creation.

        Raises ChannelNotExistError if one of the names is not that of a channel. With `read_only=True` the answer may lag by a moment.
        """
        checked = None if names is None else check_channel_names(names)
        return await (await self._lifecycle.readable()).describe_channels(checked)


class AppendOption(msgspec.Struct, frozen=True):
    """`barrier_time_tick`: appends wait until everything at or below this tick is in the log (0: no barrier)."""

    barrier_time_tick: int = 0


class AppendResponses(Sequence[AppendResult | WALError]):
    """The results and errors in the order of the messages. The messages of one vchannel share one result or error."""

    __slots__ = ("_responses",)

    def __init__(self, responses: Sequence[AppendResult | WALError]) -> None:
        self._responses = tuple(responses)

    def unwrap(self) -> list[AppendResult]:
        """Returns all results, or raises the first error."""
        results = []
        for response in self._responses:
            if isinstance(response, WALError):
                raise response
            results.append(response)
        return results

    @property
    def first_error(self) -> WALError | None:
        """Returns the first error in input order, or None."""
        return next((response for response in self._responses if isinstance(response, WALError)), None)

    @property
    def max_time_tick(self) -> int:
        """Returns the largest tick among the results, or 0 if there are none."""
        return max(
            (response.time_tick for response in self._responses if isinstance(response, AppendResult)), default=0
        )

    def __len__(self) -> int:
        return len(self._responses)

    @overload
    def __getitem__(self, at: int) -> AppendResult | WALError: ...

    @overload
    def __getitem__(self, at: slice) -> Sequence[AppendResult | WALError]: ...

    def __getitem__(self, at: int | slice) -> AppendResult | WALError | Sequence[AppendResult | WALError]:
        return self._responses[at]

    def __repr__(self) -> str:
        return f"AppendResponses({list(self._responses)!r})"


async def append_groups(appends: Appends, messages: Sequence[Message], barrier_time_tick: int) -> AppendResponses:
    """Appends each vchannel's messages, as one transaction if there are two or more; vchannels are independent of each other.

    A message that no engine accepts raises before anything is sent; a later failure is the response of its vchannel.
    """
    groups: dict[str, list[Message]] = {}
    for message in messages:
        record_of(message, bytes_max=appends.message_bytes_max)
        check_client_type(message)
        if message.vchannel not in groups:
            groups[check_vchannel(message.vchannel)] = []
        groups[message.vchannel].append(message)
    calls = [_append_group(appends, group, barrier_time_tick) for group in groups.values()]
    outcomes = [await calls[0]] if len(calls) == 1 else await asyncio.gather(*calls)
    by_vchannel = dict(zip(groups, outcomes, strict=True))
    return AppendResponses([by_vchannel[message.vchannel] for message in messages])


async def _append_group(appends: Appends, group: list[Message], barrier_time_tick: int) -> AppendResult | WALError:
    try:
        if len(group) > 1:
            return await appends.append_txn((group[0].vchannel,), group, barrier_time_tick, None)  # type: ignore[return-value]
        future = appends.append(group[0], barrier_time_tick)
        return await (future or appends.append_waiting(group[0], barrier_time_tick))
    except WALError as error:
        return error


class WALAccesser(TxnCalls, ChannelCalls):
    """A log that is open or being opened. Get one from `open_wal` or `WAL()`, and use it on the event loop that opened it."""

    if not TYPE_CHECKING:  # a type checker knows the names

        def __getattr__(self, name: str) -> object:
            from wal.api.guesses import missing_call  # needed once, by somebody who is new

            raise AttributeError(missing_call(type(self), name), name=name, obj=self)

    def __init__(
        self, location: str, make_engine: Callable[[], Awaitable[ReadableEngine]], *, read_only: bool = False
    ) -> None:
        super().__init__(Lifecycle(location, make_engine, read_only=read_only))
        self._broadcast = LogBroadcast(self._lifecycle)

    # -- writing

    @overload
    async def raw_append(
        self,
        message: Message,
        *,
        barrier_time_tick: int = 0,
        idempotency_key: str | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> AppendResult: ...

    @overload
    async def raw_append(
        self,
        message: Message,
        *,
        barrier_time_tick: int = 0,
        idempotency_key: ProducerKey,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> AppendResult | ForgottenResult: ...

    async def raw_append(
        self,
        message: Message,
        *,
        barrier_time_tick: int = 0,
        idempotency_key: str | ProducerKey | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> AppendResult | ForgottenResult:
        """Appends a message; it is durable when the call returns.

        The call waits for room when too much is in flight. Cancelling the caller does not undo the append. With a barrier, everything
        at or below the barrier is in the log before the message, and the message's tick is above it.

        With an idempotency key that this vchannel has seen, nothing is written, and the first result is returned with `duplicate`. If an
        append with the key is in flight, the call shares its result, or its failure. An older duplicate of a producer, whose result is no
        longer kept, returns a ForgottenResult. Raises InvalidRequestSeqError if a producer's sequence is below one in flight, or follows a
        failed one; WouldBlockError past `producers_max`.

        With `expected_last` the message is written only if this is the id of its vchannel's last event, or with None if the vchannel never
        had an event; an event in flight counts. Otherwise nothing is written, and a ConflictError has the id of the last event in `.last`.
        It is judged when the append joins its frame, after its barrier and its key: a retry with a key returns the first result. Raises
        InvalidArgumentError for an id of another log, or of a body of the last transaction.
        """
        lifecycle = self._lifecycle
        engine = lifecycle.engine
        if engine is None or get_ident() != lifecycle.thread or not lifecycle.is_running():
            engine = await lifecycle.ready()
        if expected_last is not UNCHECKED:
            return await self._append_expecting(engine, message, barrier_time_tick, idempotency_key, expected_last)
        if idempotency_key is not None:
            keyed = engine.appends.append_keyed(message, barrier_time_tick, idempotency_key)
            return await (keyed or engine.appends.append_keyed_waiting(message, barrier_time_tick, idempotency_key))
        future = engine.appends.append(message, barrier_time_tick)
        if future is None:
            return await engine.appends.append_waiting(message, barrier_time_tick)
        return await future

    async def _append_expecting(
        self,
        engine: WritableEngine,
        message: Message,
        barrier_time_tick: int,
        key: str | ProducerKey | None,
        expected_last: MessageID | None,
    ) -> AppendResult | ForgottenResult:
        appends, last = engine.appends, check_expected_last(expected_last)
        future = appends.append_expecting(message, barrier_time_tick, key, last)
        try:
            return await (future or appends.append_expecting_waiting(message, barrier_time_tick, key, last))
        except ConflictError as error:
            raise await explained(engine, error, {message.vchannel: last}) from None

    @overload
    def append_nowait(
        self,
        message: Message,
        *,
        barrier_time_tick: int = 0,
        idempotency_key: str | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> asyncio.Future[AppendResult]: ...

    @overload
    def append_nowait(
        self,
        message: Message,
        *,
        barrier_time_tick: int = 0,
        idempotency_key: ProducerKey,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> asyncio.Future[AppendResult | ForgottenResult]: ...

    def append_nowait(
        self,
        message: Message,
        *,
        barrier_time_tick: int = 0,
        idempotency_key: str | ProducerKey | None = None,
        expected_last: MessageID | Unchecked | None = UNCHECKED,
    ) -> asyncio.Future[Any]:
        """Appends a message without waiting, and returns a future of the result.

        Calls are ordered within a pchannel, except that others may pass an append that waits for its barrier. Raises WouldBlockError if too
        much is in flight, or while the log is being opened. The future of an append with `expected_last` may raise a ConflictError, also if
        the id is that of a body.
        """
        appends = self._lifecycle.ready_nowait().appends
        future: asyncio.Future[Any] | None
        if expected_last is not UNCHECKED:
            last = check_expected_last(expected_last)
            future = appends.append_expecting(message, barrier_time_tick, idempotency_key, last)
        elif idempotency_key is None:
            future = appends.append(message, barrier_time_tick)
        else:
            future = appends.append_keyed(message, barrier_time_tick, idempotency_key)
        if future is None:
            raise appends.no_room(message)
        return future

    async def append_messages(self, *messages: Message) -> AppendResponses:
        """Appends messages; two or more for one vchannel form one transaction, with its bodies in input order.

        Returns one response for each message, in input order: the result or the error of its vchannel. Vchannels are independent of each
        other.
        """
        return await self.append_messages_with_option(AppendOption(), *messages)

    async def append_messages_with_option(self, option: AppendOption, *messages: Message) -> AppendResponses:
        """Appends messages as `append_messages` does, with a barrier for each append."""
        if not isinstance(option, AppendOption):
            raise TypeError(f"the first argument is an AppendOption, not {type(option).__name__}")
        barrier = check_tick("barrier_time_tick", option.barrier_time_tick)
        return await append_groups((await self._lifecycle.ready()).appends, messages, barrier)

    async def append_bulk(self, messages: Iterable[Message]) -> list[AppendResult]:
        """Appends any number of messages in order, without a transaction, split into frames as they come.

        A failure in the middle raises a BulkAppendError, which is also of the class of its cause; its `.results` are those of the messages
        before the first that is not known to be durable, `.outcomes` has the result or the error of each, and `.remaining` the messages
        that are not known to be durable, all in order: `await log.append_bulk(error.remaining)` goes on.
        """
        return await (await self._lifecycle.ready()).appends.append_bulk(messages)

    async def producers(self) -> list[ProducerInfo]:
        """Returns the producers that are remembered, by name: one entry for each vchannel (or set of them) that a producer appends to."""
        found = await (await self._lifecycle.ready()).appends.producers()
        return sorted(found, key=lambda info: (info.name, info.vchannels))

    async def forget_producer(self, name: str) -> None:
        """Forgets a producer on all vchannels, durably. That makes room under `producers_max`, and its sequences may start over.

        Raises InvalidArgumentError if the producer is not known, WouldBlockError while its appends are in flight.
        """
        if not isinstance(name, str):
            raise TypeError(f"a producer is named by a str, not {type(name).__name__}")
        await (await self._lifecycle.ready()).appends.forget_producer(name)

    async def allocate_time_tick(self) -> int:
        """Returns a time tick above every tick allocated before, for use as a barrier."""
        return await (await self._lifecycle.ready()).allocate_time_tick()

    def broadcast(self) -> LogBroadcast:
        """Returns the calls of the log's broadcaster, which appends one message to many vchannels on any pchannels."""
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
        """Returns a scanner over one vchannel, or over several of one pchannel in tick order. The read begins when the scanner is entered.

        With `follow=False` the read ends after the last event that was durable when it began, with `until_time_tick=T` after everything at
        or below T. `resume` continues exactly after a `scanner.position`, and excludes a policy. `cursor` continues after the position that
        `scanner.save()` stored under that name for these vchannels; if none was stored, the policy says where to begin. With a `handler`
        the scanner runs by itself once entered. `auto_ack` acknowledges each copy of a broadcast when the handler has returned, or when the
        loop asks for the next message or page.
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
            use = CursorUse(check_cursor(cursor), names, self._cursors)
        if not isinstance(auto_ack, bool):
            raise TypeError(f"auto_ack must be a bool, not {auto_ack!r}")
        if not auto_ack:
            return Scanner(options, attach=self._attach, handler=handler, cursor=use)
        self._lifecycle.check_writable()
        return AckingScanner(options, attach=self._attach, ack=self._broadcast.ack, handler=handler, cursor=use)

    async def get_latest_mvcc_timestamp_if_local(self, vchannel: str) -> int:
        """Returns a tick that covers every write to this vchannel that has returned; `scanner.wait_for` it to read your own writes.

        Raises NotLocalError if another process writes the vchannel.
        """
        check_vchannel(vchannel)
        return await (await self._lifecycle.readable()).latest_tick(vchannel)

    async def last(self, vchannel: str) -> MessageID | None:
        """Returns the id of the vchannel's last durable event, for `expected_last`; None if it never had one, or does not exist.

        A plain message, a transaction (the id of its commit) and a copy of a broadcast are events. The id outlives restarts, and is known
        even if the event is truncated. A vchannel that was dropped and recreated begins without an event. Raises ChannelNotExistError if
        the vchannel does not exist and an append would not create it.
        """
        check_vchannel(vchannel)
        return await (await self._lifecycle.readable()).last_event(vchannel)

    async def cursors(self) -> list[CursorInfo]:
        """Returns all cursors, by name and vchannels. A damaged one is left out with a warning, and `retention()` names it."""
        return await (await self._cursors()).infos()

    async def delete_cursor(self, name: str, *, vchannels: str | Sequence[str] | None = None) -> None:
        """Deletes the cursor of this name and these vchannels, or (None) all of this name, including stale and damaged ones.

        The deletion is durable when the call returns. A missing cursor is no error: another caller may have deleted it. A reader that
        uses the cursor is not disturbed, and its next `save()` recreates it.
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
        await (await self._cursors()).delete(name, names)

    # -- housekeeping

    async def truncate(self, *, up_to: MessageID) -> None:
        """Truncates a pchannel up to this event, inclusive. Reads end there exactly; files are removed segment by segment.

        An id that is truncated already is no error. An id above the durable end, or of another log, raises an InvalidArgumentError. So does
        an id past what a live cursor or an unfinished broadcast still needs: nothing is truncated then, and the error names the holders.
        """
        if not isinstance(up_to, MessageID):
            raise TypeError(f"up_to must be a MessageID, not {type(up_to).__name__}")
        await (await self._lifecycle.ready()).truncate(up_to)

    async def retention(self) -> list[PChannelRetention]:
        """Returns, for each pchannel, what is held, by which bounds, and who holds it."""
        return await (await self._lifecycle.readable()).retention_report()

    def statistics(self) -> LogStatistics:
        """Returns the counts since the log was opened; with `read_only=True` those of writing are 0."""
        return self._lifecycle.readable_nowait().statistics()

    @property
    def wal_name(self) -> str:
        """The name of the backend: "journal", "memory" or "pulsar"."""
        return self._lifecycle.readable_nowait().name

    async def close(self) -> None:
        """Drains what is in flight, then closes the log. Idempotent; concurrent calls all wait, and cancelling one does not stop it.

        Once the event loop that opened the log has ended, a task of any other loop may call it: files, threads and locks are released, and
        the next opening recovers as after a crash. Appends in flight when the loop ended have an unknown outcome.
        """
        await self._lifecycle.close()

    def begin(self) -> None:
        """Starts opening the log, on the running loop. Without this call, the first call that needs the log starts it."""
        self._lifecycle.begin()

    async def wait_open(self) -> None:
        """Returns when the log is open; raises the error of the opening."""
        await self._lifecycle.readable()

    async def _cursors(self) -> Cursors:
        return (await self._lifecycle.readable()).cursors

    async def _attach(
        self, vchannels: tuple[str, ...]
    ) -> tuple[ReadablePChannel, Selection, Callable[[Actor, str], ActorRef]]:
        """Returns the pchannel that these vchannels are read on, and the vchannels as they are now."""
        return await (await self._lifecycle.readable()).attach(vchannels)
