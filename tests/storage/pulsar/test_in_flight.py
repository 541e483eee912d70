"""Frames in flight: Pulsar's client may resend frames of its window only, so a floor found from the middle is right."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.storage.frames import FrameMaker
from tests.storage.pulsar.physical import Item, meaning
from wal.errors import InvalidArgumentError, StorageError
from wal.storage.pulsar.fencing_floor import FloorSearch
from wal.storage.pulsar.frames_in_flight import ClientWindow, FramesInFlight
from wal.storage.pulsar.layout import FRAMES_IN_FLIGHT


@given(st.integers(0, 1 << 32), st.integers(1, 400), st.data())
def test_floor_found_after_duplicates_is_right(seed: int, steps: int, data: st.DataObject) -> None:
    def topic_of(seed: int, steps: int) -> list[Item]:
        """Returns the topic of a writer that keeps to its window: connections are lost at random, and the client resends all its frames
        until the next connection is lost."""
        rng = random.Random(seed)
        window = ClientWindow(frames_max=FRAMES_IN_FLIGHT, bytes_max=1 << 20)
        items: list[Item] = [Item(1, None)]
        held: list[int] = []
        reached = sequence = 0
        for _ in range(steps):
            chance = rng.random()
            if chance < 0.5 and window.has_room(100):
                assert window.hand_over(100) == sequence + 1
                held.append(sequence)
                sequence += 1
            elif chance < 0.7 and held and held[0] < reached:
                window.answered(held.pop(0) + 1)
            elif chance < 0.8:
                again = held[: rng.randint(0, len(held))]
                items += [Item(1, one) for one in again]
                reached = max([reached, *(one + 1 for one in again)])
            else:
                items += [Item(1, one) for one in range(reached, sequence)]
                reached = sequence
            assert len(window) == len(held) <= FRAMES_IN_FLIGHT
        return items

    items = topic_of(seed, steps)
    _, floors = meaning(items)
    begin = data.draw(st.integers(0, len(items)))
    search = FloorSearch(window=FRAMES_IN_FLIGHT, term=1)
    for at, item in enumerate(items[begin:], begin):
        if search.found is not None:
            assert (search.found.term, search.found.sequence) == floors[at]
        if item.sequence is None:
            search.mark(item.term)
        else:
            search.frame(item.term, item.sequence, at)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 50)), max_size=200))
def test_window_counts_what_the_client_holds(steps: list[tuple[bool, int]]) -> None:
    window = ClientWindow(frames_max=4, bytes_max=100)
    held: list[tuple[int, int]] = []
    for handing, size in steps:
        if handing:
            room = not held or (len(held) < 4 and sum(one for _, one in held) + size <= 100)
            assert window.has_room(size) == room
            if room:
                held.append((window.hand_over(size), size))
        elif held:
            window.answered(held.pop(0)[0])
        window.answered(-1)
        assert (len(window), window.bytes) == (len(held), sum(one for _, one in held))
    window.clear()
    assert (len(window), window.bytes) == (0, 0)


def ignored(position: int, error: BaseException | None) -> None:
    """An answer that no caller reads."""


def test_frames_are_sent_in_order_within_the_window() -> None:
    maker, flights = FrameMaker(1), FramesInFlight("t", 0)
    for _ in range(FRAMES_IN_FLIGHT + 2):
        flights.add(maker.data(("v", b"x")), ignored, refused=None)
    sent = []
    while (flight := flights.take()) is not None:
        flight.number = flights.window.hand_over(flight.frame.length)
        sent.append(flight)
    assert [flight.frame.header.sequence for flight in sent] == list(range(FRAMES_IN_FLIGHT))
    assert flights.pop() is sent[0]
    assert flights.take() is None, "the client still holds the frame that was popped"
    flights.window.answered(sent[0].number)
    assert flights.take() is not None


def test_no_frame_is_sent_after_a_gap() -> None:
    maker, flights = FrameMaker(1), FramesInFlight("t", 0)
    frames = [maker.data(("v", b"x")) for _ in range(4)]
    flights.add(frames[0], ignored, refused=InvalidArgumentError("too large"))
    for frame in frames[1:]:
        flights.add(frame, ignored, refused=None)
    refused, gap = flights.take(), flights.take()
    assert refused is not None
    assert gap is not None
    assert isinstance(refused.refused, InvalidArgumentError)
    assert isinstance(gap.refused, StorageError)
    with pytest.raises(StorageError, match="would leave a gap"):
        raise gap.refused
    assert flights.take() is None


def test_frames_found_in_the_topic_are_not_resent() -> None:
    maker, flights = FrameMaker(1), FramesInFlight("t", 0)
    for _ in range(4):
        flights.add(maker.data(("v", b"x")), ignored, refused=None)
    sent = [flight for _ in range(4) if (flight := flights.take()) is not None]
    sent[0].position, sent[0].is_read = 7, True
    sent[1].position = 8  # as Pulsar answered, but no caller has looked
    flights.producer_replaced()
    assert list(flights.to_resend()) == sent[1:]
    assert sent[0].position == 7
