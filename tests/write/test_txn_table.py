"""TxnTable against a model: a dict of open transactions, and a dict of the reasons why the others ended."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule, run_state_machine_as_test

from wal import errors
from wal.frame import Record, RunName
from wal.write.txn_table import BODY_OVERHEAD, NAME_OVERHEAD, OPEN_MAX, TxnLimits, TxnOwner, TxnTable, check_txn_size, names_size

LIMITS = TxnLimits(txn_bytes_max=400, txn_bodies_max=4, open_txn_bytes_max=900, frame_bytes_max=600)


def test_table_of_transactions_matches_a_model() -> None:
    """Any mix of begins, appends, ends and expiries leaves the transactions of a plain model."""
    NAMES: list[RunName] = [("a", 1), ("b", 2), ("c", 3)]

    class ModelTxn:
        def __init__(self, names: tuple[RunName, ...], keepalive: int, now: int) -> None:
            self.names = names
            self.keepalive = keepalive
            self.deadline = now + keepalive
            self.bodies: list[tuple[RunName, bytes]] = []
            self.barrier = 0

        @property
        def size(self) -> int:
            return sum(len(payload) + BODY_OVERHEAD for _, payload in self.bodies)

        @property
        def stored(self) -> int:
            names = sum(NAME_OVERHEAD + 4 * len(name) for name, _ in self.names)
            return names + sum(len(payload) + BODY_OVERHEAD for _, payload in self.bodies)

    class TxnMachine(RuleBasedStateMachine):
        txns = Bundle("txns")

        def __init__(self) -> None:
            super().__init__()
            self.table = TxnTable(LIMITS)
            self.open: dict[int, ModelTxn] = {}
            self.over: dict[int, str] = {}
            self.now = 0
            self.last_id = 0

        def due(self, txn_id: int) -> None:
            """Ends a transaction whose lease has expired, as any call does, even before the timer."""
            txn = self.open.get(txn_id)
            if txn is not None and txn.deadline <= self.now:
                del self.open[txn_id]
                self.over[txn_id] = "expired"

        def refused(self, txn_id: int, error: errors.WALError) -> None:
            reason = self.over[txn_id]
            kinds = {
                "dropped": errors.ChannelNotExistError,
                "committed": errors.InvalidTransactionStateError,
                "rolled back": errors.InvalidTransactionStateError,
            }
            assert isinstance(error, kinds.get(reason, errors.TransactionExpiredError))
            assert reason in str(error)

        @rule(target=txns, names=st.lists(st.sampled_from(NAMES), min_size=1, unique=True), keepalive=st.integers(1, 6))
        def begin(self, names: list[RunName], keepalive: int) -> int:
            self.last_id += 1
            context = self.table.begin(self.last_id, tuple(names), keepalive=keepalive, now=self.now)
            assert (context.txn_id, context.keepalive) == (self.last_id, keepalive)
            self.open[self.last_id] = ModelTxn(tuple(names), keepalive, self.now)
            return self.last_id

        @rule(
            txn_id=txns,
            size=st.sampled_from([0, 1, 50, 200, 368, 369, 401]),
            barrier=st.integers(0, 9),
            which=st.integers(0, 2),
            count=st.sampled_from([1, 1, 0, 2, 3]),
        )
        def append(self, txn_id: int, size: int, barrier: int, which: int, count: int) -> None:
            self.due(txn_id)
            txn = self.open.get(txn_id)
            name = txn.names[which % len(txn.names)] if txn else NAMES[0]
            payload = bytes(size)
            counted = (size + BODY_OVERHEAD) * count
            expected: type[errors.WALError] | None = None
            if txn is None:
                expected = errors.WALError
            else:
                txn.deadline = self.now + txn.keepalive
                too_large = (
                    len(txn.bodies) + count > LIMITS.txn_bodies_max
                    or txn.size + counted > LIMITS.txn_bytes_max
                    or txn.stored + counted > LIMITS.frame_bytes_max
                )
                if too_large:
                    expected = errors.InvalidArgumentError
                elif sum(other.size for other in self.open.values()) + counted > LIMITS.open_txn_bytes_max:
                    expected = errors.WouldBlockError
            try:
                self.table.append(txn_id, [(name, Record(payload))] * count, counted=counted, stored=counted, barrier=barrier, now=self.now)
            except errors.WALError as error:
                assert expected is not None, error
                assert isinstance(error, expected)
                if txn is None:
                    self.refused(txn_id, error)
            else:
                assert expected is None
                assert txn is not None
                txn.bodies += [(name, payload)] * count
                txn.barrier = max(txn.barrier, barrier)

        @rule(txn_id=txns)
        def commit(self, txn_id: int) -> None:
            self.due(txn_id)
            expected = self.open.pop(txn_id, None)
            try:
                taken = self.table.commit(txn_id, now=self.now)
            except errors.WALError as error:
                assert expected is None
                self.refused(txn_id, error)
                return
            assert expected is not None
            assert [(name, record.payload) for name, record in taken.bodies] == expected.bodies
            assert (taken.names, taken.barrier) == (expected.names, expected.barrier)
            assert (taken.size, taken.stored) == (expected.size, expected.stored)
            self.over[txn_id] = "committed"

        @rule(txn_id=consumes(txns))
        def rollback(self, txn_id: int) -> None:
            self.table.rollback(txn_id)
            if self.open.pop(txn_id, None) is not None:
                self.over[txn_id] = "rolled back"
            with pytest.raises(errors.WALError) as caught:
                self.table.commit(txn_id, now=self.now)
            self.refused(txn_id, caught.value)

        @rule(passed=st.integers(0, 4))
        def time_passes(self, passed: int) -> None:
            self.now += passed

        @rule()
        def expire(self) -> None:
            over = [txn_id for txn_id, txn in self.open.items() if txn.deadline <= self.now]
            assert self.table.expire(self.now) == over
            for txn_id in over:
                self.due(txn_id)

        @rule(name=st.sampled_from(NAMES), dropped=st.booleans())
        def fail(self, name: RunName, dropped: bool) -> None:
            over = [txn_id for txn_id, txn in self.open.items() if name in txn.names]
            kind, word = (errors.ChannelNotExistError, "dropped") if dropped else (errors.TransactionExpiredError, "failed")
            assert self.table.fail(name, lambda txn_id: kind(f"{txn_id} was {word}")) == over
            for txn_id in over:
                del self.open[txn_id]
                self.over[txn_id] = word

        @invariant()
        def it_counts(self) -> None:
            assert len(self.table) == len(self.open)
            assert self.table.size == sum(txn.size for txn in self.open.values()) <= LIMITS.open_txn_bytes_max

    run_state_machine_as_test(TxnMachine, settings=settings(stateful_step_count=40))


def test_names_too_long_for_a_frame_are_refused() -> None:
    long: RunName = ("n" * 200, 4)
    table = TxnTable(LIMITS)
    with pytest.raises(errors.InvalidArgumentError, match="600 bytes of one frame"):
        table.begin(1, (long,), keepalive=1.0, now=0.0)
    assert len(table) == 0


def test_refused_append_renews_the_lease() -> None:
    table = TxnTable(LIMITS)
    table.begin(1, (("a", 1),), keepalive=10.0, now=0.0)
    table.append(1, [(("a", 1), Record(b"kept"))], counted=36, stored=36, barrier=0, now=1.0)
    with pytest.raises(errors.InvalidArgumentError):
        table.append(1, [(("a", 1), Record(bytes(500)))], counted=532, stored=532, barrier=99, now=9.0)
    assert table.expire(18.9) == []
    taken = table.commit(1, now=18.9)
    assert [record.payload for _, record in taken.bodies] == [b"kept"]
    assert taken.barrier == 0


def test_transaction_whose_end_is_forgotten_is_expired() -> None:
    with pytest.raises(errors.TransactionExpiredError, match="transaction 7 is not open"):
        TxnTable(LIMITS).commit(7, now=0.0)


def test_number_of_open_transactions_is_bounded() -> None:
    table = TxnTable(LIMITS)
    for txn_id in range(OPEN_MAX):
        table.begin(txn_id, (("a", 1),), keepalive=1.0, now=0.0)
    with pytest.raises(errors.WouldBlockError, match="65536 transactions are open on the pchannel, at most 65536 are kept"):
        table.begin(OPEN_MAX, (("a", 1),), keepalive=1.0, now=0.0)
    table.rollback(7)
    table.begin(OPEN_MAX, (("a", 1),), keepalive=1.0, now=0.0)


def test_open_transactions_of_an_owner_are_bounded() -> None:
    table = TxnTable(LIMITS)
    owner, other = TxnOwner(b"1", 2, 100), TxnOwner(b"2", 2, 100)
    name = ("a", 1)

    def begin(txn_id: int, owner: TxnOwner | None) -> None:
        table.begin(txn_id, (name,), keepalive=1.0, now=0.0, owner=owner)

    def append(txn_id: int, size: int) -> None:
        table.append(txn_id, [(name, Record(b""))], counted=size, stored=size, barrier=0, now=0.0)

    for txn_id, whose in ((1, owner), (2, owner), (3, other), (4, None)):
        begin(txn_id, whose)
    with pytest.raises(errors.WouldBlockError, match="client_open_txns_max=2"):
        begin(5, owner)
    append(1, 60)
    with pytest.raises(errors.WouldBlockError, match="client_open_txn_bytes_max=100"):
        append(2, 41)
    append(2, 40)
    append(3, 100)
    append(4, 300)
    table.forget_bodies(1, now=0.0)
    append(2, 60)
    assert table.size == 500
    for end in (lambda: table.commit(1, now=0.0), lambda: table.rollback(2), lambda: table.expire(1.0)):
        end()
    assert (table.size, len(table), table._of_owners) == (0, 0, {})


def test_another_owner_is_refused() -> None:
    table = TxnTable(LIMITS)
    owner = TxnOwner(b"1", 2, 100)
    table.begin(1, (("a", 1),), keepalive=1.0, now=0.0, owner=owner)
    table.begin(2, (("a", 1),), keepalive=1.0, now=0.0)
    for txn_id, stranger in ((1, TxnOwner(b"2", 2, 100)), (2, owner)):
        with pytest.raises(errors.InvalidTransactionStateError, match=f"transaction {txn_id} belongs to another client"):
            table.keep(txn_id, bodies=0, size=0, owner=stranger, now=0.0)
    table.keep(1, bodies=4, size=400, owner=owner, now=0.5)
    assert table.size == 0
    assert table.expire(1.2) == [2]


def test_number_of_remembered_reasons_is_bounded() -> None:
    table = TxnTable(LIMITS)
    for txn_id in range(5000):
        table.begin(txn_id, (("a", 1),), keepalive=1.0, now=0.0)
        table.rollback(txn_id)
    with pytest.raises(errors.InvalidTransactionStateError, match="rolled back"):
        table.commit(4999, now=0.0)
    with pytest.raises(errors.TransactionExpiredError, match="not open here"):
        table.commit(0, now=0.0)


@pytest.mark.parametrize(
    ("bodies", "size", "stored", "named"), [(5, 0, 0, "txn_bodies_max=4"), (1, 401, 0, "txn_bytes_max=400"), (1, 1, 601, "600 bytes")]
)
def test_errors_about_limits_name_a_remedy(bodies: int, size: int, stored: int, named: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=named) as caught:
        check_txn_size(bodies, size, stored, LIMITS)
    assert "smaller transactions" in str(caught.value)
    check_txn_size(4, 400, 600, LIMITS)


def test_sizes_count_everything_that_is_stored() -> None:
    assert names_size(("ab", "ü"), key_bytes=0) == 2 * NAME_OVERHEAD + 12
    assert names_size(("ab", "ü"), key_bytes=9) == 2 * NAME_OVERHEAD + 12 + 18
