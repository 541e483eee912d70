"""Assigner: a leader whose table differs from the saved state loses the leadership, whichever call detects it. Lost nodes, and their
detection.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from tests.processes import eventually
from wal.channels.cluster import EVICTED, FORMAT, TICKS, NodeRecord, evicted_key, node_key, ticks_key
from wal.channels.cluster import encode as encode_node
from wal.channels.pchannels import PREFIX as CLAIMS
from wal.channels.pchannels import PChannelMeta, load_pchannel
from wal.channels.pchannels import encode as encode_claim
from wal.coordinator.assigner import Assigner, LeadingEndedError
from wal.coordinator.assignments import PREFIX, Assignment, Assignments, AssignmentState, NodeStart, TermHolder, encode
from wal.coordinator.membership import Membership
from wal.coordinator.node_calls import NodeCalls
from wal.coordinator.nodes import AssignedNodes
from wal.errors import ChannelFencedError, SessionLostError, UnavailableError, UnmatchedChannelTermError, WALError
from wal.rpc.api import nodes_pb2
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.connection import Connection
from wal.storage.kv import OPERATIONS_MAX, KVBase, MemoryKV
from wal.timestamp.oracle import SavedLimit

LIFETIME_S = 0.5
"""The lifetime of the nodes' leases."""
RECORD = Assignment("p0", 2, AssignmentState.ASSIGNED, (TermHolder(2, NodeStart(7, "here:1")),))


async def no_connection(address: str) -> Connection:
    raise AssertionError(f"nobody is called at {address}")


class LeasesLeft:
    """The leases that still exist."""

    def __init__(self, kv: KVBase, *live: int) -> None:
        self.live = set(live)
        self.evicted: dict[int, str] = {}
        """The leases that were revoked, with the records that were saved before."""
        self._kv = kv

    async def lifetime(self, lease: int) -> float:
        return LIFETIME_S if lease in self.live else 0.0

    async def revoke(self, lease: int) -> None:
        self.evicted[lease] = await self._kv.load(evicted_key(lease))
        await self._kv.remove(node_key(lease))


class Calls(NodeCalls):
    """Answers as nodes do of which `replaced` were started again, and of which `silent` answer nothing."""

    def __init__(self) -> None:
        super().__init__(1, no_connection)
        self.replaced: set[int] = set()
        self.silent: set[int] = set()
        self.available: list[PChannelInfo] = []
        """The pchannels that every node reports."""
        self.asked: Counter[int] = Counter()
        """The number of status calls of each node."""
        self.assigned: list[tuple[int, str, int]] = []
        """The servers that opened a pchannel, with the pchannel and its term."""
        self.refusals: list[WALError] = []
        """The errors of the next openings."""
        self.refused: list[int] = []
        """The terms of these openings."""
        self.last_ticks: dict[int, int] = {}
        """The ticks that servers answer when they remove a pchannel, 0 for others."""
        self.floors: list[int] = []
        """The ticks above which pchannels were opened."""

    async def _answer(self, node: NodeStart) -> None:
        if node.server_id in self.replaced:
            raise SessionLostError(f"at {node.address} is another node now")
        if node.server_id in self.silent:
            await asyncio.sleep(0.05)
            raise UnavailableError(f"nobody answers at {node.address}")

    async def status(self, node: NodeStart, *, timeout_s: float = 1.0) -> proto.StreamingNodeManagerCollectStatusResponse:
        self.asked[node.server_id] += 1
        await self._answer(node)
        return proto.StreamingNodeManagerCollectStatusResponse(
            wall_s=asyncio.get_running_loop().time(),
            pchannels=[nodes_pb2.HostedPChannel(pchannel=info, available=True) for info in self.available],
        )

    async def assign(self, node: NodeStart, name: str, term: int, *, floor: int) -> None:
        await self._answer(node)
        if self.refusals:
            self.refused.append(term)
            raise self.refusals.pop(0)
        self.assigned.append((node.server_id, name, term))
        self.floors.append(floor)

    async def remove(self, node: NodeStart, name: str, term: int) -> int:
        await self._answer(node)
        return self.last_ticks.get(node.server_id, 0)


async def leading(kv: KVBase, *leases: int, calls: NodeCalls | None = None, ttl_s: float = LIFETIME_S) -> Assigner:
    """Returns the assigner of a leader without nodes, whose only pchannel is assigned; these leases still exist."""
    claim = PChannelMeta("p0", 1, 2)
    await kv.multi_save({PREFIX + "p0": encode(RECORD), CLAIMS + "p0": encode_claim(claim)})
    calls, clock = calls or NodeCalls(1, no_connection), asyncio.get_running_loop().time
    membership = Membership(kv, calls, monotonic=clock, wall=clock, silent_max_s=10.0)
    assignments = Assignments({"p0": RECORD}, leader=1)
    return Assigner(
        kv,
        {"p0": claim},
        assignments,
        membership,
        calls,
        leases=LeasesLeft(kv, *leases),
        monotonic=clock,
        expected_nodes=None,
        ttl_s=ttl_s,
        wait_s=0.0,
    )


