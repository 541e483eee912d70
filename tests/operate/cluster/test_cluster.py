"""The view of a client when the processes of a cluster start, end and freeze: a pause, and nothing else."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable

import pytest

from tests.operate.cluster.processes import TTL_S, Cluster
from tests.operate.cluster.workload import Workload
from tests.rpc.contract import Contract
from tests.serve.foreign import Foreign
from wal import All, Log, Message, OwnerDescription, open_wal
from wal.errors import InvalidArgumentError
from wal.read.cursors.cursor import CursorKey
from wal.rpc.api.pchannel_pb2 import PChannelInfo


async def test_every_node_gets_its_share(cluster: Cluster) -> None:
    await cluster.start(coordinators=1, nodes=2)
    status = await cluster.settled()
    assert [each["pchannels"] for each in status["nodes"]] == [2, 2]
    async with open_wal(cluster.root) as log:
        result = await log.raw_append(Message("orders", b"1"))
        async with log.read("orders") as scanner:
            assert (await anext(scanner)).message_id == result.message_id


async def test_new_vchannel_goes_to_the_emptiest_pchannel(cluster: Cluster) -> None:
    await cluster.start(coordinators=1, nodes=2)
    async with open_wal(cluster.root) as log:
        await log.create_vchannel("first", pchannel="p3")
        await log.create_vchannel("second", pchannel="p3")
        appended = [await log.raw_append(Message(f"v{number}", b"1")) for number in range(6)]
        counts = Counter(each.message_id.pchannel for each in appended)
        assert counts == {"p0": 2, "p1": 2, "p2": 2}
        channels = await log.create_channels(OwnerDescription("test"), 4)
        places = {info.name: info.pchannel for info in await log.vchannels()}
        assert sorted(places[name] for name in channels) == ["p0", "p1", "p2", "p3"]


@pytest.mark.soak("test_round kills a node by default, and the simulation all that may die")
async def test_killed_node_costs_a_pause(cluster: Cluster) -> None:
    await cluster.start()
    async with open_wal(cluster.root) as log:
        work = Workload(log)
        work.start()
        await work.progress()
        (await cluster.owner("p0")).kill()
        assert await work.progress() <= TTL_S + 5.0
        await cluster.settled(nodes=2)
        await work.stop()
        await work.judge()


async def test_stopped_node_hands_over_and_ends_with_0(cluster: Cluster) -> None:
    await cluster.start(coordinators=1)
    async with open_wal(cluster.root) as log:
        work = Workload(log)
        work.start()
        await work.progress()
        node = await cluster.owner("p0")
        node.signal(signal.SIGTERM)
        await work.progress()
        await cluster.settled(nodes=2)
        while node.exit_code() is None:
            await asyncio.sleep(0.01)
        assert node.exit_code() == 0, node.text()[-2000:]
        await work.stop()
        await work.judge()
        assert not work.written.errors, work.written.errors


@pytest.mark.soak("test_drained_node_stays_empty_under_the_next_leader kills a leader under appends by default")
async def test_killed_leader_costs_appends_nothing(cluster: Cluster) -> None:
    await cluster.start()
    async with open_wal(cluster.root) as log:
        work = Workload(log)
        work.start()
        await work.progress()
        leader = await cluster.leader()
        await asyncio.to_thread(leader.kill)
        await work.progress()
        assert await cluster.leader() is not leader
        await work.progress()
        await log.create_vchannel("new")
        await work.stop()
        await work.judge()
        assert not work.written.errors, work.written.errors


async def test_milvus_producer_creates_its_vchannel_on_its_pchannel(cluster: Cluster, contract: Contract) -> None:
    """Milvus' protocol has no other call for that. A vchannel that another producer created meanwhile is not created again."""
    await cluster.start(coordinators=2, nodes=1)
    info = PChannelInfo(name="p2", term=next(each["term"] for each in (await cluster.settled())["pchannels"] if each["pchannel"] == "p2"))
    async with open_wal(cluster.root) as log, Foreign(cluster.nodes[0].address, contract) as foreign:
        call = foreign.produce(foreign.kind("PChannelInfo")(name=info.name, term=info.term))
        assert (await call.read()).create.producer_id == 1
        for number in range(4):
            await call.write(foreign.request(number, foreign.message(f"made-{number % 2}", b"%d" % number)))
        answers = [await call.read() for _ in range(4)]
        assert all(answer.produce.HasField("result") for answer in answers), answers
        call.cancel()
        created = {each.name: each.pchannel for each in await log.vchannels()}
        assert created == {"made-0": "p2", "made-1": "p2"}
        async with log.read("made-1", follow=False) as scanner:
            assert [message.payload async for message in scanner] == [b"1", b"3"]


async def test_moving_cursor_follows_its_pchannel(cluster: Cluster) -> None:
    """A consumer continues to commit while the node of its pchannel is killed; a stage that saves with transactions continues from its
    cursor.
    """

    async def save(log: Log, count: int) -> None:
        async with log.read("in", cursor="saving", deliver_policy=All(), follow=False) as scanner:
            for _ in range(count):
                message = await anext(scanner)
                async with log.txn("saved") as txn:
                    await txn.append(message.payload)
                    txn.save(scanner)

    await cluster.start()
    count = 60
    async with open_wal(cluster.root) as log:
        for name, pchannel in (("in", "p0"), ("committed", "p0"), ("saved", "p0"), ("elsewhere", "p1")):
            await log.create_vchannel(name, pchannel=pchannel)
        await log.append_bulk([Message("in", b"%d" % number) for number in range(count)])
        await save(log, 10)
        home = await (await log._lifecycle.ready()).cursor_home(CursorKey.of("committing", ("in",)))
        claim = await home.claim()
        commits: list[Awaitable[object]] = []
        async with log.read("in", cursor="committing", deliver_policy=All(), follow=False) as scanner:
            async for message in scanner:
                bodies = [Message("committed", message.payload)]
                commits.append(home.commit(bodies, position=scanner._cursor()[0], state=message.payload, fence=claim.fence))
                if len(commits) == count // 2:
                    (await cluster.owner("p0")).kill()
        await asyncio.gather(*commits)
        await cluster.settled(nodes=2)
        await save(log, 10)
        async with log.read("in", cursor="saving", deliver_policy=All(), follow=False) as scanner:
            txn = await log.txn("elsewhere")
            txn.save(scanner, "another")
            with pytest.raises(InvalidArgumentError, match="in a cluster"):
                await txn.commit()
        for name, expected in (("committed", count), ("saved", 20)):
            async with log.read(name, deliver_policy=All(), follow=False) as scanner:
                assert [int(body.payload) async for _, body in scanner.bodies()] == list(range(expected))
        await home.release(claim.fence)
        assert (await home.claim(exclusive="error")).state == b"%d" % (count - 1)
