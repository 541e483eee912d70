"""The writer over a client whose answers come from the test: duplicates, refused frames, lost producers, too long an outage."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import _pulsar
import pulsar
import pytest

from tests.storage.frames import FrameMaker
from wal.errors import StorageError, WALError
from wal.storage.base import LogState
from wal.storage.pulsar.fencing_floor import FencingFloor
from wal.storage.pulsar.floor_index import FloorIndex
from wal.storage.pulsar.layout import FRAMES_IN_FLIGHT, Mark
from wal.storage.pulsar.ledgers import Ledger, LedgerTable
from wal.storage.pulsar.opening import Opened
from wal.storage.pulsar.positions import entry_of, ledger_of, position_of
from wal.storage.pulsar.repair import Outage
from wal.storage.pulsar.vchannel_index import VChannelIndex
from wal.storage.pulsar.writer import PulsarWriter

INCARNATION = FrameMaker(1).data(("v", b"")).header.incarnation


class Stored:
    """A message of the topic, and its id."""

    def __init__(self, position: int, data: bytes = b"", properties: Mapping[str, str] | None = None) -> None:
        self._position = position
        self._data = data
        self._properties = dict(properties or {})

    def ledger_id(self) -> int:
        return ledger_of(self._position)

    def entry_id(self) -> int:
        return entry_of(self._position)

    def message_id(self) -> Stored:
        return self

    def data(self) -> bytes:
        return self._data

    def properties(self) -> dict[str, str]:
        return self._properties


class Client:
    """A producer, its connection, the topic, and the control record of an undisputed owner.

    `answers` holds the answers that the writer waits for, one call for each frame sent; `at_once`: the client's answer within `send_async`.
    `gate`: readers wait for it.
    """

    address = "pulsar://nowhere"

    def __init__(self) -> None:
        self.topic: list[Stored] = [Stored(position_of(5, 0))]
        self.sent: list[bytes] = []
        self.answers: list[Callable[[Any, Any], None]] = []
        self.at_once: Any = None
        self.gate = asyncio.Event()
        self.gate.set()

    # a producer

    def send_async(self, data: bytes, answered: Callable[[Any, Any], None]) -> None:
        if self.at_once is not None:
            answered(self.at_once, None)
            return
        self.sent.append(data)
        self.answers.append(answered)

    def send(self, data: bytes, properties: Mapping[str, str]) -> Stored:
        return self.store(data, properties)

    def is_connected(self) -> bool:
        return True

    def close(self) -> None:
        pass

    # a connection

    async def run(self, call: Callable[[], Any]) -> Any:
        await self.gate.wait()
        return call()

    def producer(self, topic: str, *, fencing: bool) -> Client:
        return self

    def reader(self, topic: str, position: int, *, inclusive: bool, ahead: int) -> Reader:
        return Reader([one for one in self.topic if (one.ledger_id(), one.entry_id()) > (ledger_of(position), entry_of(position))])

    # a control record

    async def check_owner(self, term: int) -> None:
        pass

    # the test

    def store(self, data: bytes, properties: Mapping[str, str] | None = None) -> Stored:
        """Stores a message in the topic."""
        self.topic.append(Stored(position_of(5, len(self.topic)), data, properties))
        return self.topic[-1]

    async def answer(self, number: int, stored: Stored | None, result: Any = _pulsar.Result.Ok) -> None:
        """Answers a frame that was sent, from a thread as the client does."""
        await asyncio.to_thread(self.answers[number], result, stored)
        await asyncio.sleep(0)


class Reader:
    """A reader of the topic."""

    def __init__(self, messages: list[Stored]) -> None:
        self._messages = messages

    def read_next(self, timeout_millis: int) -> Stored:
        if not self._messages:
            raise pulsar.exceptions.Timeout("no message")
        return self._messages.pop(0)

    def is_connected(self) -> bool:
        return True

    def close(self) -> None:
        pass


def writer_on(client: Any) -> PulsarWriter:
    """Returns the writer of term 1, whose mark is the only message."""
    state = LogState(position_of(5, 1), 0, -1, 0, (0, 0), True)
    ledgers, floor = LedgerTable([Ledger(5, 1, 0)]), FencingFloor(1, -1)
    opened = Opened(client, client, client, ledgers, FloorIndex(), "t", Mark(1, INCARNATION), floor, state, None, VChannelIndex())
    return PulsarWriter(opened, ledger_full=lambda position: None)


class Answers:
    """The answers to the callers of a writer, by the number of the frame."""

    def __init__(self, writer: PulsarWriter) -> None:
        self.positions: dict[int, int] = {}
        self.errors: dict[int, WALError] = {}
        self._writer = writer
        self._maker = FrameMaker(1)
        self._count = 0
        self._told = asyncio.Event()

    def append(self, payload: bytes = b"x") -> None:
        number, self._count = self._count, self._count + 1

        def done(position: int, error: BaseException | None) -> None:
            if error is None:
                self.positions[number] = position
            else:
                assert isinstance(error, WALError)
                self.errors[number] = error
            self._told.set()

        self._writer.append(self._maker.data(("v", payload)), done)

    async def wait_for(self, count: int) -> None:
        """Waits until this many frames are answered."""
        async with asyncio.timeout(60):
            while len(self.positions) + len(self.errors) < count:
                self._told.clear()
                await self._told.wait()


async def test_client_holds_a_frame_until_its_answer() -> None:
    """All answers are lost, the client sends the first frame again, and its answer shows that: all eight frames are found by reading. The
    client still holds seven of them."""
    client = Client()
    writer = writer_on(client)
    answers = Answers(writer)
    for _ in range(20):
        answers.append()
    assert len(client.sent) == FRAMES_IN_FLIGHT
    stored = [client.store(data) for data in [*client.sent, client.sent[0]]]
    await client.answer(0, stored[-1])
    await answers.wait_for(8)
    assert answers.positions == {at: position_of(5, 1 + at) for at in range(8)}
    assert len(client.sent) == FRAMES_IN_FLIGHT + 1, "one frame was answered, so one more may be on its way"
    for number in range(1, 20):
        await client.answer(number, stored[number] if number < 8 else client.store(client.sent[number]))
        assert len(client.sent) == min(FRAMES_IN_FLIGHT + 1 + number, 20)
    await answers.wait_for(20)
    assert answers.errors == {}
    await writer.close()


async def test_lost_producer_is_replaced_and_frames_answered() -> None:
    """Two frames are in the topic, after a foreign message, and the third is not: the first two are found by reading. Meanwhile the
    producer is lost, so the third frame is sent again by a new one."""
    client = Client()
    writer = writer_on(client)
    answers = Answers(writer)
    for _ in range(3):
        answers.append()
    client.store(b"", {"of": "somebody else"})
    stored = [client.store(data) for data in client.sent[:2]]
    client.gate.clear()
    await client.answer(1, stored[1])
    await client.answer(0, stored[0])
    await client.answer(2, None, _pulsar.Result.ProducerFenced)
    client.gate.set()
    async with asyncio.timeout(60):
        while len(client.sent) < 4:
            await asyncio.sleep(0)
    assert client.sent[3] == client.sent[2]
    await client.answer(3, client.store(client.sent[3]))
    await answers.wait_for(3)
    assert answers.positions == {0: position_of(5, 2), 1: position_of(5, 3), 2: position_of(5, 5)}
    await writer.close()


@pytest.mark.parametrize("refusal", [_pulsar.Result.MessageTooBig, _pulsar.Result.InvalidMessage])
async def test_no_frame_is_sent_after_a_refused_one(refusal: Any) -> None:
    client = Client()
    writer = writer_on(client)
    answers = Answers(writer)
    answers.append(b"fits")
    answers.append(b"fits")
    client.at_once = refusal
    answers.append(b"does not fit")
    client.at_once = None
    for _ in range(3):
        answers.append(b"comes later")
    assert len(client.sent) == 2
    for number in range(2):
        await client.answer(number, client.store(client.sent[number]))
    await answers.wait_for(6)
    assert answers.positions == {0: position_of(5, 1), 1: position_of(5, 2)}
    assert [error.outcome_unknown for error in answers.errors.values()] == [False] * 4
    assert len(client.sent) == 2
    assert isinstance(writer.failure, StorageError)
    await writer.close()


async def test_failing_producers_end_the_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new producer is lost again before it has an answer: the time of all attempts together is bounded."""
    monkeypatch.setattr(Outage, "limit_s", 0.2)
    monkeypatch.setattr(Outage, "pause_max_s", 0.02)
    client = Client()
    writer = writer_on(client)
    answers = Answers(writer)
    client.at_once = _pulsar.Result.AlreadyClosed
    answers.append()
    await answers.wait_for(1)
    error = answers.errors[0]
    assert isinstance(error, StorageError)
    assert error.outcome_unknown
    assert "no frame got through" in str(error)
    await writer.close()
