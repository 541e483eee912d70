"""Consumers on every kind of log: handling, attempts, dead letters, order, ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest

from tests.processes import WAIT_TIMEOUT_S
from wal import All, Consumer, Delivery, Message, Reject, Retry, WALAccesser
from wal.errors import HandlerFailedError, InvalidArgumentError, InvalidTransactionStateError, ResourceAcquiredError

pytestmark = pytest.mark.on_pulsar
NO_PAUSE = (0.0, 0.0)


async def append(log: WALAccesser, payloads: Iterable[str], vchannel: str = "jobs") -> None:
    await log.append_bulk([Message(vchannel, payload.encode()) for payload in payloads])


async def payloads(log: WALAccesser, vchannel: str) -> list[str]:
    """Returns the payloads of all bodies of a vchannel."""
    async with log.read(vchannel, follow=False) as scanner:
        return [body.payload.decode() async for _, body in scanner.bodies()]


def key_of(message: object) -> bytes:
    return message.payload.split(b":")[0]  # type: ignore[attr-defined, no-any-return]


async def test_each_message_is_handled_once(log: WALAccesser) -> None:
    handled: list[bytes] = []

    async def handle(delivery: Delivery) -> None:
        handled.append(delivery.value)
        assert delivery.attempt == 1
        assert delivery.vchannel == "jobs"
        assert delivery.fence >= 1

    await append(log, map(str, range(300)))
    await log.append_txn("jobs", [b"a", b"b"])
    async with log.consume("jobs", handle, cursor="worker") as consumer:
        await consumer.caught_up()
        await append(log, ["later"])
        await consumer.caught_up()
        statistics = consumer.statistics()
    assert handled == [str(number).encode() for number in range(300)] + [b"a", b"b", b"later"]
    assert (statistics.handled, statistics.pending, statistics.lag_messages, statistics.held_by) == (303, 0, 0, "")
    async with log.consume("jobs", handle, cursor="worker") as consumer:
        await consumer.caught_up()
    assert len(handled) == 303


async def test_statistics_say_what_holds_the_position(log: WALAccesser) -> None:
    deliveries: asyncio.Queue[Delivery] = asyncio.Queue()
    may_return = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        deliveries.put_nowait(delivery)
        await may_return.wait()

    await append(log, ["a", "b"])
    async with log.consume("jobs", handle, cursor="worker") as consumer:
        message = (await deliveries.get()).message
        text = f"message {message.message_id} of 'jobs', attempt 1, is with its handler, or next"
        assert consumer.statistics().held_by == text
        may_return.set()
        await consumer.caught_up()
        assert consumer.statistics().held_by == ""


async def test_outputs_are_committed_with_the_position(log: WALAccesser) -> None:
    """A failed attempt has no outputs in the log. Neither has a successful one whose commit fails because a seek has moved the cursor."""
    runs: Counter[bytes] = Counter()

    async def handle(delivery: Delivery) -> None:
        runs[delivery.value] += 1
        delivery.append("done", b"%s%d" % (delivery.value, runs[delivery.value]), properties={"from": str(delivery.message.message_id)})
        if delivery.value == b"c" and delivery.attempt < 3:
            raise ValueError("not yet")
        if delivery.value == b"d" and runs[b"d"] == 1:
            async with log.read("done") as scanner:  # the seek passes over uncommitted outputs
                async for _, body in scanner.bodies():
                    if body.payload == b"c3":
                        break
            await log.seek("worker", to=delivery.message.message_id)

    await append(log, "abcd")
    async with log.consume("jobs", handle, cursor="worker", backoff_s=NO_PAUSE) as consumer:
        await consumer.caught_up()
        assert (consumer.statistics().failed, consumer.statistics().retried) == (2, 2)
    assert await payloads(log, "done") == ["a1", "b1", "c3", "d2"]


async def test_exhausted_message_is_a_dead_letter(log: WALAccesser) -> None:
    attempts: Counter[bytes] = Counter()

    async def handle(delivery: Delivery) -> None:
        attempts[delivery.value] += 1
        delivery.append("done", b"dropped")
        if delivery.value == b"b":
            raise ValueError("broken")
        if delivery.value == b"c":
            raise Reject("not for us")

    await log.append("jobs", b"a")
    await log.append("jobs", b"b", properties={"kind": "poison"})
    await log.append("jobs", b"c")
    options = {"cursor": "worker", "attempts": 3, "backoff_s": NO_PAUSE, "dead_letter": "dead"}
    async with log.consume("jobs", handle, **options) as consumer:  # type: ignore[call-overload]
        await consumer.caught_up()
        assert consumer.statistics().dead_lettered == 2
    assert attempts == {b"a": 1, b"b": 3, b"c": 1}
    assert await payloads(log, "done") == ["dropped"]
    async with log.read("dead", follow=False) as scanner:
        letters = [body async for _, body in scanner.bodies()]
    assert [letter.payload for letter in letters] == [b"b", b"c"]
    properties = letters[0].properties
    assert properties["kind"] == "poison"
    assert properties["dead_letter_cursor"] == "worker"
    assert properties["dead_letter_vchannel"] == "jobs"
    assert properties["dead_letter_attempts"] == "3"
    assert properties["dead_letter_reason"] == "ValueError: broken"
    assert properties["dead_letter_key"] == ""
    assert letters[1].properties["dead_letter_reason"] == "not for us"
    assert letters[1].properties["dead_letter_attempts"] == "1"


async def test_failure_without_dead_letter_ends_consumer(log: WALAccesser) -> None:
    seen: list[tuple[bytes, int]] = []

    async def handle(delivery: Delivery) -> None:
        seen.append((delivery.value, delivery.attempt))
        if delivery.value == b"b" and len(seen) < 6:
            raise ValueError("broken")

    await append(log, "abc")
    consumer = log.consume("jobs", handle, cursor="worker", attempts=2, backoff_s=NO_PAUSE)
    with pytest.raises(HandlerFailedError, match="after 2 attempts: ValueError: broken; nothing was skipped") as caught:
        await consumer.run()
    assert caught.value.message is not None
    assert caught.value.message.payload == b"b"
    assert isinstance(caught.value.__cause__, ValueError)
    assert seen == [(b"a", 1), (b"b", 1), (b"b", 2)]
    with pytest.raises(HandlerFailedError):
        await log.consume("jobs", handle, cursor="worker", attempts=2, backoff_s=NO_PAUSE).run()
    assert seen[3:] == [(b"b", 1), (b"b", 2)]  # attempts start over
    async with log.consume("jobs", handle, cursor="worker", attempts=2, backoff_s=NO_PAUSE) as consumer:
        await consumer.caught_up()
    assert seen[5:] == [(b"b", 1), (b"c", 1)]


@pytest.mark.parametrize("concurrency", [1, 8])
async def test_order_of_keys_is_kept(log: WALAccesser, concurrency: int) -> None:
    handled: dict[bytes, list[int]] = {}
    running: set[bytes] = set()

    async def handle(delivery: Delivery) -> None:
        key, number = delivery.value.split(b":")
        assert key not in running
        running.add(key)
        await asyncio.sleep(0)
        running.remove(key)
        if int(number) % 5 == 3 and delivery.attempt == 1:
            raise ValueError("once")
        handled.setdefault(key, []).append(int(number))

    await append(log, [f"{key}:{number}" for number in range(20) for key in "abcdefgh"])
    async with log.consume(
        "jobs", handle, cursor="worker", concurrency=concurrency, order="key", key=key_of, backoff_s=NO_PAUSE
    ) as consumer:
        await consumer.caught_up()
    assert handled == {key.encode(): list(range(20)) for key in "abcdefgh"}


async def test_parked_message_lets_its_key_go_on(log: WALAccesser) -> None:
    handled: list[bytes] = []

    async def handle(delivery: Delivery) -> None:
        if delivery.value == b"a:0" and delivery.attempt == 1:
            raise Retry(0.05)
        handled.append(delivery.value)

    await append(log, ["a:0", "a:1", "a:2"])
    async with log.consume("jobs", handle, cursor="worker", order="key", key=key_of, on_failure="park") as consumer:
        await consumer.caught_up()
    assert handled == [b"a:1", b"a:2", b"a:0"]


async def test_poison_holds_only_its_key(log: WALAccesser) -> None:
    handled: list[bytes] = []
    enough = asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        if delivery.value == b"a:0":
            raise ValueError("poison")
        handled.append(delivery.value)
        if len(handled) == 50:
            enough.set()

    await append(log, ["a:0", "a:1", *(f"b:{number}" for number in range(50))])
    async with log.consume("jobs", handle, cursor="worker", order="key", key=key_of, attempts=100, backoff_s=(60.0, 60.0)) as consumer:
        await enough.wait()
        assert "with key b'a', attempt 2, rests after a failed attempt" in consumer.statistics().held_by
    assert b"a:1" not in handled
    handled.clear()
    consumer = log.consume("jobs", handle, cursor="worker", order="key", key=key_of, attempts=1, dead_letter="dead")
    async with consumer:
        await consumer.caught_up()
    assert handled == [b"a:1"]  # messages finished after the poison are remembered
    assert await payloads(log, "dead") == ["a:0"]


async def test_batches_have_an_outcome_each(log: WALAccesser) -> None:
    batches: list[list[bytes]] = []

    async def handle(deliveries: list[Delivery]) -> list[Exception | None]:
        batches.append([delivery.value for delivery in deliveries])
        results: list[Exception | None] = []
        for delivery in deliveries:
            delivery.append("done", delivery.value)
            results.append(Reject("odd") if int(delivery.value) % 2 else ValueError("x") if delivery.attempt < 2 else None)
        return results

    await append(log, map(str, range(8)))
    async with log.consume("jobs", handle, cursor="worker", batch=4, order="none", backoff_s=NO_PAUSE, dead_letter="dead") as consumer:
        await consumer.caught_up()
    assert max(map(len, batches)) == 4
    assert sorted(await payloads(log, "done")) == ["0", "2", "4", "6"]
    assert sorted(await payloads(log, "dead")) == ["1", "3", "5", "7"]


async def test_wrong_result_of_batch_fails_it(log: WALAccesser) -> None:
    async def handle(deliveries: list[Delivery]) -> list[None]:
        return [None]

    await append(log, "ab")
    with pytest.raises(HandlerFailedError, match="a result for each of its 2 deliveries, not 1 results"):
        await log.consume("jobs", handle, cursor="worker", batch=10, attempts=1).run()


async def test_sync_handler_runs_in_threads(log: WALAccesser) -> None:
    threads: set[int] = set()
    both = threading.Barrier(2)

    def handle(delivery: Delivery) -> None:
        threads.add(threading.get_ident())
        both.wait(20)
        delivery.append("done", delivery.value)

    await append(log, "abcd")
    async with log.consume("jobs", handle, cursor="worker", concurrency=2, order="none") as consumer:
        await consumer.caught_up()
    assert threading.get_ident() not in threads
    assert sorted(await payloads(log, "done")) == ["a", "b", "c", "d"]


async def test_slow_attempt_times_out(log: WALAccesser) -> None:
    kept: list[Delivery] = []

    async def handle(delivery: Delivery) -> None:
        if delivery.attempt == 1:
            kept.append(delivery)
            delivery.append("done", b"dropped")
            await asyncio.Event().wait()
        with pytest.raises(InvalidTransactionStateError):
            kept[0].append("done", b"late")
        delivery.extend(60)
        delivery.append("done", b"kept")

    await append(log, "a")
    async with log.consume("jobs", handle, cursor="worker", timeout_s=0.05, backoff_s=NO_PAUSE) as consumer:
        await consumer.caught_up()
        assert consumer.statistics().failed == 1
    assert await payloads(log, "done") == ["kept"]


async def test_timed_out_thread_keeps_its_lane(log: WALAccesser) -> None:
    late, going, order = threading.Event(), threading.Event(), []

    def handle(delivery: Delivery) -> None:
        order.append((delivery.value, delivery.attempt))
        if delivery.value == b"a" and delivery.attempt == 1:
            delivery.extend(0.05)  # the other attempts have all the time that a busy machine takes to start a thread
            with pytest.raises(InvalidTransactionStateError):
                while True:
                    delivery.append("done", b"late")
                    time.sleep(0.01)
            late.set()
            going.wait(WAIT_TIMEOUT_S)

    await append(log, "ab")
    options = {"concurrency": 2, "order": "key", "key": lambda message: message.vchannel}
    async with log.consume("jobs", handle, cursor="worker", timeout_s=600.0, backoff_s=NO_PAUSE, **options) as consumer:  # type: ignore[call-overload]
        await asyncio.to_thread(late.wait)
        await asyncio.sleep(0.1)  # only time can show that no other body of the lane begins
        assert order == [(b"a", 1)]
        going.set()
        await consumer.caught_up()
    assert order == [(b"a", 1), (b"a", 2), (b"b", 1)]


async def test_close_releases_what_runs(log: WALAccesser) -> None:
    began, seen = asyncio.Event(), []

    async def handle(delivery: Delivery) -> None:
        seen.append((delivery.value, delivery.attempt))
        if len(seen) <= 2:
            delivery.append("done", b"dropped")
            began.set()
            await asyncio.Event().wait()
        delivery.append("done", delivery.value)

    await append(log, "abc")
    for _ in range(2):
        began.clear()
        consumer = log.consume("jobs", handle, cursor="worker")
        async with consumer:
            await began.wait()
            await consumer.close(drain_s=0.0)
        assert consumer.statistics().state == "ended"
    async with log.consume("jobs", handle, cursor="worker") as consumer:
        await consumer.caught_up()
    assert seen == [(b"a", 1), (b"a", 1), (b"a", 1), (b"b", 1), (b"c", 1)]
    assert await payloads(log, "done") == ["a", "b", "c"]


async def test_cancelled_run_is_a_release(log: WALAccesser) -> None:
    began, seen = asyncio.Event(), []

    async def handle(delivery: Delivery) -> None:
        seen.append(delivery.attempt)
        if len(seen) == 1:
            began.set()
            await asyncio.Event().wait()

    await append(log, "a")
    running = asyncio.ensure_future(log.consume("jobs", handle, cursor="worker").run())
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with log.consume("jobs", handle, cursor="worker", exclusive="error") as consumer:
        await consumer.caught_up()
    assert seen == [1, 1]


async def test_drain_lets_handlers_finish(log: WALAccesser) -> None:
    began, going = asyncio.Event(), asyncio.Event()

    async def handle(delivery: Delivery) -> None:
        began.set()
        await going.wait()
        delivery.append("done", delivery.value)

    await append(log, "ab")
    consumer = log.consume("jobs", handle, cursor="worker")
    async with consumer:
        await began.wait()
        closing = asyncio.ensure_future(consumer.close())
        await asyncio.sleep(0)
        assert consumer.statistics().state == "draining"
        going.set()
        await closing
    assert await payloads(log, "done") == ["a"]


async def test_second_consumer_waits_or_is_refused(log: WALAccesser) -> None:
    async def handle(delivery: Delivery) -> None:
        delivery.append("done", delivery.value)

    async with log.consume("jobs", handle, cursor="worker") as first:
        await first.caught_up()
        with pytest.raises(ResourceAcquiredError):
            await log.consume("jobs", handle, cursor="worker", exclusive="error").run()
        async with log.consume("jobs", handle, cursor="worker") as second:
            await append(log, "a")
            await first.caught_up()
            assert second.statistics().state == "waiting"
            await first.close()
            await append(log, "b")
            await second.caught_up()
            assert second.statistics().fence > first.statistics().fence
    assert await payloads(log, "done") == ["a", "b"]


async def test_paused_consumer_starts_nothing(log: WALAccesser) -> None:
    handled: list[bytes] = []

    async def handle(delivery: Delivery) -> None:
        handled.append(delivery.value)

    async with log.consume("jobs", handle, cursor="worker") as consumer:
        await append(log, "a")
        await consumer.caught_up()
        consumer.pause()
        await append(log, "b")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(consumer.caught_up(), 0.1)
        assert consumer.statistics().state == "paused"
        assert handled == [b"a"]
        consumer.resume()
        await consumer.caught_up()
    assert handled == [b"a", b"b"]


async def test_key_that_raises_ends_consumer(log: WALAccesser) -> None:
    async def handle(delivery: Delivery) -> None: ...

    def key(message: object) -> str:
        raise KeyError("tenant")

    await append(log, "a")
    with pytest.raises(InvalidArgumentError, match=r"key function of consumer 'worker' failed at message .* KeyError: 'tenant'"):
        await log.consume("jobs", handle, cursor="worker", order="key", key=key).run()
    with pytest.raises(InvalidArgumentError, match="returned None"):
        await log.consume("jobs", handle, cursor="worker", order="key", key=lambda message: None).run()  # type: ignore[call-overload]
    async with log.consume("jobs", handle, cursor="worker") as consumer:
        await consumer.caught_up()
        assert consumer.statistics().handled == 1


async def test_closing_log_ends_its_consumers(location: str) -> None:
    from tests.locations import open_wal

    began = asyncio.Event()
    seen: list[int] = []

    async def handle(delivery: Delivery) -> None:
        seen.append(delivery.attempt)
        began.set()
        await asyncio.sleep(0)

    async with open_wal(location) as log:
        await append(log, "a")
        consumer: Consumer = log.consume("jobs", handle, cursor="worker")
        running = asyncio.ensure_future(consumer.run())
        await began.wait()
    await running
    assert seen == [1]


async def test_outputs_wait_for_their_time(log: WALAccesser) -> None:
    due = datetime.now(UTC) + timedelta(seconds=600)

    async def remind(delivery: Delivery) -> None:
        delivery.append("reminders", b"late " + delivery.value, deliver_at=due, properties={"a": "b"})
        delivery.append("reminders", b"now " + delivery.value)
        if delivery.attempt == 1:
            raise Retry(0)
        with pytest.raises(InvalidArgumentError, match="no time zone"):
            delivery.append("reminders", b"", deliver_at=datetime.now())
        with pytest.raises(TypeError, match="deliver_at must be a datetime"):
            delivery.append("reminders", b"", deliver_at=5)  # type: ignore[call-overload]

    await append(log, ["1", "2"])
    for _ in range(2):
        async with log.consume("jobs", remind, cursor="worker") as consumer:
            await consumer.caught_up()
        await log.seek("worker", to=All())  # handles them again, which schedules nothing again
    waiting = await log.scheduled("reminders")
    assert len({message.key for message in waiting}) == len(waiting) == 2
    assert abs(waiting[0].deliver_at - due) <= timedelta(milliseconds=1)
    assert (await payloads(log, "reminders"))[:2] == ["now 1", "now 2"]
