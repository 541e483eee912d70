"""KeyedWrites: the callers of keyed appends, and the table of keys of their pchannel.

Owns the callers that wait for a key: the caller whose append is written, and the sharers, which called with the same key while it was in
flight. Each of them gets one answer, the first result or its failure. `IdempotencyTable` decides the meaning of a key. Every call happens
in a turn of the group or when a frame is settled.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from typing import Any, Final, cast

from wal.errors import ClosedError, IgnoredOperationError, InvalidArgumentError, InvalidRequestSeqError, UnknownOutcomeError
from wal.frame import RunName
from wal.message import AppendResult, ForgottenResult, MessageID, Origin, TxnContext
from wal.write.idempotency.keys import Key, ProducerKey
from wal.write.idempotency.scopes import Claim, Kept
from wal.write.idempotency.table import IdempotencyTable
from wal.write.operations import KeyedAppend, Settles, answer_future, fail_future
from wal.write.schedule import ScheduleTable

WARN_PAUSE_S: Final = 60.0
"""The pause between two warnings of one pchannel that keys are forgotten before their age."""
_log: Final = logging.getLogger("wal.pchannel")


class KeyedWrites:
    """The keyed appends of one pchannel.

    `origin` returns the frame at a position, `now_ms` the milliseconds of the newest tick, `alive` whether the pchannel still writes.
    `withdraw` fails the operations with these claims that the backend does not have yet. `channel` is the pchannel, for warnings. The key
    of a message in `schedule`, which waits for its delivery time, is refused.
    """

    def __init__(
        self,
        table: IdempotencyTable,
        *,
        origin: Callable[[int], Origin],
        now_ms: Callable[[], int],
        alive: Callable[[], bool],
        withdraw: Callable[[frozenset[Claim]], None],
        channel: str = "",
        schedule: ScheduleTable | None = None,
    ) -> None:
        self.table = table
        self._schedule = ScheduleTable() if schedule is None else schedule
        self._channel = channel
        self._warned_cut = table.cut
        self._warn_at_s = -math.inf
        self.moved: bool = False
        """Whether keys were written since the last `warn_of_cut`, or a warning waits."""
        self._origin = origin
        self.now_ms = now_ms
        self.duplicates: int = 0
        """The number of calls that got the result of an earlier call."""
        self._sharing = False  # whether a claim may have sharers
        self._alive = alive
        self._withdraw = withdraw

    def claim(self, scope: tuple[RunName, ...], key: Key, future: Settles[AppendResult | ForgottenResult], *, barrier: int) -> Claim | None:
        """Claims a new key. For a known key it returns None, and the future gets the first result, now or once that is durable."""
        if self.answered(scope, key, future):
            return None
        return self.table.claim(scope, key, barrier=barrier)

    def answered(self, scope: tuple[RunName, ...], key: Key, future: Settles[AppendResult | ForgottenResult]) -> bool:
        """Returns whether the key is known; if so, the future gets the first result, now or once that is durable.

        Raises InvalidArgumentError for the key of a scheduled message.
        """
        if (result := self.table.find(scope, key, now_ms=self.now_ms())) is None:
            if self._schedule and self._is_scheduled(scope, key):
                raise InvalidArgumentError(
                    f"idempotency_key={key!r} is that of a message which is scheduled on vchannel {scope[0][0]!r} and waits for its time: "
                    "cancel that one first, as in (await log.scheduled(…)).cancel(…), or take another key"
                )
            return False
        self.answer(result, key, future)
        return True

    def reach_s(self) -> float:
        """Returns how far back plain keys are remembered, in seconds."""
        return self.table.reach_s(self.now_ms())

    def warn_of_cut(self, now_s: float) -> None:
        """Warns, once a minute at most, when keys were forgotten before their age; call it while `moved`. `now_s` is monotonic."""
        self.moved = self.table.cut != self._warned_cut
        if not self.moved or now_s < self._warn_at_s:
            return
        self.moved = False
        self._warned_cut, self._warn_at_s = self.table.cut, now_s + WARN_PAUSE_S
        _log.warning(
            "pchannel %s remembers idempotency keys for %.0f s only, less than idempotency_window_s: %d keys are all that it keeps, and a "
            "later retry writes again. Raise idempotency_window_count, or use a ProducerKey, which is remembered for good",
            self._channel,
            self.reach_s(),
            len(self.table),
            extra={
                "wal_event": "keys forgotten",
                "wal_pchannel": self._channel,
                "wal_reach_s": self.reach_s(),
                "wal_keys": len(self.table),
            },
        )

    def claim_run(self, scope: tuple[RunName, ...], appends: list[KeyedAppend]) -> bool:
        """Claims the keys of these appends at once, if they are new, and no append waits for a barrier or is exclusive.

        All keys must be of one kind. Returns False if no key was claimed.
        """
        keys = [append.key for append in appends if not append.barrier and not append.exclusive]
        if self._schedule and any(self._is_scheduled(scope, key) for key in keys):
            return False
        if len(keys) != len(appends) or (claims := self.table.claim_run(scope, keys)) is None:
            return False
        if claims[0] is claims[-1]:
            claim = claims[0]
            for append in appends:
                append.claim = claim
        else:
            for append, claim in zip(appends, claims, strict=True):
                append.claim = claim
        return True

    def answer(self, claim: Kept | Claim, key: Key, future: Settles[AppendResult | ForgottenResult]) -> None:
        """Answers the caller of a duplicate, for whose key the table found this: with the first result, now or once it is durable."""
        self.duplicates += 1
        if isinstance(claim, Claim):
            claim.share(key, future)
            self._sharing = True
        else:
            answer_future(future, self._again(claim))

    def appended(self, appends: list[KeyedAppend], origin: Origin, index: int, first_tick: int) -> None:
        """Resolves appends that are durable, from this index of their frame on, and remembers their results.

        All of them are for one vchannel and have one kind of key.
        """
        pchannel, incarnation, position, form = origin.pchannel, origin.incarnation, origin.position, origin.form
        first, last = cast("Claim", appends[0].claim), appends[-1].claim
        sharing = self._sharing and any(append.claim.sharers for append in appends if append.claim is not None)
        if first is not last or not self.table.durable_whole(first, appends[0].key, len(appends), position, index, first_tick + index):
            claims = cast("list[Claim]", [append.claim for append in appends])
            self.table.durable_run(claims, [append.key for append in appends], position, index, first_tick + index)
        for append in appends:
            message_id = MessageID(pchannel, incarnation, position, index, form)
            try:
                append.future.set_result(AppendResult(message_id, first_tick + index, message_id))
            except asyncio.InvalidStateError:
                pass  # its caller was cancelled
            if sharing and append.claim is not None:
                self._share(append.claim, append.key, AppendResult(message_id, first_tick + index, message_id, None, None, True))
            index += 1

    def durable(self, claim: Claim, result: AppendResult) -> None:
        """Remembers the result of a transaction with a claimed key and gives it to the sharers."""
        context, message_id = result.txn_context, result.message_id
        txn_id, keepalive_ms = (0, 0) if context is None else (context.txn_id, round(context.keepalive * 1000))
        self.table.durable(claim, claim.key, Kept(message_id.position, message_id.index, result.time_tick, txn_id, keepalive_ms))
        self._share(claim, claim.key, AppendResult(message_id, result.time_tick, message_id, context, None, True))

    def failed(self, claim: Claim, key: Key, future: Settles[AppendResult], error: BaseException) -> None:
        """Fails the operation with this claimed key, its sharers, and the later operations of its producer that are in flight."""
        alive = self._alive()
        if claim.doomed and alive and not isinstance(error, ClosedError):
            error = _out_of_order(claim)
        later = self.table.failed(claim, key, final=not alive)
        for waiting in (future, *claim.sharers_of(key)):
            fail_future(waiting, error)
        if later and alive:
            self._withdraw(frozenset(later))

    def give_up(self, claim: Claim, future: Settles[AppendResult]) -> list[Settles[Any]]:
        """Fails the operation as `failed` does, but returns the callers, which get the error later."""
        alive = self._alive()
        later = self.table.failed(claim, claim.key, final=not alive)
        callers: list[Settles[Any]] = [future, *claim.sharers_of(claim.key)]
        claim.sharers = None
        if later and alive:
            self._withdraw(frozenset(later))
        return callers

    def _is_scheduled(self, scope: tuple[RunName, ...], key: Key) -> bool:
        return len(scope) == 1 and isinstance(key, str) and self._schedule.find(scope[0], key) is not None

    def _share(self, claim: Claim, key: Key, result: AppendResult) -> None:
        for future in claim.sharers_of(key):
            answer_future(future, result)

    def _again(self, kept: Kept) -> AppendResult | ForgottenResult:
        """Returns the first result as the answer to a duplicate."""
        if kept.position < 0:
            return AppendResult(None, None, None, None, None, True)
        message_id = self._origin(kept.position).message_id(kept.index)
        context = TxnContext(kept.txn_id, kept.keepalive_ms / 1000) if kept.txn_id else None
        return AppendResult(message_id, kept.tick, message_id, context, None, True)


def _out_of_order(claim: Claim) -> InvalidRequestSeqError:
    key = claim.key
    assert isinstance(key, ProducerKey)
    return InvalidRequestSeqError(
        f"sequence {key.sequence} of producer {key.producer!r} was not written, since an earlier one that was in flight failed: "
        "append them again from that one on"
    )


def is_abandoned(operation: Any, gone: frozenset[Any]) -> bool:
    """Returns whether an operation that waits for its barrier has callers among these futures, and no other waiting caller.

    It has no tick yet, so the error of its callers is certain. An operation whose result other callers share continues for them. So does an
    operation with a producer's key: the later sequences of its producer wait for it, and would fail with it. If an operation continues
    although its callers are among these, their futures get an UnknownOutcomeError.
    """
    claim: Claim | None = getattr(operation, "claim", None)
    if claim is None:
        return operation.future in gone
    callers = (operation.future, *claim.sharers_of(claim.key))
    callers_left = gone.intersection(callers)
    if not callers_left:
        return False
    if not isinstance(claim.key, ProducerKey) and all(caller in callers_left or caller.done() for caller in callers):
        return True
    for caller in callers_left:
        fail_future(caller, _goes_on(claim.key))
    return False


def withdrawn() -> IgnoredOperationError:
    """Returns the error of an operation that was withdrawn: no part of it is written."""
    return IgnoredOperationError("the append was withdrawn while it waited for its barrier; nothing of it was written")


def _goes_on(key: Key) -> UnknownOutcomeError:
    return UnknownOutcomeError(
        f"the append with the key {key!r} waits for its barrier, and is written when that has passed, although its caller has withdrawn "
        "it: append it again with the same key to get its result"
    )
