"""LockTable against a model that checks all holders and waiters each time."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from broadcaster.lock_table import OVERTAKEN_MAX, LockTable, distinct_keys
from wal.message import ResourceKey


def test_locks_match_a_model() -> None:
    KEYS = st.lists(st.builds(ResourceKey, st.just("d"), st.sampled_from("abc"), shared=st.booleans()), min_size=0, max_size=3).map(
        distinct_keys
    )
    PICK = st.integers(0, 1 << 30)
    Keys = tuple[ResourceKey, ...]

    def meet(ours: Keys, theirs: Keys) -> bool:
        return any(
            (one.domain, one.key) == (other.domain, other.key) and not (one.shared and other.shared) for one in ours for other in theirs
        )

    class LockMachine(RuleBasedStateMachine):
        """The model: the holders, and the waiters in their order, each with how often it was overtaken."""

        def __init__(self) -> None:
            super().__init__()
            self.table = LockTable()
            self.holding: dict[int, Keys] = {}
            self.waiting: dict[int, Keys] = {}
            self.overtaken: dict[int, int] = {}
            self.owner = 0

        def grants(self) -> list[int]:
            """Returns the waiters that get their keys now, in order: each conflicts with no holder and no earlier waiter."""
            granted: list[int] = []
            for owner, keys in list(self.waiting.items()):
                before = [theirs for other, theirs in self.waiting.items() if other < owner]
                if not any(meet(keys, theirs) for theirs in (*self.holding.values(), *before)):
                    self.holding[owner] = self.waiting.pop(owner)
                    granted.append(owner)
            return granted

        @rule(keys=KEYS)
        def try_lock(self, keys: Keys) -> None:
            self.owner += 1
            against = [key for key in keys if any(meet((key,), theirs) for theirs in self.holding.values())]
            passed = [owner for owner, theirs in self.waiting.items() if meet(keys, theirs)]
            conflict = self.table.try_lock(self.owner, keys)
            if against:
                assert conflict is not None
                assert list(conflict.keys) == against
                assert meet(keys, self.holding[conflict.holder])
            elif any(self.overtaken[owner] >= OVERTAKEN_MAX for owner in passed):
                assert conflict is not None
                assert conflict.keys
                assert set(conflict.keys) <= set(keys)
                assert conflict.holder in self.holding
            else:
                assert conflict is None
                for owner in passed:
                    self.overtaken[owner] += 1
                self.holding[self.owner] = keys

        @rule(keys=KEYS)
        def lock_or_wait(self, keys: Keys) -> None:
            self.owner += 1
            free = not any(meet(keys, theirs) for theirs in (*self.holding.values(), *self.waiting.values()))
            assert self.table.lock_or_wait(self.owner, keys) is free
            (self.holding if free else self.waiting)[self.owner] = keys
            self.overtaken[self.owner] = 0

        @precondition(lambda self: self.holding)
        @rule(pick=PICK)
        def release(self, pick: int) -> None:
            owner = list(self.holding)[pick % len(self.holding)]
            del self.holding[owner]
            assert self.table.release(owner) == self.grants()
            assert self.table.release(owner) == []

        @precondition(lambda self: self.waiting)
        @rule(pick=PICK)
        def cancel(self, pick: int) -> None:
            owner = list(self.waiting)[pick % len(self.waiting)]
            del self.waiting[owner]
            assert self.table.cancel(owner) == self.grants()
            assert self.table.cancel(owner) == []

        @rule(name=st.sampled_from("abc"), count=st.integers(1, 2 * OVERTAKEN_MAX))
        def overtake(self, name: str, count: int) -> None:
            """Makes requests that do not wait, one after the other, until one is refused."""
            key = (ResourceKey("d", name),)
            for _ in range(count):
                before = dict(self.holding)
                self.try_lock(key)
                if self.holding == before:
                    return
                self.release(len(self.holding) - 1)

        @invariant()
        def nobody_holds_against_another(self) -> None:
            owners = list(self.holding)
            assert not any(meet(self.holding[one], self.holding[other]) for at, one in enumerate(owners) for other in owners[:at])
            assert len(self.table._waiting) == len(self.waiting)
            for name in "abc":
                expected = {owner for owner, keys in self.holding.items() if any(key.key == name for key in keys)}
                assert set(self.table.holders(ResourceKey("d", name))) == expected

        @invariant()
        def nothing_is_kept_of_keys_that_nobody_wants(self) -> None:
            wanted = {key.key for keys in (*self.holding.values(), *self.waiting.values()) for key in keys}
            assert {name for _, name in self.table._keys} == wanted

    run_state_machine_as_test(LockMachine)


def test_exclusive_wins_and_keys_come_in_order() -> None:
    keys = [ResourceKey("b", "x", shared=True), ResourceKey("a", "y"), ResourceKey("b", "x"), ResourceKey("a", "y", shared=True)]
    assert distinct_keys(keys) == (ResourceKey("a", "y"), ResourceKey("b", "x"))
    shared = ResourceKey("a", "y", shared=True)
    assert distinct_keys([shared, shared]) == (shared,)


@pytest.mark.parametrize("waiters", [1, 3])
def test_waiting_broadcast_is_never_overtaken_forever(waiters: int) -> None:
    table = LockTable()
    shared, exclusive = (ResourceKey("d", "a", shared=True),), (ResourceKey("d", "a"),)
    assert table.try_lock(1, shared) is None
    for waiter in range(waiters):
        assert not table.lock_or_wait(100 + waiter, exclusive)
    holder, let_in = 1, 0
    while table.try_lock(holder + 1, shared) is None:  # always at least one shared holder
        assert table.release(holder) == []
        holder += 1
        let_in += 1
    assert let_in == OVERTAKEN_MAX
    assert table.release(holder) == [100]
