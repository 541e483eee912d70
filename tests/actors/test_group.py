from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from actors import ActorFailedError, ActorStoppedError, Group, InboxFullError, Member, VirtualClock, WrongLoopError
from tests.actors.conftest import LOOPS
from tests.actors.recording import Bang, RecordingMember, until


def make(count: int = 2, **options: Any) -> tuple[Group, list[RecordingMember], list[Any]]:
    """A group of members a, b, c… that share one record."""
    group = Group("group", **options)
    seen: list[Any] = []
    members = [RecordingMember(chr(ord("a") + index), seen) for index in range(count)]
    for member in members:
        group.join(member, name=member.label)
    return group, members, seen


async def drain(group: Group) -> None:
    await until(lambda: not group.pending)


async def test_messages_keep_the_order_of_calls_in_batches() -> None:
    group, (a, b), seen = make()
    group.tell(a, 1)
    group.tell(a, 2)
    group.tell(b, 3)
    group.tell(a, 4)
    group.tell(a, 5)
    assert group.pending == 5
    assert seen == []
    await drain(group)
    assert seen == [("a", [1, 2]), ("b", [3]), ("a", [4, 5])]


async def test_control_goes_before_data_that_was_told_earlier() -> None:
    group, (a, b), seen = make()
    group.tell(a, 1)
    group.tell_control(b, "first")
    group.tell_control(a, "second")
    await drain(group)
    assert seen == [("b", "control", "first"), ("a", "control", "second"), ("a", [1])]


async def test_message_sent_in_a_turn_waits() -> None:
    ends: list[list[Any]] = []
    group, (a, b), seen = make(on_turn_end=lambda: ends.append(list(seen)))  # type: ignore[has-type]
    group.tell(a, lambda: (group.tell(b, "later"), group.tell_control(a, "later")))  # type: ignore[func-returns-value]
    group.tell(b, "now")
    await drain(group)
    assert [entry[-1] for entry in ends[0][1:]] == [["now"]]
    assert seen[2:] == [("a", "control", "later"), ("b", ["later"])]
    assert len(ends) == 2


async def test_on_turn_end_is_called_once_a_turn() -> None:
    calls: list[int] = []
    group, (a, b), seen = make(on_turn_end=lambda: calls.append(len(seen)))  # type: ignore[has-type]
    group.tell(a, 1)
    group.tell(b, 2)
    group.tell(a, 3)
    await drain(group)
    assert calls == [3]
    group.tell(a, 4)
    group.pause()
    await asyncio.sleep(0)  # the scheduled turn finds nothing that it may deliver
    assert calls == [3]
    group.tell_control(a, "c")
    await until(lambda: len(calls) == 2)
    assert seen[-1] == ("a", "control", "c")


async def test_pause_delays_data_and_keeps_order() -> None:
    group, (a, b), seen = make()
    group.tell(a, 1)
    group.tell(b, group.pause)
    group.tell(a, 2)
    group.tell(a, 3)
    await until(lambda: len(seen) == 2)
    group.tell_control(a, "c")
    group.tell(b, 4)
    await until(lambda: len(seen) == 3)
    assert seen[2] == ("a", "control", "c")
    assert group.paused
    assert group.pending == 3
    group.resume()
    await drain(group)
    assert seen[3:] == [("a", [2, 3]), ("b", [4])]


async def test_pauses_are_counted() -> None:
    group, (a, _), seen = make()
    group.pause()
    group.pause()
    group.tell(a, 1)
    group.resume()
    group.tell_control(a, "c")
    await until(lambda: seen)
    assert seen == [("a", "control", "c")]
    group.resume()
    await drain(group)
    assert seen[1:] == [("a", [1])]
    with pytest.raises(RuntimeError, match="not paused"):
        group.resume()


async def test_raising_member_is_poisoned_alone() -> None:
    group, (a, b, c), seen = make(3)
    bang = Bang("broken")
    for message in (1, bang, 2):
        group.tell(a, message)
    group.tell(b, 3)
    group.tell(a, 4)
    group.tell(c, 5)
    group.tell(a, 6)
    await drain(group)
    assert seen == [("a", [1, bang, 2]), ("a", "poisoned", bang, [1, bang, 2, 4, 6]), ("b", [3]), ("c", [5])]
    assert a.failure is bang
    for tell in (group.tell, group.tell_control):
        with pytest.raises(ActorFailedError, match="broken") as failed:
            tell(a, 7)
        assert failed.value.cause is bang
        assert failed.value.__cause__ is bang
    group.tell(b, 8)
    await drain(group)
    assert seen[4:] == [("b", [8])]


