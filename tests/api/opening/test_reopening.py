"""Opening a journal again: all messages are there, new ticks are above the old ones, and pchannels are as created."""

from __future__ import annotations

import pytest

from tests.locations import open_wal
from tests.probes import facts, payloads, read_all, written
from wal import Latest, LogStatistics, Message, PChannelStatistics, WALAccesser
from wal.errors import InvalidArgumentError

pytestmark = [pytest.mark.everywhere, pytest.mark.inside, pytest.mark.on_pulsar]


async def test_everything_is_kept(data: str) -> None:
    names = ("a", "b", "c")
    known: dict[str, list[object]] = {name: [] for name in names}
    last = 0
    for opening in range(4):
        async with open_wal(data, pchannels=None if opening else 2) as log:
            found = {name: [facts(message) for message in await read_all(log, name)] for name in names}
            assert found == known
            assert await log.allocate_time_tick() > last, "ticks go on above everything before"
            for name in names:
                result = await log.raw_append(Message(name, b"%d" % opening, properties={"k": "ü"}))
                assert result.time_tick > last
                async with log.txn(name) as txn:
                    await txn.append(b"body")
            known = {name: [facts(message) for message in await read_all(log, name)] for name in names}
            assert [len(some) for some in known.values()] == [2 * opening + 2] * 3
            last = await log.allocate_time_tick()


async def test_terms_rise_and_incarnations_stay(data: str) -> None:
    seen = []
    for _ in range(3):
        async with open_wal(data) as log:
            result = await log.raw_append(Message("orders", b"1"))
            seen.append((log.statistics().pchannels[0].term, result.message_id.incarnation, result.message_id))
    terms, incarnations, ids = zip(*seen, strict=True)
    assert list(terms) == [1, 2, 3]
    assert len(set(incarnations)) == 1
    assert list(ids) == sorted(ids)


async def test_number_of_pchannels_can_grow_but_not_shrink(data: str) -> None:
    async with open_wal(data, pchannels=2) as log:
        for number in range(8):
            await log.raw_append(Message(f"v{number}", b"1"))
        before = await log.vchannels()
    with pytest.raises(InvalidArgumentError, match="pchannels=1") as caught:
        await open_wal(data, pchannels=1)
    assert "2" in str(caught.value)
    async with open_wal(data) as log:
        assert [pchannel.name for pchannel in log.statistics().pchannels] == ["p0", "p1"]
    async with open_wal(data, pchannels=12) as log:
        assert [pchannel.name for pchannel in log.statistics().pchannels] == [f"p{number}" for number in range(12)]
        assert await log.vchannels() == before, "what was placed stays where it is"
        for number in range(8):
            assert await payloads(log, f"v{number}") == [b"1"]
        await log.create_vchannel("new", pchannel="p11")
        await log.raw_append(Message("new", b"1"))
    async with open_wal(data) as log:
        assert len(log.statistics().pchannels) == 12
        assert await payloads(log, "new") == [b"1"]


async def test_default_is_one_pchannel(data: str) -> None:
    async with open_wal(data) as log:
        assert [pchannel.name for pchannel in log.statistics().pchannels] == ["p0"]


async def test_latest_in_a_new_opening(data: str) -> None:
    async with open_wal(data) as log:
        result = await log.raw_append(Message("orders", b"1"))
    async with open_wal(data) as log, log.read("orders", deliver_policy=Latest(), include_time_ticks=True) as scanner:
        tick = await anext(scanner)
        assert tick.message_id == result.message_id, "the newest event before it is of the former opening"
        await log.raw_append(Message("orders", b"2"))
        while not (message := await anext(scanner)).payload:
            pass
        assert message.payload == b"2"


@pytest.mark.not_on("pulsar", "names the backends")
async def test_statistics(log4: WALAccesser, location: str) -> None:
    await log4.create_vchannel("a", pchannel="p2")
    await log4.append_bulk([Message("a", bytes(100)) for _ in range(50)])
    txn = await log4.txn("a")
    await txn.append(bytes(100))
    statistics = log4.statistics()
    assert isinstance(statistics, LogStatistics)
    assert statistics.wal_name == log4.wal_name == ("memory" if location == "memory:" else "journal")
    assert (statistics.vchannels, statistics.bytes_in_flight, statistics.appends_waiting) == (1, 0, 0)
    assert [pchannel.name for pchannel in statistics.pchannels] == ["p0", "p1", "p2", "p3"]
    idle, busy = statistics.pchannels[0], statistics.pchannels[2]
    assert isinstance(busy, PChannelStatistics)
    assert (idle.events, busy.events) == (0, 50)
    assert written(log4).pchannels[2].bytes > 5000
    assert busy.frames >= 1
    assert (busy.open_transactions, busy.open_transaction_bytes) == (1, 132)
    assert (busy.waiting, busy.frames_in_flight, busy.bytes_in_flight, busy.barriers, busy.readers) == (0, 0, 0, 0, 0)
    with pytest.raises(AttributeError):
        statistics.vchannels = 5  # type: ignore[misc]
    await txn.commit()
    assert written(log4).pchannels[2].events == 52
