"""A group under random programs, against a model that is a plain list for each lane.

Messages are little programs: a member that handles one sends others, pauses, resumes, removes a member or raises. The model does not
predict the end of a batch; it checks that each batch is the front of the list, in the right turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors import ActorFailedError, ActorStoppedError, Group, InboxFullError, Member
from tests.actors.conftest import LOOPS

MEMBERS = 4
INBOX_MAX = 12


class Told:
    """One message: the action of the member that handles it, and the number of the turn in which it was sent."""

    def __init__(self, program: Any, turn: int) -> None:
        self.program = program
        self.turn = turn


class Scripted(Member):
    def __init__(self, world: World) -> None:
        self.world = world
        self.over = False

    def receive(self, batch: list[Told]) -> None:
        world = self.world
        assert batch
        assert not self.over
        assert not world.pauses
        assert all(told.turn == world.turns + 1 for _, told in world.control), "control goes first"
        assert all(told.turn <= world.turns for told in batch), "told in this turn"
        assert world.data[: len(batch)] == [(self, told) for told in batch], "out of order"
        del world.data[: len(batch)]
        world.in_turn = True
        for told in batch:
            world.act(told.program)

    def receive_control(self, told: Told) -> None:
        world = self.world
        assert not self.over
        assert told.turn <= world.turns, "told in this turn"
        assert world.control.pop(0) == (self, told), "out of order"
        world.in_turn = True
        world.act(told.program)

    def poisoned(self, cause: BaseException, unhandled: list[Told]) -> None:
        assert isinstance(cause, Raised), cause  # and not one of the assertions above
        assert not self.over or self.failed_after_leaving
        self.over = True
        rest = self.world.take(self)
        assert unhandled[len(unhandled) - len(rest) :] == rest
        assert any(told.program == ("raise",) for told in unhandled[: len(unhandled) - len(rest)])

    def stopped(self) -> None:
        assert not self.over
        self.over = True

    @property
    def failed_after_leaving(self) -> bool:
        return self.failure is not None and self not in self.world.joined


class Raised(Exception):
    pass


class World:
    """The group, and its model: two lists, a count of pauses, a count of turns."""

    def __init__(self) -> None:
        self.data: list[tuple[Member, Told]] = []
        self.control: list[tuple[Member, Told]] = []
        self.pauses = 0
        self.turns = 0
        self.in_turn = False
        self.group = Group("model", inbox_max=INBOX_MAX, on_turn_end=self.turn_ended)
        self.members = [Scripted(self) for _ in range(MEMBERS)]
        self.joined = list(self.members)
        for number, member in enumerate(self.members):
            self.group.join(member, name=str(number))

    def turn_ended(self) -> None:
        assert self.in_turn, "a turn that handled nothing"
        self.in_turn = False
        self.turns += 1

    def act(self, program: Any) -> None:
        match program:
            case ("raise",) if self.in_turn:
                raise Raised
            case ("pause",):
                self.group.pause()
                self.pauses += 1
            case ("resume",) if self.pauses:
                self.group.resume()
                self.pauses -= 1
            case ("leave", int(number)) if self.members[number] in self.joined:
                member = self.members[number]
                self.joined.remove(member)
                assert self.group.leave(member) == ([] if member.failure else self.take(member))
            case ("tell", int(number), then):
                self.tell(self.members[number], Told(then, self.turns + self.in_turn))
            case ("control", int(number), then):
                told = Told(then, self.turns + self.in_turn)
                if self.refused(self.members[number], lambda member: self.group.tell_control(member, told)):
                    return
                self.control.append((self.members[number], told))

    def tell(self, member: Scripted, told: Told) -> None:
        if not member.over and self.group.pending >= INBOX_MAX:
            with pytest.raises(InboxFullError):
                self.group.tell(member, told)
        elif not self.refused(member, lambda member: self.group.tell(member, told)):
            self.data.append((member, told))

    def refused(self, member: Scripted, call: Callable[[Member], None]) -> bool:
        if not member.over:
            call(member)
            return False
        with pytest.raises(ActorFailedError if member.failure else ActorStoppedError):
            call(member)
        return True

    def take(self, member: Member) -> list[Told]:
        """Removes the messages that wait for the member from the model."""
        taken = [told for to, told in self.control + self.data if to is member]
        self.control = [entry for entry in self.control if entry[0] is not member]
        self.data = [entry for entry in self.data if entry[0] is not member]
        return taken


@pytest.mark.parametrize("loop", LOOPS)
def test_group_does_what_two_plain_lists_would(loop: str) -> None:
    index = st.integers(0, MEMBERS - 1)
    leaf = st.one_of(
        st.none(),
        st.just(("raise",)),
        st.just(("pause",)),
        st.just(("resume",)),
        st.tuples(st.just("leave"), index),
        st.tuples(st.just("tell"), index, st.none()),
        st.tuples(st.just("control"), index, st.none()),
    )
    command = st.one_of(leaf, st.tuples(st.sampled_from(["tell", "control"]), index, leaf))
    step = st.one_of(st.just(("turn",)), command)

    async def play(steps: list[Any]) -> None:
        world = World()
        for one in steps:
            if one == ("turn",):
                await asyncio.sleep(0)
            else:
                world.act(one)
            assert world.group.pending == len(world.data)
            assert world.group.paused == (world.pauses > 0)
        for _ in range(100):  # programs are at most three deep, so no program takes this many turns
            if not world.data and not world.control:
                break
            while world.pauses:
                world.act(("resume",))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        assert not world.data
        assert not world.control
        assert world.group.statistics().turns == world.turns
        while world.pauses:
            world.act(("resume",))
        await world.group.stop()
        assert all(member.over for member in world.members)
        for member in world.members:
            assert member.failure is None or isinstance(member.failure, Raised), member.failure
        assert world.group.failure is None, world.group.failure

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:

        @settings(max_examples=300, deadline=None)
        @given(st.lists(step, max_size=40))
        def check(steps: list[Any]) -> None:
            runner.run(play(steps))

        check()
