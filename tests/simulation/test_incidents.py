"""Incidents of other systems, replayed: each has its expected cost, and breaks no guarantee.

Each test is the script of one incident, which a run of the simulation plays in place of random faults: it makes the faults at the moments
at which they hurt, and waits for what must come of it. The workload of every run continues meanwhile, and what holds of every run is
checked as ever, at each step and at the end. A script that fails reports in one sentence the missing event.

The soak has some of them: incidents that wait for the balancer or for a recovery, and incidents that the default tests show otherwise, over
real processes or with a defect that the incident finds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from tests.simulation.apart import incident
from tests.simulation.broker import UNANSWERED_S
from tests.simulation.etcd import snapshot
from tests.simulation.faults import in_time
from tests.simulation.grpc_channel import Call
from tests.simulation.grpc_server import ServerCall
from tests.simulation.history import Kind, Outcome
from tests.simulation.run import Run
from tests.simulation.workload import VCHANNELS
from tests.simulation.world import TTL_S
from wal import BroadcastMessage, Message
from wal.channels.pchannels import PREFIX as CLAIMS
from wal.coordinator.assigner import PROGRESS_S, LeadingEndedError
from wal.coordinator.assignments import AssignmentState
from wal.coordinator.plan import REST_S
from wal.rpc.methods import ASSIGN, ASSIGNMENT_DISCOVER
from wal.storage.kv.etcd.requests import RANGE


async def _moved(run: Run, node: str, names: list[str], *, within_s: float = 30.0) -> None:
    """Returns when all of these pchannels of a node are served elsewhere."""

    def moved() -> bool:
        records = [run.invariants.records[name] for name in names]
        return all(record.state is AssignmentState.ASSIGNED and run.owner(record.name) != node for record in records)

    await run.until(moved, f"what {node} had is served elsewhere", within_s=within_s)


def _as(run: Run, process: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Runs something in a process."""
    return run.world.processes[process].start(work)


async def _written(run: Run, client: str, vchannel: str) -> None:
    """Returns when a client has appended to a vchannel."""
    until_s = run.world.loop.time() + 60.0
    while (operation := await _as(run, client, run.workload.append(client, vchannel, Kind.APPEND))).outcome is not Outcome.DONE:
        assert run.world.loop.time() < until_s, f"not written within 60 s: {operation}"
        await asyncio.sleep(0.1)


async def _asleep(run: Run) -> tuple[str, list[str]]:
    """Stops a node for longer than its lease lives; returns it, and the vchannels that it had, which are written elsewhere since.

    client0 is not told of that: for it the node still has them. Nothing is written between its last question and that, so the node does
    not need the log to answer it again.
    """
    await run.served()
    world, work = run.world, run.workload
    node = run.owner(run.pchannel(VCHANNELS[0]))
    names = run.of(node)
    work.paused = True
    await asyncio.sleep(0.5)
    await asyncio.gather(*(_as(run, "client0", work.ask("client0", vchannel)) for vchannel in VCHANNELS))
    _stall_assignments(run, "client0", 2 * TTL_S)
    world.say(f"{node} stands still")
    world.processes[node].stop()
    await _moved(run, node, names)
    vchannels = [vchannel for vchannel in VCHANNELS if run.pchannel(vchannel) in names]
    await asyncio.gather(*(_written(run, "client1", vchannel) for vchannel in vchannels))
    work.paused = False
    return node, vchannels


def _stall_assignments(run: Run, client: str, seconds: float) -> None:
    """Delays a client's assignments."""
    for _, server in run.world.network.listeners.values():
        for call in server.calls:
            if call.path == ASSIGNMENT_DISCOVER.path and call.client == client:
                call.answering.last_s = run.world.loop.time() + seconds


@incident()
async def test_woken_node_answers_nothing(run: Run) -> None:
    """A node that was frozen for longer than its lease lives continues, with requests and appends waiting (milvus#53368)."""
    node, vchannels = await _asleep(run)
    work = run.workload
    asking = [
        _as(run, "client0", call)
        for vchannel in vchannels
        for call in (work.ask("client0", vchannel), work.read("client0", vchannel), work.append("client0", vchannel, Kind.APPEND))
    ]
    await asyncio.sleep(0.1)
    run.world.say(f"{node} goes on")
    run.world.processes[node].go_on()
    await asyncio.sleep(1.0)
    await asyncio.wait(asking)


