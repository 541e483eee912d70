"""Transactions: one that is appended as a whole, and one whose bodies follow; and the withdrawal of what waits. Pure.

A client sends these requests on the stream on which it appends to their pchannel, so that all are executed in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from wal.channels.unknown_vchannels import SHOWN_MAX
from wal.errors import InvalidArgumentError
from wal.message import AppendResult, ForgottenResult, Message, TxnContext
from wal.requests.appends import PLAIN, WriteOptions
from wal.requests.cursors import CursorSave
from wal.requests.request import Answer, Request, Where
from wal.requests.rights import Right


class StreamRequest(Request[Answer], frozen=True):
    """A request on the stream that writes a pchannel."""

    where: ClassVar[Where] = Where.PCHANNEL
    right: ClassVar[Right] = Right.WRITE


class TxnRequest(StreamRequest[Answer], frozen=True):
    """A request that writes a transaction, or names the vchannels of one.

    Raises InvalidArgumentError for a vchannel that is named twice, and for the expected event of a vchannel that is not in the transaction.
    """

    vchannels: tuple[str, ...]
    options: WriteOptions = PLAIN

    def __post_init__(self) -> None:
        names = self.vchannels
        if len(names) != 1 and (len(set(names)) < len(names) or not (names or self.saves)):
            shown = ", ".join(map(repr, names[:SHOWN_MAX])) or "none"
            raise InvalidArgumentError(f"a transaction has the vchannels {shown}: name at least one, each once")
        self.options.check_expected(names)

    @property
    def saves(self) -> bool:
        """Whether it saves a cursor, for which it needs no vchannel."""
        return False


class BegunTxn(msgspec.Struct, frozen=True):
    """A transaction that a node has begun in a term, when the durable end was `begun_at`, on these incarnations of its vchannels."""

    context: TxnContext
    term: int
    begun_at: int
    incarnations: tuple[int, ...]


class BeginTxn(TxnRequest[BegunTxn], frozen=True, kw_only=True):
    """Begins a transaction on vchannels of one pchannel. A `keepalive_s` of 0 means the setting. The commit judges the options."""

    saying: ClassVar[str] = "beginning a transaction"
    keepalive_s: float = 0.0


class BodiesRequest(TxnRequest[AppendResult | ForgottenResult | None], frozen=True, kw_only=True):
    """A request that writes these bodies, and saves a cursor with them. `bytes` are an INSERT on the only vchannel."""

    writes: ClassVar[bool] = True

    bodies: Sequence[Message | bytes]
    save: CursorSave | None = None

    @property
    def saves(self) -> bool:
        return self.save is not None

    @property
    def is_repeatable(self) -> bool:
        """Whether it is recognised when it is sent again: by its key, or by the number of its consumer's commit."""
        return self.options.key is not None or (self.save is not None and self.save.fence > 0)


class AppendTxn(BodiesRequest, frozen=True):
    """Appends a transaction as a whole, on vchannels of one pchannel; without vchannels it saves the cursor alone."""

    saying: ClassVar[str] = "appending a transaction"


class CommitTxn(BodiesRequest, frozen=True, kw_only=True):
    """Commits a transaction that was begun, with all its bodies. The owner of a later term begins it again."""

    saying: ClassVar[str] = "committing transaction {0.txn.context.txn_id}"
    txn: BegunTxn


class KeepTxn(StreamRequest[None], frozen=True):
    """Extends the lease of a transaction. Its bodies and their bytes are counted, and stay with the client."""

    saying: ClassVar[str] = "keeping transaction {0.txn_id}"
    txn_id: int
    bodies: int
    bytes: int


class RollbackTxn(StreamRequest[None], frozen=True):
    """Forgets a transaction; does nothing if it has ended, and for 0."""

    saying: ClassVar[str] = "rolling back transaction {0.txn_id}"
    txn_id: int = 0


class Withdraw(StreamRequest[None], frozen=True):
    """Withdraws the appends and commits with these numbers on the stream, whose callers wait no longer."""

    saying: ClassVar[str] = "withdrawing {0.withdrawn_ids}"
    withdrawn_ids: tuple[int, ...]
