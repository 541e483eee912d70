"""The requests of a producer: what is sent next, and what becomes of them when the connection is lost, against a model."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from wal.client.outbox import AHEAD_MIN, GROW_MESSAGES, Hold, Outbox, Sending
from wal.errors import SessionLostError, UnavailableError
from wal.message import Message
from wal.requests.appends import WriteOptions
from wal.requests.txns import RollbackTxn


def message(size: int = 10, *, repeatable: bool = False, hold: Hold | None = None) -> Sending:
    return Sending(None, size, message=Message("orders", b"x"), repeatable=repeatable, hold=hold)


def request(*, repeatable: bool = False) -> Sending:
    return Sending(None, 10, request=RollbackTxn(), repeatable=repeatable)


def test_half_goes_ahead_while_nothing_is_under_way() -> None:
    outbox = Outbox()

    def taken() -> tuple[int, int]:
        found = outbox.take()
        assert found is not None
        return found[0], len(found[1])

    for _ in range(256):
        outbox.add(message(1))
    assert [taken(), taken()] == [(1, 128), (129, 128)], "each side has a half to work on"
    for _ in range(128):
        outbox.add(message(1))
    assert taken() == (257, 128), "the halves stay apart"
    for number in range(1, 385):
        assert outbox.answered(number) is not None
    for _ in range(AHEAD_MIN):
        outbox.add(message(1))
    assert taken() == (385, AHEAD_MIN), "few messages are one request"


def test_few_messages_wait_for_the_answer_of_more() -> None:
    outbox = Outbox()
    outbox.add(message())
    assert not outbox.may_grow(), "nothing is under way"
    assert outbox.take() is not None
    outbox.add(message())
    assert not outbox.may_grow(), "one waits, and one is under way"
    assert outbox.take() is not None
    outbox.add(message())
    assert outbox.may_grow()
    outbox.add(request())
    assert not outbox.may_grow(), "what is no message is sent at once"
    outbox.take_back(lambda sending: sending.request is not None)
    assert outbox.may_grow()
    outbox.answered(1)
    assert not outbox.may_grow(), "as many wait as are under way"


def test_message_at_its_barrier_is_not_waited_for() -> None:
    outbox = Outbox()
    for _ in range(3):
        outbox.add(Sending(None, 10, message=Message("orders", b"x"), options=WriteOptions(1)))
    assert outbox.take() is not None
    outbox.add(message())
    assert not outbox.may_grow()
    outbox.restart(answered=True)
    outbox.take_back(lambda sending: sending.options.barrier_time_tick > 0)
    assert outbox.take() is not None
    outbox.add(message())
    assert not outbox.may_grow()


def test_many_messages_wait_for_nothing() -> None:
    outbox = Outbox()
    for _ in range(4 * GROW_MESSAGES):
        outbox.add(message())
    assert outbox.take() is not None
    outbox.take_back(lambda _: True)
    for _ in range(GROW_MESSAGES):
        assert not outbox.may_grow() or len(outbox.waiting) < GROW_MESSAGES
        outbox.add(message())
    assert not outbox.may_grow()


def test_outboxes_send_in_order() -> None:
    class Outboxes(RuleBasedStateMachine):
        """The model is two lists: what waits, in order, and what was sent, in order."""

        def __init__(self) -> None:
            super().__init__()
            self.outbox = Outbox()
            self.waiting: list[Sending] = []
            self.sent: list[tuple[int, Sending]] = []
            self.refused: list[tuple[int, Sending]] = []
            self.settled: list[Sending] = []
            self.number = 1

        @rule(size=st.integers(1, 60), repeatable=st.booleans(), alone=st.booleans())
        def add(self, size: int, repeatable: bool, alone: bool) -> None:
            sending = request(repeatable=repeatable) if alone else message(size, repeatable=repeatable)
            self.outbox.add(sending)
            self.waiting.append(sending)

        @rule(bytes_max=st.integers(1, 100))
        def take(self, bytes_max: int) -> None:
            taken = self.outbox.take(bytes_max=bytes_max)
            if self.refused or not self.waiting:
                assert taken is None
                return
            assert taken is not None
            first, sendings = taken
            assert first == self.number
            assert sendings == self.waiting[: len(sendings)]
            if len(sendings) > 1:
                assert all(sending.message is not None for sending in sendings)
                assert sum(sending.size for sending in sendings) <= bytes_max
            follows = self.waiting[len(sendings) : len(sendings) + 1]
            if sendings[0].message is not None and follows and follows[0].message is not None:
                assert sum(sending.size for sending in [*sendings, *follows]) > bytes_max
            del self.waiting[: len(sendings)]
            self.sent += enumerate(sendings, first)
            self.number += len(sendings)

        @precondition(lambda self: self.sent)
        @rule(data=st.data())
        def answer(self, data: st.DataObject) -> None:
            at = data.draw(st.integers(0, len(self.sent) - 1))
            number, sending = self.sent.pop(at)
            assert self.outbox.answered(number) is sending
            assert self.outbox.answered(number) is None
            self.settled.append(sending)

        @precondition(lambda self: self.sent)
        @rule(data=st.data())
        def refuse(self, data: st.DataObject) -> None:
            """A server refuses everything from some request on."""
            at = data.draw(st.integers(0, len(self.sent) - 1))
            for number, sending in self.sent[at:]:
                self.outbox.refused(number, UnavailableError("refused"))
                self.refused.append((number, sending))
            del self.sent[at:]

        @rule(answered=st.booleans())
        def restart(self, answered: bool) -> None:
            tried = [sending for _, sending in self.sent if sending.tried]
            unknown = self.outbox.restart(answered=answered)
            assert unknown == [sending for _, sending in self.sent if not sending.repeatable and not answered]
            again = self.refused + [(number, sending) for number, sending in self.sent if sending.repeatable or answered]
            self.waiting = [sending for _, sending in sorted(again, key=lambda one: one[0])] + self.waiting
            if answered:
                assert [sending for _, sending in self.sent if sending.tried] == tried
            else:
                assert all(sending.tried for _, sending in self.sent if sending.repeatable)
            self.settled += unknown
            self.sent, self.refused, self.number = [], [], 1

        @invariant()
        def nothing_is_lost(self) -> None:
            assert list(self.outbox.waiting) == self.waiting
            assert list(self.outbox.sent.items()) == sorted(self.sent, key=lambda one: one[0])
            assert bool(self.outbox) == bool(self.waiting or self.sent or self.refused)

    run_state_machine_as_test(Outboxes)


def test_message_for_a_vchannel_that_is_being_located_holds_up_what_follows() -> None:
    outbox, hold = Outbox(), Hold()
    before, held, after = message(), message(hold=hold), message()
    for sending in (before, held, after):
        outbox.add(sending)
    assert outbox.take() == (1, [before])
    assert outbox.take() is None
    hold.pending = False
    assert outbox.take() == (2, [held, after])


def test_held_messages_can_be_taken_back() -> None:
    outbox, hold = Outbox(), Hold()
    held, other, again = message(hold=hold), message(), message(hold=hold)
    for sending in (held, other, again):
        outbox.add(sending)
    assert outbox.take_back(lambda sending: sending.hold is hold) == [held, again]
    assert outbox.take() == (1, [other])


def test_message_above_the_bound_is_a_request_of_its_own() -> None:
    outbox = Outbox()
    large, small = message(2_000_000), message()
    outbox.add(large)
    outbox.add(small)
    assert outbox.take() == (1, [large])
    assert outbox.take() == (2, [small])


def test_refused_and_repeated_requests_keep_their_order() -> None:
    outbox = Outbox()
    keyed, plain, refused = message(repeatable=True), message(), message()
    for sending in (keyed, plain, refused):
        outbox.add(sending)
    outbox.take()
    newer = message()
    outbox.add(newer)
    outbox.refused(3, UnavailableError("refused"))
    assert outbox.take() is None
    assert outbox.restart() == [plain]
    assert outbox.take() == (1, [keyed, refused, newer])


def test_unknown_outcome_of_a_keyed_request_is_asked_again() -> None:
    """A node that lost its lease cannot say whether a frame in flight was written; with a key, the next owner can."""
    outbox = Outbox()
    keyed, plain, newer = message(repeatable=True), message(), message()
    for sending in (keyed, plain):
        outbox.add(sending)
    outbox.take()
    lost = SessionLostError("the lease is lost")
    lost.outcome_unknown = True
    assert outbox.refused(1, lost)
    assert not outbox.refused(2, lost)
    assert outbox.answered(2) is plain
    outbox.add(newer)
    assert outbox.restart() == []
    assert outbox.take() == (1, [keyed, newer])
    assert keyed.tried
