"""TxnCalls: the calls of an open log that begin a transaction, or append a whole one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Unpack, overload

from wal.accesser.expected import UNCHECKED, ExpectedLast, expected_by_name, explained
from wal.accesser.txn import Txn, TxnOpening, TxnOptions, body_list, check_keepalive, txn_vchannels
from wal.channels import check_vchannels
from wal.errors import ConflictError, InvalidArgumentError
from wal.message import AppendResult, ForgottenResult, Message
from wal.pchannel import ProducerKey, check_key

if TYPE_CHECKING:
    from wal.accesser.lifecycle import Lifecycle

__all__ = ["TxnCalls"]


class TxnCalls:
    """The part of `WALAccesser` that concerns transactions."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    @overload
    async def append_txn(
        self,
        vchannel: str | Sequence[str],
        messages: Iterable[Message | bytes],
        *,
        barrier_time_tick: int = 0,
        idempotency_key: str | None = None,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> AppendResult: ...

    @overload
    async def append_txn(
        self,
        vchannel: str | Sequence[str],
        messages: Iterable[Message | bytes],
        *,
        barrier_time_tick: int = 0,
        idempotency_key: ProducerKey,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> AppendResult | ForgottenResult: ...

    async def append_txn(
        self,
        vchannel: str | Sequence[str],
        messages: Iterable[Message | bytes],
        *,
        barrier_time_tick: int = 0,
        idempotency_key: str | ProducerKey | None = None,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> AppendResult | ForgottenResult:
        """Appends a whole transaction on one vchannel, or on several of one pchannel; it is durable when the call returns.

        `bytes` are an INSERT on its only vchannel. If one message is refused (TypeError, InvalidArgumentError), nothing is written.
        The call waits for room when too much is in flight, and cancelling the caller does not undo the transaction. Without messages
        the transaction has no body, and is delivered. The barrier and the idempotency key mean what they mean for `raw_append`; the
        key belongs to the vchannel, or to the set of vchannels, as that of `txn` does. `expected_last` is what it is for `raw_append`; for
        several vchannels it is a mapping from names to ids (or None), and a vchannel that it does not name is not checked.
        """
        names = check_vchannels(vchannel, "append_txn takes the name of a vchannel, or several")
        if not names:
            raise InvalidArgumentError("append_txn([], …) names no vchannel: name at least one")
        bodies = body_list(messages)
        lifecycle = self._lifecycle
        engine = lifecycle.engine
        if engine is None or get_ident() != lifecycle.thread or not lifecycle.is_running():
            engine = await lifecycle.ready()
        if expected_last is UNCHECKED:
            return await engine.appends.append_txn(names, bodies, barrier_time_tick, idempotency_key)
        expected = expected_by_name(names, expected_last)
        try:
            return await engine.appends.append_txn(names, bodies, barrier_time_tick, idempotency_key, expected)
        except ConflictError as error:
            raise await explained(engine, error, expected) from None

    @overload
    def txn(
        self, vchannel: str | None = None, *, idempotency_key: str | None = None, **options: Unpack[TxnOptions]
    ) -> TxnOpening[AppendResult]: ...

    @overload
    def txn(
        self, vchannel: str | None = None, *, idempotency_key: ProducerKey, **options: Unpack[TxnOptions]
    ) -> TxnOpening[AppendResult | ForgottenResult]: ...

    def txn(
        self,
        vchannel: str | None = None,
        *,
        vchannels: Sequence[str] | None = None,
        keepalive: float = 0.0,
        idempotency_key: str | ProducerKey | None = None,
        expected_last: ExpectedLast = UNCHECKED,
    ) -> TxnOpening[AppendResult | ForgottenResult]:
        """Opens a transaction on one vchannel, or on several of one pchannel: await it, or use `async with`.

        `async with` commits at the end, and rolls back on an exception. The transaction expires after `keepalive` seconds without an
        append; 0 means the setting `txn_keepalive`. An idempotency key is checked at the commit, for the vchannel or the set of vchannels:
        a commit with a key that was seen returns the first result. The commit judges `expected_last` too, which is what it is for
        `append_txn`: after a ConflictError nothing is written, and the transaction is over.
        """
        self._lifecycle.check_writable()
        if idempotency_key is not None:
            check_key(idempotency_key)
        names = txn_vchannels(vchannel, vchannels)
        check_keepalive(keepalive)
        expected = expected_by_name(names, expected_last)

        async def begin() -> Txn[AppendResult | ForgottenResult]:
            appends = (await self._lifecycle.ready()).appends
            served = await appends.begin_txn(names, float(keepalive), idempotency_key, expected)
            return Txn(self._lifecycle, served, names, expected)

        return TxnOpening(begin)
