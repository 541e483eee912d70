"""TxnContext: which transaction a message belongs to."""

from __future__ import annotations

import msgspec

__all__ = ["TxnContext"]


class TxnContext(msgspec.Struct, frozen=True, gc=False):
    """`txn_id` (unique in its pchannel) and the `keepalive` in seconds that the transaction was begun with."""

    txn_id: int
    keepalive: float
