"""The table of a shared cursor: members take, settle, leave and die, and homes die, in any order, against a naive model."""

from __future__ import annotations

import hypothesis.strategies as st
import msgspec
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from tests.conftest import SOAK
from tests.consumers.test_table_machine import NoHandling, event
from wal.consumers.delivery import Delivery, position_of
from wal.consumers.plan import RELEASED, ConsumerPlan, Failed, Outcome
from wal.consumers.state import decode_state, encode_state
from wal.consumers.table import Deliveries
from wal.message import ImmutableMessage

MEMBERS = 3
ATTEMPTS = 3
At = tuple[int, int]


class MembersMachine(RuleBasedStateMachine):
    """Members in processes of their own. `stored` is what is durable; the counts of failures and losses are the model."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[ImmutableMessage] = []
        self.now = 100.0
        self.stored: tuple[At | None, bytes] = (None, b"")
        self.done: set[At] = set()
        self.ended: set[At] = set()
        """Handled, and not finished durably."""
        self.failures: dict[At, int] = {}
        """The most attempts of a body that can have been counted: its failures, and losses of a member with it alone."""
        self.losses: dict[At, int] = {}
        """All losses of a member that had a body."""

    @initialize(order=st.sampled_from(["key", "vchannel", "none"]), concurrency=st.integers(1, 3), batch=st.sampled_from([1, 1, 2]))
    def begin(self, order: str, concurrency: int, batch: int) -> None:
        self.plan = ConsumerPlan(concurrency, order, batch, ATTEMPTS, (1.0, 4.0), True)  # type: ignore[arg-type]
        self.open()

    def open(self) -> None:
        at, data = self.stored
        self.table = Deliveries(self.plan, decode_state(data), incarnation=7, now=self.now, wall=self.now + 1000, shared=True)
        self.table.apart = True
        self.next = 0 if at is None else 1 + next(index for index, each in enumerate(self.log) if position_at(each) == at)
        self.hands: list[list[list[Delivery]]] = [[] for _ in range(MEMBERS)]
        self.suspected: set[int] = set()
        self.committing: tuple[tuple[At | None, bytes], set[At]] | None = None
        self.ended = set()

    def lane_of(self, message: ImmutableMessage) -> str | None:
        return None if self.plan.order == "none" else "v" if self.plan.order == "vchannel" else message.payload.decode()

    # -- the log and the home

    @rule(key=st.sampled_from("abc"), count=st.integers(1, 3))
    def append(self, key: str, count: int) -> None:
        for _ in range(count):
            self.log.append(event(10 * len(self.log), 0, [key]))

    @rule()
    def read(self) -> None:
        deliveries = [Delivery(message, NoHandling(), self.lane_of(message)) for message in self.log[self.next : self.next + 4]]
        self.next += len(deliveries)
        self.table.take(deliveries)
        assert not self.table.condemned

    @precondition(lambda self: self.committing is None)
    @rule()
    def commit(self) -> None:
        table = self.table
        table.wake(self.now)
        finishing = {position_of(delivery) for delivery in table.ended}
        table.finish_ended(table.ended_count)
        table.hand_out()
        state = table.save(now=self.now, wall=self.now + 1000)
        if state.handed == 1:
            state = msgspec.structs.replace(state, handed=2)
        mark = self.stored[0] if table.mark is None else position_at(table.mark)
        self.committing = (mark, encode_state(state)), finishing

    @precondition(lambda self: self.committing is not None)
    @rule()
    def durable(self) -> None:
        assert self.committing is not None
        self.stored, finished = self.committing
        assert not finished & self.done, "a message is finished once"
        self.done |= finished
        self.ended -= finished
        self.committing = None
        self.table.recorded()

    @rule()
    def home_dies(self) -> None:
        self.open()

    @rule(seconds=st.sampled_from([0.5, 5.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    # -- members

    def in_hand(self, member: int) -> list[Delivery]:
        return [delivery for unit in self.hands[member] for delivery in unit]

    @rule(member=st.integers(0, MEMBERS - 1), size=st.integers(1, 4))
    def take(self, member: int, size: int) -> None:
        table = self.table
        if member in self.suspected:
            return
        if table.has_suspects:
            if not self.in_hand(member) and (units := table.start_suspects(size)):
                self.suspected.add(member)
                self.check_units(member, units)
                self.hands[member] += units
            return
        if work := table.start(size, one_lane=self.plan.batch == 1):
            self.check_units(member, [work])
            self.hands[member].append(work)

    def check_units(self, member: int, units: list[list[Delivery]]) -> None:
        others = [delivery for other in range(MEMBERS) for delivery in self.in_hand(other)]
        for delivery in [delivery for unit in units for delivery in unit]:
            at = position_of(delivery)
            assert at not in self.done | self.ended, "a finished message is not handed out"
            assert delivery not in others
            assert delivery._lane is None or delivery._lane not in [other._lane for other in others], "a lane is with one member"
            assert delivery.attempt <= 1 + self.failures.get(at, 0), "only failures and losses alone count"
            assert delivery.attempt <= ATTEMPTS + 1
            first = 0 if self.losses.get(at) is None else 1
            assert delivery.attempt == 1 or first or self.failures.get(at)

    @rule(
        member=st.integers(0, MEMBERS - 1), kinds=st.lists(st.sampled_from(["done", "done", "failed", "released"]), min_size=1, max_size=3)
    )
    def settle(self, member: int, kinds: list[str]) -> None:
        if not self.hands[member]:
            return
        unit = self.hands[member][0]
        work = unit[: len(kinds)]
        outcomes: list[Outcome] = []
        stopped: set[object] = set()
        for delivery, kind in zip(work, kinds, strict=False):
            at = position_of(delivery)
            outcome: Outcome = {"done": None, "failed": Failed("x"), "released": RELEASED}[kind]
            if isinstance(outcome, Failed) and delivery.attempt >= ATTEMPTS:
                outcome = None  # the member writes a dead letter
            outcomes.append(outcome)
            if delivery._lane is not None and delivery._lane in stopped:
                continue
            if outcome is None:
                self.check_order(delivery)
                self.ended.add(at)
            else:
                stopped.add(delivery._lane)
                if isinstance(outcome, Failed):
                    self.failures[at] = self.failures.get(at, 0) + 1
        self.table.settle(work, outcomes, self.now)
        rest = unit[len(work) :]
        rest = [delivery for delivery in rest if delivery._lane is None or delivery._lane not in stopped]
        self.hands[member][:1] = [rest] if rest else []
        if not self.in_hand(member):
            self.suspected.discard(member)

    def check_order(self, delivery: Delivery) -> None:
        if delivery._lane is None:
            return
        at = position_of(delivery)
        for message in self.log:
            if position_at(message) < at and self.lane_of(message) == delivery._lane:
                assert position_at(message) in self.done | self.ended, "the order of a lane"

    @rule(member=st.integers(0, MEMBERS - 1))
    def member_dies(self, member: int) -> None:
        work = self.in_hand(member)
        if not work:
            return
        for delivery in work:
            at = position_of(delivery)
            self.losses[at] = self.losses.get(at, 0) + 1
            if len(work) == 1 and self.losses[at] > 1:
                self.failures[at] = self.failures.get(at, 0) + 1
        self.table.lose(work, self.now)
        self.hands[member] = []
        self.suspected.discard(member)

    @rule(member=st.integers(0, MEMBERS - 1))
    def member_leaves(self, member: int) -> None:
        work = self.in_hand(member)
        self.table.settle(work, [RELEASED] * len(work), self.now)
        self.hands[member] = []
        self.suspected.discard(member)

    # -- what holds

    @invariant()
    def counts_fit(self) -> None:
        if hasattr(self, "table"):
            assert self.table.handed >= sum(len(self.in_hand(member)) for member in range(MEMBERS))
            assert self.table.pending <= len(self.log)

    def teardown(self) -> None:
        """All messages are finished once members live."""
        if not hasattr(self, "table"):
            return
        for member in range(MEMBERS):
            self.member_leaves(member)
        for _ in range(20 * len(self.log) + 20):
            if len(self.done) == len(self.log):
                break
            if self.committing is not None:
                self.durable()
            self.read()
            self.commit()
            self.durable()
            for member in range(MEMBERS):
                self.take(member, 2)
                while self.hands[member]:
                    self.settle(member, ["done"] * 3)
            self.now += 5.0
        assert self.done == {position_at(message) for message in self.log}


def position_at(message: ImmutableMessage) -> At:
    return (message._origin.position, message._index)


def test_members_finish_every_message() -> None:
    examples, steps = (600, 60) if SOAK else (60, 40)
    run_state_machine_as_test(MembersMachine, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None))
