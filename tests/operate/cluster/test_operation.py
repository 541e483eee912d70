"""Wrong operation of a cluster ends with one sentence, and loses nothing: clocks, formats, tokens, and an etcd without a quorum."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.operate.cluster.processes import Cluster, Member
from tests.processes import eventually
from wal import All, Log, Message, open_wal
from wal.channels.cluster import FORMAT, load_cluster
from wal.channels.pchannels import PREFIX as PCHANNELS
from wal.errors import AuthenticationError, InvalidArgumentError, UnavailableError
from wal.operate.copying import copy
from wal.operate.processes.opening import open_root
from wal.rpc.api.component_pb2 import GetComponentStatesRequest
from wal.rpc.connection import Connection
from wal.rpc.methods import NODE_STATES
from wal.serve.server import READINESS
from wal.settings import Settings


async def test_node_whose_clock_is_off_gets_nothing(cluster: Cluster) -> None:
    await cluster.start(coordinators=1, nodes=1)
    off = cluster.node(1, before="import time\nreal = time.time\ntime.time = lambda: real() + 10.0")
    cluster.nodes.append(off)
    await asyncio.to_thread(off.start)

    async def is_told() -> bool:
        return any("its clock is off by +10.0 s" in each["trouble"] for each in (await cluster.status())["nodes"])

    await eventually(is_told)
    assert {each["address"] for each in (await cluster.status())["pchannels"]} == {cluster.nodes[0].address}


async def test_node_of_an_older_format_must_update(cluster: Cluster) -> None:
    await cluster.start(coordinators=1, nodes=1)
    old = cluster.node(1, before="import wal.channels.cluster\nwal.channels.cluster.FORMAT = 0")
    with pytest.raises(RuntimeError, match=f"writes format {FORMAT}, and this version supports 0: update it first"):
        await asyncio.to_thread(old.start)


async def test_wrong_token_is_told(cluster: Cluster) -> None:
    token = "the-token-of-the-servers-of-this-cluster"
    cluster.environment["WAL_SERVER_TOKEN"] = cluster.token = token
    await cluster.start(coordinators=1, nodes=1)
    with pytest.raises(AuthenticationError):
        await open_wal(cluster.root, token="another-token-that-nobody-has-given-out")
    wrong = Member(
        "wrong", ("node", cluster.root), cluster.folder, cluster.environment | {"WAL_SERVER_TOKEN": "another-token-that-nobody-gave"}
    )
    cluster.nodes.append(wrong)
    await asyncio.to_thread(wrong.start)

    async def is_told() -> bool:
        return any("token" in each["trouble"] for each in (await cluster.status())["nodes"])

    await eventually(is_told)
    assert {each["address"] for each in (await cluster.status())["pchannels"]} == {cluster.nodes[0].address}
    cluster.token = ""  # without another token, orders send the servers' shared one
    assert json.loads(await cluster.order("status", cluster.root, "--json"))["leader"] == cluster.coordinators[0].address


async def test_cluster_outlives_the_change_of_its_token(cluster: Cluster) -> None:
    """Without a restart its servers show each other the token that their file has first."""
    file = cluster.folder / "tokens"

    async def renew(*tokens: str) -> None:
        """Changes the file of the tokens, and returns when all processes have read it."""
        file.write_text("".join(f"{token}\n" for token in tokens))
        times = [member.text().count("were read again") for member in cluster.members]
        for member in cluster.members:
            member.signal(signal.SIGHUP)
        await eventually(
            lambda: all(member.text().count("were read again") > before for member, before in zip(cluster.members, times, strict=True))
        )

    file.write_text("old\n")
    cluster.environment["WAL_SERVER_TOKEN_FILE"] = str(file)
    cluster.token = "old"
    await cluster.start(coordinators=1, nodes=2)
    async with open_wal(cluster.root, token="old") as log:
        await log.append("orders", b"1")
    for tokens in (("old", "new"), ("new", "old"), ("new",)):
        await renew(*tokens)
    cluster.token = "new"
    await asyncio.to_thread(cluster.nodes.pop().kill)
    await cluster.settled(nodes=1)  # the coordinator gives all pchannels to the other node
    async with open_wal(cluster.root, token="new") as log:
        await log.append("orders", b"2")
        assert [message.payload async for message in log.read("orders", follow=False)] == [b"1", b"2"]


async def test_readiness_names_what_is_on_no_node(cluster: Cluster) -> None:
    async def readiness(member: Member) -> tuple[bool, str]:
        """Returns whether a process reports that the cluster is ready, and the reason."""
        async with grpc.aio.insecure_channel(member.address) as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(service=READINESS))
        connection = await Connection.open([member.address])
        try:
            states = await connection.call(NODE_STATES, GetComponentStatesRequest(), "asking for the state")
        finally:
            await connection.close()
        (said,) = [each.value for each in states.state.extra_info if each.key == READINESS]
        return answer.status == health_pb2.HealthCheckResponse.SERVING, said

    async def is_ready(member: Member) -> bool:
        return await readiness(member) == (True, "ready")

    await cluster.start(coordinators=2, nodes=1)
    leader, (node,) = await cluster.leader(), cluster.nodes
    for member in cluster.members:
        await eventually(lambda member=member: is_ready(member))  # type: ignore[misc]
    await asyncio.to_thread(node.kill)

    async def is_told() -> bool:
        ready, why = await readiness(leader)
        return not ready and "pchannel p0" in why

    await eventually(is_told)
    await asyncio.to_thread(node.start)
    for member in cluster.members:
        await eventually(lambda member=member: is_ready(member))  # type: ignore[misc]


async def test_format_rises_once_every_node_writes_it(cluster: Cluster) -> None:
    """Until then no cursor moves with a transaction: the earlier node could not open its pchannel any more."""

    async def save(log: Log) -> None:
        """Saves a cursor with a transaction."""
        async with log.read("in", cursor="moving", deliver_policy=All(), follow=False) as scanner:
            await anext(scanner)
            async with log.txn("out") as txn:
                await txn.append(b"1")
                txn.save(scanner)

    earlier = "import wal.channels.cluster, wal.storage.kv.etcd.connection\nwal.channels.cluster.FORMAT = 1\n"
    earlier += "wal.storage.kv.etcd.connection.sealed = lambda key, value: value"
    cluster.coordinators = [first := cluster.coordinator(0, 2, before=earlier)]
    await asyncio.to_thread(first.start)
    await asyncio.to_thread(first.kill)
    cluster.coordinators = [cluster.coordinator(1, 2, log=False)]
    cluster.nodes = [cluster.node(0, before=earlier), cluster.node(1)]
    await asyncio.gather(*(asyncio.to_thread(member.start) for member in cluster.members))
    await cluster.settled(nodes=2)
    async with await open_root(cluster.root) as kv, open_wal(cluster.root) as log:

        async def form() -> int:
            record = await load_cluster(kv)
            assert record is not None
            return record.format

        pchannel = next(each["pchannel"] for each in (await cluster.status())["pchannels"] if each["address"] == cluster.nodes[1].address)
        for name in ("in", "out"):
            await log.create_vchannel(name, pchannel=pchannel)
        await log.raw_append(Message("in", b"1"))
        with pytest.raises(UnavailableError, match="this one has format 1: update all its nodes"):
            await save(log)
        assert await form() == 1, "one node does not write it"
        await asyncio.to_thread(cluster.nodes[0].kill)

        async def is_raised() -> bool:
            return await form() == FORMAT

        assert not kv.calls.sealed, "every record so far can be read by the earlier node"
        await eventually(is_raised)
        await cluster.settled(nodes=1)
        await save(log)
        assert [info.name for info in await log.cursors()] == ["moving"]

        async def have_checksums() -> bool:
            await kv.load_with_prefix(PCHANNELS)
            return kv.calls.sealed

        await eventually(have_checksums)
    with pytest.raises(RuntimeError, match=f"writes format {FORMAT}, and this version supports 1: update it first"):
        await asyncio.to_thread(cluster.node(2, before=earlier).start)


async def test_log_of_a_cluster_is_copied(cluster: Cluster, tmp_path: Path) -> None:
    await cluster.start(coordinators=1, nodes=1)
    async with open_wal(cluster.root) as log:
        results = [await log.append("orders", b"%d" % number) for number in range(4)]
        async with log.read("orders", cursor="billing", deliver_policy=All()) as scanner:
            await anext(scanner)
            await scanner.save()
    cluster.close()
    url, token = (cluster.environment.get(f"WAL_PULSAR_{name}") for name in ("ADMIN_URL", "TOKEN"))
    settings = Settings.load().replace(pulsar_admin_url=url, pulsar_token=token)
    copied = await copy(cluster.root, str(tmp_path / "copied"), source_settings=settings)
    assert copied is not None
    assert copied.cursors == 1
    async with open_wal(tmp_path / "copied") as log, log.read("orders", cursor="billing", follow=False) as scanner:
        assert [message.time_tick async for message in scanner] == [result.time_tick for result in results[1:]]
    with pytest.raises(InvalidArgumentError, match="no cluster"):
        await copy(f"{cluster.root}-other", str(tmp_path / "other"), source_settings=settings)
    assert not (tmp_path / "other").exists()