@incident()
async def test_woken_owner_truncates_nothing(run: Run) -> None:
    """A node that was frozen for longer than its lease lives gets a truncation as it wakes up (milvus PR #50007)."""
    node, vchannels = await _asleep(run)
    world, log = run.world, run.workload.logs["client0"]
    names = {run.pchannel(vchannel) for vchannel in vchannels}
    earliest = {name: world.broker.channel(name).earliest for name in names}
    positions = [run.workload.newest[vchannel] for vchannel in vchannels]
    truncating = [_as(run, "client0", log.truncate(up_to=position)) for position in positions]
    await asyncio.sleep(0.1)
    world.say(f"{node} goes on")
    world.processes[node].go_on()
    await asyncio.sleep(2.0)
    for task in truncating:
        task.cancel()
    await asyncio.wait(truncating)
    assert earliest == {name: world.broker.channel(name).earliest for name in names}, f"{node}, which had lost its lease, truncated"


@incident(is_long=True)
async def test_late_frames_are_fenced(run: Run) -> None:
    """Frames of an owner reach the log after the next owner has recovered it (bookkeeper#2614)."""
    await run.served()
    world = run.world
    node = run.owner(run.pchannel(VCHANNELS[0]))
    names = run.of(node)
    world.network.cut(node, "broker")
    vchannels = [vchannel for vchannel in VCHANNELS if run.pchannel(vchannel) in names]
    writing = [_as(run, "client1", run.workload.append("client1", vchannel, Kind.APPEND)) for vchannel in vchannels]
    await asyncio.sleep(0.2)
    world.cut_off(node, except_from=("broker",))
    await _moved(run, node, names)
    world.network.mend(node, "broker")
    await asyncio.sleep(1.0)
    world.network.mend_all()
    await asyncio.wait(writing)


@incident(is_long=True)
async def test_fence_holds_in_later_extents(run: Run) -> None:
    """Frames of an owner reach the log when the next owner has begun other extents of it (woodpecker#142)."""
    await run.served()
    world, vchannel = run.world, VCHANNELS[0]
    name = run.pchannel(vchannel)
    node, channel = run.owner(name), world.broker.channel(name)
    world.network.cut(node, "broker")
    writing = [_as(run, "client1", run.workload.append("client1", vchannel, Kind.KEYED)) for _ in range(2)]
    await asyncio.sleep(0.2)
    world.cut_off(node, except_from=("broker",))
    await _moved(run, node, [name])
    taken_over_at = channel.end
    while channel.sealed_end <= taken_over_at:
        await _as(run, "client1", run.workload.append("client1", vchannel, Kind.APPEND, padding=b"." * 100_000))
    world.network.mend(node, "broker")
    await asyncio.sleep(1.0)
    world.network.mend_all()
    await asyncio.wait(writing)


@incident()
async def test_failed_pchannels_are_read_elsewhere(run: Run) -> None:
    """The log answers a node no more while nobody leads: its pchannels fail there, and their readers continue at their next owner."""
    await run.served()
    world = run.world
    node = run.owner(run.pchannel(VCHANNELS[0]))
    names = run.of(node)
    for name in world.coordinators:
        world.kill(name)
    for pair in ((node, "broker"), ("broker", node)):
        world.network.cut(*pair)
    await asyncio.sleep(UNANSWERED_S + 2.0)
    world.network.mend_all()
    terms = {name: run.invariants.records[name].term for name in names}
    for name in world.coordinators:
        world.start(name)
    await run.until(lambda: all(run.invariants.records[name].term > term for name, term in terms.items()), "they are opened anew")
    await run.settled()


@incident(pchannels=8, is_long=True)
async def test_empty_terms_are_fenced(run: Run) -> None:
    """A pchannel changes its owner again and again, and nothing is ever written to it (woodpecker#306)."""
    await run.served()
    empty = next(name for name in run.invariants.records if name not in {run.pchannel(vchannel) for vchannel in VCHANNELS})
    for _ in range(3):
        node = run.owner(empty)
        run.world.kill(node)
        await _moved(run, node, [empty])
        run.world.start(node)
        await run.settled()

    async def write() -> None:
        log = run.workload.logs["client1"]
        await log.create_vchannel("late", pchannel=empty)
        await log.raw_append(Message("late", b"the first"))

    await _as(run, "client1", write())


