"""Scale: a cluster of many pchannels that loses one of many nodes, and what that costs in messages, bytes and plans.

The cluster starts, its clients append, and it rests. Then one node is killed, and everything is counted until its pchannels are served
elsewhere: what leaders, nodes and clients ask of each other and of etcd, by kind, the events of watches for each process, and the pushes to
each client. Nothing here depends on how fast this machine is, except `longest_step_s`, which is measured only if that is asked for.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from typing import Any, Final

import msgspec

from tests.simulation import grpc_server
from tests.simulation.invariants import Invariants
from tests.simulation.world import TTL_S, World
from wal import Message, WALAccesser
from wal.coordinator import assigner as assigning
from wal.coordinator.plan import plan
from wal.rpc.methods import ASSIGNMENT_DISCOVER
from wal.settings import Settings
from wal.storage.kv.etcd.api import rpc_pb2 as rpc
from wal.storage.kv.etcd.requests import WATCH

CLIENTS: Final = 3
STEPS_MAX: Final = 60_000_000


class Cost(msgspec.Struct):
    """What the loss of a node cost. Paths are those of gRPC."""

    moved: int = 0
    """The pchannels that the node had."""
    requests: dict[str, int] = {}
    """How many requests there were, by path."""
    watched: dict[str, int] = {}
    """How many events of watches each process got."""
    told_bytes: dict[str, int] = {}
    """How many bytes of assignments each client got."""
    plans: int = 0
    """How often the leader planned."""
    second_plan: int = 0
    """How many moves the plan has when nothing has changed."""
    uneven: int = 0
    """By how many pchannels the fullest and the emptiest node differ."""
    faults: list[str] = []
    longest_step_s: float = 0.0
    longest_step: str = ""


def lose_a_node(seed: int, pchannels: int, nodes: int, measures: bool) -> Cost:
    """Runs in this process, which cannot be used for anything else after that."""
    gc.disable()
    settings = Settings(time_tick_interval_s=5.0)
    world = World(seed, pchannels=pchannels, nodes=nodes, settings=settings, steps_max=STEPS_MAX)
    invariants = Invariants(world.data, world.say)
    world.on_commit = invariants.committed
    world.broker.on_open = invariants.opened
    cost, plans = Cost(), Counter[str]()
    requests, watched, told = Counter[str](), Counter[str](), Counter[str]()

    def requested(call: grpc_server.ServerCall, _data: bytes) -> None:
        requests[call.path] += 1

    def answered(call: grpc_server.ServerCall, data: bytes) -> None:
        if call.path == WATCH.path and plans["counted"]:
            watched[call.client] += len(rpc.WatchResponse.FromString(data).events)
        elif call.path == ASSIGNMENT_DISCOVER.path:
            told[call.client] += len(data)

    def planned(*args: Any, **options: Any) -> dict[str, int]:
        plans["made"] += 1
        return plan(*args, **options)

    hooks: Any = grpc_server.ServerCall
    hooks.on_request, hooks.on_answer = staticmethod(requested), staticmethod(answered)
    product: Any = assigning
    product.plan = planned
    done = asyncio.Event()

    async def client(log: WALAccesser) -> None:
        for number in range(10):
            await log.raw_append(Message(f"v{number}", b"a message"))
        await done.wait()

    async def settled(lost: str = "") -> None:
        while not (invariants.settled and not any(owner(name) == lost for name in invariants.records)):
            await asyncio.sleep(0.1)

    def owner(name: str) -> str:
        holder = invariants.records[name].owner
        return "" if holder is None else holder.node.address.rpartition(":")[0]

    async def main() -> None:
        world.start_all()
        await settled()
        clients = [world.client(f"client{number}", client) for number in range(CLIENTS)]
        await asyncio.sleep(2 * TTL_S)
        lost = world.nodes[0]
        cost.moved = sum(owner(name) == lost for name in invariants.records)
        for counted in (requests, watched, told, plans):
            counted.clear()
        plans["counted"] = 1
        world.loop.measures = measures
        world.kill(lost)
        async with asyncio.timeout(120):
            await settled(lost)
        await asyncio.sleep(1.0)
        world.loop.measures = False
        cost.requests, cost.watched, cost.told_bytes, cost.plans = dict(requests), dict(watched), dict(told), plans["made"]
        leading = world.leading()
        assert leading is not None
        assigner: Any = leading._assigner
        views = leading._membership.views()
        cost.second_plan = len(plan(assigner._placed(world.loop.time(), views), views))
        counts = Counter(owner(name) for name in invariants.records)
        cost.uneven = max(counts.values()) - min(counts.values())
        done.set()
        await asyncio.gather(*clients)

    world.run(main())
    cost.faults = [*invariants.faults, *world.defects]
    cost.longest_step_s, cost.longest_step = world.loop.longest_step
    return cost
