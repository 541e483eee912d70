"""ProduceTxns: the transactions of a Produce stream.

Our own clients keep the bodies until the commit. The node keeps the keepalive and the bounds of a transaction, and ends it at an exclusive
message. A transaction that was begun in an earlier term of the pchannel is begun again at its commit, unless the log since its begin holds
an exclusive message that it must not span.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from wal.errors import ChannelNotExistError, InvalidArgumentError, TransactionExpiredError, TruncatedError, UnmatchedChannelTermError
from wal.frame import FrameView, RunKind
from wal.message import AppendResult, ForgottenResult, TxnContext, type_properties
from wal.node.node import StreamingNode
from wal.node.txn import LocalTxn
from wal.requests.appends import PLAIN, WriteOptions
from wal.requests.txns import AppendTxn, BeginTxn, BegunTxn, CommitTxn, KeepTxn, RollbackTxn
from wal.serve.cursor_saves import change_of
from wal.write.cursor_table import CursorChange
from wal.write.idempotency.keys import Key
from wal.write.pchannel import PChannel
from wal.write.txn_table import TxnOwner

LOOKED_AT_MAX: Final = 64 << 20
"""The most bytes of log that are looked at for a transaction of an earlier term; one that began before them has expired."""
_PAGE_BYTES: Final = 2 << 20


class ProduceTxns:
    """The transactions on `pchannel`."""

    def __init__(self, node: StreamingNode, pchannel: PChannel, owner: TxnOwner, *, keepalive_s_max: float) -> None:
        self._node = node
        self._pchannel = pchannel
        self._owner = owner
        self._keepalive_s_max = keepalive_s_max

    async def begin(self, request: BeginTxn) -> BegunTxn:
        """Begins a transaction."""
        check_keepalive(request.keepalive_s, self._keepalive_s_max)
        begun_at = self._pchannel.tail.durable_end
        txn = await self._node.appends.begin_txn(request, owner=self._owner)
        return BegunTxn(txn.context, self._pchannel.log.term, begun_at, self._incarnations(request.vchannels))

    def keep(self, request: KeepTxn) -> None:
        """Renews the keepalive."""
        pchannel = self._pchannel
        pchannel.table.keep(request.txn_id, bodies=request.bodies, size=request.bytes, owner=self._owner, now=pchannel.txn_now())

    async def roll_back(self, request: RollbackTxn) -> None:
        """Forgets a transaction; does nothing if it is over."""
        if request.txn_id in self._pchannel.table:
            await opened_txn(self._node, self._pchannel, request.txn_id, self._owner).rollback()

    async def commit(self, request: CommitTxn) -> asyncio.Future[AppendResult | ForgottenResult]:
        """Commits a transaction with its bodies; returns the future of its result.

        A commit with a key may be sent again. If the transaction has ended and the key is known, the commit gets the first result, and its
        save of a cursor follows.
        """
        pchannel, names, options, begun = self._pchannel, request.vchannels, request.options, request.txn
        if begun.term > pchannel.log.term:
            raise UnmatchedChannelTermError(
                f"the transaction was begun in term {begun.term}, and pchannel {pchannel.channel} is here in term {pchannel.log.term}: "
                "ask AssignmentDiscover where it is"
            )
        txn_id, change = begun.context.txn_id, await self.change_of(request)
        over = begun.term < pchannel.log.term or txn_id not in pchannel.table
        if over and options.key is not None and (first := self._first_result(names, options.key)) is not None:
            return first if change is None else self._node.cursors.save_after(change, first, pchannel)
        if begun.term < pchannel.log.term:
            txn_id = await self._begun_anew(request)
        self._node.appends.check_expected(options)
        txn = opened_txn(self._node, pchannel, txn_id, self._owner, options)
        if set(txn.names) != set(names):
            raise InvalidArgumentError(
                f"transaction {txn_id} has the vchannels {', '.join(txn.names)}, not {', '.join(names)}: commit it with "
                "the vchannels of its begin"
            )
        pchannel.table.forget_bodies(txn_id, now=pchannel.txn_now())
        if request.bodies or options.barrier_time_tick:
            txn.append_many(request.bodies, options.barrier_time_tick)
        return txn.send_commit(change)

    async def change_of(self, request: AppendTxn | CommitTxn) -> CursorChange | None:
        """Returns the save of a cursor that a transaction commits, or None. Its home is this pchannel from now on, or it is refused."""
        if request.save is None:
            return None
        change = await change_of(self._node, request.save)
        await self._node.cursors.named(change.key, self._pchannel.channel)
        return change

    def save_alone(self, change: CursorChange, bodies: Sequence[object]) -> asyncio.Future[Any]:
        """Saves a cursor without messages; returns the future of its outcome."""
        if bodies:
            raise InvalidArgumentError(f"a save of {change.key} has bodies and no vchannels: name those of the bodies")
        return self._node.cursors.send(change, self._pchannel)

    def _incarnations(self, names: tuple[str, ...]) -> tuple[int, ...]:
        """Returns the incarnations of these vchannels. Raises ChannelNotExistError if one of them was dropped."""
        return tuple([self._node.routes.existing(name).run_name[1] for name in names])

    def _first_result(self, names: tuple[str, ...], key: Key) -> asyncio.Future[AppendResult | ForgottenResult] | None:
        """Returns the future of the first result of this key, or None if the key is not known."""
        keyed = self._pchannel.keyed
        try:
            scope = tuple(sorted(self._node.routes.existing(name).run_name for name in names))
        except ChannelNotExistError:
            return None
        result = keyed.table.find(scope, key, now_ms=keyed.now_ms())
        if result is None:
            return None
        future: asyncio.Future[AppendResult | ForgottenResult] = asyncio.get_running_loop().create_future()
        keyed.answer(result, key, future)
        return future

    async def _begun_anew(self, request: CommitTxn) -> int:
        """Begins a transaction of an earlier term here, and returns its id.

        Raises TransactionExpiredError if it has to be given up, ChannelNotExistError if one of its vchannels was dropped. It is begun
        first, so that from then on an exclusive message ends it, and the log is looked at up to there.
        """
        context, names = request.txn.context, request.vchannels
        keepalive_s = min(context.keepalive, self._keepalive_s_max)
        self._incarnations(names)  # raises for one that was dropped: it would be created otherwise
        txn = await self._node.appends.begin_txn(BeginTxn(names, request.options, keepalive_s=keepalive_s), owner=self._owner)
        try:
            if set(self._incarnations(names)) != set(request.txn.incarnations):
                raise ChannelNotExistError(
                    f"one of {', '.join(map(repr, names))} was dropped and created again after transaction {context.txn_id} began: its "
                    "transactions have ended; begin a new one"
                )
            await self._durable_up_to(txn.context)
            await self._look(request.txn.begun_at, frozenset(names), context.txn_id)
        except BaseException:
            await txn.rollback()
            raise
        return txn.context.txn_id

    async def _durable_up_to(self, context: TxnContext) -> None:
        """Returns when everything that was appended before this transaction began is durable."""
        tail = self._pchannel.tail
        while tail.promised_tick < context.txn_id and not self._pchannel.advance_for(context.txn_id):
            if tail.failure is not None:
                raise tail.failure
            waiter = tail.waiter(ticks=True)
            try:
                await waiter
            finally:
                waiter.cancel()

    async def _look(self, start: int, names: frozenset[str], txn_id: int) -> None:
        """Raises TransactionExpiredError if the log from `start` on holds an exclusive message on these vchannels, or is too long."""
        log, end = self._pchannel.log, self._pchannel.tail.durable_end
        if start > end:
            raise InvalidArgumentError(f"begun_at={start} is above the durable end {end} of {self._pchannel.channel}")
        if start < log.earliest[0] or log.bytes_between(start, end) > LOOKED_AT_MAX:
            raise TransactionExpiredError(
                f"transaction {txn_id} was begun in an earlier term and more than {LOOKED_AT_MAX} bytes ago, or what follows it is "
                "truncated; nothing of it is in the log: begin a new one"
            )
        at = start
        while at < end:
            try:
                page = await log.read(at, names=names, bytes_max=_PAGE_BYTES, end=end)
            except TruncatedError as error:
                raise TransactionExpiredError(
                    f"what follows the begin of transaction {txn_id} was truncated; nothing of it is in the log: begin a new one"
                ) from error
            if any(_is_exclusive(frame.view, names) for frame in page.frames):
                raise TransactionExpiredError(
                    f"transaction {txn_id} was failed by a message on one of its vchannels that no transaction may span; nothing of it "
                    "is in the log: begin a new one"
                )
            at = page.next_position


def opened_txn(node: StreamingNode, pchannel: PChannel, txn_id: int, owner: TxnOwner, options: WriteOptions = PLAIN) -> LocalTxn:
    """Returns the open transaction of this owner. Raises as the table of transactions does."""
    open_txn = pchannel.table.owned(txn_id, owner, now=pchannel.txn_now())
    names = tuple([name for name, _ in open_txn.names])
    return node.appends.opened(open_txn.context, names, options)


def check_keepalive(keepalive_s: float, most_s: float) -> None:
    """Raises InvalidArgumentError for a keepalive that no transaction over the network may have."""
    if not (keepalive_s == 0 or 0.001 <= keepalive_s <= most_s):
        raise InvalidArgumentError(
            f"keepalive_s={keepalive_s:g} is out of range: 0 for the log's own, or 0.001 to the server's txn_keepalive_s_max={most_s:g}; "
            "every body renews it"
        )


def _is_exclusive(view: FrameView, names: frozenset[str]) -> bool:
    for run in view.runs.find(names):
        source = view.runs[run.shared] if run.kind == RunKind.COPY else run
        if any(type_properties(kind).exclusive for kind in set(view.columns(source).types or ())):
            return True
    return False
