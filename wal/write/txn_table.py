"""TxnTable: the open transactions of a pchannel, and TxnClock: the time by which they expire. Pure.

Bodies wait here until the commit, so a transaction that is rolled back or expires never touches the log. Each edge of a transaction's
states is a method of the table:

    (none) --begin--> OPEN --append--> OPEN
    OPEN --commit--> taken (it can no longer expire)      OPEN --rollback--> ended
    OPEN --expire | fail (exclusive message, vchannel dropped or failed)--> ended; later calls raise the reason
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from wal.errors import BULK_CALL, InvalidArgumentError, InvalidTransactionStateError, TransactionExpiredError, WALError, WouldBlockError
from wal.frame import Record, RunName
from wal.message import TxnContext

BODY_OVERHEAD: Final = 32
"""The bytes counted for each body in addition to its size: its row in the frame's tables, rounded up."""
NAME_OVERHEAD: Final = 80
"""The bytes counted for each vchannel of a transaction in addition to its name: its run and its commit row."""
OPEN_MAX: Final = 65_536
"""The maximum number of open transactions on a pchannel. This many take about 64 MiB of memory before they have bodies."""
_ENDED_MAX: Final = 4096
"""The number of ended transactions whose reason is remembered."""


class TxnLimits(msgspec.Struct, frozen=True):
    """The bounds of transactions; see the settings of the same names."""

    txn_bytes_max: int
    txn_bodies_max: int
    open_txn_bytes_max: int
    frame_bytes_max: int
    """The largest encoded frame: a transaction is never split."""


class TxnOwner(msgspec.Struct, frozen=True):
    """A client over the network, identified by its session, and the bounds of its open transactions and their bytes on a pchannel.

    Milvus' clients name no session: they are one owner.
    """

    session: bytes
    open_txns_max: int
    open_txn_bytes_max: int


class OpenTxn(msgspec.Struct, gc=False):
    """An open transaction. Only its `owner` may use it; None is the process of the log itself.

    `size` counts its bodies as the bounds do, `stored` as they take space in the frame, with its names. `deadline` is by the `TxnClock`.
    `barrier` is the largest barrier of its bodies.
    """

    context: TxnContext
    names: tuple[RunName, ...]
    deadline: float
    size: int
    stored: int
    bodies: list[tuple[RunName, Record]]
    owner: TxnOwner | None = None
    barrier: int = 0


