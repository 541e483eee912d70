"""TxnAppends: how transactions get from a call into the inbox of a vchannel's actor, either whole or body by body.

It keeps the same order as `LocalAppends`: first the checks, then the vchannels, since looking them up may create them, and last the room
in flight. A transaction that is refused is not written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final

from wal.engine.base import NOT_EXPECTED
from wal.engine.bodies import bodies_of, plain_bodies
from wal.engine.checks import kept_key_ext, spans_pchannels
from wal.engine.local.txn import LocalTxn
from wal.engine.local.vchannels import VChannelRoutes, tell
from wal.errors import InvalidArgumentError, WALError
from wal.frame import Payloads, Record
from wal.message import AppendResult, ForgottenResult, Message, MessageID, TxnContext
from wal.pchannel import (
    BODY_OVERHEAD,
    Append,
    Atomic,
    Begin,
    Bulk,
    Expected,
    InFlight,
    Key,
    PChannel,
    TxnLimits,
    TxnOwner,
    VChannel,
    check_txn_size,
    names_size,
)
from wal.settings import Settings
from wal.ticks import check_tick

__all__ = ["TxnAppends"]


SLICE: Final = 256
"""The most vchannels that a transaction creates before other tasks get their turn: about 10 ms."""


class TxnAppends:
    """The part of `LocalAppends` that concerns transactions."""

    def __init__(
        self, vchannels: VChannelRoutes, pchannels: Mapping[str, PChannel], in_flight: InFlight, settings: Settings
    ) -> None:
        loop = asyncio.get_running_loop()
        # Bound once: `get_running_loop` costs a system call in Python 3.11.
        self._create_future = loop.create_future
        self._loop = loop
        self._vchannels = vchannels
        self._routes = vchannels.routes
        self._pchannels = pchannels
        self._in_flight = in_flight
        self._settings = settings
        self._limits: TxnLimits | None = None  # those of every pchannel; known at the first transaction
        self.message_bytes_max: int = settings.message_bytes_max

    def append_txn(
        self,
        names: tuple[str, ...],
        messages: Sequence[Message | bytes],
        barrier_time_tick: int,
        key: Key | None,
        expected_last: Mapping[str, MessageID | None] = NOT_EXPECTED,
    ) -> Awaitable[AppendResult | ForgottenResult]:
        """Appends a whole transaction, in one operation."""
        vchannel, operation, future = self._transaction(names, messages, barrier_time_tick, key, expected_last)
        if not self._in_flight.has_room(operation.size):
            return self._append_waiting(vchannel, operation, future)
        tell(vchannel, operation)
        self._in_flight.size += operation.size
        return future

    async def send_txn(
        self,
        names: tuple[str, ...],
        messages: Sequence[Message | bytes],
        barrier_time_tick: int,
        key: Key | None,
        expected_last: Mapping[str, MessageID | None] = NOT_EXPECTED,
    ) -> asyncio.Future[AppendResult | ForgottenResult]:
        """Sends a whole transaction when there is room for it; returns the future of its result."""
        await self._create_in_slices(names, self._key_bytes(key))
        vchannel, operation, future = self._transaction(names, messages, barrier_time_tick, key, expected_last)
        await self._tell_with_room(vchannel, operation)
        return future

    async def begin_txn(
        self,
        names: tuple[str, ...],
        keepalive_s: float,
        key: Key | None,
        expected_last: Mapping[str, MessageID | None] = NOT_EXPECTED,
        *,
        key_bytes: int = 0,
        owner: TxnOwner | None = None,
    ) -> LocalTxn:
        """Opens a transaction on vchannels of one pchannel. `key_bytes` is the size of a key that only the commit will have.

        `owner` is the client that begins it, if that is over the network.
        """
        for name, last in expected_last.items():
            self._vchannels.expect(name, last)
        await self._create_in_slices(names, key_bytes or self._key_bytes(key))
        future: asyncio.Future[TxnContext] = self._create_future()
        begin = Begin(names, keepalive_s, future, key_bytes or self._key_bytes(key), owner)
        tell(self._on_one_pchannel(names)[0], begin)
        context = await future
        return LocalTxn(
            self._vchannels, self._loop, context, names, key, expected_last, bytes_max=self.message_bytes_max
        )

    async def _tell_with_room(self, vchannel: VChannel, operation: Append | Atomic | Bulk) -> None:
        """Waits for room in flight, takes it, and sends the operation to the vchannel."""
        await self._in_flight.take(operation.size)
        try:
            tell(vchannel, operation)
        except WALError:
            self._in_flight.release(operation.size)
            raise

    def _transaction(
        self,
        names: tuple[str, ...],
        messages: Sequence[Message | bytes],
        barrier_time_tick: int,
        key: Key | None,
        expected_last: Mapping[str, MessageID | None],
    ) -> tuple[VChannel, Atomic, asyncio.Future[AppendResult | ForgottenResult]]:
        """Returns the operation of a whole transaction, the vchannel to tell it, and the future of its result."""
        size = names_size(names, key_bytes=self._key_bytes(key))
        bodies: Payloads | list[Record] | None = plain_bodies(messages, names, bytes_max=self.message_bytes_max)
        owners = None
        if isinstance(bodies, Payloads):
            counted = sum(bodies.lengths) + BODY_OVERHEAD * len(bodies)
            size += counted
        else:
            found = bodies_of(messages, names, bytes_max=self.message_bytes_max)
            bodies, counted, owners = found.records, found.counted, found.vchannels
            size += found.stored
        barrier = 0 if barrier_time_tick is _NO_BARRIER else check_tick("barrier_time_tick", barrier_time_tick)
        check_txn_size(len(bodies), counted, size, self._txn_limits())
        for name, last in expected_last.items():
            self._vchannels.expect(name, last)
        vchannels = self._on_one_pchannel(names)
        expected: Expected = ()
        if expected_last:
            expected = tuple(
                [(each, expected_last[each.channel]) for each in vchannels if each.channel in expected_last]
            )
        run_names = None
        if len(names) > 1:
            by_name = {vchannel.channel: vchannel.run_name for vchannel in vchannels}
            run_names = [by_name[name] for name in owners or ()]
        future: asyncio.Future[AppendResult | ForgottenResult] = self._create_future()
        return vchannels[0], Atomic(vchannels, bodies, run_names, size, barrier, future, key, expected), future

    async def _append_waiting(
        self, vchannel: VChannel, operation: Atomic, future: asyncio.Future[AppendResult | ForgottenResult]
    ) -> AppendResult | ForgottenResult:
        await self._tell_with_room(vchannel, operation)
        return await future

    def _key_bytes(self, key: Key | None) -> int:
        return 0 if key is None else len(kept_key_ext(key, self._settings))

    def _txn_limits(self) -> TxnLimits:
        limits = self._limits
        if limits is None:
            limits = self._limits = next(iter(self._pchannels.values())).table.limits
        return limits

    def _on_one_pchannel(self, names: tuple[str, ...]) -> tuple[VChannel, ...]:
        """Returns the actors of a transaction's vchannels, of which it creates those that do not exist.

        Raises InvalidArgumentError if they are on several pchannels, or if they may not be created, and creates none of them then.
        """
        if len(names) == 1:
            return (self._routes.get(names[0]) or self._vchannels.route(names[0]),)
        known = [route for name in names if (route := self._routes.get(name)) is not None]
        if len(known) < len(names) or len({route.pchannel for route in known}) > 1:
            self._check_names(names)
        return tuple([self._vchannels.route(name) for name in names])

    def _check_names(self, names: tuple[str, ...], *, key_bytes: int = 0) -> None:
        """Raises the error of a transaction that these vchannels cannot have. It creates none of them."""
        limits = self._txn_limits()
        if len(names) > limits.txn_bodies_max:
            raise InvalidArgumentError(
                f"a transaction over {len(names)} vchannels is over txn_bodies_max={limits.txn_bodies_max}, which bounds its vchannels "
                "as well: write to fewer of them at a time, or use the broadcaster, log.broadcast()"
            )
        check_txn_size(0, 0, names_size(names, key_bytes=key_bytes), limits)
        routes, pchannel_of = self._routes, self._vchannels.pchannel_of
        places = {
            name: pchannel_of(name) if (route := routes.get(name)) is None else route.pchannel.channel for name in names
        }
        if len(set(places.values())) > 1:
            raise spans_pchannels(places)
        self._vchannels.check_new(names)

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


_NO_BARRIER: Final = 0
"""The default, compared by identity: every other value, also `False` and 0.0, is checked."""
