"""LocalAppends: how messages and transactions get from a call into the inbox of their vchannel's actor.

Owns the order in which an append is checked and sent: first the checks, then the room in flight, and last the vchannel, since looking it
up may create it. A message that is refused changes nothing. For a transaction, whole or body by body, the vchannels come before the room:
they have to be on one pchannel. `append` is the hot path of the product.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, repeat
from operator import add
from typing import Any, Final

from actors import ActorError
from wal.channels.vchannels import check_vchannel
from wal.errors import InvalidArgumentError, WALError
from wal.frame import Payloads, Record
from wal.message import AppendResult, ForgottenResult, Message, MessageType, TxnContext, encode_properties, type_properties
from wal.node.routes import Routes, refusal, tell
from wal.node.txn import LocalTxn, SavesCursors
from wal.requests.appends import NOT_EXPECTED, PART_ROWS_MAX, PLAIN, ROWS_A_TURN, WriteOptions
from wal.requests.appends import Append as Rows
from wal.requests.txns import AppendTxn, BeginTxn
from wal.settings import Settings
from wal.write.bulk import Piece
from wal.write.checks import (
    LETTER_BYTES,
    bodies_of,
    check_client_type,
    check_message,
    check_size,
    kept_key_ext,
    plain_bodies,
    record_of,
    spans_pchannels,
)
from wal.write.cursor_table import CursorChange
from wal.write.idempotency.keys import ProducerKey, key_ext
from wal.write.in_flight import InFlight
from wal.write.operations import (
    Atomic,
    Begin,
    Bulk,
    ConditionalAppend,
    ConditionalKeyedAppend,
    Expected,
    KeyedAppend,
    OrderedAppend,
    PlainAppend,
    ProducerAppend,
    RemoveProducer,
)
from wal.write.pchannel import PChannel
from wal.write.txn_table import BODY_OVERHEAD, TxnLimits, TxnOwner, check_txn_names, check_txn_size, names_size
from wal.write.vchannel import VChannel

SLICE: Final = 256
"""The most vchannels that a transaction creates before other tasks get their turn: about 10 ms."""


BULK_BYTES: Final = 1024 * 1024
"""The most bytes of messages that share an operation."""


class LocalAppends:
    """The writing calls of a local log; see `wal.engine.Appends`."""

    def __init__(self, routes: Routes, pchannels: Mapping[str, PChannel], in_flight: InFlight, settings: Settings) -> None:
        loop = asyncio.get_running_loop()
        # Bound once: `get_running_loop` costs a system call in Python 3.11.
        self._create_future = loop.create_future
        self._loop = loop
        self._vchannels = routes
        self._actors = routes.actors
        self._pchannels = pchannels
        self._in_flight = in_flight
        self._settings = settings
        self._limits: TxnLimits | None = None  # those of every pchannel; known at the first transaction
        self.message_bytes_max: int = settings.message_bytes_max
        self.cursors: SavesCursors | None = None
        """The cursors that transactions save, once they are open."""
        self._keeps_keys = settings.idempotency_window_count != 0 and settings.idempotency_window_s > 0

    def append(self, message: Message, options: WriteOptions = PLAIN, *, taken: bool = False) -> asyncio.Future[Any] | None:
        """Passes the message to its vchannel; returns None without room in flight (`taken`: the caller has taken it).

        The hot path of the whole product: no coroutine, no container, one future and one operation per message.
        """
        if message.__class__ is not Message and not isinstance(message, Message):
            raise TypeError(f"an append takes a Message, not {type(message).__name__}: Message(vchannel, payload)")
        payload = message.payload
        properties = encode_properties(message.properties) if message.properties else b""
        size = len(payload) + len(properties)
        if size > self.message_bytes_max:
            check_size(message, bytes_max=self.message_bytes_max)
        size += BODY_OVERHEAD
        kind, ext = _INSERT, b""
        if options is not PLAIN:
            if options.key is not None:
                ext = self._key_ext(options)
                size += len(ext)
            if options.expected_last is not NOT_EXPECTED:
                self.check_expected(options)
        in_flight = self._in_flight
        if not taken:
            total = in_flight.size
            if in_flight.queued or (total + size > in_flight.bytes_max and total):
                return None
        if message.message_type is not _INSERT_TYPE:
            check_client_type(message.message_type)
            kind = int(message.message_type)
        future = self._create_future()
        # Last, since it may create the vchannel: a message that is refused changes nothing.
        vchannel = self._actors.get(message.vchannel) or self._vchannels.route(message.vchannel)
        if options is PLAIN and kind == _INSERT:
            append = PlainAppend(payload, kind, 0, properties, ext, future, size)
        else:
            append = _operation(payload, kind, properties, ext, future, size, options, vchannel)
        try:
            vchannel.tell(vchannel, append)
        except ActorError as error:
            raise refusal(vchannel, error) from error
        if not taken:
            in_flight.size += size
        return future

    def _key_ext(self, options: WriteOptions) -> bytes:
        """Returns the key of an append as its record carries it. Raises InvalidArgumentError if the settings would forget it at once."""
        key = options.key
        return b"" if key is None else key_ext(key) if self._keeps_keys else kept_key_ext(key, self._settings)

    def no_room(self, message: Message) -> BaseException:
        """Returns why a message has no room in flight."""
        return self._in_flight.refusal(message.estimate_size() + BODY_OVERHEAD)

    async def append_waiting(self, message: Message, options: WriteOptions = PLAIN) -> Any:
        """Appends a message when there is room for it."""
        return await (await self.send(message, options))

    async def send(self, message: Message, options: WriteOptions = PLAIN) -> asyncio.Future[Any]:
        """Sends a message when there is room for it; returns the future of its result."""
        size = _record_size(record_of(message, bytes_max=self.message_bytes_max))
        size += 0 if options.key is None else len(key_ext(options.key))
        return await self._in_flight.sent(size, lambda: self.append(message, options, taken=True))

    def pieces(self, messages: Sequence[Message]) -> AsyncGenerator[Piece, None]:
        """Sends checked messages in their order, as runs of messages that share an operation; see `wal.engine.Appends`."""
        names = [check_vchannel(name) for name in dict.fromkeys([message.vchannel for message in messages])]
        # Only now, since it may create vchannels: a message that is refused changes nothing.
        actors = {name: self._vchannels.route(name) for name in names}
        rows = PART_ROWS_MAX if len(names) == 1 else ROWS_A_TURN

        async def sent() -> AsyncGenerator[Piece, None]:
            for first in range(0, len(messages), rows):
                part = Rows.of(messages[first : first + rows])
                for row, end in self.runs(part, {}):
                    yield await self.send_run(part, row, end, actors), end - row

        return sent()

    def runs(self, rows: Rows, refusals: dict[int, WALError]) -> Iterator[tuple[int, int]]:
        """Yields the first row and the end of each run of rows that share an operation; a refused row is a run of its own.

        Consecutive rows for one vchannel that need no operation of their own share one of at most `BULK_BYTES`. `refusals` are the errors
        of rows that must not be sent. The errors of rows that are too large, or of a type that no client appends, are added.
        """
        lengths = list(map(len, rows.payloads))
        if rows.properties:
            lengths = list(map(add, lengths, map(len, rows.properties)))
        if max(lengths) > self.message_bytes_max or (rows.types and not all(type_properties(kind).appendable for kind in {*rows.types})):
            refusals |= self._refused_rows(rows)
        bytes_max, count, row = min(BULK_BYTES, self._in_flight.bytes_max), len(lengths), 0
        while row < count:
            end = row + 1
            if end < count and row not in refusals and not rows.is_special(row):
                end = _run_end(rows, row, lengths, refusals, bytes_max)
            yield row, end
            row = end

    async def send_run(self, rows: Rows, row: int, end: int, actors: dict[str, VChannel]) -> asyncio.Future[Any]:
        """Sends a run of rows as one operation, when there is room for it; returns its future, which gets a `Together` for several rows.

        `actors` are the vchannels that the caller has used so far; the vchannel of the run is added. So a vchannel that is dropped
        meanwhile is not created again.
        """
        future: asyncio.Future[Any] = self._create_future()
        payloads, types, properties = rows.payloads[row:end], rows.types[row:end], rows.properties[row:end]
        size = sum(map(len, payloads)) + sum(map(len, properties))
        name, options, in_flight = rows.vchannel(row), rows.options_of(row), self._in_flight
        ext = self._key_ext(options)
        if options.expected_last is not NOT_EXPECTED:
            self.check_expected(options)
        size += len(ext) + BODY_OVERHEAD * (end - row)
        if in_flight.has_room(size):
            in_flight.size += size
        else:
            await in_flight.take(size)
        try:
            vchannel = actors.get(name) or self._actors.get(name) or self._vchannels.route(name)
            actors[name] = vchannel
            if end > row + 1 or not (rows.numbers or rows.has_special):
                records = list(map(Record, payloads, types or repeat(_INSERT), repeat(0), properties or repeat(b"")))
                tell(vchannel, Bulk(records, size, future))
            else:
                kind, stored = types[0] if types else _INSERT, properties[0] if properties else b""
                tell(vchannel, _operation(payloads[0], kind, stored, ext, future, size, options, vchannel))
        except BaseException:
            in_flight.release(size)
            raise
        return future

    def _refused_rows(self, rows: Rows) -> dict[int, WALError]:
        """Returns the errors of rows that are too large, or of a type that no client appends."""
        refusals: dict[int, WALError] = {}
        for row in range(len(rows)):
            try:
                check_message(rows.message(row), bytes_max=self.message_bytes_max)
            except WALError as error:
                refusals[row] = error
        return refusals

    async def forget(self, name: str, pchannels: Iterable[PChannel]) -> None:
        """Forgets a producer on each of these pchannels that has it; raises InvalidArgumentError if none has."""
        tables = [pchannel.keyed.table.producers for pchannel in pchannels]
        scopes = [scope for table in tables if (scope := table.scope_of(name))]
        gave_up = [table.forget_gaps(name) for table in tables]
        if not scopes and not any(gave_up):
            raise InvalidArgumentError(f"producer {name!r} is unknown: log.producers() lists the producers")
        futures: list[asyncio.Future[None]] = []
        for scope in scopes:
            future: asyncio.Future[None] = self._create_future()
            tell(self._vchannels.existing(scope[0][0]), RemoveProducer(name, future))
            futures.append(future)
        outcomes = await asyncio.gather(*futures, return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    # -- transactions

    def append_txn(self, request: AppendTxn) -> Awaitable[AppendResult | ForgottenResult]:
        """Appends a whole transaction, in one operation."""
        vchannel, operation, future = self._transaction(request)
        if not self._in_flight.has_room(operation.size):
            return self._append_waiting(vchannel, operation, future)
        tell(vchannel, operation)
        self._in_flight.size += operation.size
        return future

    async def send_txn(self, request: AppendTxn, change: CursorChange | None = None) -> asyncio.Future[AppendResult | ForgottenResult]:
        """Sends a whole transaction, with the save of a cursor if there is a `change`, when there is room for it.

        Returns the future of its result.
        """
        await self._create_in_slices(request.vchannels, len(self._key_ext(request.options)))
        bytes_max = self.message_bytes_max + (0 if change is None else LETTER_BYTES)
        vchannel, operation, future = self._transaction(request, bytes_max=bytes_max)
        operation.change = change
        await self._tell_with_room(vchannel, operation)
        return future

    async def begin_txn(self, request: BeginTxn, *, owner: TxnOwner | None = None) -> LocalTxn:
        """Opens a transaction. `owner` is the client that begins it, if that is over the network."""
        names, options = request.vchannels, request.options
        self.check_expected(options)
        key_bytes = len(self._key_ext(options))
        await self._create_in_slices(names, key_bytes)
        future: asyncio.Future[TxnContext] = self._create_future()
        tell(self._on_one_pchannel(names)[0], Begin(names, request.keepalive_s, future, key_bytes, owner))
        context = await future
        return self.opened(context, names, options)

    def opened(self, context: TxnContext, names: tuple[str, ...], options: WriteOptions = PLAIN) -> LocalTxn:
        """Returns a transaction that is open."""
        bytes_max, cursors = self.message_bytes_max, self.cursors
        return LocalTxn(self._vchannels, self._loop, context, names, options, cursors, bytes_max=bytes_max, expected=self.expected)

    def commit_with(
        self, bodies: Sequence[Message], change: CursorChange, home: PChannel
    ) -> asyncio.Future[AppendResult | ForgottenResult]:
        """Sends a whole transaction that saves a cursor; its vchannels must be on this pchannel. It takes room without asking."""
        names = tuple(dict.fromkeys([message.vchannel for message in bodies]))
        for name in names:
            if (place := self._vchannels.known.pchannel_of(check_vchannel(name))) != home.channel:
                raise InvalidArgumentError(
                    f"vchannel {name!r} is on pchannel {place}, and {change.key} is kept in the log of pchannel {home.channel}: what is "
                    "written together with a save has to be on that pchannel"
                )
        bytes_max = self.message_bytes_max + LETTER_BYTES
        plain: Sequence[Message | bytes] = bodies
        if len(names) == 1 and not any(body.properties or body.message_type is not _INSERT_TYPE for body in bodies):
            plain = [body.payload for body in bodies]
        vchannel, operation, future = self._transaction(AppendTxn(names, bodies=plain), bytes_max=bytes_max)
        operation.change = change
        tell(vchannel, operation)
        self._in_flight.force(operation.size)
        return future

    def check_expected(self, options: WriteOptions) -> None:
        """Raises InvalidArgumentError if an expected id cannot be the last one of its vchannel, because it is of another log.

        Raises LogWentBackError if it is of an event that a restore has lost.
        """
        for name, event in options.expected_last.items():
            if event is not None:
                pchannel = self._vchannels.here(self._vchannels.known.pchannel_of(name), name)
                event, log_id = pchannel.current(event), pchannel.log_id
                if not event.same_log(log_id):
                    raise InvalidArgumentError(
                        f"expected_last={event} is an id of another pchannel, or of another log: vchannel {name!r} is on pchannel "
                        f"{log_id.pchannel} of the log with incarnation {log_id.incarnation:x}; use an id that was read or appended "
                        f"there, or log.last({name!r})"
                    )

    def expected(self, options: WriteOptions) -> Expected:
        """Returns the expected last events by the actors of their vchannels. Raises ChannelNotExistError for one that was dropped."""
        return tuple([(self._vchannels.existing(name), event) for name, event in options.expected_last.items()])

    async def _tell_with_room(self, vchannel: VChannel, operation: PlainAppend | Atomic | Bulk) -> None:
        """Waits for room in flight, takes it, and sends the operation to the vchannel."""
        await self._in_flight.take(operation.size)
        try:
            tell(vchannel, operation)
        except WALError:
            self._in_flight.release(operation.size)
            raise

    def _transaction(
        self, request: AppendTxn, *, bytes_max: int = 0
    ) -> tuple[VChannel, Atomic, asyncio.Future[AppendResult | ForgottenResult]]:
        """Returns the operation of a whole transaction, the vchannel to tell it, and the future of its result."""
        names, messages, options = request.vchannels, request.bodies, request.options
        bytes_max = bytes_max or self.message_bytes_max
        size = names_size(names, key_bytes=len(self._key_ext(options)))
        bodies: Payloads | list[Record] | None = plain_bodies(messages, names, bytes_max=bytes_max)
        owners = None
        if isinstance(bodies, Payloads):
            counted = sum(bodies.lengths) + BODY_OVERHEAD * len(bodies)
            size += counted
        else:
            checked_bodies = bodies_of(messages, names, bytes_max=bytes_max)
            bodies, counted, owners = checked_bodies.records, checked_bodies.counted, checked_bodies.vchannels
            size += checked_bodies.stored
        check_txn_size(len(bodies), counted, size, self._txn_limits())
        self.check_expected(options)
        vchannels = self._on_one_pchannel(names)
        expected = self.expected(options)
        run_names = None
        if len(names) > 1:
            by_name = {vchannel.channel: vchannel.run_name for vchannel in vchannels}
            run_names = [by_name[name] for name in owners or ()]
        future: asyncio.Future[AppendResult | ForgottenResult] = self._create_future()
        return vchannels[0], Atomic(vchannels, bodies, run_names, size, options.barrier_time_tick, future, options.key, expected), future

    async def _append_waiting(
        self, vchannel: VChannel, operation: Atomic, future: asyncio.Future[AppendResult | ForgottenResult]
    ) -> AppendResult | ForgottenResult:
        await self._tell_with_room(vchannel, operation)
        return await future

    def _txn_limits(self) -> TxnLimits:
        limits = self._limits
        if limits is None:
            limits = self._limits = next(iter(self._pchannels.values())).table.limits
        return limits

    def _on_one_pchannel(self, names: tuple[str, ...]) -> tuple[VChannel, ...]:
        """Returns the actors of a transaction's vchannels, and creates the missing vchannels.

        Raises InvalidArgumentError if they are on several pchannels, or if they may not be created, and creates none of them then.
        """
        if len(names) == 1:
            return (self._actors.get(names[0]) or self._vchannels.route(names[0]),)
        known = [route for name in names if (route := self._actors.get(name)) is not None]
        if len(known) < len(names) or len({route.pchannel for route in known}) > 1:
            self._check_names(names)
        return tuple([self._vchannels.route(name) for name in names])

    def _check_names(self, names: tuple[str, ...], *, key_bytes: int = 0) -> None:
        """Raises the error of a transaction that these vchannels cannot have. It creates none of them."""
        limits = self._txn_limits()
        check_txn_names(len(names), limits.txn_bodies_max)
        check_txn_size(0, 0, names_size(names, key_bytes=key_bytes), limits)
        actors, pchannel_of = self._actors, self._vchannels.known.pchannel_of
        places = {name: pchannel_of(name) if (route := actors.get(name)) is None else route.pchannel.channel for name in names}
        if len(set(places.values())) > 1:
            raise spans_pchannels(places)
        self._vchannels.known.check_new(names)

    async def _create_in_slices(self, names: tuple[str, ...], key_bytes: int) -> None:
        """Creates those of many vchannels of a transaction that do not exist, with turns for other tasks in between.

        Raises what `_on_one_pchannel` raises, which creates what few names need.
        """
        if len(names) == 1:
            return
        self._check_names(names, key_bytes=key_bytes)
        for number, name in enumerate(names if len(names) > SLICE else (), 1):
            self._vchannels.route(name)
            if number % SLICE == 0:
                await asyncio.sleep(0)


def _operation(
    payload: bytes,
    kind: int,
    properties: bytes,
    ext: bytes,
    future: asyncio.Future[Any],
    size: int,
    options: WriteOptions,
    vchannel: VChannel,
) -> PlainAppend:
    """Returns the operation for an append with any options."""
    exclusive = kind != _INSERT and type_properties(kind).exclusive
    barrier, key, expected_last = options.barrier_time_tick, options.key, options.expected_last
    if expected_last is not NOT_EXPECTED and expected_last:
        expected = ((vchannel, expected_last[vchannel.channel]),)
        if key is None:
            return ConditionalAppend(payload, kind, 0, properties, ext, future, size, barrier, exclusive, expected)
        return ConditionalKeyedAppend(payload, kind, 0, properties, ext, future, size, barrier, exclusive, key, None, expected)
    if key is None:
        if barrier or exclusive:
            return OrderedAppend(payload, kind, 0, properties, ext, future, size, barrier, exclusive)
        return PlainAppend(payload, kind, 0, properties, ext, future, size)
    kind_of_key = key.__class__  # isinstance costs 0.1 µs
    is_producers = kind_of_key is ProducerKey or (kind_of_key is not str and isinstance(key, ProducerKey))
    return (ProducerAppend if is_producers else KeyedAppend)(payload, kind, 0, properties, ext, future, size, barrier, exclusive, key)


def _run_end(rows: Rows, row: int, lengths: list[int], refusals: Mapping[int, WALError], bytes_max: int) -> int:
    """Returns the end of the run of rows that begins at this one, which is not special."""
    end = len(lengths)
    if rows.numbers or refusals or rows.has_special:
        numbers, at = rows.numbers, row + 1
        while at < end and (not numbers or numbers[at] == numbers[row]) and at not in refusals and not rows.is_special(at):
            at += 1
        end = at
    if sum(lengths[row:end]) + BODY_OVERHEAD * (end - row) <= bytes_max:
        return end
    sizes = list(accumulate([length + BODY_OVERHEAD for length in lengths[row:end]]))
    return row + max(bisect_right(sizes, bytes_max), 1)


def _record_size(record: Record) -> int:
    return len(record.payload) + len(record.properties) + BODY_OVERHEAD


_INSERT_TYPE: Final = MessageType.INSERT
_INSERT: Final = int(_INSERT_TYPE)
