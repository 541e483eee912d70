"""Transactions whose bodies are kept elsewhere until the commit: the numbers that the table counts for them."""

from __future__ import annotations

import pytest

from wal.errors import InvalidArgumentError, TransactionExpiredError
from wal.frame import Record
from wal.write.txn_table import TxnLimits, TxnOwner, TxnTable

NAME = ("orders", 1)
OWNER = TxnOwner(b"1", 8, 150)


def test_kept_bodies_renew_the_lease() -> None:
    table = TxnTable(TxnLimits(100, 3, 150, 10_000))
    for txn_id in (1, 2):
        table.begin(txn_id, (NAME,), keepalive=10.0, now=0.0, owner=OWNER)
    table.keep(1, bodies=3, size=100, owner=OWNER, now=9.0)
    assert (table.size, table.expire(18.0)) == (0, [2])
    table.begin(3, (NAME,), keepalive=10.0, now=18.0, owner=OWNER)
    for bodies, size in ((4, 1), (1, 101)):
        with pytest.raises(InvalidArgumentError):
            table.keep(3, bodies=bodies, size=size, owner=OWNER, now=18.0)
    table.keep(3, bodies=3, size=100, owner=OWNER, now=18.0)
    with pytest.raises(TransactionExpiredError):
        table.keep(1, bodies=1, size=1, owner=OWNER, now=20.0)
    assert table.size == 0


def test_bodies_of_a_refused_commit_are_forgotten() -> None:
    table = TxnTable(TxnLimits(100, 3, 150, 10_000))
    table.begin(1, (NAME,), keepalive=10.0, now=0.0)
    stored = table.get(1, now=0.0).stored
    body = (NAME, Record(b"12345"))
    for _ in range(2):  # as a commit that was refused and is tried again
        table.forget_bodies(1, now=0.0)
        assert (table.size, table.get(1, now=0.0).stored, table.get(1, now=0.0).bodies) == (0, stored, [])
        table.append(1, [body], counted=37, stored=37, barrier=0, now=0.0)
    txn = table.commit(1, now=0.0)
    assert (txn.bodies, txn.size, txn.stored, table.size) == ([body], 37, stored + 37, 0)


def test_renewal_does_not_touch_a_running_commit() -> None:
    table = TxnTable(TxnLimits(100, 3, 150, 10_000))
    table.begin(1, (NAME,), keepalive=10.0, now=0.0, owner=OWNER)
    body = (NAME, Record(b"12345"))
    table.append(1, [body], counted=37, stored=37, barrier=0, now=0.0)
    table.keep(1, bodies=1, size=37, owner=OWNER, now=5.0)
    txn = table.commit(1, now=12.0)
    assert (txn.bodies, table.size) == ([body], 0)
