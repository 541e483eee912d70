"""ClusterCoordinator: a coordinator of a cluster: a candidate, and the leader while it is elected.

How it works. The first coordinator of a root saves the location of the cluster's log. Each coordinator then listens, becomes a candidate
under its address, and waits for its turn. Meanwhile it answers every call with NotLeaderError, which names the leader. As the leader it
serves the handlers of `Leading`.

What can go wrong: its session is lost, or a write fails because another coordinator leads. Then `Leading` ends, with its streams, and the
process becomes a candidate again. A write without an answer ends `Leading` too, which starts again from the saved state, under the same
leadership.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from wal.channels.cluster import FORMAT, LEADER, ClusterRecord, create_cluster, load_cluster
from wal.channels.pchannels import load_pchannels
from wal.coordinator.assigner import LeadingEndedError
from wal.errors import ClosedError, InvalidArgumentError, NotLeaderError, UnavailableError, UnknownError, WALError
from wal.network import Method
from wal.node.local.storage import Undo
from wal.operate.metrics.snapshot import CoordinatorStatistics, MetricsSnapshot, SnapshotSource
from wal.operate.processes.leading import Leading
from wal.operate.processes.opening import check_format, check_log, connected, open_log, open_root, saved_settings, settings_for
from wal.operate.processes.readiness import Readiness
from wal.requests.request import Request
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.draining import Draining
from wal.rpc.methods import ASSIGNMENT_DISCOVER, PCHANNEL_METHODS, WATCH_VCHANNELS
from wal.rpc.serving import Handler, handed_on
from wal.runtime.backoff import Backoff
from wal.runtime.secret import Secret
from wal.runtime.tasks import end_tasks
from wal.serve.access import Access
from wal.serve.fence import LogCheck
from wal.serve.server import Server, States
from wal.serve.submit import SubmitService
from wal.settings import Settings
from wal.storage.kv.etcd import EtcdElection, EtcdKV, EtcdSession, Leadership

TTL_S: Final = 10.0
"""The lifetime of a coordinator's session: it outlives an election of etcd's."""
_log: Final = logging.getLogger("wal.cluster")


class ClusterCoordinator:
    """A coordinator of the cluster at `root`. `open` starts it; then `run`, and `close`."""

    def __init__(
        self,
        root: str | Secret,
        own: Settings,
        access: Access,
        *,
        log: str | None = None,
        expected_nodes: int | None = None,
        ttl_s: float = TTL_S,
    ) -> None:
        """`log` is the location of the cluster's log on Pulsar; only the first coordinator has to name it.

        `ttl_s` is the lifetime of its session, and the time after which a silent node counts as lost.
        """
        self.server: Server
        self._root = root
        self._own = own
        self._access = access
        self._named = None if log is None else check_log(log)
        self._expected = expected_nodes
        self._ttl_s = ttl_s
        self._undo = Undo()
        self._kv: EtcdKV
        self._record: ClusterRecord
        self._settings: Settings
        self._check = LogCheck(None, {})
        self._leading: Leading | None = None
        self._leader = ""
        """The address of the leader; empty if not known."""
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def leads(self) -> bool:
        """Whether this coordinator leads, and serves."""
        return self._leading is not None

    async def open(self) -> None:
        """Joins the cluster, or creates it, and listens. A failure closes everything again and raises.

        Raises InvalidArgumentError for a new root without the location of a log, or if the log or a setting contradicts the cluster's.
        """
        try:
            await self._open()
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(self._undo.run()))
            raise

    def measured(self) -> SnapshotSource:
        """Returns the source of this coordinator's metrics."""
        return _Measured(self)

    def statistics(self) -> CoordinatorStatistics:
        """Returns the counts of the cluster if this coordinator leads."""
        return CoordinatorStatistics(False) if self._leading is None else self._leading.statistics()

    async def failed(self) -> WALError:
        """Returns the reason once this coordinator cannot continue: a defect in one of its tasks."""
        await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        ended = next(task for task in self._tasks if task.done())
        failure = None if ended.cancelled() else ended.exception()
        return failure if isinstance(failure, WALError) else UnknownError(f"the coordinator failed ({failure!r}): please report it")

    async def close(self) -> None:
        """Resigns, rejects new calls and ends. Idempotent."""
        await end_tasks(*self._tasks)
        failure = await self._undo.run()
        if failure is not None:
            raise failure

    async def _open(self) -> None:
        kv = self._kv = await open_root(self._root)
        self._undo.add(kv.close)
        self._record = await self._joined()
        self._settings = settings = settings_for(self._record, self._own, self._root)
        states = States(0)
        await states.ready("it is not known yet where the pchannels are")
        draining = Draining()
        self.server = Server(self._access, states, draining, interceptors=(self._check,), settings=settings, pchannels=1)

        def handlers(_address: str) -> Mapping[Method[Any, Any], Handler]:
            served = (ASSIGNMENT_DISCOVER, WATCH_VCHANNELS)
            return {
                **states.handlers(),
                **handed_on(served, self._handler),
                **handed_on(PCHANNEL_METHODS, self._elsewhere),
                **SubmitService(node=self._on_no_node, coordinator=self._submit).handlers(),
            }

        await self.server.listen(handlers)
        await states.leads(False)
        self._undo.add(self.server.close)
        readiness = Readiness(kv, states.ready)
        readiness.start()
        self._undo.add(readiness.close)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run(), name="coordinator"), loop.create_task(self._observe(), name="who leads")]

    async def _joined(self) -> ClusterRecord:
        """Returns the record of the cluster, after creating it if this is the first coordinator."""
        record = await load_cluster(self._kv)
        if record is None:
            if self._named is None:
                raise InvalidArgumentError("no cluster at this root yet: name the log that it is to serve, with --log pulsar://…")
            settings, undo = self._own.replace(kv=self._root), Undo()
            try:
                storage = await open_log(self._named, settings, undo, create=True)
                frame_bytes_max = storage.limits.frame_bytes_max
            finally:
                await undo.run()
            pchannels = len(await load_pchannels(self._kv)) or None
            own = self._own if self._own.pchannels is not None else self._own.replace(pchannels=pchannels)
            await create_cluster(self._kv, ClusterRecord(self._named, saved_settings(own), frame_bytes_max, FORMAT))
            record = await load_cluster(self._kv)
            assert record is not None, "it was saved, here or elsewhere"
        if self._named not in (None, record.log):
            raise InvalidArgumentError(
                f"the cluster at this root serves {record.log}, not {self._named}: leave --log out, or name another root for another log"
            )
        return record

    # -- the election

    async def _run(self) -> None:
        backoff = Backoff(0.1, 2.0)
        while True:
            try:
                async with await self._kv.session(ttl_s=self._ttl_s) as session:
                    await self._stand(session)
            except ClosedError:
                return
            except WALError as error:
                _log.warning("this coordinator is not a candidate at the moment: %s", error)
            await asyncio.sleep(backoff.next())

    async def _stand(self, session: EtcdSession) -> None:
        """Becomes a candidate, and leads when elected, until the session is lost."""
        election = EtcdElection(self._kv, LEADER)
        check_format(await load_cluster(self._kv) or self._record)
        async with await election.campaign(self.server.advertised, session) as leadership:
            _log.info("this coordinator leads, with token %d", leadership.token)
            backoff, version_count = Backoff(0.1, 2.0), 0
            while session.alive:
                self._record = check_format(await load_cluster(self._kv) or self._record)  # a leader of a later version may have raised it
                # The state that this process leads with next may be older than the state that clients have got; it still gets a later
                # version.
                version_count = 1 + await session.guard(self._lead(leadership, version_count))
                await asyncio.sleep(backoff.next())

    async def _lead(self, leadership: Leadership, version_count: int) -> int:
        """Leads once, until a write fails or the call is cancelled. Returns the count of the last version that clients have got."""
        leading = Leading(
            self._kv,
            leadership,
            self._record,
            self._settings,
            self.server.draining,
            connect=partial(connected, lambda: self.server.access),
            expected_nodes=self._expected,
            ttl_s=self._ttl_s,
            version_count=version_count,
        )
        try:
            await leading.open()
            self._check.log_id = next(iter((await load_pchannels(self._kv)).values())).incarnation
            self._leading = leading
            await self.server.states.leads(True)
            await leading.run()
        except (LeadingEndedError, WALError) as error:
            _log.warning("this leader reads the saved state again: %s", error)
        finally:
            self._leading = None
            await asyncio.shield(asyncio.ensure_future(self._step_down(leading)))
        return leading.version_count

    async def _step_down(self, leading: Leading) -> None:
        await self.server.states.leads(False)
        await leading.close()

    async def _observe(self) -> None:
        """Stores the address of the current leader, for the answers to clients."""
        backoff = Backoff(0.1, 2.0)
        while True:
            try:
                async for leader in EtcdElection(self._kv, LEADER).observe():
                    self._leader = "" if leader is None else leader.value
                    backoff.reset()
            except ClosedError:
                return
            except WALError as error:
                _log.info("who leads is not known at the moment: %s", error)
            await asyncio.sleep(backoff.next())

    # -- calls

    def _handler(self, method: Method[Any, Any]) -> Handler:
        """Returns the leader's handler of a method. Raises NotLeaderError if this is a standby."""
        return self._leader_here().handlers[method]

    async def _submit(self, request: Request[Any]) -> Any:
        """Returns the leader's answer to a request. Raises NotLeaderError if this is a standby."""
        return await self._leader_here().submit(request)

    def _leader_here(self) -> Leading:
        if self._leading is None:
            leader = "" if self._leader == self.server.advertised else self._leader
            hint = f"ask {leader}" if leader else "none leads at the moment: ask again"
            raise NotLeaderError(f"this coordinator does not lead: {hint}", leader=leader)
        return self._leading

    def _elsewhere(self, method: Method[Any, Any]) -> Handler:
        """Raises UnavailableError: a client calls a coordinator for a pchannel while that is on no node."""
        raise UnavailableError("the pchannel is on no node at the moment: wait for AssignmentDiscover to show it, and ask there")

    async def _on_no_node(self, _request: Request[Any], _pchannel: PChannelInfo) -> Any:
        raise UnavailableError("the pchannel is on no node at the moment: wait for AssignmentDiscover to show it, and ask there")


class _Measured:
    """The metric snapshots of a coordinator, which has no log."""

    def __init__(self, coordinator: ClusterCoordinator) -> None:
        self._coordinator = coordinator

    async def take(self) -> MetricsSnapshot:
        return self.take_nowait()

    def take_nowait(self) -> MetricsSnapshot:
        return MetricsSnapshot(time.time(), coordinator=self._coordinator.statistics())