class TxnTable:
    """The open transactions by id; `size` is the sum of their sizes. The caller passes the time of the `TxnClock`."""

    def __init__(self, limits: TxnLimits) -> None:
        self.size: int = 0
        self.expired: int = 0
        """The number of transactions that have expired."""
        self.rolled_back: int = 0
        self.failed: int = 0
        """The number of transactions that were ended by an exclusive message, or with their vchannel."""
        self.refused: int = 0
        """The number of calls that got a WouldBlockError."""
        self.limits = limits
        self._open: dict[int, OpenTxn] = {}
        self._of_owners: dict[TxnOwner, tuple[int, int]] = {}
        """The number of open transactions of each owner, and the bytes of their bodies."""
        self._ended: OrderedDict[int, Callable[[], WALError]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, txn_id: object) -> bool:
        return txn_id in self._open

    def begin(
        self, txn_id: int, names: tuple[RunName, ...], *, keepalive: float, now: float, key_bytes: int = 0, owner: TxnOwner | None = None
    ) -> TxnContext:
        """Opens a transaction on these vchannels.

        Raises InvalidArgumentError if their names alone would not fit a frame, WouldBlockError if OPEN_MAX transactions are open, or the
        owner's bound is reached. The keepalive is rounded to whole milliseconds, as the log keeps it. `key_bytes` is the size of the
        idempotency key in a commit row.
        """
        if len(self._open) >= OPEN_MAX:
            self.refused += 1
            raise WouldBlockError(
                f"{len(self._open)} transactions are open on the pchannel, at most {OPEN_MAX} are kept: end some, or let some expire"
            )
        if owner is not None and self._of_owners.get(owner, (0, 0))[0] >= owner.open_txns_max:
            self.refused += 1
            raise WouldBlockError(
                f"this client has {owner.open_txns_max} open transactions on the pchannel, at most client_open_txns_max="
                f"{owner.open_txns_max} are accepted: end some, or let some expire"
            )
        keepalive = whole_ms(keepalive)
        context = TxnContext(txn_id, keepalive)
        stored = names_size([name for name, _ in names], key_bytes=key_bytes)
        check_txn_size(0, 0, stored, self.limits)
        self._open[txn_id] = OpenTxn(context, names, now + keepalive, 0, stored, [], owner)
        self._count(owner, 1, 0)
        return context

    def append(self, txn_id: int, added: Sequence[tuple[RunName, Record]], *, counted: int, stored: int, barrier: int, now: float) -> int:
        """Adds bodies, all or none, and renews the keepalive; returns the number of bodies in the transaction.

        `counted` and `stored` are the bytes of these bodies, as `OpenTxn` has them. If the transaction has ended, raises
        InvalidTransactionStateError after a commit or a rollback, and TransactionExpiredError otherwise. Raises InvalidArgumentError if it
        would get too large, WouldBlockError if all open transactions together would: both leave it open, with only its keepalive renewed.
        """
        txn = self._open.get(txn_id)
        if txn is None or txn.deadline <= now:
            txn = self.get(txn_id, now=now)
        txn.deadline = now + txn.context.keepalive
        limits, bodies = self.limits, txn.bodies
        if (
            len(bodies) + len(added) > limits.txn_bodies_max
            or txn.size + counted > limits.txn_bytes_max
            or txn.stored + stored > limits.frame_bytes_max
        ):
            check_txn_size(len(bodies) + len(added), txn.size + counted, txn.stored + stored, limits)
        if self.size + counted > limits.open_txn_bytes_max:
            self.refused += 1
            raise open_bytes_passed(self.size, counted, limits)
        if (owner := txn.owner) is not None and (open_bytes := self._of_owners[owner][1]) + counted > owner.open_txn_bytes_max:
            self.refused += 1
            raise WouldBlockError(
                f"open transactions of this client hold {open_bytes} bytes and {counted} more would pass client_open_txn_bytes_max="
                f"{owner.open_txn_bytes_max}: commit or roll back some, or raise the setting; this one stays open"
            )
        bodies += added
        if barrier > txn.barrier:
            txn.barrier = barrier
        txn.size += counted
        txn.stored += stored
        self.size += counted
        if owner is not None:
            self._count(owner, 0, counted)
        return len(bodies)

    def keep(self, txn_id: int, *, bodies: int, size: int, owner: TxnOwner, now: float) -> None:
        """Renews the keepalive of a transaction whose bodies are kept elsewhere until the commit.

        `size` are the bytes of its `bodies`, as the bounds count them. They do not count against the bound of all open transactions, since
        they are not here. Raises as `owned` does, and InvalidArgumentError if the commit would be refused for them.
        """
        txn = self.owned(txn_id, owner, now=now)
        txn.deadline = now + txn.context.keepalive
        check_txn_size(bodies, size, 0, self.limits)

    def forget_bodies(self, txn_id: int, *, now: float) -> None:
        """Forgets the bodies of an earlier commit that was refused, and renews the keepalive: the next commit brings all bodies again."""
        txn = self.get(txn_id, now=now)
        txn.deadline = now + txn.context.keepalive
        for _, record in txn.bodies:
            txn.stored -= len(record.payload) + len(record.properties) + BODY_OVERHEAD
        txn.bodies.clear()
        self.size -= txn.size
        self._count(txn.owner, 0, -txn.size)
        txn.size = 0

    def get(self, txn_id: int, *, now: float) -> OpenTxn:
        """Returns the open transaction; raises as `append` does if it has ended."""
        txn = self._open.get(txn_id)
        if txn is not None and txn.deadline <= now:
            self._expired(txn_id)
            txn = None
        if txn is None:
            reason = self._ended.get(txn_id)
            if reason is not None:
                raise reason()
            raise TransactionExpiredError(f"transaction {txn_id} is not open here: it ended or expired; begin a new one")
        return txn

    def owned(self, txn_id: int, owner: TxnOwner, *, now: float) -> OpenTxn:
        """Returns the open transaction; raises as `append` does if it has ended, InvalidTransactionStateError if it has another owner."""
        txn = self.get(txn_id, now=now)
        if txn.owner != owner:
            raise InvalidTransactionStateError(f"transaction {txn_id} belongs to another client: only the client that began it can use it")
        return txn

    def commit(self, txn_id: int, *, now: float) -> OpenTxn:
        """Removes the transaction, so that it can no longer expire, and returns it. Raises as `append` does if it has ended."""
        txn = self.get(txn_id, now=now)
        self._remove(txn_id)
        self._remember(txn_id, lambda: InvalidTransactionStateError(f"transaction {txn_id} was committed: begin a new one"))
        return txn

    def rollback(self, txn_id: int) -> None:
        """Forgets the transaction; does nothing if it has ended already."""
        if txn_id in self._open:
            self.rolled_back += 1
            self._end(txn_id, lambda: InvalidTransactionStateError(f"transaction {txn_id} was rolled back: begin a new one"))

    def expire(self, now: float) -> list[int]:
        """Ends every transaction whose keepalive has run out; returns their ids."""
        over = [txn_id for txn_id, txn in self._open.items() if txn.deadline <= now]
        for txn_id in over:
            self._expired(txn_id)
        return over

    def fail(self, name: RunName, reason: Callable[[int], WALError]) -> list[int]:
        """Ends every open transaction on this vchannel, for this reason; returns their ids."""
        over = [txn_id for txn_id, txn in self._open.items() if name in txn.names]
        self.failed += len(over)
        for txn_id in over:
            self._end(txn_id, lambda txn_id=txn_id: reason(txn_id))  # type: ignore[misc]
        return over

    def _expired(self, txn_id: int) -> None:
        keepalive = self._open[txn_id].context.keepalive
        self.expired += 1
        self._end(
            txn_id,
            lambda: TransactionExpiredError(
                f"transaction {txn_id} expired: nothing was appended to it within its keepalive of {keepalive} s; "
                "nothing of it is in the log: begin a new one, with a longer keepalive if it needs more time"
            ),
        )

    def _end(self, txn_id: int, reason: Callable[[], WALError]) -> None:
        self._remove(txn_id)
        self._remember(txn_id, reason)

    def _remove(self, txn_id: int) -> None:
        txn = self._open.pop(txn_id)
        self.size -= txn.size
        self._count(txn.owner, -1, -txn.size)

    def _count(self, owner: TxnOwner | None, count: int, size: int) -> None:
        """Counts the open transactions and bytes of an owner."""
        if owner is None:
            return
        before, open_bytes = self._of_owners.get(owner, (0, 0))
        if before + count:
            self._of_owners[owner] = before + count, open_bytes + size
        else:
            del self._of_owners[owner]

    def _remember(self, txn_id: int, reason: Callable[[], WALError]) -> None:
        self._ended[txn_id] = reason
        if len(self._ended) > _ENDED_MAX:
            self._ended.popitem(last=False)