@incident(pause_s=10.0, is_long=True)
async def test_slow_recovery_is_waited_for(run: Run) -> None:
    """A recovery takes longer than a node may show no progress (milvus#45602, #51078)."""
    await run.served()
    world, vchannel = run.world, VCHANNELS[0]
    name = run.pchannel(vchannel)
    for _ in range(11):
        operation = await _as(run, "client1", run.workload.append("client1", vchannel, Kind.KEYED, padding=b"." * 400_000))
        assert operation.outcome is Outcome.DONE, operation
    record = run.invariants.records[name]
    world.broker.slow_s = lambda what: 9.5 if what == f"reading what is replayed, pchannel {name}" else 0.0
    node = run.owner(name)
    world.kill(node)
    began_s = world.loop.time()
    await _moved(run, node, [name], within_s=120.0)
    assert world.loop.time() - began_s > PROGRESS_S, "the recovery is too fast to show anything"
    assert run.invariants.records[name].term == record.term + 1, "the recovery was given up, although it made progress"


@incident()
async def test_watch_that_missed_a_death(run: Run) -> None:
    """A node dies while the leader's watch brings nothing, and what it missed is compacted (milvus#48564)."""
    await run.served()
    world = run.world
    node = run.owner(run.pchannel(VCHANNELS[0]))
    names = run.of(node)
    world.etcd.stall_watches(stalled=True)
    world.kill(node)
    await run.until(lambda: not any(process == node for process, _ in _registered(run)), "the lease of the node ends")
    world.etcd.compact()
    world.etcd.stall_watches(stalled=False)
    await _moved(run, node, names, within_s=3 * TTL_S)


def _registered(run: Run) -> list[tuple[str, int]]:
    """Returns the nodes that etcd has records of, with their leases."""
    prefix = b"wal/cluster/nodes/"
    records = [version for key, version in run.world.data.current.items() if key.startswith(prefix)]
    return [(msgspec.json.decode(one.text)["address"].rpartition(":")[0], one.lease) for one in records]


@incident()
async def test_all_leases_lost_at_once(run: Run) -> None:
    """Every node's lease ends in the same moment (etcd#15247, milvus#49530)."""
    await run.served()
    registered = _registered(run)
    assert len(registered) == len(run.world.nodes)
    for _, lease in registered:
        run.world.etcd.end(lease)
    told = "more than half of the nodes vanished at once"
    await run.until(lambda: any(told in line for line in run.world.lines), "the leader doubts that")
    await run.until(lambda: {node for node, _ in _registered(run)} == set(run.world.nodes), "the nodes come back")
    for vchannel in VCHANNELS:
        await _written(run, "client1", vchannel)
    await run.settled()


@incident(is_long=True)
async def test_leader_and_node_die_together(run: Run) -> None:
    """The leader and a node die in the same step, in the middle of broadcasts (KAFKA-18138)."""
    await run.served()
    world = run.world
    world.broker.late_s = lambda: 0.3 * world.loop.random.random()
    for client in run.workload.logs:
        for _ in range(4):
            _as(run, client, run.workload.broadcast(client, VCHANNELS))
    await asyncio.sleep(0.4)
    leader, node = world.leader(), run.owner(run.pchannel(VCHANNELS[0]))
    names = run.of(node)
    world.kill(leader)
    world.kill(node)
    world.broker.late_s = lambda: 0.001
    await run.until(world.leader, "another one leads")
    await _moved(run, node, names)


@incident(pchannels=8, pause_s=10.0, is_long=True)
async def test_balancer_settles(run: Run) -> None:
    """A node is lost and comes back: then every node has its share, and nothing moves any more (pulsar PR #16059, milvus#51244)."""
    await run.settled()
    world = run.world
    node = world.nodes[0]
    names = run.of(node)
    world.kill(node)
    await _moved(run, node, names)
    world.start(node)
    await run.until(lambda: run.is_even() and run.invariants.settled, "the node that came back has its share", within_s=2 * REST_S)
    terms = {name: record.term for name, record in run.invariants.records.items()}
    await asyncio.sleep(1.2 * REST_S)
    assert terms == {name: record.term for name, record in run.invariants.records.items()}, "something moved without a reason"