async def test_member_that_raises_on_control_is_poisoned_too() -> None:
    group, (a, b), seen = make()
    bang = Bang()
    group.tell(a, 1)
    group.tell(b, 2)
    group.tell_control(a, bang)
    group.tell_control(a, "c1")
    group.tell_control(b, "c2")
    await drain(group)
    assert seen == [("a", "control", bang), ("a", "poisoned", bang, [bang, "c1", 1]), ("b", "control", "c2"), ("b", [2])]


async def test_cancelled_future_poisons_only_its_member() -> None:
    group, (a, b), seen = make()
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    group.tell(a, future.result)
    group.tell(b, 1)
    await drain(group)
    assert isinstance(a.failure, asyncio.CancelledError)
    assert seen[-1] == ("b", [1])


@pytest.mark.parametrize("loop_name", LOOPS)
@pytest.mark.parametrize("lane", ["tell", "tell_control"])
def test_exit_leaves_the_turn_unchanged(loop_name: str, lane: str) -> None:
    loop = LOOPS[loop_name]()

    def leave() -> None:
        raise SystemExit(3)

    async def made() -> tuple[Group, list[RecordingMember], list[Any]]:
        return make()

    group, (a, b), seen = loop.run_until_complete(made())

    async def told() -> None:
        tell = getattr(group, lane)
        tell(a, 1)
        tell(b, leave)
        tell(a, 2)
        tell(b, 3)
        group.tell(a, 4)
        await drain(group)

    try:
        telling = loop.create_task(told())
        with pytest.raises(SystemExit):
            loop.run_until_complete(telling)
        loop.run_until_complete(telling)
        assert [entry[0] for entry in seen] == ["a", "b", "b", "a", "a"]
        assert seen[2][1] == "poisoned"
        assert seen[2][3][1:] == [3]
        assert [entry[-1] for entry in seen[3:]] == ([[2], [4]] if lane == "tell" else [2, [4]])
    finally:
        loop.close()


async def test_raising_hook_is_logged_alone(caplog: pytest.LogCaptureFixture) -> None:
    class Clumsy(RecordingMember):
        def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
            raise RuntimeError("cannot even die")

        def stopped(self) -> None:
            raise RuntimeError("cannot even stop")

    group, (a, _), seen = make()
    clumsy = [Clumsy("x", []), Clumsy("y", [])]
    for index, member in enumerate(clumsy):
        group.join(member, name=f"clumsy {index}")
    group.tell(clumsy[0], Bang())
    group.tell(a, 1)
    await drain(group)
    assert seen == [("a", [1])]
    await group.stop()
    assert "cannot even die" in caplog.text
    assert "cannot even stop" in caplog.text
    assert seen[-1] == ("a", "stopped")


async def test_member_without_receive_fails_at_a_message() -> None:
    group = Group("group")
    member = Member()
    group.join(member, name="bare")
    group.tell(member, 1)
    await drain(group)
    assert isinstance(member.failure, TypeError)


async def test_inbox_is_bounded() -> None:
    group, (a, b), seen = make(inbox_max=4)
    for message in (1, 2, 3):
        group.tell(a, message)
    group.tell(b, 4)
    for refused in (a, b):
        with pytest.raises(InboxFullError, match="4 of at most 4"):
            group.tell(refused, 5)
    group.tell_control(a, "control has no bound")
    assert group.pending == 4
    await drain(group)
    assert seen[1:] == [("a", [1, 2, 3]), ("b", [4])]
    for message in (6, 7, 8, 9):
        group.tell(a, message)
    await drain(group)


async def test_leave_returns_messages_and_frees_the_name() -> None:
    group, (a, b), seen = make()
    group.tell(a, 1)
    group.tell(b, 2)
    group.tell(a, 3)
    group.tell_control(a, "c")
    assert group.leave(a) == ["c", 1, 3]
    assert group.pending == 1
    with pytest.raises(ActorStoppedError, match="'a' is not in group"):
        group.tell(a, 4)
    with pytest.raises(ActorStoppedError):
        group.leave(a)
    await drain(group)
    assert seen == [("a", "stopped"), ("b", [2])]
    group.join(a, name="a")  # a member that left may join again
    group.tell(a, 5)
    await drain(group)
    assert seen[-1] == ("a", [5])


async def test_member_can_make_another_leave() -> None:
    group, (a, b), seen = make()
    left: list[Any] = []
    group.tell(b, 1)
    group.tell(a, lambda: left.extend(group.leave(b)))
    group.tell(b, 2)
    group.tell(a, 3)
    group.tell(b, 4)
    await drain(group)
    assert left == [2, 4]
    assert [entry for entry in seen if entry[0] == "b"] == [("b", [1]), ("b", "stopped")]
    assert seen[-1] == ("a", [3])