def open_bytes_passed(held: int, more: int, limits: TxnLimits) -> WouldBlockError:
    """Returns the error for bodies of `more` bytes that would exceed the bound of all open transactions."""
    return WouldBlockError(
        f"open transactions hold {held} bytes and {more} more would pass open_txn_bytes_max={limits.open_txn_bytes_max}: commit or roll "
        "back some, or raise the setting; this one stays open"
    )


def failed_by(txn_id: int, kind: str, vchannel: str) -> TransactionExpiredError:
    """Returns the error of a transaction that would span an exclusive message of this kind."""
    return TransactionExpiredError(
        f"transaction {txn_id} was failed by a {kind} message on vchannel {vchannel!r}, which no transaction may span; nothing of it is in "
        "the log: begin a new one"
    )


def check_txn_names(count: int, names_max: int) -> None:
    """Raises InvalidArgumentError for a transaction over too many vchannels: the bound of its bodies also bounds them."""
    if count > names_max:
        raise InvalidArgumentError(
            f"a transaction over {count} vchannels exceeds txn_bodies_max={names_max}, which bounds its vchannels as well: write to fewer "
            "of them at a time, or use the broadcaster, log.broadcast()"
        )


def check_txn_size(bodies: int, size: int, stored: int, limits: TxnLimits) -> None:
    """Raises InvalidArgumentError if a transaction of this many bodies and bytes exceeds its bounds."""
    if bodies > limits.txn_bodies_max:
        raise InvalidArgumentError(
            f"a transaction of {bodies} bodies exceeds txn_bodies_max={limits.txn_bodies_max}: commit in smaller transactions, "
            f"or use {BULK_CALL}, which is not a transaction and takes any number"
        )
    if size > limits.txn_bytes_max:
        raise InvalidArgumentError(
            f"a transaction of {size} bytes exceeds txn_bytes_max={limits.txn_bytes_max} (payloads, properties and "
            f"{BODY_OVERHEAD} a body): commit in smaller transactions, or raise the setting"
        )
    if stored > limits.frame_bytes_max:
        raise InvalidArgumentError(
            f"a transaction that takes {stored} bytes in the log (with the names of its vchannels) exceeds the "
            f"{limits.frame_bytes_max} bytes of one frame: commit in smaller transactions, or over fewer vchannels"
        )