@incident(pchannels=8, late=("node0", "node1", "node2"))
async def test_first_node_gets_its_share(run: Run) -> None:
    """Nodes come one after the other to a new cluster (milvus#46980)."""
    world = run.world
    assert not run.invariants.records or not any(map(run.of, world.nodes))
    for node in world.nodes:
        await asyncio.sleep(2.0)
        world.start(node)
    await run.settled()
    assert run.is_even(), {node: run.of(node) for node in world.nodes}
    assert all(record.term == 2 for record in run.invariants.records.values()), "what was placed once has moved"


@incident()
async def test_waiting_broadcast_holds_no_other(run: Run) -> None:
    """A broadcast waits for a pchannel that nobody can open, and others continue (milvus#47629)."""
    await run.served()
    await _broadcaster_runs(run)
    world, work = run.world, run.workload
    name = run.pchannel(VCHANNELS[0])
    world.broker.refused.add(name)
    node = run.owner(name)
    world.kill(node)
    await run.until(lambda: run.owner(name) not in ("", node), "the pchannel is given to another node")
    waiting = _as(run, "client1", work.broadcast("client1", (VCHANNELS[0],)))
    others = tuple(vchannel for vchannel in VCHANNELS if run.pchannel(vchannel) != name)
    other = _as(run, "client1", work.broadcast("client1", others))
    await run.until(other.done, "another broadcast is complete", within_s=5.0)
    assert other.result().outcome is Outcome.DONE, other.result()
    assert not waiting.done() or waiting.result().outcome is not Outcome.DONE, "nobody can have appended it"
    world.broker.refused.clear()
    await run.settled()


async def _broadcaster_runs(run: Run) -> None:
    """Returns when a broadcast was complete."""
    await run.until(lambda: any(Kind.BROADCAST is one.kind and one.ticks for one in run.history.operations), "the broadcaster runs")


@incident(is_long=True)
async def test_drained_node_stays_empty(run: Run) -> None:
    """A node is drained, and the coordinator that was told so dies (milvus#53176)."""
    await run.served()
    world = run.world
    node = world.nodes[0]
    server_id = dict(_registered(run))[node]
    leader, leading = world.leader(), world.leading()
    assert leading is not None
    await _as(run, leader, leading._membership.drain(server_id, drain=True))
    await run.until(lambda: not run.of(node) and run.invariants.settled, "the node gives up what it has")
    world.kill(leader)
    await run.until(world.leader, "another one leads")
    await asyncio.sleep(5.0)
    assert not run.of(node), f"{node}, which is drained, got {run.of(node)}"


@incident()
async def test_standby_leads_after_its_watch_broke(run: Run) -> None:
    """What a standby waits for is compacted while its watch brings nothing (milvus#44111)."""
    await run.served()
    world = run.world
    leader = world.leader()
    (standby,) = set(world.coordinators) - {leader}
    world.etcd.stall_watches(stalled=True)
    world.network.reset(standby, "etcd")
    world.kill(leader)
    await asyncio.sleep(TTL_S + 1.0)
    world.etcd.compact()
    world.etcd.stall_watches(stalled=False)
    await run.until(lambda: world.leader() == standby, "the standby leads", within_s=TTL_S + 5.0)


@incident(is_long=True)
async def test_deposed_leader_hands_calls_on(run: Run) -> None:
    """A leader that was frozen for longer than its session lives continues, with calls waiting: its clients find the next one."""
    await run.served()
    world, leader = run.world, run.world.leader()
    (standby,) = set(world.coordinators) - {leader}
    world.say(f"{leader} stands still")
    world.processes[leader].stop()
    await asyncio.sleep(0.1)
    creating = [_as(run, client, log.create_vchannel(f"of-{client}")) for client, log in run.workload.logs.items()]
    await run.until(lambda: getattr(world.running[standby], "leads", False), "the standby leads", within_s=2 * TTL_S)
    world.say(f"{leader} goes on")
    world.processes[leader].go_on()
    await asyncio.gather(*creating)


def _assigns(name: str, on_first: Callable[[str], tuple[float, float | None]], *, others_s: float = 0.0) -> list[str]:
    """Asks how the Assigns of a pchannel travel to the node that gets the first one; returns a list that gets that node.

    Those to other nodes take `others_s` more.
    """
    nodes: list[str] = []

    def on_its_way(call: Call) -> tuple[float, float | None]:
        if call.path != ASSIGN.path or ASSIGN.request.FromString(call.data).pchannel.name != name:
            return in_time(call)
        node = call.where.rpartition(":")[0]
        if not nodes:
            nodes.append(node)
        return on_first(node) if node == nodes[0] else (others_s, None)

    Call.on_its_way = staticmethod(on_its_way)
    return nodes


