"""Leading: the work of a coordinator while it leads.

Owns the order: the saved state is read again, missing pchannels are created, the nodes are discovered, and then the assigner, the directory
of vchannels and the services begin. The broadcaster starts last and on its own. It first reads the copies in every pchannel's log, and a
pchannel without a node must not delay the other components.

Every change is saved through a KV that etcd accepts only while this process leads, and while its earlier changes are present. So nothing
here checks the leadership itself. When a write or the check of each second fails, `run` ends, and the process becomes a standby or leads
again from the saved state. In this way it also notices that etcd was restored from an older copy, in which it may lead too.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from actors import ActorSystem, SystemClock
from wal.channels.cluster import CHECKED_RECORDS, FORMAT, ClusterRecord
from wal.channels.pchannels import PChannelMeta
from wal.coordinator.assigner import Assigner
from wal.coordinator.assignments import PREFIX, Assignments, AssignmentState, decode
from wal.coordinator.coordinator import Coordinator
from wal.coordinator.copies import CopiesOnNodes
from wal.coordinator.membership import Membership
from wal.coordinator.node_calls import NodeCalls
from wal.coordinator.nodes import AssignedNodes, VChannelsOnNodes
from wal.coordinator.submit import CoordinatorRequests
from wal.errors import ChannelFencedError, ClosedError, NotLeaderError, UnavailableError, WALError
from wal.message import FORM_PULSAR
from wal.network import Method
from wal.node.local.storage import Undo
from wal.operate.metrics.snapshot import CoordinatorStatistics
from wal.operate.processes.opening import open_log
from wal.requests.cluster import ClusterStatus, DrainNode, GetClusterStatus, NodeStatus, PauseBalancer, PlacedPChannel
from wal.requests.request import Request
from wal.rpc.connection import Connection
from wal.rpc.draining import Draining
from wal.rpc.serving import Handler
from wal.runtime.backoff import Backoff
from wal.runtime.tasks import end_tasks
from wal.serve.discovery import ClusterDiscovery
from wal.serve.watch import WatchService
from wal.settings import Settings
from wal.storage.kv.etcd import EtcdKV, Leadership
from wal.storage.kv.etcd.election import LedKV
from wal.timestamp import TimestampOracle

WAIT_FOR_NODES_S: Final = 5.0
"""The time that the first leader of a cluster waits for its nodes, without an expected number."""
END_S: Final = 0.5
"""The time that running broadcasts and saves may take when the leadership ends. A broadcast may wait for a pchannel without a node, and no
node gets one before this leader, or the next one, begins.
"""
CONFIRM_S: Final = 1.0
"""The interval at which a leader that saves nothing checks that its saved state is still there."""
FORMAT_LOOK_S: Final = 1.0
"""The interval at which a leader with a later format checks whether all nodes support it."""
WAIT_EXPECTED_S: Final = 60.0
"""The time that it waits for the expected number of nodes."""
_log: Final = logging.getLogger("wal.cluster")


class Leading:
    """The work of one leader. Call `open`, then `run`, and `close`."""

    def __init__(
        self,
        kv: EtcdKV,
        leadership: Leadership,
        record: ClusterRecord,
        settings: Settings,
        draining: Draining,
        *,
        connect: Callable[[str], Awaitable[Connection]],
        expected_nodes: int | None,
        ttl_s: float,
        version_count: int = 0,
    ) -> None:
        """`version_count` is that of the first version of the assignments, see `Assignments`."""
        self._version_count = version_count
        self.handlers: Mapping[Method[Any, Any], Handler] = {}
        """The handlers of all methods of a leader, once it is open."""
        self._kv = kv
        self._kv_as_leader = LedKV(kv, leadership)
        self._leadership = leadership
        self._record = record
        self._settings = settings
        self._server_draining = draining
        self._draining = _LeaderEnd()
        self._connect = connect
        self._expected = expected_nodes
        self._ttl_s = ttl_s
        self._undo = Undo()
        self._system = ActorSystem("wal coordinator", clock=SystemClock(), stop_timeout_s=END_S)
        self._coordinator: Coordinator
        self._assigner: Assigner
        self._membership: Membership

    async def open(self) -> None:
        """Begins to lead. A failure closes everything again and raises."""
        try:
            await self._open()
        except BaseException:
            await self.close()
            raise

    async def run(self) -> None:
        """Leads until the leadership ends. Raises the reason."""
        tasks = [asyncio.ensure_future(self._assigner.run()), asyncio.ensure_future(self._confirm())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        failures = [task.exception() for task in tasks if not task.cancelled()]
        if (failure := next(filter(None, failures), None)) is not None:
            raise failure

    @property
    def version_count(self) -> int:
        """The count of the newest version of the assignments that clients may have got."""
        return max(self._version_count, self._assigner.assignments.version.count if hasattr(self, "_assigner") else 0)

    async def submit(self, request: Request[Any]) -> Any:
        """Returns the answer to a request that concerns the whole log. After a lost lease the error sends the caller to the next leader."""
        return await _handed_on(self._answer(request))

    async def _answer(self, request: Request[Any]) -> Any:
        match request:
            case GetClusterStatus():
                return self._status()
            case DrainNode():
                await self._membership.drain(request.server_id, drain=request.drain)
            case PauseBalancer():
                await self._membership.pause(pause=request.pause)
            case _:
                return await self._requests.submit(request)
        return None

    def statistics(self) -> CoordinatorStatistics:
        """Returns the numbers of nodes and pchannels, by state, and the counts of the broadcaster once it runs."""
        membership, coordinator = self._membership, self._coordinator
        nodes = dict.fromkeys(("healthy", "unhealthy", "draining"), 0)
        for server_id, one in membership.nodes.items():
            drains = server_id in membership.drained or one.record.stopping
            nodes["unhealthy" if one.healthy_since_s is None else "draining" if drains else "healthy"] += 1
        pchannels = {state.name.lower(): 0 for state in AssignmentState}
        for record in self._assigner.assignments.records.values():
            pchannels[record.state.name.lower()] += 1
        broadcasts = coordinator.broadcasts.statistics() if coordinator.broadcasting else None
        return CoordinatorStatistics(True, membership.paused, nodes, pchannels, broadcasts)

    async def close(self) -> None:
        """Ends all components; the next leader continues the unfinished work. Idempotent."""
        failure = await asyncio.shield(asyncio.ensure_future(self._undo.run()))
        if failure is not None:
            _log.info("the end of this leader was not in order: %s", failure)

    async def _open(self) -> None:
        undo, kv = self._undo, self._kv_as_leader
        undo.add(kv.close)
        await kv.confirm()
        if self._record.format >= CHECKED_RECORDS:
            await kv.upgrade()
        await self._system.start()
        undo.add(self._system.stop)
        coordinator = self._coordinator = Coordinator(kv, self._settings, self._system)
        await coordinator.load(self._create)
        calls = NodeCalls(self._leadership.token, self._connect)
        undo.add(calls.close)
        keys, texts = await kv.load_with_prefix(PREFIX)
        records = [decode(key, text) for key, text in zip(keys, texts, strict=True)]
        assignments = Assignments({record.name: record for record in records}, leader=self._leadership.token, count=self._version_count)
        oracle = TimestampOracle(kv, clock=self._system.clock)
        await oracle.start()
        undo.add(oracle.close)
        membership = self._membership = Membership(
            kv, calls, monotonic=time.monotonic, wall=time.time, silent_max_s=self._ttl_s, form=self._record.format
        )
        assigner = self._assigner = Assigner(
            kv,
            coordinator.pchannels,
            assignments,
            membership,
            calls,
            leases=self._kv,
            monotonic=time.monotonic,
            expected_nodes=self._expected,
            ttl_s=self._ttl_s,
            wait_s=WAIT_FOR_NODES_S if self._expected is None else WAIT_EXPECTED_S,
        )
        await assigner.load()
        await membership.start()
        undo.add(membership.close)
        raising = asyncio.get_running_loop().create_task(self._raise_format(), name="format of the cluster")
        undo.add(partial(end_tasks, raising))
        nodes = AssignedNodes(assigner, calls)
        host = VChannelsOnNodes(nodes)
        undo.add(host.close)
        coordinator.vchannels.host = host
        coordinator.vchannels.spreads = True
        operator = CopiesOnNodes(nodes, coordinator.vchannels, oracle)
        undo.add(operator.close)
        discovery = ClusterDiscovery(assigner, self._draining)
        undo.add(discovery.end)
        undo.add(coordinator.end_broadcasts)
        starting = asyncio.get_running_loop().create_task(self._start_broadcasts(operator), name="starting the broadcaster")
        undo.add(partial(end_tasks, starting))
        self._requests = CoordinatorRequests(
            coordinator,
            {},
            oracle,
            name="pulsar",
            form=FORM_PULSAR,
            frame_bytes_max=self._record.frame_bytes_max,
            ending=self._draining.ending,
        )
        self._draining.on_begin(lambda: coordinator.end_waiting(self._draining.error))
        undo.add(self._server_draining.on_begin(self._draining.begin))
        undo.add(self._draining.begin)
        self.handlers = {**discovery.handlers(), **WatchService(coordinator, self._draining).handlers()}

    async def _confirm(self) -> None:
        """Raises ChannelFencedError once etcd was restored from an older copy, or another process leads, also while nothing is saved."""
        while True:
            await asyncio.sleep(CONFIRM_S)
            with contextlib.suppress(UnavailableError):  # the session ends by itself after a long outage
                await self._kv_as_leader.confirm()

    async def _create(self, meta: PChannelMeta) -> None:
        """Creates the topics of a new pchannel."""
        undo = Undo()
        try:
            storage = await open_log(self._record.log, self._settings, undo, create=True)
            await storage.backend.create(meta.name, incarnation=meta.incarnation)
        finally:
            await undo.run()

    async def _raise_format(self) -> None:
        checked = self._record.format >= CHECKED_RECORDS
        while self._record.format < FORMAT or not checked:
            await asyncio.sleep(FORMAT_LOOK_S)
            try:
                self._record = await self._membership.raise_format(self._record)
                if self._record.format >= CHECKED_RECORDS:
                    await self._kv_as_leader.upgrade()
                    checked = True
            except WALError as error:  # the assigner detects whether this process still leads
                _log.info("the format of the cluster is not raised now: %s", error)

    async def _start_broadcasts(self, operator: CopiesOnNodes) -> None:
        backoff = Backoff(0.5, 30.0)
        while not self._coordinator.broadcasting:
            try:
                await self._coordinator.start_broadcasts(operator)
            except WALError as error:
                self._coordinator.broadcasts_trouble = error
                _log.error("the broadcaster cannot start, and will be tried again: %s", error)
                await asyncio.sleep(backoff.next())

    def _status(self) -> ClusterStatus:
        now_s, membership, assigner = time.monotonic(), self._membership, self._assigner
        counts: dict[int, int] = {}
        placed: list[PlacedPChannel] = []
        for name, record in assigner.assignments.records.items():
            owner = record.owner
            if owner is not None:
                counts[owner.node.server_id] = counts.get(owner.node.server_id, 0) + 1
            placed.append(
                PlacedPChannel(
                    name=name,
                    term=record.term,
                    state=int(record.state),
                    server_id=0 if owner is None else owner.node.server_id,
                    address="" if owner is None else owner.node.address,
                    histories=len(record.histories),
                    trouble="" if record.state is AssignmentState.ASSIGNED else assigner.troubles.get(name, ""),
                    since_s=now_s - assigner.since_s[name] if name in assigner.since_s else 0.0,
                )
            )
        nodes = [
            NodeStatus(
                server_id=server_id,
                address=one.record.address,
                healthy=one.healthy_since_s is not None,
                drains=server_id in membership.drained or one.record.stopping,
                trouble=one.trouble,
                pchannels=counts.get(server_id, 0),
                healthy_s=0.0 if one.healthy_since_s is None else now_s - one.healthy_since_s,
            )
            for server_id, one in sorted(membership.nodes.items())
        ]
        asks = "the broadcaster asks every pchannel first, and some are on no node"
        trouble = self._coordinator.broadcasts_trouble
        waiting = "" if self._coordinator.broadcasting else asks if trouble is None else f"the broadcaster cannot start: {trouble}"
        return ClusterStatus(
            leader=self._leadership.value,
            token=self._leadership.token,
            paused=membership.paused,
            nodes=tuple(nodes),
            pchannels=tuple(placed),
            broadcasts=waiting,
        )


class _LeaderEnd(Draining):
    """The end of one leader's streams, while the server continues."""

    @staticmethod
    def error() -> WALError:
        return NotLeaderError("this coordinator leads no more: ask again who does")


async def _handed_on(answer: Awaitable[Any]) -> Any:
    """Returns the answer. If a write fails because this leader has lost the leadership, the error sends the caller to the next one."""
    try:
        return await answer
    except (ChannelFencedError, ClosedError) as error:  # ClosedError: the leader is closing
        raise NotLeaderError(f"this coordinator leads no more: {error}") from error
