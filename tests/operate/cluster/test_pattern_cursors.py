"""Consumers of a pattern in a cluster, whose pchannels are truncated meanwhile; the home of the cursor and truncating nodes are killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import time
from functools import partial
from itertools import product

import msgspec
import pytest

from tests.conftest import SOAK
from tests.operate.cluster.processes import Cluster, Member
from tests.processes import eventually
from wal import AppendResult, Delivery, Log, Matching, Settings, open_wal
from wal.errors import InvalidArgumentError, TruncatedError, UnavailableError, UnknownOutcomeError
from wal.location import parse_location
from wal.read.cursors.cursor import CursorKey
from wal.read.merged import tick_cursor
from wal.read.options import TickPosition
from wal.read.read_only_core import ReadOnlyCore
from wal.read.sources import source_of

ACCOUNTS = Matching("account-*")
OUTPUTS = {"out": "p0", "elsewhere": "p1"}
"""The vchannels of the outputs, with their pchannels; those of the shared cursor have its name in front."""
CURSORS = ("sums", "shared")
COUNT = 40
HOME = "p0"
KILLED_HOMES = [random.Random(number).random() < 0.4 for number in range(20)] if SOAK else [True, False]
"""Whether each killed node is the home of the cursor, or has other pchannels alone."""


async def test_consumer_of_a_pattern_loses_no_message(cluster: Cluster) -> None:
    """One cursor has a consumer alone, and two consumers share the other one; both cursors have their home on the first pchannel."""
    await cluster.start(coordinators=1, nodes=3)
    handled: dict[str, set[int]] = {cursor: set() for cursor in CURSORS}
    attempts: set[int] = set()
    results: list[AppendResult] = []
    truncated: dict[str, int] = {}

    async def handle(cursor: str, delivery: Delivery) -> None:
        attempts.add(delivery.attempt)
        for name in OUTPUTS:
            delivery.append(f"{cursor}-{name}", delivery.value)
        handled[cursor].add(int(delivery.value))

    async def truncate(log: Log) -> None:
        """Truncates at any message, again and again, which is refused unless all up to there is finished. The pchannels of the outputs stay
        as they are."""
        while True:
            await asyncio.sleep(0.005)
            if len(results) < 4:
                continue
            number = random.choice([one for one in range(len(results)) if one % 4 > 1])
            message_id = results[number].message_id
            try:
                await log.truncate(up_to=message_id)
            except InvalidArgumentError as error:
                assert re.search(r"still needed by cursor '(sums|shared)' of \"Matching\('account-\*'\)\"", str(error))
            except (TruncatedError, UnavailableError, UnknownOutcomeError):
                pass  # it was truncated further, or its node is being replaced
            else:
                own = [one for one, result in enumerate(results[: number + 1]) if result.message_id.pchannel == message_id.pchannel]
                assert all(numbers.issuperset(own) for numbers in handled.values())
                truncated[message_id.pchannel] = max(number, truncated.get(message_id.pchannel, 0))

    async with open_wal(cluster.root) as log, open_wal(cluster.root) as other, cluster.supervised():
        for number in range(4):
            await log.create_vchannel(f"account-{number}", pchannel=f"p{number}")
        for cursor, (name, pchannel) in product(CURSORS, OUTPUTS.items()):
            await log.create_vchannel(f"{cursor}-{name}", pchannel=pchannel)
        consumers = [
            one.consume(ACCOUNTS, partial(handle, cursor), cursor=cursor, concurrency=3, attempts=2, shared=cursor == "shared")
            for one, cursor in ((log, "sums"), (log, "shared"), (other, "shared"))
        ]
        async with contextlib.AsyncExitStack() as stack:
            for consumer in consumers:
                await stack.enter_async_context(consumer)
            truncating = asyncio.create_task(truncate(log))
            for is_home in KILLED_HOMES:
                before = len(results)
                for number in range(before, before + COUNT):
                    results.append(await log.append(f"account-{number % 4}", b"%d" % number, idempotency_key=f"{number}"))
                await eventually(partial(_are_past, handled, before + COUNT // 4))
                await asyncio.to_thread((await victim(cluster, is_home=is_home)).kill)
                await cluster.start_ended()
                await cluster.settled(nodes=3)
                await eventually(lambda: truncated)
            await asyncio.gather(*[consumer.caught_up() for consumer in consumers])
            truncating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await truncating
        for cursor in CURSORS:
            for name in OUTPUTS:
                outputs = await numbers(log, f"{cursor}-{name}")
                assert sorted(outputs) == list(range(len(results)))
            for account in range(4):
                of_account = [one for one in await numbers(log, f"{cursor}-out") if one % 4 == account]
                assert of_account == sorted(of_account)
            assert await log.peek(cursor) == []
        assert attempts <= {1, 2}
        for result in results[-3:]:
            await log.truncate(up_to=result.message_id)


def _are_past(handled: dict[str, set[int]], count: int) -> bool:
    return all(len(numbers) > count for numbers in handled.values())


async def numbers(log: Log, vchannel: str) -> list[int]:
    async with log.read(vchannel, follow=False) as scanner:
        return [int(body.payload) async for _, body in scanner.bodies()]


async def victim(cluster: Cluster, *, is_home: bool) -> Member:
    """Returns the node of the cursor's home, or one that has other pchannels alone, if there is one."""
    home = await cluster.owner(HOME)
    if is_home:
        return home
    owners = [await cluster.owner(f"p{number}") for number in range(1, 4)]
    return random.choice([owner for owner in owners if owner is not home] or cluster.nodes)