@incident(pause_s=4.0, is_long=True)
async def test_late_assign_opens_nothing(run: Run) -> None:
    """An Assign arrives when the pchannel is another node's, which has not opened it yet, and once more when it has."""
    await run.served()
    world, name = run.world, run.pchannel(VCHANNELS[0])
    nodes = _assigns(name, lambda _: (PROGRESS_S + 4.0, 6.0), others_s=6.0)
    old = run.owner(name)
    world.kill(old)
    await run.until(lambda: nodes, "the pchannel is given to another node")
    world.start(old)
    leading = world.leading()
    assert leading is not None
    await _as(run, world.leader(), leading._membership.drain(dict(_registered(run))[nodes[0]], drain=True))
    await _moved(run, nodes[0], [name], within_s=PROGRESS_S + 10.0)
    await asyncio.sleep(4.0)


@incident()
async def test_assign_after_remove_opens_nothing(run: Run) -> None:
    """A restarted leader makes a node remove a pchannel that it is about to open, while etcd answers the node late."""

    def hold_claim(run: Run, name: str, nodes: list[str]) -> list[str]:
        """Holds back what etcd answers the first of these nodes once it reads the claim of a pchannel; returns a list that gets that
        node."""
        held: list[str] = []
        answers: Any = ServerCall
        judge = answers.on_answer

        def on_answer(call: ServerCall, data: bytes) -> None:
            if call.path == RANGE.path and call.client in nodes and not held and call.request.endswith(b"/" + (CLAIMS + name).encode()):
                held.append(call.client)
                run.world.network.cut("etcd", call.client)
            judge(call, data)

        answers.on_answer = staticmethod(on_answer)
        return held

    await run.served()
    await _broadcaster_runs(run)
    world, name = run.world, run.pchannel(VCHANNELS[0])
    calls: list[str] = []

    def first_in_time(node: str) -> tuple[float, float | None]:
        calls.append(node)
        # The next Assign comes late: else it would be open in the next term before it is opened in this one.
        return (0.0 if len(calls) == 1 else 4.0), None

    nodes = _assigns(name, first_in_time, others_s=4.0)
    held = hold_claim(run, name, nodes)
    old = run.owner(name)
    world.kill(old)
    await run.until(lambda: held, "another node that is given the pchannel reads its claim")
    # A broadcast that waits for the pchannel must not keep the leader from a restart of its work.
    waiting = _as(run, "client1", run.workload.broadcast("client1", (VCHANNELS[0],)))
    await asyncio.sleep(0.2)
    assert not waiting.done(), "nobody can have appended it"
    _read_anew(run)
    await run.until(lambda: (world.processes[held[0]], name) in run.invariants.removed, "the node removes the pchannel", within_s=TTL_S)
    world.network.mend("etcd", held[0])
    await asyncio.sleep(2.0)
    await _moved(run, old, [name])


def _read_anew(run: Run) -> None:
    """Ends the work of the leader as an unanswered write to etcd does: it restarts from the saved records."""
    leading = run.world.leading()
    assert leading is not None
    run.world.say("the leader has to read everything anew")
    leading._assigner._fail(LeadingEndedError("etcd has not answered a write"))


@incident()
async def test_leader_reads_anew_amid_moves(run: Run) -> None:
    """A leader has to restart its work, again and again, while it moves a node's pchannels."""
    await run.served()
    world = run.world
    node = run.owner(run.pchannel(VCHANNELS[0]))
    names = run.of(node)
    world.broker.slow_s = lambda what: 0.5 if what.startswith("opening") else 0.0
    world.kill(node)
    for _ in range(3):
        await run.until(world.moves, "the leader moves pchannels")
        _read_anew(run)
        await asyncio.sleep(0.05)
    world.broker.slow_s = lambda _: 0.0
    await _moved(run, node, names)


