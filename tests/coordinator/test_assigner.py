"""Assigner: a leader whose table is not what is saved leads no more, whoever made it look."""

from __future__ import annotations

import asyncio

import pytest

from wal.channels.pchannels import PREFIX as CLAIMS
from wal.channels.pchannels import PChannelMeta
from wal.channels.pchannels import encode as encode_claim
from wal.coordinator.assigner import Assigner, LeadingEndedError
from wal.coordinator.assignments import PREFIX, Assignment, Assignments, AssignmentState, Holder, Node, encode
from wal.coordinator.membership import Membership
from wal.coordinator.node_calls import NodeCalls
from wal.kv import KVBase, MemoryKV
from wal.rpc.connection import Connection

RECORD = Assignment("p0", 2, AssignmentState.ASSIGNED, (Holder(2, Node(7, "here:1")),))


async def no_connection(address: str) -> Connection:
    raise AssertionError(f"nobody is called at {address}")


async def no_eviction(server_id: int) -> None:
    raise AssertionError(f"node {server_id} is not evicted")


async def leading(kv: KVBase) -> Assigner:
    """Returns the assigner of a leader without nodes, whose only pchannel is assigned."""
    claim = PChannelMeta("p0", 1, 2)
    await kv.multi_save({PREFIX + "p0": encode(RECORD), CLAIMS + "p0": encode_claim(claim)})
    calls, clock = NodeCalls(1, no_connection), asyncio.get_running_loop().time
    membership = Membership(kv, calls, monotonic=clock, wall=clock, silent_max_s=10.0)
    assignments = Assignments({"p0": RECORD}, leader=1)
    return Assigner(
        kv, {"p0": claim}, assignments, membership, calls, evict=no_eviction, monotonic=clock, expected_nodes=None, ttl_s=10.0, wait_s=0.0
    )


async def test_report_is_saved_before_it_is_visible() -> None:
    async with MemoryKV() as kv:
        assigner = await leading(kv)
        await assigner.lost("p0", 1, "an old term")
        assert assigner.assignments.records["p0"] == RECORD
        await assigner.lost("p0", 2, "a client says so")
        assert assigner.assignments.records["p0"].state is AssignmentState.UNAVAILABLE
        assert await kv.load(PREFIX + "p0") == encode(assigner.assignments.records["p0"])


async def test_report_that_meets_another_record_ends_the_leading_and_not_the_call() -> None:
    async with MemoryKV() as kv:
        assigner = await leading(kv)
        running = asyncio.ensure_future(assigner.run())
        await asyncio.sleep(0)
        await kv.save(PREFIX + "p0", encode(Assignment("p0", 3, AssignmentState.ASSIGNING, (Holder(3, Node(8, "there:2")),))))
        await assigner.lost("p0", 2, "a client says so")
        with pytest.raises(LeadingEndedError, match="p0"):
            await asyncio.wait_for(running, 10)
        assert assigner.assignments.records["p0"] == RECORD