async def live(kv: KVBase, *nodes: int) -> None:
    """Saves the records of live nodes."""
    for server_id in nodes:
        await kv.save(node_key(server_id), encode_node(NodeRecord(server_id, f"here:{server_id}", "1", FORMAT)))


@contextlib.asynccontextmanager
async def running(assigner: Assigner) -> AsyncIterator[Assigner]:
    """Runs the assigner with its membership."""
    await assigner.load()
    await assigner._membership.start()
    task = asyncio.ensure_future(assigner.run())
    try:
        yield assigner
    finally:
        task.cancel()
        await asyncio.wait([task])
        await assigner._membership.close()


async def test_new_pchannels_respect_the_limit_of_the_kv() -> None:
    async with MemoryKV() as kv:
        kv.operations_max = OPERATIONS_MAX
        assigner = await leading(kv)
        assigner._metas.update({f"p{number}": PChannelMeta(f"p{number}", 1, 0) for number in range(1, 3 * OPERATIONS_MAX)})
        await assigner.load()
        keys, _ = await kv.load_with_prefix(PREFIX)
        assert len(keys) == len(assigner.assignments.records) == 3 * OPERATIONS_MAX
        assert assigner.assignments.records["p0"] == RECORD


async def test_report_is_saved_before_it_is_visible() -> None:
    async with MemoryKV() as kv:
        assigner = await leading(kv)
        await assigner.lost("p0", 1, "an old term")
        assert assigner.assignments.records["p0"] == RECORD
        await assigner.lost("p0", 2, "a client says so")
        assert assigner.assignments.records["p0"].state is AssignmentState.UNAVAILABLE
        assert await kv.load(PREFIX + "p0") == encode(assigner.assignments.records["p0"])


async def test_report_of_an_available_pchannel_changes_nothing() -> None:
    async with MemoryKV() as kv:
        calls = Calls()
        assigner = await leading(kv, calls=calls)
        await assigner.reported("p0", 1, "a client reports an old term")
        await assigner.reported("unknown", 2, "a client reports another log")
        assert not calls.asked
        calls.available = [PChannelInfo(name="p0", term=2)]
        await asyncio.gather(*(assigner.reported("p0", 2, "a client says so") for _ in range(3)))
        assert assigner.assignments.records["p0"] == RECORD
        asked = calls.asked[7]
        calls.available = [PChannelInfo(name="p0", term=1), PChannelInfo(name="p1", term=2)]
        await asyncio.gather(*(assigner.reported("p0", 2, "a client says so") for _ in range(3)))
        assert assigner.assignments.records["p0"].state is AssignmentState.UNAVAILABLE
        assert calls.asked[7] == asked + 1, "one answer is for all who report together"


async def test_report_about_a_silent_owner_is_believed() -> None:
    async with MemoryKV() as kv:
        calls = Calls()
        calls.silent.add(7)
        assigner = await leading(kv, calls=calls)
        await assigner.reported("p0", 2, "a client says so")
        assert assigner.assignments.records["p0"].state is AssignmentState.UNAVAILABLE


async def test_report_against_another_record_ends_the_leading() -> None:
    async with MemoryKV() as kv:
        assigner = await leading(kv)
        running = asyncio.ensure_future(assigner.run())
        await asyncio.sleep(0)
        await kv.save(PREFIX + "p0", encode(Assignment("p0", 3, AssignmentState.ASSIGNING, (TermHolder(3, NodeStart(8, "there:2")),))))
        await assigner.lost("p0", 2, "a client says so")
        with pytest.raises(LeadingEndedError, match="p0"):
            await asyncio.wait_for(running, 10)
        assert assigner.assignments.records["p0"] == RECORD


async def test_limits_of_nodes_that_are_gone_are_removed() -> None:
    async with MemoryKV() as kv:
        assigner = await leading(kv, 8)
        for server_id in (7, 8, 9):  # 7 owns p0, 8 is starting, 9 has ended
            await SavedLimit(kv, ticks_key(server_id)).take_over(lambda _: 5)
        await assigner.sweep()
        keys, _ = await kv.load_with_prefix(TICKS)
        assert keys == [ticks_key(7), ticks_key(8)]