@incident()
async def test_promises_of_a_lost_node_hold(run: Run) -> None:
    """A node whose clock is ahead dies after promises that no frame shows: the next owner gives no tick up to them."""
    await run.served()
    world = run.world
    node = run.owner(run.pchannel(VCHANNELS[0]))
    names = run.of(node)
    run.workload.paused = True
    world.processes[node].wall_ahead_s = 9.0
    await asyncio.sleep(0.7)
    world.kill(node)
    run.workload.paused = False
    await _moved(run, node, names)
    for vchannel in VCHANNELS:
        await _written(run, "client1", vchannel)


@incident()
async def test_clocks_hours_ahead_refuse_nothing(run: Run) -> None:
    """The clock of a node, then that of the leader, is hours ahead: clients, other nodes and later owners continue from their ticks."""
    await run.served()
    world, work = run.world, run.workload
    node = run.owner(run.pchannel(VCHANNELS[0]))
    names = run.of(node)
    world.processes[node].wall_ahead_s = 3600.0
    await asyncio.sleep(0.7)
    for vchannel in VCHANNELS:  # the first is on that node, and others are not
        await _written(run, "client1", vchannel)
    world.kill(node)
    await _moved(run, node, names)
    world.processes[world.leader()].wall_ahead_s = 7200.0
    assert (await _as(run, "client1", work.broadcast("client1", VCHANNELS))).outcome is Outcome.DONE
    for vchannel in VCHANNELS:
        await _written(run, "client1", vchannel)


@incident()
async def test_etcd_restored_loses_nothing(run: Run) -> None:
    """A copy of etcd is restored from before the pchannels moved."""
    await run.served()
    world = run.world
    data = snapshot(world.data)
    node = run.owner(run.pchannel(VCHANNELS[0]))
    names = run.of(node)
    world.kill(node)
    await _moved(run, node, names)
    world.start(node)
    await asyncio.sleep(2.0)
    world.restore(data)
    await asyncio.sleep(2 * TTL_S)
    await run.settled(within_s=60.0)
    for vchannel in VCHANNELS:
        await _written(run, "client1", vchannel)


@incident(pause_s=10.0, is_long=True)
async def test_etcd_restored_completes_broadcasts(run: Run) -> None:
    """A copy of etcd is restored that does not know the newest broadcasts, and another coordinator leads."""
    await run.served()
    world, work = run.world, run.workload
    data = snapshot(world.data)
    assert (await _as(run, "client1", work.broadcast("client1", VCHANNELS))).outcome is Outcome.DONE
    leader = world.leader()
    world.kill(leader)
    world.restore(data)
    await asyncio.sleep(2 * TTL_S)
    await run.settled(within_s=60.0)
    assert (await _as(run, "client1", work.broadcast("client1", VCHANNELS))).outcome is Outcome.DONE


@incident(pause_s=10.0)
async def test_leader_goes_on_over_a_restored_etcd(run: Run) -> None:
    """A copy of etcd is restored in which the leader leads as well, and which lacks a vchannel that it has created since."""
    await run.served()
    world, log = run.world, run.workload.logs["client1"]

    async def broadcast(payload: bytes) -> None:
        await log.broadcast().append(BroadcastMessage(vchannels=["later0", "later1"], payload=payload, needs_ack=False))

    data = snapshot(world.data)
    await _as(run, "client1", broadcast(b"before"))
    world.restore(data)
    await asyncio.sleep(2 * TTL_S)
    await run.settled(within_s=60.0)
    sending = _as(run, "client1", broadcast(b"after"))
    await run.until(sending.done, "a broadcast after the restore is appended", within_s=60.0)
    assert (error := sending.exception()) is None, f"a broadcast after the restore: {error}"


@incident(pause_s=10.0, is_long=True)
async def test_leader_after_a_restored_etcd_has_a_lower_token(run: Run) -> None:
    """A copy of etcd is restored from before its revisions rose and another coordinator led: whoever leads now has a lower token."""
    await run.served()
    world, log = run.world, run.workload.logs["client1"]
    data = snapshot(world.data)
    for number in range(10):
        await _as(run, "client1", log.create_vchannel(f"more{number}"))
    leader = world.leader()
    world.kill(leader)
    await run.until(lambda: world.leader() not in ("", leader), "another one leads", within_s=60.0)
    await run.settled(within_s=60.0)
    world.restore(data)
    await asyncio.sleep(2 * TTL_S)
    names = run.of(node := run.owner(run.pchannel(VCHANNELS[0])))
    world.kill(node)
    await _moved(run, node, names)
    for vchannel in VCHANNELS:
        await _written(run, "client1", vchannel)