async def test_cursor_of_a_pattern_moves_with_transactions(cluster: Cluster) -> None:
    """The output is on the first pchannel, which has the cursor; another node than that of the read's last message commits."""
    await cluster.start(coordinators=1, nodes=2)
    async with open_wal(cluster.root) as log:
        for number in range(4):
            await log.create_vchannel(f"account-{number}", pchannel=f"p{number}")
        await log.create_vchannel("out", pchannel="p0")
        await log.create_vchannel("elsewhere", pchannel="p1")
        for number in range(8):
            await log.append(f"account-{number % 4}", b"%d" % number)
        async with log.read(ACCOUNTS, cursor="sums", follow=False) as scanner:
            commits = []
            for number in range(6):
                assert (await anext(scanner)).payload == b"%d" % number
                txn = await log.txn("out")
                await txn.append(b"%d" % number)
                txn.save(scanner)
                commits.append(txn.commit())
            await asyncio.gather(*commits)
            await anext(scanner)
            async with log.txn("elsewhere") as txn:
                await txn.append(b"6")
                txn.save(scanner)
                with pytest.raises(InvalidArgumentError, match=r"of pchannel 'p0'|moves with transactions on the first one"):
                    await txn.commit()
        assert [message.payload for message in await log.peek("sums", 8)] == [b"6", b"7"]
        for vchannel, payloads in (("out", [b"%d" % number for number in range(6)]), ("elsewhere", [])):
            async with log.read(vchannel, follow=False) as scanner:
                assert [body.payload async for _, body in scanner.bodies()] == payloads


async def test_pin_beside_a_cluster_is_adopted(cluster: Cluster, pulsar_token: str, pulsar_admin_host: str) -> None:
    """A process beside the cluster saves the cursor of a pattern, as the source of Spark does; then a reader of the cluster continues."""
    await cluster.start(coordinators=1, nodes=2)
    source = source_of(
        parse_location(cluster.log), Settings(kv=cluster.root, pulsar_token=pulsar_token, pulsar_admin_url=f"http://{pulsar_admin_host}")
    )
    core = ReadOnlyCore(source)
    await asyncio.to_thread(core.open)

    async def save(tick: int) -> None:
        cursor = tick_cursor(CursorKey.of("sums", ACCOUNTS), TickPosition.at(tick, f"p{cluster.pchannels - 1}"), core.logs)
        await asyncio.to_thread(source.cursors.save, msgspec.structs.replace(cursor, saved_at=time.time()), forward_only=True)

    async def is_refused(result: AppendResult) -> bool:
        try:
            await log.truncate(up_to=result.message_id)
        except InvalidArgumentError as error:
            return "sums" in str(error)
        except TruncatedError:  # more was truncated before
            pass
        return False

    try:
        async with open_wal(cluster.root) as log:
            for number in range(cluster.pchannels):
                await log.create_vchannel(f"account-{number}", pchannel=f"p{number}")
            results = [await log.append(f"account-{number % cluster.pchannels}", b"%d" % number) for number in range(12)]
            await save(results[4].time_tick)
            assert [await is_refused(result) for result in reversed(results[8:])] == [True] * 4
            assert not any([await is_refused(result) for result in results[:5]])
            async with log.read(ACCOUNTS, cursor="sums") as reader:
                assert [(await anext(reader)).payload for _ in range(3)] == [b"5", b"6", b"7"]
                await reader.save()
            await save(results[9].time_tick)
            assert not any([await is_refused(result) for result in results[5:10]])
            assert await is_refused(results[11])
            assert [message.payload for message in await log.peek("sums", 5)] == [b"10", b"11"]
    finally:
        await asyncio.to_thread(core.close)