async def test_restarted_node_is_gone_before_its_lease() -> None:
    async with MemoryKV() as kv:
        await live(kv, 7, 8)
        calls = Calls()
        calls.replaced.add(7)
        async with running(await leading(kv, 7, 8, calls=calls)):
            await eventually(lambda: calls.assigned)
            assert calls.assigned == [(8, "p0", 3)]
            assert await kv.load(node_key(7)), "its lease goes on"


async def test_assign_finds_that_its_node_was_started_again() -> None:
    async with MemoryKV() as kv:
        await live(kv, 8, 9)
        calls = Calls()
        async with running(await leading(kv, 8, 9, calls=calls)) as assigner:
            await eventually(lambda: calls.assigned == [(8, "p0", 3)])
            calls.replaced.add(8)
            await assigner.lost("p0", 3, "a client says so")
            await eventually(lambda: len(calls.assigned) == 2)
            assert calls.assigned[1][:2] == (9, "p0")


async def test_eviction_is_saved_before_the_lease_is_revoked() -> None:
    async with MemoryKV() as kv:
        await live(kv, 7, 8)
        calls = Calls()
        calls.silent.add(7)
        assigner = await leading(kv, 7, 8, calls=calls)
        leases = assigner._leases
        assert isinstance(leases, LeasesLeft)
        async with running(assigner):
            await assigner.lost("p0", 2, "a client says so")
            await eventually(lambda: calls.assigned)
        assert leases.evicted == {7: str(LIFETIME_S)}
        leases.live.discard(7)
        await assigner.sweep()
        assert await kv.load_with_prefix(EVICTED) == ([], [])


async def test_next_leader_waits_for_an_evicted_node() -> None:
    async with MemoryKV() as kv:
        await live(kv, 8)
        await kv.save(evicted_key(7), str(LIFETIME_S))
        calls, clock = Calls(), asyncio.get_running_loop().time
        calls.silent.add(7)
        assigner = await leading(kv, 8, calls=calls)
        began_s = clock()
        async with running(assigner):
            await eventually(lambda: calls.assigned)
        assert clock() - began_s >= LIFETIME_S


async def test_dead_node_is_not_called_at_first() -> None:
    async with MemoryKV() as kv:
        calls = Calls()
        calls.silent.add(7)
        assigner = await leading(kv, calls=calls)
        nodes = AssignedNodes(assigner, calls)
        assert nodes.place("p0") is None, "node 7 is its owner, and not live"
        await live(kv, 8)
        async with running(assigner):
            await eventually(lambda: nodes.place("p0") is not None)
            assert nodes.place("p0") == (NodeStart(8, "here:8"), PChannelInfo(name="p0", term=3))


async def test_node_with_a_revoked_lease_is_awaited() -> None:
    async with MemoryKV() as kv:
        await live(kv, 7, 8)
        calls = Calls()
        async with running(await leading(kv, 8, calls=calls, ttl_s=600.0)) as assigner:
            await kv.remove(node_key(7))
            await eventually(lambda: 7 not in assigner._membership.nodes)
            asked = calls.asked[7]
            await eventually(lambda: calls.asked[7] >= asked + 3)
            assert calls.assigned == []
            calls.replaced.add(7)  # it has detected that its lease has ended
            await eventually(lambda: calls.assigned)
            assert calls.assigned == [(8, "p0", 3)]


async def test_refused_term_rises_at_once_above_the_log() -> None:
    """etcd was restored from an old copy: the nodes and the logs have had higher terms, and each error names one."""
    async with MemoryKV() as kv:
        await live(kv, 8)
        calls = Calls()
        calls.silent.add(7)
        calls.refusals = [
            UnmatchedChannelTermError("opened here in term 41 already", term=41),
            ChannelFencedError("the log was written in term 100", term=100),
            ChannelFencedError("another writer was faster"),
        ]
        async with running(await leading(kv, 8, calls=calls)):
            await eventually(lambda: calls.assigned)
        assert calls.refused == [3, 42, 101]
        assert calls.assigned == [(8, "p0", 102)]
        assert (await load_pchannel(kv, "p0")).term == 102


async def test_next_owner_starts_above_ticks_of_forgotten_terms() -> None:
    """A restored etcd does not know who had the pchannel in the terms that only its log has."""
    async with MemoryKV() as kv:
        await live(kv, 8, 9)
        calls = Calls()
        calls.silent.add(7)
        calls.last_ticks = {8: 1 << 40, 9: 2 << 40}
        calls.refusals = [ChannelFencedError("the log was written in term 100", term=100)]
        async with running(await leading(kv, 8, 9, calls=calls)):
            await eventually(lambda: calls.assigned)
        ((server_id, _, term),) = calls.assigned
        assert term == 101
        assert calls.floors == [calls.last_ticks[17 - server_id]]
