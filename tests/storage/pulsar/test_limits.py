"""The broker's maxMessageSize: the limit is known before anything is written, and no frame above it leaves a gap.

By default the session's broker has the admin REST answer a lowered limit; in a soak a broker of these tests has it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import SOAK
from tests.servers.fixtures import require
from tests.servers.pulsar import PulsarServer, find_pulsar
from tests.storage.frames import INCARNATION, FrameMaker, append, read_all
from tests.storage.pulsar.conftest import location_of, new_namespace, own
from wal import Message, open_wal
from wal.errors import InvalidArgumentError, StorageError
from wal.storage.base import FRAME_BYTES_MAX
from wal.storage.kv import MemoryKV
from wal.storage.pulsar.admin import Admin
from wal.storage.pulsar.backend import PulsarBackend
from wal.storage.pulsar.broker_settings import METADATA_BYTES_MAX, frame_bytes_limit, group_bytes
from wal.storage.pulsar.connection import PulsarConnection
from wal.storage.pulsar.layout import FRAME_BYTES_LIMIT

MESSAGE_BYTES: Final = 1 << 20


@pytest.fixture(scope="module")
def lowered() -> Iterator[PulsarServer]:
    """Starts a broker that accepts messages of at most a mebibyte."""
    require(find_pulsar)
    options = {"maxMessageSize": MESSAGE_BYTES, "nettyMaxFrameSizeBytes": MESSAGE_BYTES + 100_000}
    with PulsarServer(options=options) as server:
        yield server


@pytest.fixture
def narrow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> PulsarServer:
    """Returns a broker with a declared limit of a mebibyte for messages."""
    if not SOAK:
        monkeypatch.setattr(Admin, "message_bytes_max", lambda self: MESSAGE_BYTES)
    server: PulsarServer = request.getfixturevalue("lowered" if SOAK else "pulsar_process")
    return server


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keeps the limit from the admin REST's answers, as for a role that is not an administrator."""
    monkeypatch.setattr(Admin, "message_bytes_max", lambda self: None)


async def test_unfit_settings_are_refused_at_opening(narrow: PulsarServer, tmp_path: Path) -> None:
    location, settings = location_of(new_namespace(own(narrow)), tmp_path / "kv")
    with pytest.raises(InvalidArgumentError, match=r"raise maxMessageSize on the broker \(it is 1048576\), or lower.*txn_bytes_max"):
        await open_wal(location, **settings)


async def test_fitting_settings_work_up_to_their_limits(narrow: PulsarServer, tmp_path: Path) -> None:
    small: dict[str, Any] = {"txn_bytes_max": 400_000, "message_bytes_max": 300_000}
    location, settings = location_of(new_namespace(own(narrow)), tmp_path / "kv")
    sizes = [300_000 - 1_000] * 12
    async with open_wal(location, **settings, **small) as log:
        await asyncio.gather(*(log.raw_append(Message("v", bytes(size))) for size in sizes))
        async with log.txn("v") as txn:
            await txn.append(bytes(190_000))
            await txn.append(bytes(190_000))
    async with open_wal(location, **settings, **small) as log:
        await log.raw_append(Message("v", b"again"))
        async with log.read("v", follow=False) as scanner:
            found = [body.payload async for message in scanner for body in message.bodies()]
    assert sorted(len(payload) for payload in found) == sorted([*sizes, 190_000, 190_000, 5])


@pytest.mark.soak("it needs a broker with a lowered limit; the other tests take the answer of the admin REST by default")
async def test_hidden_limit_is_found_by_trying(narrow: PulsarServer, silent: None) -> None:
    backend = PulsarBackend(new_namespace(own(narrow)), MemoryKV())
    try:
        await backend.start()
        assert MESSAGE_BYTES // 2 < backend.frame_bytes_limit < MESSAGE_BYTES
        assert "by trying" in backend.frame_bytes_source
    finally:
        await backend.close()


@pytest.mark.soak("it needs a broker with a lowered limit; test_frame_refused_for_size_leaves_no_gap shows it by default")
async def test_frame_refused_by_the_client_leaves_no_gap(narrow: PulsarServer, silent: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is unknown: frames before the refused one are written, none after it, and the log opens again."""
    monkeypatch.setattr(PulsarConnection, "largest_message", lambda self, topic, bytes_max: None)
    backend = PulsarBackend(new_namespace(own(narrow)), MemoryKV())
    try:
        await backend.create("p", incarnation=INCARNATION)
        log = await backend.open("p", incarnation=INCARNATION, term=1)
        maker = FrameMaker(1)
        sizes = [10, 10, 2 * MESSAGE_BYTES, 10, 10, 10]
        answers = [append(log, maker.data(("v", bytes(size)))) for size in sizes]
        results = await asyncio.gather(*answers, return_exceptions=True)
        assert [isinstance(result, int) for result in results] == [True, True, False, False, False, False]
        for error in results[2:]:
            assert isinstance(error, StorageError)
            assert not error.outcome_unknown
            assert "MessageTooBig" in str(error)
            assert "maxMessageSize" in str(error)
        with pytest.raises(StorageError):
            await append(log, maker.data(("v", b"later")))
        await log.close()
        log = await backend.open("p", incarnation=INCARNATION, term=2)
        results.append(await append(log, FrameMaker(2).data(("v", b"again"))))
        assert [frame.position for frame in await read_all(log)] == [results[0], results[1], results[-1]]
        await log.close()
    finally:
        await backend.close()


async def test_frame_refused_for_size_leaves_no_gap(narrow: PulsarServer) -> None:
    backend = PulsarBackend(new_namespace(own(narrow)), MemoryKV())
    try:
        await backend.create("p", incarnation=INCARNATION)
        log = await backend.open("p", incarnation=INCARNATION, term=1)
        maker = FrameMaker(1)
        first = await append(log, maker.data(("v", b"1")))
        over, after = append(log, maker.data(("v", bytes(MESSAGE_BYTES)))), append(log, maker.data(("v", b"3")))
        with pytest.raises(InvalidArgumentError, match=str(backend.frame_bytes_limit)):
            await over
        with pytest.raises(StorageError, match="would leave a gap"):
            await after
        await log.close()
        log = await backend.open("p", incarnation=INCARNATION, term=2)
        assert [frame.position for frame in await read_all(log)] == [first]
        await log.close()
    finally:
        await backend.close()


async def test_checkpoint_larger_than_a_message(narrow: PulsarServer) -> None:
    backend = PulsarBackend(new_namespace(own(narrow)), MemoryKV())
    state = bytes(range(256)) * 12_000
    try:
        await backend.create("p", incarnation=INCARNATION)
        log = await backend.open("p", incarnation=INCARNATION, term=1)
        position = await append(log, FrameMaker(1).data(("v", b"1")))
        await log.save_state(position, [state])
        assert await log.load_state(position) == state
        await log.close()
    finally:
        await backend.close()


@given(st.integers(1, 1 << 40))
def test_frames_and_groups_fit_the_broker(message_bytes: int) -> None:
    limit = frame_bytes_limit(message_bytes)
    assert 0 < limit <= min(message_bytes, FRAME_BYTES_LIMIT)
    assert limit >= min(FRAME_BYTES_LIMIT, message_bytes - METADATA_BYTES_MAX)
    assert 0 <= group_bytes(limit) <= limit
    if message_bytes >= 5 << 20:
        assert limit == FRAME_BYTES_LIMIT >= FRAME_BYTES_MAX
