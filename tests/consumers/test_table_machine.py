"""The table of a consumer under reads, commits, failures, releases and deaths in any order, against a naive model."""

from __future__ import annotations

import itertools

import hypothesis.strategies as st
from hypothesis import assume, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from tests.conftest import SOAK
from wal.consumers.delivery import Delivery, DeliveryState, Outputs, position_of
from wal.consumers.plan import RELEASED, ConsumerPlan, Failed, Outcome, Rejected
from wal.consumers.state import SavedState, decode_state, encode_state
from wal.consumers.table import Deliveries
from wal.frame import Columns
from wal.message import ImmutableMessage, ImmutableTxnMessage, Origin
from wal.read.assembly import PlainMessages


class NoHandling:
    """The consumer of these deliveries, which no handler gets."""

    fence = 1

    def add_output(self, message: object, outputs: object, *, is_letter: bool = False, due_ms: int | None = None) -> Outputs:
        raise NotImplementedError

    def extend(self, delivery: object, seconds: float) -> None: ...

    def has_ended(self, delivery: object) -> bool:
        return False


def event(position: int, first: int, keys: list[str]) -> ImmutableMessage:
    """Makes a plain message, or a transaction with as many bodies as there are keys."""
    origin = Origin("p", 7, position)
    bodies = [ImmutableMessage(origin, first + index, position, "v", key.encode()) for index, key in enumerate(keys)]
    if len(bodies) == 1:
        return bodies[0]
    return ImmutableTxnMessage(
        origin, first + len(bodies), position, "v", b"", messages=tuple(bodies), vchannels=("v",), _first_index=first
    )


