"""`bridge.iterate` and `bridge.record_batches` over the network: they read the same from a server as from a journal's files."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

import pytest

from tests.api.blocking.logs import numbers, write_mixture
from tests.probes import facts
from tests.spark.served_place import ServedPlace, ServerProcess, served
from wal import ImmutableMessage, Message, StartAfter, bridge
from wal.bridge import BlockingWAL
from wal.errors import ChannelNotExistError, InvalidArgumentError, TruncatedError, UnavailableError
from wal.settings import Settings

WAIT_S = 60.0


@pytest.fixture
def place(data_dir: Path) -> Iterator[ServedPlace]:
    """A journal of two pchannels that is served."""
    with served(data_dir, pchannels=2, segment_bytes=1 << 20) as found:
        yield found


@pytest.fixture
def log(place: ServedPlace) -> Iterator[BlockingWAL]:
    with place.open() as found:
        yield found


@pytest.fixture
def settings(place: ServedPlace) -> Settings:
    return Settings(token=place.token)


def test_blocking_reads_equal_a_scanner_of_the_journal(data_dir: Path) -> None:
    """This holds from every position, and in the current incarnation of a vchannel."""
    data = str(data_dir)
    write_mixture(data, Random(3), steps=80)
    wanted = {}
    for names in (("orders",), ("ü",), ("ü", "orders", "payments")):
        with bridge.iterate(data, names, follow=False) as messages:
            wanted[names] = [facts(message) for message in messages]
    with served(data_dir) as place:
        settings = Settings(token=place.token)
        for names, expected in wanted.items():
            with bridge.iterate(place.location, names, follow=False, settings=settings) as messages:
                found, positions = [], []
                for message in messages:
                    found.append(facts(message))
                    positions.append(messages.position)
            assert found == expected
            at = len(found) // 2
            with bridge.iterate(place.location, names, follow=False, settings=settings, resume=positions[at]) as rest:
                assert [facts(message) for message in rest] == expected[at + 1 :]
        with bridge.iterate(place.location, "orders", follow=False, settings=settings) as messages:
            payloads = [body.payload for message in messages for body in message.bodies()]
        for bytes_max in (1 << 10, 8 << 20):
            batches = bridge.record_batches(
                place.location, "orders", follow=False, settings=settings, bytes_max=bytes_max, columns=["payload"]
            )
            assert [row["payload"] for batch in batches for row in batch.to_pylist()] == payloads


def test_blocking_read_outlives_a_killed_server(data_dir: Path) -> None:
    """Each message once and in order, whatever the reader was doing; a timeout without a server does not end the read."""

    def patiently(messages: bridge.Iteration) -> ImmutableMessage:
        """Returns the next message; the reader may need more than one timeout to find a server that is back."""
        while True:
            try:
                return next(messages)
            except TimeoutError:
                pass

    seen: list[int] = []
    with ServerProcess(data_dir) as server, bridge.iterate(server.location, "orders", timeout_s=0.2) as messages:
        for life in range(3):
            with bridge.blocking(server.location) as log:
                for number in range(life * 50, life * 50 + 50):
                    log.raw_append(Message("orders", b"%d" % number))
            if life % 2 == 0:  # otherwise it is killed while the reader lags
                seen += numbers(patiently(messages) for _ in range(life * 50 + 50 - len(seen)))
            server.kill()
            if life % 2 == 0:
                with pytest.raises(TimeoutError, match="the read can continue"):
                    next(messages)
            server.start()
    assert seen == list(range(150))


def test_at_the_tail_it_waits_for_the_server(data_dir: Path) -> None:
    with ServerProcess(data_dir) as server:
        with bridge.blocking(server.location) as log:
            log.append_bulk([Message("orders", bytes(100_000)) for _ in range(60)])
        with bridge.iterate(server.location, "orders", timeout_s=WAIT_S) as messages:
            next(messages)
            server.kill()
            timer = threading.Timer(0.3, server.start)
            timer.start()
            assert sum(1 for _, _ in zip(range(59), messages, strict=False)) == 59
            timer.join()


def test_thread_that_waits_is_ended_by_close(place: ServedPlace, log: BlockingWAL, settings: Settings) -> None:
    log.raw_append(Message("orders", b"1"))
    messages = bridge.iterate(place.location, "orders", settings=settings)
    assert next(messages).payload == b"1"
    rest: list[object] = []
    thread = threading.Thread(target=lambda: rest.extend(messages))
    thread.start()
    messages.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert rest == []
    with pytest.raises(StopIteration):
        next(messages)


def test_close_ends_a_call_that_waits_for_a_server(data_dir: Path) -> None:
    with ServerProcess(data_dir) as server:
        with bridge.blocking(server.location) as log:
            log.append_bulk([Message("orders", bytes(100_000)) for _ in range(60)])
        messages = bridge.iterate(server.location, "orders")
        next(messages)
        server.kill()
        thread = threading.Thread(target=lambda: list(messages))
        thread.start()
        began = time.monotonic()
        messages.close()
        thread.join(WAIT_S)
        assert not thread.is_alive()
        assert time.monotonic() - began < 10


@pytest.mark.parametrize("pchannel", ["p0", "p1"])
def test_cursor_resumes_on_each_pchannel(pchannel: str, place: ServedPlace, log: BlockingWAL, settings: Settings) -> None:
    log.create_vchannel("resumed", pchannel=pchannel)
    for number in range(6):
        log.raw_append(Message("resumed", b"%d" % number))
    for expected in ([0, 1], [2, 3], [4, 5], []):
        with bridge.iterate(place.location, "resumed", cursor="job", follow=False, settings=settings) as messages:
            assert numbers(islice(messages, 2)) == expected
            messages.save()


def test_cursor_holds_the_log_and_goes_on(place: ServedPlace, log: BlockingWAL, settings: Settings) -> None:
    ids = [log.raw_append(Message("orders", b"%d" % number)).message_id for number in range(6)]
    assert ids[4] is not None
    with bridge.iterate(place.location, "orders", cursor="billing", timeout_s=WAIT_S, settings=settings) as messages:
        assert numbers(next(messages) for _ in range(3)) == [0, 1, 2]
        messages.save()
    with pytest.raises(InvalidArgumentError, match="'billing' of 'orders'"):
        log.truncate(up_to=ids[4])
    with bridge.iterate(place.location, "orders", cursor="billing", follow=False, settings=settings) as messages:
        assert numbers(messages) == [3, 4, 5]
        messages.save()
    (cursor,) = log.cursors()
    assert (cursor.name, cursor.lag_bytes) == ("billing", 0)
    log.truncate(up_to=ids[4])
    gone = bridge.iterate(place.location, "orders", deliver_policy=StartAfter(ids[2]), follow=False, settings=settings)
    with pytest.raises(TruncatedError) as error:
        next(gone)
    assert error.value.earliest == ids[5]


def test_blocking_read_ends_with_its_vchannels_drop(place: ServedPlace, log: BlockingWAL, settings: Settings) -> None:
    """The vchannel is created on another pchannel than an append would choose."""
    with bridge.iterate(place.location, "later", timeout_s=WAIT_S, settings=settings) as messages:
        with pytest.raises(TimeoutError):
            waiting = bridge.iterate(place.location, "later", timeout_s=0, settings=settings)
            with waiting:
                next(waiting)
        for pchannel in ("p0", "p1"):
            log.create_vchannel("later", pchannel=pchannel)
            log.raw_append(Message("later", pchannel.encode()))
            if pchannel == "p0":
                assert next(messages).payload == b"p0"
                log.drop_vchannel("later")
                with pytest.raises(ChannelNotExistError, match="was dropped"):
                    next(messages)
    with bridge.iterate(place.location, "later", follow=False, settings=settings) as again:
        assert [message.payload for message in again] == [b"p1"]


def test_collected_iteration_ends_its_loop(place: ServedPlace, log: BlockingWAL, settings: Settings) -> None:
    def until(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + WAIT_S
        while not condition():
            gc.collect()
            assert time.monotonic() < end
            time.sleep(0.01)

    log.raw_append(Message("orders", b"1"))
    before = set(threading.enumerate())
    messages = bridge.iterate(place.location, "orders", settings=settings)
    next(messages)
    (loop,) = (thread for thread in threading.enumerate() if thread not in before and thread.name == "wal-loop")
    del messages
    until(lambda: not loop.is_alive())


def test_server_that_is_missing_or_refuses(place: ServedPlace, log: BlockingWAL) -> None:
    with pytest.raises(InvalidArgumentError, match="the token of this call is not the server's"):
        next(bridge.iterate(place.location, "orders", settings=Settings(token="wrong")))
    with pytest.raises(InvalidArgumentError, match="retention_bytes=1048577 contradicts the log"):
        settings = Settings(token=place.token, retention_bytes=(1 << 20) + 1)
        next(bridge.iterate(place.location, "orders", settings=settings))


def test_without_a_server_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal.client.log.TIMEOUT_S", 0.2)
    with pytest.raises(UnavailableError, match="no server is reachable"):
        next(bridge.iterate("wal://127.0.0.1:1", "orders"))
