"""Retention by size and by age, and its pins; a truncation past a cursor is rejected as a whole."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import pytest

from actors import SystemClock
from tests.locations import open_wal
from tests.probes import made_on, read_all
from tests.processes import Line, Other, eventually
from tests.read.readers import numbered, rest, take
from wal import AppendResult, Message, ProducerKey, StartFrom, WALAccesser, timestamp
from wal.errors import InvalidArgumentError, TruncatedError

MIB = 1 << 20


class Wall:
    """The wall clock, shifted by `ahead_s`; monotonic time is unaffected."""

    ahead_s = 0.0


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    found, real = Wall(), SystemClock.wall
    monkeypatch.setattr(SystemClock, "wall", staticmethod(lambda: real() + found.ahead_s))
    return found


async def fill(log: WALAccesser, mib: int, *, name: str = "orders", first: int = 0) -> list[AppendResult]:
    """Appends numbered messages of 64 KiB, sixteen per MiB, in frames of at most a MiB."""
    results: list[AppendResult] = []
    for number in range(first, first + 16 * mib, 16):
        some = [Message(name, b"%06d" % (number + step) + bytes(1 << 16)) for step in range(16)]
        results += await log.append_bulk(some)
    return results


async def numbers(log: WALAccesser, name: str = "orders") -> list[int]:
    """Returns the numbers of the remaining messages; a read that retention overtakes begins again."""
    while True:
        with contextlib.suppress(TruncatedError):
            return [int(message.payload[:6]) for message in await read_all(log, name)]


def disk_bytes(data: str) -> int:
    """Returns the bytes of the segments; a segment that is removed meanwhile counts as 0."""
    total = 0
    for path in Path(data).rglob("*.wal"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total


async def first_number(log: WALAccesser, name: str = "orders") -> int:
    """Returns the number of the first remaining message, or a number above all if none remains."""
    while True:
        with contextlib.suppress(TruncatedError):  # the events to read were removed at that moment
            async with log.read(name, follow=False) as scanner:
                async for message in scanner:
                    return int(message.payload[:6])
            return 1 << 30


async def test_by_size(data: str) -> None:
    async with open_wal(data, segment_bytes=MIB, retention_bytes=4 * MIB) as log:
        results = await fill(log, 24)

        async def dropped() -> bool:
            return await first_number(log) >= 16 * (24 - 4 - 3)

        await eventually(dropped)
        found = await numbers(log)
        assert found == list(range(found[0], 384)), "a suffix of what was written"
        assert len(found) >= 16 * 4 - 16, "what the bound leaves room for is there"
        await eventually(lambda: disk_bytes(data) < 4 * MIB + 6 * MIB)
        with pytest.raises(TruncatedError) as caught:
            await read_all(log, "orders", deliver_policy=StartFrom(results[0].message_id))
        assert caught.value.earliest in {result.message_id for result in results[found[0] :]}
    async with open_wal(data) as log:
        after = await numbers(log)
        assert after == found[-len(after) :], "and it stays so"


async def test_earliest_of_a_truncated_error_is_readable(location: str) -> None:
    async with open_wal(location, segment_bytes=MIB) as log:
        results = await fill(log, 4)
        for last in (3, 20, 40):
            await log.truncate(up_to=results[last].message_id)
            with pytest.raises(TruncatedError) as caught:
                await read_all(log, "orders", deliver_policy=StartFrom(results[0].message_id))
            assert caught.value.earliest == results[last + 1].message_id
            first, *_ = await read_all(log, "orders", deliver_policy=StartFrom(caught.value.earliest))
            assert first.message_id == results[last + 1].message_id


async def test_disk_stays_within_its_bound(data: str) -> None:
    async with open_wal(data, segment_bytes=MIB, retention_bytes=4 * MIB) as log:
        first = 0
        for _ in range(6):
            await fill(log, 16, first=first)
            first += 256
            await eventually(lambda: disk_bytes(data) < 12 * MIB)
        assert (await numbers(log))[-1] == first - 1


async def test_by_age(data: str) -> None:
    async with open_wal(data, segment_bytes=MIB, retention_s=0.5) as log:
        results = await fill(log, 6)

        async def dropped() -> bool:
            return await first_number(log) >= 64

        await eventually(dropped)
        late = await fill(log, 1, first=96)
        found = await numbers(log)
        assert found[-16:] == list(range(96, 112)), "what is young stays"
        with pytest.raises(TruncatedError):
            await read_all(log, "orders", deliver_policy=StartFrom(results[0].message_id))
        assert late[0].time_tick > results[-1].time_tick


async def test_young_segments_stay(data: str) -> None:
    async with open_wal(data, segment_bytes=MIB, retention_s=3600.0) as log:
        await fill(log, 6)
        for _ in range(3):
            await log.retention()
            assert await first_number(log) == 0
    async with open_wal(data, segment_bytes=MIB, retention_s=3600.0) as log:
        assert await numbers(log) == list(range(96))


async def test_nothing_is_dropped_unless_asked(data: str) -> None:
    async with open_wal(data, segment_bytes=MIB) as log:
        await fill(log, 12)
        await log.retention()
        assert await numbers(log) == list(range(192))


async def test_limit_of_zero_keeps_the_minimum(data: str) -> None:
    async with open_wal(data, segment_bytes=MIB, retention_bytes=0) as log:
        results = await fill(log, 8)

        async def dropped() -> bool:
            return await first_number(log) >= 16 * 6

        await eventually(dropped)
        await log.raw_append(Message("orders", b"000200"))
        async with log.read("orders", deliver_policy=StartFrom((await numbered(log, 1))[0].message_id)) as scanner:
            assert (await anext(scanner)).payload == b"0", "what was just written can be read"
        assert results[0].message_id is not None
    async with open_wal(data, retention_bytes=0) as log:
        await numbered(log, 3)


@pytest.mark.parametrize("pchannels", [1, 4])
async def test_cursor_holds_it(data: str, pchannels: int) -> None:
    async with open_wal(data, segment_bytes=MIB, retention_bytes=2 * MIB, pchannels=pchannels) as log:
        await made_on(log, "p0", "orders")
        await fill(log, 1)
        async with log.read("orders", cursor="auditor") as scanner:
            for _ in range(5):
                await anext(scanner)
            await scanner.save()
        await fill(log, 16, first=16)

        async def held() -> bool:
            return "auditor" in repr(await log.retention())

        await eventually(held)
        assert [int(number) for number in (await numbers(log))[-267:]] == list(range(5, 272)), "nothing it has not read"
        async with log.read("orders", cursor="auditor", follow=False) as scanner:
            assert [int(message.payload[:6]) async for message in scanner] == list(range(5, 272))
            await scanner.save()
        last = await fill(log, 1, first=272)

        async def released() -> bool:
            return await first_number(log) > 100

        await eventually(released)
        assert last[-1].message_id is not None
        assert (await numbers(log))[-1] == 287


async def test_cursor_of_a_dead_process_holds(data: str) -> None:
    async def save_and_stay(line: Line, data: str) -> None:
        async with open_wal(data, read_only=True) as log, log.read("orders", cursor="elsewhere") as scanner:
            for _ in range(3):
                await anext(scanner)
            await scanner.save()
            line.tell("saved")
            await line.hear()

    async with open_wal(data, segment_bytes=MIB) as log:
        await fill(log, 1)
    other = Other(save_and_stay, data)
    await other.hear()
    await other.kill()
    async with open_wal(data, segment_bytes=MIB, retention_bytes=MIB) as log:
        await fill(log, 8, first=16)

        async def held() -> bool:
            return "elsewhere" in repr(await log.retention())

        await eventually(held)
        assert (await numbers(log))[-141:] == list(range(3, 144))
        await log.delete_cursor("elsewhere")
        await fill(log, 1, first=144)

        async def released() -> bool:
            return await first_number(log) > 64

        await eventually(released)


async def test_stale_cursor_holds_nothing(data: str) -> None:
    bounds: dict[str, Any] = {"retention_bytes": 2 * MIB, "cursor_lag_bytes_max": 4 * MIB}
    async with open_wal(data, segment_bytes=MIB, **bounds) as log:
        await fill(log, 1)
        async with log.read("orders", cursor="lazy") as scanner:
            await anext(scanner)
            await scanner.save()
        await fill(log, 16, first=16)

        async def dropped() -> bool:
            return await first_number(log) > 160

        await eventually(dropped)
        (info,) = await log.cursors()
        assert info.stale
        with pytest.raises(TruncatedError, match="lazy") as caught:
            await rest(log, cursor="lazy")
        assert caught.value.earliest is not None


async def test_truncation_past_a_cursor_is_refused_whole(location: str) -> None:
    async with open_wal(location, segment_bytes=MIB) as log:
        results = await numbered(log, 20)
        await take(log, 5, cursor="billing")
        await take(log, 12, cursor="audit")
        for last in (5, 11, 12, 19):
            with pytest.raises(InvalidArgumentError, match="billing"):
                await log.truncate(up_to=results[last].message_id)
            assert await rest(log) == list(range(20)), "refused whole"
        await log.truncate(up_to=results[4].message_id)
        assert await rest(log) == list(range(5, 20))
        await take(log, 10, cursor="billing")
        with pytest.raises(InvalidArgumentError, match="audit"):
            await log.truncate(up_to=results[12].message_id)
        await log.truncate(up_to=results[11].message_id)
        await log.delete_cursor("audit")
        await log.truncate(up_to=results[14].message_id)
        assert await rest(log, cursor="billing") == [15, 16, 17, 18, 19]


async def test_cursor_holds_its_own_pchannel(log4: WALAccesser) -> None:
    await made_on(log4, "p0", "a")
    await made_on(log4, "p1", "b")
    ours = await numbered(log4, 5, "a")
    others = await numbered(log4, 5, "b")
    await take(log4, 1, "a", cursor="billing")
    await log4.truncate(up_to=others[4].message_id)
    with pytest.raises(InvalidArgumentError, match="billing"):
        await log4.truncate(up_to=ours[4].message_id)
    assert await rest(log4, "a") == [0, 1, 2, 3, 4]


async def test_retention_reports_its_state(log: WALAccesser) -> None:
    results = await numbered(log, 10)
    await take(log, 3, cursor="billing")
    told = await log.retention()
    assert "billing" in repr(told)
    await log.delete_cursor("billing")
    assert "billing" not in repr(await log.retention())
    await log.truncate(up_to=results[6].message_id)
    assert repr(await log.retention()) != repr(told)


async def test_reader_is_overtaken_loudly(data: str) -> None:
    """A reader without a cursor holds nothing: its error names the lost events."""
    async with open_wal(data, segment_bytes=MIB, retention_bytes=MIB) as log:
        await fill(log, 1)
        async with log.read("orders") as scanner:
            seen = [int((await anext(scanner)).payload[:6])]
            await fill(log, 100, first=16)

            async def dropped() -> bool:
                return await first_number(log) > 1000

            await eventually(dropped)
            with pytest.raises(TruncatedError) as caught:
                async for message in scanner:
                    seen.append(int(message.payload[:6]))
            assert seen == list(range(len(seen)))
            assert caught.value.earliest is not None


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
async def test_clock_that_jumps_drops_nothing(data: str, jump_s: float, wall: Wall, caplog: pytest.LogCaptureFixture) -> None:
    """By the wall clock everything is a day old (or from tomorrow). Nothing is dropped because of that, and the jump is reported."""
    async with open_wal(data, segment_bytes=MIB, retention_s=3600.0) as log:
        await fill(log, 4)
        wall.ahead_s = jump_s
        await fill(log, 4, first=64)

        def warned() -> bool:
            return any(record.levelno == logging.WARNING and "clock" in record.getMessage() for record in caplog.records)

        await eventually(warned)
        await log.retention()
        assert await numbers(log) == list(range(128))
        wall.ahead_s = 0.0
        await fill(log, 1, first=128)
        assert await numbers(log) == list(range(144))


@pytest.mark.inside
async def test_writes_and_producers_outlive_a_clock_that_jumps(location: str, wall: Wall) -> None:
    """Ticks keep rising, open transactions stay open, and everything that must be remembered for good is."""
    async with open_wal(location) as log:
        key = ProducerKey("p", 1)
        first = await log.raw_append(Message("orders", b"1"), idempotency_key=key)
        ticks: list[Any] = [first.time_tick]
        for jump_s in (86_400.0, -86_400.0, 0.0):
            txn = await log.txn("orders")
            await txn.append(b"2")
            wall.ahead_s = jump_s
            ticks.append((await log.raw_append(Message("orders", b"2"))).time_tick)
            ticks.append((await txn.commit()).time_tick)
            again = await log.raw_append(Message("orders", b"1"), idempotency_key=key)
            assert again.duplicate
            assert again.message_id == first.message_id
        assert ticks == sorted(set(ticks))
        assert timestamp.parse(ticks[-1])[0] - timestamp.parse(ticks[0])[0] > 80_000_000, "ticks followed the clock"


@pytest.mark.inside
async def test_clock_set_back_forgets_no_key(location: str, wall: Wall) -> None:
    async with open_wal(location) as log:
        await log.raw_append(Message("orders", b"1"), idempotency_key="k")
        for back_s in (86_400.0, 30.0):
            wall.ahead_s = -back_s
            assert (await log.raw_append(Message("orders", b"2"), idempotency_key="k")).duplicate


async def test_wrong_ids(log: WALAccesser) -> None:
    await numbered(log, 1)
    with pytest.raises(TypeError):
        await log.truncate(up_to=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await log.truncate("p0")  # type: ignore[arg-type, call-arg]


async def test_keys_and_producers_outlive_what_is_dropped(data: str) -> None:
    async with open_wal(data, segment_bytes=MIB, retention_bytes=MIB) as log:
        first = await log.raw_append(Message("orders", b"000000"), idempotency_key="k")
        await fill(log, 12)

        async def dropped() -> bool:
            return await first_number(log) > 100

        await eventually(dropped)
    async with open_wal(data) as log:
        again = await log.raw_append(Message("orders", b"000000"), idempotency_key="k")
        assert again.duplicate
        assert again.message_id == first.message_id
