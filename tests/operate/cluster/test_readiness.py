"""Readiness: whether the whole cluster can be used, from the records of its pchannels and nodes."""

from __future__ import annotations

import asyncio

import msgspec

from tests.processes import eventually
from wal.channels.cluster import NodeRecord, node_key
from wal.channels.cluster import encode as encode_node
from wal.coordinator.assignments import PREFIX, Assignment, AssignmentState, NodeStart, TermHolder, encode
from wal.operate.processes.readiness import ASK_S, BOUND_S, Placement, Readiness
from wal.storage.kv import MemoryKV

HERE = TermHolder(2, NodeStart(7, "here:1"))
ASSIGNED = Assignment("p0", 2, AssignmentState.ASSIGNED, (HERE,))
ASSIGNING = msgspec.structs.replace(ASSIGNED, state=AssignmentState.ASSIGNING)
LIVE = {7: ""}


def test_assigned_pchannels_are_ready() -> None:
    assert Placement().look({"p0": ASSIGNED}, LIVE, 0.0) == ""


def test_first_look_allows_nothing() -> None:
    assert "ASSIGNING at here:1" in Placement().look({"p0": ASSIGNING}, LIVE, 0.0)
    assert "not been on any node" in Placement().look({"p0": Assignment("p0")}, LIVE, 0.0)
    assert "no pchannel" in Placement().look({}, LIVE, 0.0)


def test_move_is_allowed_its_time() -> None:
    placement = Placement()
    assert placement.look({"p0": ASSIGNED}, LIVE, 0.0) == ""
    assert placement.look({"p0": ASSIGNING}, LIVE, 1.0) == ""
    assert placement.look({"p0": ASSIGNING}, LIVE, 0.9 + BOUND_S) == ""
    assert placement.look({"p0": ASSIGNING}, LIVE, 1.0 + BOUND_S) == "pchannel p0 is ASSIGNING at here:1 for 5 s"
    assert placement.look({"p0": ASSIGNED}, LIVE, 2.0 + BOUND_S) == ""
    assert placement.look({"p0": ASSIGNING}, LIVE, 3.0 + BOUND_S) == ""


def test_dead_owner_and_earlier_holder_count() -> None:
    for record, live, said in (
        (ASSIGNED, {8: ""}, "node 7, which is gone"),
        (msgspec.structs.replace(ASSIGNED, histories=(TermHolder(1, NodeStart(6, "there:2")),)), LIVE, "may still be at there:2"),
    ):
        assert said in Placement().look({"p0": record}, live, 0.0)


async def test_silent_etcd_is_noticed_within_the_bound() -> None:
    class SilentKV(MemoryKV):
        """An etcd whose members have stopped: watches stay open, and no call is answered."""

        silent = False

        async def _load(self, keys: list[str]) -> list[str | None]:
            if self.silent:
                await asyncio.get_running_loop().create_future()
            return await super()._load(keys)

    reports: list[str] = []
    now_s = 100.0

    async def report(why: str) -> None:
        reports.append(why)

    async with SilentKV() as kv:
        await kv.save(PREFIX + "p0", encode(ASSIGNED))
        await kv.save(node_key(7), encode_node(NodeRecord(7, "here:1", "1", 1)))
        readiness = Readiness(kv, report, monotonic=lambda: now_s)
        readiness.start()
        await eventually(lambda: reports and reports[-1] == "")
        kv.silent = True
        now_s += BOUND_S + ASK_S
        await eventually(lambda: "etcd does not say" in reports[-1])
        await readiness.close()


async def test_records_are_followed() -> None:
    reports: list[str] = []

    async def report(why: str) -> None:
        reports.append(why)

    async with MemoryKV() as kv:
        readiness = Readiness(kv, report)
        readiness.start()
        await eventually(lambda: reports)
        assert reports[-1]
        await kv.save(PREFIX + "p0", encode(ASSIGNED))
        await kv.save(node_key(7), encode_node(NodeRecord(7, "here:1", "1", 1)))
        await eventually(lambda: reports[-1] == "")
        await kv.remove(node_key(7))
        await eventually(lambda: "which is gone" in reports[-1])
        await readiness.close()
