"""MessageTxns: the transactions in the contract's form, which a client sends message by message on a Produce stream.

The node keeps the bodies until the commit, and loses them when it stops. An answer before the commit has only the transaction context:
nothing is in the log yet, so there is no id and no tick.
"""

from __future__ import annotations

import asyncio

from wal.engine.base import NOT_EXPECTED
from wal.engine.bodies import check_body
from wal.engine.local.log import LocalLog
from wal.engine.local.txn import LocalTxn
from wal.message import AppendResult, ForgottenResult, Message, MessageType
from wal.node.produce_txns import check_keepalive
from wal.pchannel import PChannel, TxnOwner
from wal.rpc.txn_messages import TxnMessage

__all__ = ["MessageTxns"]

Result = AppendResult | ForgottenResult


class MessageTxns:
    """The transactions on `pchannel`."""

    def __init__(self, log: LocalLog, pchannel: PChannel, owner: TxnOwner, *, keepalive_s_max: float) -> None:
        self._log = log
        self._pchannel = pchannel
        self._owner = owner
        self._keepalive_s_max = keepalive_s_max

    async def execute(self, given: TxnMessage) -> asyncio.Future[Result]:
        """Executes a message of a transaction, whose vchannel is on this pchannel; returns the future of its result.

        Raises TransactionExpiredError if the transaction expired, was ended by the log, or is unknown here; InvalidTransactionStateError if
        it was committed or rolled back, or is of another client; InvalidArgumentError for a message that cannot be in it, which leaves it
        open.
        """
        message = given.message
        match message.message_type:
            case MessageType.BEGIN_TXN:
                return self._answer(await self._begin(message, given.keepalive_s))
            case MessageType.COMMIT_TXN:
                return self._opened(given).send_commit()
            case MessageType.ROLLBACK_TXN:
                txn = self._opened(given)
                await txn.rollback()
            case _:
                txn = self._opened(given)
                txn.append(message, 0)
        return self._answer(txn)

    async def _begin(self, message: Message, keepalive_s: float) -> LocalTxn:
        check_keepalive(keepalive_s, self._keepalive_s_max)
        return await self._log.appends.begin_txn((message.vchannel,), keepalive_s, None, owner=self._owner)

    def _opened(self, given: TxnMessage) -> LocalTxn:
        """Returns the open transaction of a message."""
        log, pchannel = self._log, self._pchannel
        found = pchannel.table.owned(given.txn_id, self._owner, now=pchannel.lease_now())
        names = tuple([name for name, _ in found.names])
        check_body(given.message, names)
        loop = asyncio.get_running_loop()
        return LocalTxn(
            log.vchannels, loop, found.context, names, None, NOT_EXPECTED, bytes_max=log.settings.message_bytes_max
        )

    @staticmethod
    def _answer(txn: LocalTxn) -> asyncio.Future[Result]:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        future.set_result(AppendResult(None, None, None, txn.context))
        return future