def whole_ms(keepalive: float) -> float:
    """Returns the keepalive in whole milliseconds, at least one, as the log keeps it."""
    return max(round(keepalive * 1000), 1) / 1000


def names_size(names: Iterable[str], *, key_bytes: int) -> int:
    """Returns the most bytes that the vchannels of a transaction take in a frame; `key_bytes` is the size of its idempotency key."""
    return sum([NAME_OVERHEAD + key_bytes + 4 * len(name) for name in names])


class TxnClock:
    """A clock that stops while the log stalls, so that no transaction expires because of the stall.

    It runs with the monotonic clock, with two exceptions: a gap between two timer turns counts as at most twice the interval (the process
    was stopped, or the loop was blocked), and the clock stops while a frame has been unsynced for longer than that (the disk
    stalls). `now` is in seconds since the clock was created; `advance` moves it.
    """

    __slots__ = ("_gap_max", "_last", "now")

    def __init__(self, *, monotonic: float, interval_s: float) -> None:
        self.now: float = 0.0
        self._last = monotonic
        self._gap_max = 2 * interval_s

    def advance(self, monotonic: float, *, unsynced_since: float | None) -> float:
        """Advances the clock at a timer turn and returns `now`. `unsynced_since` is when the oldest frame in flight was handed over."""
        self.now = self.at(monotonic, unsynced_since=unsynced_since)
        self._last = monotonic
        return self.now

    def at(self, monotonic: float, *, unsynced_since: float | None) -> float:
        """Returns the time between two timer turns, without moving the clock."""
        gap_max = self._gap_max
        if unsynced_since is not None and monotonic > unsynced_since + gap_max:
            monotonic = unsynced_since + gap_max  # the frame has been unsynced for too long: the clock stops
        gap = monotonic - self._last
        if gap <= 0.0:
            return self.now
        return self.now + (gap if gap < gap_max else gap_max)