def test_consumers_in_a_row_handle_every_message() -> None:
    """One consumer after the other over one log. `stored` is the durable state; the sets are the model."""
    At = tuple[int, int]
    # The payload of messages that are for another consumer.
    UNSEEN = b"u"
    attempts = 3
    OUTCOMES: dict[str, Outcome] = {
        "done": None,
        "failed": Failed("x"),
        "rejected": Rejected("y"),
        "released": RELEASED,
        "later": Failed("z", 20.0),
    }
    KINDS = st.sampled_from(["done", "done", "failed", "failed", "rejected", "released", "later"])

    def page_of(bodies: list[ImmutableMessage]) -> PlainMessages:
        """Makes the page that a reader gets of these plain messages of one frame."""
        payloads = [body.payload for body in bodies]
        columns = Columns([body._index for body in bodies], payloads, None, None, None, None)
        page = PlainMessages("v", columns, bodies[0]._origin, 0)
        page.payload_bytes = sum(map(len, payloads))
        return page

    def stored_runs(data: bytes, order: list[At]) -> set[At]:
        """Returns the bodies that a stored state marks as handed out."""
        state: SavedState = decode_state(data)
        handed = {at for at in order for run in state.runs if run.handed and run.first <= at <= run.last}
        assert len(handed) == state.handed
        return handed

    class TableMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.log: list[ImmutableMessage] = []
            self.keys: dict[At, str] = {}
            self.order: list[At] = []
            self.now = 100.0
            self.stored: tuple[At | None, bytes] = (None, b"")
            self.done: set[At] = set()
            """Finished durably."""
            self.ended: set[At] = set()
            """Handled by this process, and not finished durably."""
            self.failures: dict[At, int] = {}
            """The maximum number of failed attempts of a body: its exceptions, and its deaths while alone."""
            self.died: dict[At, int] = {}
            """Deaths since the body last had an outcome that is durable."""
            self.cleared: set[At] = set()
            """Bodies with such an outcome since, which is not durable."""

        @initialize(
            order=st.sampled_from(["vchannel", "key", "none"]),
            concurrency=st.integers(1, 3),
            batch=st.sampled_from([1, 1, 3]),
            blocks=st.booleans(),
            pending_max=st.sampled_from([6, 1000]),
            one_lane=st.booleans(),
        )
        def begin(self, order: str, concurrency: int, batch: int, blocks: bool, pending_max: int, one_lane: bool) -> None:
            self.lane = "v" if order == "vchannel" and one_lane else None
            self.plan = ConsumerPlan(concurrency, order, batch, attempts, (1.0, 4.0), blocks, pending_max)  # type: ignore[arg-type]
            self.open()

        def open(self) -> None:
            at, data = self.stored
            self.table = Deliveries(self.plan, decode_state(data), incarnation=7, now=self.now, wall=self.now + 1000, lane=self.lane)
            self.next = 0 if at is None else 1 + next(i for i, e in enumerate(self.log) if (e._origin.position, e._index) == at)
            self.mark: At | None = at
            self.running: list[Delivery] = []
            self.work: list[list[Delivery]] = []
            self.finishing: list[Delivery] = []
            """Handled, and not in a commit."""
            self.dead: list[Delivery] = []
            self.committing: tuple[tuple[At | None, bytes], set[At], set[At]] | None = None
            self.ended = set()
            self.cleared = set()

        # -- the log

        @rule(keys=st.lists(st.sampled_from("abcabcu"), min_size=1, max_size=3), same_frame=st.booleans())
        def append(self, keys: list[str], same_frame: bool) -> None:
            position, first = 10 * (len(self.log) + 1), 0
            if same_frame and self.log:
                position, first = self.log[-1]._origin.position, self.log[-1]._index + 1
            appended = event(position, first, keys)
            self.log.append(appended)
            for body in appended.bodies():
                self.keys[body._origin.position, body._index] = body.payload.decode()
                self.order.append((body._origin.position, body._index))

        @rule(count=st.integers(1, 4))
        def read(self, count: int) -> None:
            taken: list[Delivery] = []
            for message in self.log[self.next : self.next + count]:
                if self.table.room < len(message.bodies()) + len(taken):
                    break
                bodies = message.bodies()
                for body in bodies:
                    lane = {"vchannel": "v", "key": body.payload.decode(), "none": None}[self.plan.order]
                    end = None if len(bodies) == 1 else (message if body is bodies[-1] else False)
                    taken.append(Delivery(body, NoHandling(), lane, end))
                self.next += 1
            for unseen, group in itertools.groupby(taken, lambda delivery: delivery.message.payload == UNSEEN):
                deliveries = list(group)
                if unseen:
                    self.table.skip(deliveries)
                    self.done |= {position_of(delivery) for delivery in deliveries}
                elif self.lane is None or any(delivery._event is not None for delivery in deliveries):
                    self.table.take(deliveries)
                else:
                    for _, frame in itertools.groupby([delivery.message for delivery in deliveries], lambda body: body._origin.position):
                        self.table.take_page(page_of(list(frame)), NoHandling())
            for dead in self.table.condemned:
                at = position_of(dead.delivery)
                assert self.failures[at] >= attempts, "a bystander is condemned"
                self.ended.add(at)
                self.dead.append(dead.delivery)
            self.table.condemned.clear()

        @rule(
            keys=st.lists(st.sampled_from("abcabcu"), min_size=2, max_size=6),
            starts=st.integers(1, 3),
            kinds=st.lists(KINDS, max_size=4),
            ending=st.sampled_from(["", "", "", "death", "death", "close"]),
        )
        def turn(self, keys: list[str], starts: int, kinds: list[str], ending: str) -> None:
            """Runs one turn of a consumer, so that runs get far."""
            for key in keys:
                self.append([key], same_frame=True)
            for _ in range(2):
                self.read(4)
                if self.committing is None:
                    self.commit()
                self.durable()
                for _ in range(starts):
                    self.try_start()
            for kind in kinds[: len(self.work)]:
                work = self.work.pop(0)
                self.settle_as(work, ([kind] + kinds * 3)[: len(work)])
            if ending == "death" and self.work:
                self.die(commit_lands=False)
            elif ending == "close":
                self.close()

        # -- commits

        @precondition(lambda self: self.committing is None)
        @rule()
        def commit(self) -> None:
            table, done = self.table, self.finish()
            table.hand_out()
            state = table.save(now=self.now, wall=self.now + 1000)
            data = encode_state(state)
            assert decode_state(data) == state
            mark = self.mark if table.mark is None else (table.mark._origin.position, table.mark._index)
            self.committing = ((mark, data), done, self.cleared.copy())

        def finish(self) -> set[At]:
            """Finishes the ended bodies, and returns them."""
            table = self.table
            assert list(table.ended) == self.finishing
            table.finish_ended(table.ended_count)
            if self.dead:
                table.finish(self.dead)
            done = {position_of(delivery) for delivery in self.finishing + self.dead}
            self.finishing, self.dead = [], []
            return done

        @precondition(lambda self: self.committing is not None)
        @rule()
        def durable(self) -> None:
            assert self.committing is not None
            self.stored, done, cleared = self.committing
            self.done |= done
            self.clear(cleared)
            self.committing = None
            self.table.recorded()

        def clear(self, cleared: set[At]) -> None:
            self.died = {at: deaths for at, deaths in self.died.items() if at not in cleared}
            self.cleared -= cleared

        # -- handlers

        @rule()
        def start(self) -> None:
            assume(self.table.startable)
            self.try_start()

        def try_start(self) -> None:
            work = self.table.start(self.plan.batch)
            if not work:
                return
            handed = stored_runs(self.stored[1], self.order)
            for delivery in work:
                at = position_of(delivery)
                assert at in handed, "it runs before its hand-out is durable"
                assert at not in self.done, "it is finished already"
                assert at not in self.ended
                assert 1 <= delivery.attempt <= attempts
            self.work.append(work)
            self.check_order(work)
            running = [position_of(delivery) for group in self.work for delivery in group]
            assert len(running) == len(set(running)), "two handlers have one body"
            suspects = self.died.keys() - self.cleared
            if suspects.intersection(running):
                assert len(running) <= self.plan.concurrency * self.plan.batch
                assert suspects.issuperset(running), "a bystander runs beside a suspect"

        def check_order(self, work: list[Delivery]) -> None:
            if self.plan.order == "none":
                return
            before = {position_of(delivery) for delivery in work}
            for delivery in work:
                if delivery._lane is None:  # parked
                    continue
                at = position_of(delivery)
                for earlier in self.order[: self.order.index(at)]:
                    if (self.plan.order == "vchannel" or self.keys[earlier] == self.keys[at]) and earlier not in before:
                        parked = not self.plan.blocks and self.failures.get(earlier)
                        assert earlier in self.done or earlier in self.ended or parked, "it passes an unfinished one of its lane"

        @precondition(lambda self: self.work)
        @rule(data=st.data())
        def settle(self, data: st.DataObject) -> None:
            work = self.work.pop(data.draw(st.integers(0, len(self.work) - 1)))
            self.settle_as(work, [data.draw(KINDS) for _ in work])

        def settle_as(self, work: list[Delivery], kinds: list[str]) -> None:
            outcomes = [OUTCOMES[kind] for kind in kinds]
            for delivery, outcome in zip(work, outcomes, strict=True):
                at = position_of(delivery)
                if isinstance(outcome, Failed):
                    self.failures[at] = self.failures.get(at, 0) + 1
            ended, dead = self.table.settle(work, outcomes, self.now)
            for delivery in ended:
                assert outcomes[work.index(delivery)] is None
                assert self.table.has_ended(delivery)
            for one in dead:
                outcome = outcomes[work.index(one.delivery)]
                assert isinstance(outcome, Rejected) or self.failures[position_of(one.delivery)] >= attempts
            self.note(ended, [one.delivery for one in dead])
            settled = [*ended, *(one.delivery for one in dead), *(one for one in work if one._state == DeliveryState.RESTING)]
            self.cleared |= {position_of(delivery) for delivery in settled} & self.died.keys()

        def note(self, ended: list[Delivery], dead: list[Delivery]) -> None:
            self.ended |= {position_of(delivery) for delivery in ended + dead}
            self.finishing += ended
            self.dead += dead

        @rule(seconds=st.sampled_from([0.5, 3.0, 30.0]))
        def wait(self, seconds: float) -> None:
            self.now += seconds
            self.table.wake(self.now)

        # -- ends of processes

        @rule(commit_lands=st.booleans())
        def die(self, commit_lands: bool) -> None:
            if commit_lands and self.committing is not None:
                self.durable()
            handed = stored_runs(self.stored[1], self.order)
            for at in handed:
                if len(handed) == 1 and self.died.get(at):
                    self.failures[at] = self.failures.get(at, 0) + 1
                self.died[at] = self.died.get(at, 0) + 1
            self.open()

        @rule()
        def close(self) -> None:
            if self.committing is not None:
                self.durable()
            for work in self.work:
                self.table.settle(work, [RELEASED] * len(work), self.now)
            self.work = []
            self.done |= self.finish()
            self.table.recall()
            state = self.table.save(now=self.now, wall=self.now + 1000)
            assert state.handed == 0
            table = self.table
            mark = self.mark if table.mark is None else (table.mark._origin.position, table.mark._index)
            self.stored = (mark, encode_state(state))
            self.clear(self.cleared)
            self.open()

        # -- what holds

        @invariant()
        def position_passes_nothing_unfinished(self) -> None:
            mark = self.stored[0]
            if mark is not None:
                assert all(at in self.done for at in self.order if at <= mark)

        @invariant()
        def table_is_bounded(self) -> None:
            if hasattr(self, "table"):
                assert self.table.pending <= self.plan.pending_max
                assert self.table.unfinished <= self.table.pending
                assert self.table.bytes >= self.table.unfinished
                assert self.table.pending or not self.table.bytes

        @invariant()
        def what_runs_has_not_ended(self) -> None:
            if hasattr(self, "table"):
                assert not any(self.table.has_ended(delivery) for work in self.work for delivery in work)
                assert all(self.table.has_ended(delivery) for delivery in self.finishing)
                assert self.table.first is None or self.table.first_state != DeliveryState.DONE

        def teardown(self) -> None:
            if not hasattr(self, "table"):
                return
            for work in self.work:
                ended, dead = self.table.settle(work, [None] * len(work), self.now)
                self.note(ended, [one.delivery for one in dead])
            self.work = []
            for _ in range(20 * len(self.order) + 20):
                if self.done == set(self.order):
                    break
                self.read(4)
                if self.committing is None:
                    self.commit()
                self.durable()
                self.wait(30.0)
                while work := self.table.start(self.plan.batch):
                    self.check_order(work)
                    ended, _ = self.table.settle(work, [None] * len(work), self.now)
                    self.note(ended, [])
            self.commit()
            self.durable()
            assert self.done == set(self.order), "a body was lost"
            assert self.table.pending == 0
            assert self.stored[1] == b"" or not self.order

    run_state_machine_as_test(TableMachine, settings=settings(max_examples=1000 if SOAK else 60, stateful_step_count=40))


def test_states_have_numbers_in_order() -> None:
    assert [int(state) for state in DeliveryState] == list(range(8))
