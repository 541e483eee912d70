"""Merge: random lanes against a model of a few lines, and what it takes out for a dropped vchannel."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.message import ImmutableMessage, ImmutableTxnMessage, Origin, TxnContext
from wal.read.assembly import MessagePage
from wal.read.merge import Merge, key_of, without
from wal.read.options import ReadPosition, TickPosition

NAMES = ("p0", "p1", "p10", "p2")
END = 13
ticks = st.integers(1, END - 1)
Lanes = dict[str, list[int]]


def message(pchannel: str, tick: int, vchannel: str = "a", index: int = 0) -> ImmutableMessage:
    return ImmutableMessage(Origin(pchannel, 1, tick), index, tick, vchannel, b"", 1, b"")


def lanes(draw: st.DrawFn) -> Lanes:
    """Events of each pchannel, ascending; two pchannels may use the same tick, as those of two nodes do."""
    return {name: sorted(draw(st.sets(ticks))) for name in NAMES[: draw(st.integers(1, 4))]}


def drive(draw: st.DrawFn, merge: Merge, events: Lanes) -> list[tuple[int, str]]:
    """Has each pchannel deliver its events in pages, with promises at and above them, in any order; returns what was taken, as it came."""
    waiting = {name: [tick for tick in own if tick > merge.lanes[name].covered] for name, own in events.items()}
    promised = {name: lane.covered for name, lane in merge.lanes.items()}
    taken: list[tuple[int, str]] = []
    while ready := [name for name in sorted(events) if promised[name] < END and merge.lanes[name].is_empty]:
        name = draw(st.sampled_from(ready))
        promise = promised[name] = draw(st.integers(promised[name] + 1, END))
        page = [tick for tick in waiting[name] if tick <= promise]
        waiting[name] = waiting[name][len(page) :]
        if page:
            merge.put(name, MessagePage([message(name, tick) for tick in page]), promise)
        else:
            merge.cover(name, promise)
        limit = merge.limit
        keys = list(map(key_of, merge.take()))
        assert all(key < limit for key in keys)
        assert merge.lanes[limit[1]].is_empty
        taken += keys
        assert merge.position_before(merge.limit) == position_of(merge.limit, sorted(events))
    return taken


def position_of(limit: tuple[int, str], names: list[str]) -> TickPosition | None:
    """The largest position below a key."""
    below = [name for name in names if name < limit[1]]
    tick, name = (limit[0], below[-1]) if below else (limit[0] - 1, names[-1])
    return TickPosition.at(tick, name) if tick >= 0 else None


@given(st.data())
def test_merge_hands_over_each_event_once_in_order(data: st.DataObject) -> None:
    events = data.draw(st.composite(lanes)())
    taken = drive(data.draw, Merge(events), events)  # type: ignore[arg-type]
    assert taken == sorted((tick, name) for name, own in events.items() for tick in own)


@given(st.data())
def test_merge_goes_on_exactly_after_any_event(data: st.DataObject) -> None:
    events = data.draw(st.composite(lanes)())
    whole = sorted((tick, name) for name, own in events.items() for tick in own)
    stop = data.draw(st.integers(0, len(whole)))
    position = Merge(events).position_before(whole[stop]) if stop < len(whole) else TickPosition.at(END, max(events))
    copy = None if position is None else ReadPosition.parse(str(position))
    assert copy is None or isinstance(copy, TickPosition)
    assert drive(data.draw, Merge(events, copy), events) == whole[stop:]  # type: ignore[arg-type]


@given(st.data())
def test_position_covers_what_was_handed_over(data: st.DataObject) -> None:
    tick, name = data.draw(ticks), data.draw(st.sampled_from(NAMES))
    position = TickPosition.at(tick, name)
    for other in NAMES:
        for at in range(14):
            assert (at <= position.covered(other)) == ((at, other) <= (tick, name))


@pytest.mark.parametrize("text", ["12@p1", "0@p0", "18446744073709551615@p10"])
def test_position_travels_as_text(text: str) -> None:
    position = ReadPosition.parse(text)
    assert isinstance(position, TickPosition)
    assert str(position) == text
    assert repr(position) == f"ReadPosition.parse({text!r})"


# -- dropped vchannels


def txn(vchannels: tuple[str, ...], *bodies: str) -> ImmutableTxnMessage:
    context, origin = TxnContext(7, 1.0), Origin("p0", 1, 5)
    inner = tuple(ImmutableMessage(origin, at, 9, name, b"%d" % at, 1, b"", context) for at, name in enumerate(bodies))
    only = vchannels[0] if len(vchannels) == 1 else ""
    return ImmutableTxnMessage(origin, len(bodies), 9, only, b"", 0, b"", context, messages=inner, vchannels=vchannels, _first_index=0)


EVERY = range(1 << 32)


def test_messages_of_a_dropped_vchannel_are_taken_out() -> None:
    kept, gone = message("p0", 3, "a"), message("p0", 4, "b")
    assert without([kept, gone], "p0", "b", EVERY) == [kept]


def test_same_name_of_another_pchannel_stays() -> None:
    other = message("p1", 4, "b")
    assert without([other], "p0", "b", EVERY) == [other]


def test_later_incarnation_in_the_same_frame_stays() -> None:
    old, new = message("p0", 4, "b", index=1), message("p0", 4, "b", index=2)
    assert without([old, new], "p0", "b", range(2)) == [new]


def test_transaction_keeps_the_bodies_of_other_vchannels() -> None:
    (left,) = without([txn(("a", "b"), "a", "b", "a")], "p0", "b", EVERY)
    assert isinstance(left, ImmutableTxnMessage)
    assert [body.payload for body in left.bodies()] == [b"0", b"2"]
    assert (left.vchannel, left.vchannels) == ("a", ("a",))


def test_transaction_without_other_vchannels_is_taken_out() -> None:
    assert without([txn(("b",), "b", "b")], "p0", "b", EVERY) == []


def test_transaction_left_without_chosen_bodies_is_taken_out() -> None:
    wide = txn(("a", "b"), "b")
    assert without([wide], "p0", "b", EVERY, frozenset((1,))) == []
    (left,) = without([wide], "p0", "b", EVERY)
    assert left.bodies() == ()