async def test_joining_is_checked() -> None:
    group, (a, _), _ = make()
    other = Group("other")
    with pytest.raises(ValueError, match="leave\\(\\) that one first"):
        other.join(a, name="a")
    with pytest.raises(ValueError, match="another name"):
        group.join(RecordingMember("x", []), name="a")
    with pytest.raises(TypeError, match="subclass"):
        group.join(object(), name="x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="inbox_max is 0"):
        Group("none", inbox_max=0)
    group.tell(a, Bang())
    await drain(group)
    with pytest.raises(ValueError, match="another name"):
        group.join(RecordingMember("x", []), name="a")
    assert group.leave(a) == []
    with pytest.raises(ActorFailedError):
        group.join(a, name="a")


async def test_raising_on_turn_end_fails_the_group() -> None:
    bang = Bang("no way out")

    def end() -> None:
        raise bang

    group, (a, b), seen = make(on_turn_end=end)
    group.tell(a, lambda: group.tell(b, "told in the turn"))
    await until(lambda: group.failure)
    assert group.failure is bang
    assert seen[1:] == [("a", "poisoned", bang, []), ("b", "poisoned", bang, ["told in the turn"])]
    with pytest.raises(ActorFailedError, match="no way out"):
        group.tell(b, 1)
    await group.stop()
    assert group.statistics().failure == "Bang: no way out"


async def test_stop_drains_members_in_reverse_order() -> None:
    group, (a, b), seen = make()
    group.tell(a, lambda: group.tell(b, lambda: group.tell(a, "last")))
    group.stop_nowait()
    with pytest.raises(ActorStoppedError, match="stopping"):
        group.tell(a, "from outside")
    with pytest.raises(ActorStoppedError, match="stopping"):
        group.join(RecordingMember("x", []), name="x")
    await asyncio.gather(group.stop(), group.stop())
    assert seen[2:] == [("a", ["last"]), ("b", "stopped"), ("a", "stopped")]
    await group.stop()
    with pytest.raises(ActorStoppedError):
        group.tell_control(a, 1)


async def test_outside_message_cannot_join_a_draining_run() -> None:
    group, (a, _), seen = make()
    group.tell(a, lambda: group.tell(a, "inside"))
    group.stop_nowait()
    await until(lambda: group.pending == 1 and seen)
    with pytest.raises(ActorStoppedError):
        group.tell(a, "outside")
    await group.stop()
    assert ("a", ["inside"]) in seen


async def test_paused_group_returns_waiting_messages_at_its_end() -> None:
    clock = VirtualClock()
    group, (_, b), seen = make(clock=clock, stop_timeout_s=3.0)
    group.pause()
    group.tell(b, 1)
    group.tell(b, 2)
    stopping = asyncio.get_running_loop().create_task(group.stop())
    await clock.run(2.9)
    assert not stopping.done()
    await clock.run(0.1)
    await stopping
    label, what, cause, unhandled = seen[0]
    assert (label, what, unhandled) == ("b", "poisoned", [1, 2])
    assert isinstance(cause, ActorStoppedError)
    assert seen[1:] == [("a", "stopped")]
    assert clock.timers == 0


async def test_tell_from_another_thread_is_refused() -> None:
    group, (a, _), seen = make()
    errors: list[BaseException] = []

    def in_another_thread() -> None:
        for call in (lambda: group.tell(a, 1), lambda: group.tell_control(a, 1), lambda: asyncio.run(group.stop())):
            try:
                call()  # type: ignore[no-untyped-call]
            except WrongLoopError as error:
                errors.append(error)

    thread = threading.Thread(target=in_another_thread)
    thread.start()
    await until(lambda: not thread.is_alive())
    assert len(errors) == 3
    assert group.pending == 0
    group.tell(a, 2)
    await drain(group)
    assert seen == [("a", [2])]


async def test_statistics_count_by_member() -> None:
    group, (a, b), _ = make()
    for message in (1, 2, 3):
        group.tell(a, message)
    group.tell(b, Bang("broken"))
    group.tell_control(a, "c")
    await drain(group)
    group.pause()
    group.tell(a, 4)
    group.tell_control(a, "waits for the turn")
    statistics = group.statistics()
    assert (statistics.name, statistics.handled, statistics.turns, statistics.pending) == ("group", 4, 1, 2)
    assert statistics.paused
    of_a, of_b = statistics.members
    assert (of_a.name, of_a.handled, of_a.turns, of_a.pending, of_a.failure) == ("a", 4, 2, 2, None)
    assert (of_b.name, of_b.handled, of_b.pending, of_b.failure) == ("b", 0, 0, "Bang: broken")
