"""What the client of Pulsar may send again reaches back by the window at most, so that a floor that is found from the middle is right."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import _pulsar
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.backends.frames import FrameMaker
from tests.pulsar.physical import Item, meaning
from wal.backends.pulsar import writer as writing
from wal.backends.pulsar.floor import Floor, FloorSearch
from wal.backends.pulsar.floors import FloorIndex
from wal.backends.pulsar.layout import FRAMES_IN_FLIGHT, Mark, entry_of, ledger_of, position_of
from wal.backends.pulsar.ledgers import Ledger, LedgerTable
from wal.backends.pulsar.topic import Entry
from wal.backends.pulsar.window import Window
from wal.backends.pulsar.writer import Writer
from wal.errors import StorageError, WALError


def topic_of(seed: int, steps: int) -> list[Item]:
    """A writer by the window's rule: connections are lost at random, and the client sends all that it holds again, as far as the next
    one lasts. Frames are settled by reading at any time, which changes nothing."""
    rng = random.Random(seed)
    window = Window(frames_max=FRAMES_IN_FLIGHT, bytes_max=1 << 20)
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


@given(st.integers(0, 1 << 32), st.integers(1, 400), st.data())
def test_a_floor_found_behind_repeats_is_right(seed: int, steps: int, data: st.DataObject) -> None:
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
def test_it_counts_what_is_held(steps: list[tuple[bool, int]]) -> None:
    window = Window(frames_max=4, bytes_max=100)
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
    window.replaced()
    assert (len(window), window.bytes) == (0, 0)


class Place:
    """A message id."""

    def __init__(self, position: int) -> None:
        self._position = position

    def ledger_id(self) -> int:
        return ledger_of(self._position)

    def entry_id(self) -> int:
        return entry_of(self._position)


class Client:
    """A producer and its connection, whose answers the test gives. `at_once`: what it says within `send_async` from now on."""

    address = "pulsar://nowhere"

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.answers: list[Callable[[Any, Any], None]] = []
        self.at_once: Any = None

    def send_async(self, data: bytes, answered: Callable[[Any, Any], None]) -> None:
        if self.at_once is not None:
            answered(self.at_once, None)
            return
        self.sent.append(data)
        self.answers.append(answered)

    async def answer(self, number: int, position: int) -> None:
        """Says where this frame lies, from a thread as the client does."""
        await asyncio.to_thread(self.answers[number], _pulsar.Result.Ok, Place(position))
        await asyncio.sleep(0)

    def is_connected(self) -> bool:
        return True

    def close(self) -> None:
        pass

    async def run(self, call: Callable[[], Any]) -> Any:
        return call()


def writer_on(client: Client) -> Writer:
    ledgers = LedgerTable([Ledger(5, 1, 0)])
    return Writer(
        client, None, client, ledgers, FloorIndex(), topic="t", mark=Mark(1, 7), last=position_of(5, 0),  # type: ignore[arg-type]
        floor=Floor(1, -1), promised_tick=0, newest=None, ledger_full=lambda position: None,
    )  # fmt: skip


async def test_a_frame_that_was_read_is_held_until_the_client_has_answered_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """All answers are lost, the client sends the first frame again, and its answer shows that: all eight are found by reading. The client
    holds seven of them still."""
    client = Client()
    writer = writer_on(client)
    maker = FrameMaker(1)
    frames = [maker.data(("v", b"%d" % number)) for number in range(20)]
    found = [
        Entry(position_of(5, 1 + at), b"", None, frame.header) for at, frame in enumerate([*frames[:8], frames[0]])
    ]
    monkeypatch.setattr(writer, "_read_up", lambda last, position: [(100, entry) for entry in found])
    places: dict[int, int] = {}
    failed: list[BaseException] = []

    def take(frame: int) -> Callable[[int, BaseException | None], None]:
        def done(position: int, error: BaseException | None) -> None:
            if error is None:
                places[frame] = position
            else:
                failed.append(error)

        return done

    for number, frame in enumerate(frames):
        writer.append(frame, take(number))
    assert len(client.sent) == FRAMES_IN_FLIGHT
    await client.answer(0, found[-1].position)
    while len(places) < 8:
        await asyncio.sleep(0)
    assert places == {at: position_of(5, 1 + at) for at in range(8)}
    assert len(client.sent) == FRAMES_IN_FLIGHT + 1, "one was answered, so one more may be on its way"
    for number in range(1, 8):
        await client.answer(number, position_of(5, 9 + number))
        assert len(client.sent) == FRAMES_IN_FLIGHT + 1 + number
    assert failed == []
    writer._fail(StorageError("the test is over"))
    await writer.close()


@pytest.mark.parametrize("refusal", [_pulsar.Result.MessageTooBig, _pulsar.Result.InvalidMessage])
async def test_nothing_is_sent_behind_a_refused_frame(refusal: Any) -> None:
    client = Client()
    writer = writer_on(client)
    maker = FrameMaker(1)
    told: list[tuple[int, BaseException | None]] = []
    for _ in range(2):
        writer.append(maker.data(("v", b"fits")), lambda position, error: told.append((position, error)))
    client.at_once = refusal
    writer.append(maker.data(("v", b"does not")), lambda position, error: told.append((position, error)))
    client.at_once = None
    for _ in range(3):
        writer.append(maker.data(("v", b"behind")), lambda position, error: told.append((position, error)))
    assert len(client.sent) == 2
    await client.answer(0, position_of(5, 1))
    await client.answer(1, position_of(5, 2))
    while len(told) < 6:
        await asyncio.sleep(0)
    assert told[:2] == [(position_of(5, 1), None), (position_of(5, 2), None)]
    for _, error in told[2:]:
        assert isinstance(error, WALError)
        assert not error.outcome_unknown
    assert len(client.sent) == 2
    assert isinstance(writer.failure, StorageError)
    await writer.close()


async def test_attempts_that_get_nothing_through_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new producer is lost again before it has an answer: over all of them, that has a bound."""

    class Control:
        async def check_owner(self, term: int) -> None:
            pass

    client = Client()
    writer = writer_on(client)
    monkeypatch.setattr(writing, "OUTAGE_S", 0.2)
    monkeypatch.setattr(writing, "RETRY_MAX_S", 0.02)
    monkeypatch.setattr(writing, "send_mark", lambda producer, mark: position_of(5, 1))
    monkeypatch.setattr(writer, "_control", Control())
    monkeypatch.setattr(writer, "_read_up", lambda last, position: [])
    monkeypatch.setattr(client, "producer", lambda topic, fencing: client, raising=False)
    client.at_once = _pulsar.Result.AlreadyClosed
    told: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    writer.append(FrameMaker(1).data(("v", b"1")), lambda position, error: told.set_result(error))
    error = await told
    assert isinstance(error, StorageError)
    assert error.outcome_unknown
    assert "no frame got through" in str(error)
    await writer.close()
