"""ClusterNode: a streaming node of a cluster, from its start to its end.

How it works. It takes a session, opens the log in the cluster's record, follows the directory of vchannels, listens, and only then saves
its own record in etcd: from there on the leader assigns pchannels to it. It serves the pchannels that are assigned to it at each moment.

How it ends. A stopping node marks its record, the leader moves its pchannels away, and then the node closes the remaining ones and exits
with 0. A node whose session is lost holds nothing: every pchannel answers with SessionLostError at once, since each checks the lease, and
the process exits with 3, without waiting for anything.

What can go wrong. Without a record of the cluster, the node waits for a coordinator to create it. Without a leader, a stopping node closes
its pchannels by itself after `HAND_OVER_S`, and the next leader gets them free.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from actors import ActorSystem, SystemClock
from wal._version import __version__
from wal.channels.cluster import (
    FORMAT,
    LEADER,
    MOVING_CURSORS,
    NODES,
    PATTERN_CURSORS,
    NodeRecord,
    encode,
    load_cluster,
    load_created_cluster,
    node_from,
    node_key,
    ticks_key,
)
from wal.channels.metadata import CURSOR_ROOT
from wal.channels.pchannels import load_pchannels
from wal.channels.vchannels import VChannelInfo
from wal.errors import ChannelExistError, InvalidArgumentError, UnavailableError, WALError, closed_log
from wal.network import Method
from wal.node.directory_view import DirectoryView
from wal.node.local.storage import Storage, Undo
from wal.node.node import StreamingNode
from wal.node.pattern_pins import PatternPins
from wal.node.session import TTL_S, NodeSession
from wal.operate.processes.cluster_reader import ClusterReader
from wal.operate.processes.opening import connected, open_log, open_root, settings_for
from wal.operate.processes.readiness import Readiness
from wal.read.cursors.cursor import pattern_home
from wal.read.cursors.pins import PinKeys
from wal.requests.request import Request
from wal.requests.vchannels import CreateVChannel
from wal.rpc.draining import Draining
from wal.rpc.serving import Handler
from wal.runtime.backoff import Backoff
from wal.runtime.secret import Secret
from wal.runtime.tasks import keep_task
from wal.serve.access import Access
from wal.serve.copies_service import CopiesService
from wal.serve.fence import LogCheck
from wal.serve.frame_calls import FrameCalls
from wal.serve.hosted import Hosted
from wal.serve.manager import CallCheck, NodeManager
from wal.serve.milvus import ConsumeService
from wal.serve.milvus_produce import MilvusProduceService
from wal.serve.produce import ProduceService
from wal.serve.server import Server, States
from wal.serve.submit import SubmitService, hosted_calls
from wal.serve.tail import AllTickRounds, TailService
from wal.settings import Settings
from wal.storage.kv import KVBase
from wal.storage.kv.etcd import EtcdElection, EtcdKV
from wal.write.checkpoint_ledger import CheckpointRule

if TYPE_CHECKING:
    from wal.operate.metrics.snapshot import SnapshotSource

HAND_OVER_S: Final = 20.0
"""The time that a stopping node waits for the leader to move its pchannels away."""
TICKS_AHEAD_S: Final = 10.0
"""The lead with which a node saves the limit of its ticks: an election of etcd must not stop its appends."""
_log: Final = logging.getLogger("wal.cluster")


class ClusterNode:
    """A node of the cluster at `root`. `open` starts it; then `run`, and `close`."""

    def __init__(self, root: str | Secret, own: Settings, access: Access, *, ttl_s: float = TTL_S) -> None:
        self.server: Server
        self.session: NodeSession
        self.node: StreamingNode
        self._root = root
        self._own = own
        self._access = access
        self._ttl_s = ttl_s
        self._undo = Undo()
        self._system = ActorSystem("wal node", clock=SystemClock())
        self._manager: NodeManager
        self._kv: KVBase
        self._reader = ClusterReader(root, self._access_now)
        self._deleting: set[asyncio.Task[None]] = set()

    @property
    def server_id(self) -> int:
        """The number of this start of the node."""
        return self.session.server_id

    async def open(self) -> None:
        """Starts to serve. A failure closes everything again and raises."""
        try:
            await self._open()
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(self._undo.run()))
            raise

    async def failed(self) -> WALError:
        """Returns the reason once the session is lost; from then on the node answers no call."""
        return await asyncio.shield(self.session.lost)

    def measured(self) -> SnapshotSource:
        """Returns the source of metrics of this node's pchannels, and of the cursors on them."""
        from wal.operate.metrics.snapshot import Snapshots  # only on request

        node = self.node

        return Snapshots(
            lambda: node.statistics("pulsar", vchannels=len(node.routes.known.records)), node.cursors.infos, node.retention.report
        )

    async def hand_over(self) -> None:
        """Waits until the leader, if there is one, has moved all pchannels away."""
        self._manager.stopping = True
        try:
            await self._show(stopping=True)
            async with asyncio.timeout(HAND_OVER_S):
                while self.node.pchannels and self.session.alive and await self._others():
                    self._manager.removed.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._manager.removed.wait(), 1.0)
        except (TimeoutError, WALError) as error:
            _log.warning("no leader took the %d pchannels of this node, which closes them itself: %s", len(self.node.pchannels), error)

    async def close(self) -> None:
        """Hands the pchannels over, and ends: running calls are finished, accepted messages are written.

        After the session was lost nothing is written and no call is answered: another node has the pchannels. The caller ends the process,
        since calls to Pulsar may still wait.
        """
        if self.session.lost.done():
            await self.server.cut_off()
            self.node.hosting.disarm()
            return
        await self.hand_over()
        await self._reader.close()  # its calls to this node would hold up the server's end
        await self.server.close()
        self.node.hosting.disarm()
        self.node.routes.end_warnings()
        _, failures = await self.node.close(closed_log)
        if self._deleting:
            await asyncio.wait(self._deleting)
        failure = await self._undo.run()
        if failures or failure is not None:
            raise (*failures, failure)[0]  # type: ignore[misc]  # the first is an exception

    async def _open(self) -> None:
        undo = self._undo
        record, settings = await self._joined()
        self.session = await NodeSession.open(self._root, ttl_s=self._ttl_s)
        undo.add(self.session.close)
        await self._system.start()
        undo.add(self._system.stop)
        storage = await open_log(record.log, settings, undo, create=False)
        self._kv = storage.kv
        names = list(metas := await load_pchannels(storage.kv))
        node = self.node = StreamingNode(settings, self._system, place=record.log)
        await node.open_oracle(storage.kv, key=ticks_key(self.server_id), save_window_s=TICKS_AHEAD_S)
        undo.add(node.oracle.close)
        view = DirectoryView(storage.kv, names)
        view.ask_to_create = self._have_created
        await view.start()
        undo.add(view.close)
        node.host(storage.backend, storage.kv, view, limits=storage.limits, checkpoint_rule=CheckpointRule(), lease=self.session)
        undo.add(node.hosting.close)
        view.on_changed = self._changed
        pins = PinKeys(storage.kv.under(CURSOR_ROOT))
        patterns = PatternPins(storage.kv, pattern_home(names), check_format=partial(_check_format, storage))
        raise_format = partial(_raise_format, storage)
        attach_matching = self._reader.attach_matching
        await node.open_cursors(pins, storage.kv, raise_format=raise_format, patterns=patterns, attach_matching=attach_matching)
        undo.add(node.cursors.end)
        undo.add(self._reader.close)
        await node.start_retention()
        undo.add(node.retention.close)
        node.hosting.arm()
        await self._serve(storage, view, settings, log_id=metas[names[0]].incarnation, pchannels=len(names))
        await self._show(stopping=False)

    async def _have_created(self, name: str, pchannel: str) -> None:
        """Asks the leading coordinator to create a vchannel, unless it exists."""
        _, coordinators = await self._kv.load_with_prefix(LEADER)
        if not coordinators:
            raise UnavailableError(f"vchannel {name!r} does not exist, and no coordinator is there to create it: try again when one is")
        connection = await connected(self._access_now, *dict.fromkeys(coordinators))
        try:
            with contextlib.suppress(ChannelExistError):
                await connection.submit(CreateVChannel(name, pchannel), again=True)
        finally:
            await connection.close()

    def _access_now(self) -> Access:
        return self.server.access

    async def _joined(self) -> tuple[Any, Settings]:
        """Waits until a coordinator has created the cluster; returns its record, and this node's settings."""
        backoff = Backoff(0.1, 2.0)
        kv = await open_root(self._root)
        try:
            is_logged = False
            while True:
                if (record := await load_created_cluster(kv)) is not None:
                    return record, settings_for(record, self._own, self._root)
                if not is_logged:
                    is_logged = True
                    _log.info("no cluster at this root yet: waiting for its first coordinator")
                await asyncio.sleep(backoff.next())
        finally:
            await kv.close()

    async def _serve(self, storage: Storage, view: DirectoryView, settings: Settings, *, log_id: int, pchannels: int) -> None:
        node, hosted, draining = self.node, Hosted(self.node.pchannels), Draining()
        check = CallCheck(self.server_id, self.session, partial(_leading_token, storage))
        self._manager = manager = NodeManager(node, view, storage.kv, check, wall=time.time)
        copies = CopiesService(node, view, hosted, check)
        states, rounds = States(self.server_id), AllTickRounds()
        await states.ready("it is not known yet where the pchannels are")

        def handlers(_address: str) -> Mapping[Method[Any, Any], Handler]:
            return {
                **states.handlers(),
                **manager.handlers(),
                **ProduceService(node, hosted, draining, self._access.bounds).handlers(),
                **MilvusProduceService(node, hosted, draining, self._access.bounds).handlers(),
                **ConsumeService(node, hosted, draining, rounds).handlers(),
                **TailService(node, hosted, draining, self._access.bounds, rounds).handlers(),
                **FrameCalls(hosted, draining).handlers(),
                **SubmitService(node=hosted_calls(node, hosted), coordinator=_of_the_leader, led=copies.submit).handlers(),
            }

        interceptors = (LogCheck(log_id, node.pchannels),)
        self.server = Server(self._access, states, draining, interceptors=interceptors, settings=settings, pchannels=pchannels)
        await self.server.listen(handlers)
        self._undo.add(self.server.close)
        self._undo.add(manager.close)
        readiness = Readiness(storage.kv, states.ready)
        readiness.start()
        self._undo.add(readiness.close)

    async def _others(self) -> bool:
        """Returns whether another node can take pchannels."""
        keys, texts = await self._kv.load_with_prefix(NODES)
        records = map(node_from, keys, texts)
        return any(record.server_id != self.server_id and not record.stopping for record in records)

    async def _show(self, *, stopping: bool) -> None:
        """Saves the record by which the leader and clients find this node."""
        record = NodeRecord(self.server_id, self.server.advertised, __version__, FORMAT, stopping)
        await self.session.register(node_key(self.server_id), encode(record))

    def _changed(self, before: VChannelInfo | None, now: VChannelInfo | None) -> None:
        """Handles a change of the directory: the node of a vchannel's pchannel deletes the cursors of a vchannel that has ended."""
        self.node.routes.follow(before, now)
        if before is not None and before.pchannel in self.node.pchannels:
            keep_task(
                self._deleting, asyncio.get_running_loop().create_task(self._delete_cursors(before), name=f"cursors of {before.name}")
            )

    async def _delete_cursors(self, info: VChannelInfo) -> None:
        try:
            await self.node.routes.delete_cursors(info)
        except WALError as error:  # they are useless now, and are deleted at the next opportunity
            _log.warning("the cursors of vchannel %r, which was dropped, could not be deleted yet: %s", info.name, error)


async def _of_the_leader(request: Request[Any]) -> Any:
    raise InvalidArgumentError(f"{type(request).__name__} concerns the log as a whole: ask a coordinator of the cluster")


async def _leading_token(storage: Storage) -> int:
    """Returns the token of the leading coordinator, or 0 without one."""
    assert isinstance(storage.kv, EtcdKV), "the metadata of a cluster are in etcd"
    leader = await EtcdElection(storage.kv, LEADER).leader()
    return 0 if leader is None else leader.token


async def _raise_format(storage: Storage) -> None:
    """Raises the format of the log for the first cursor that moves with transactions.

    Raises UnavailableError as long as the cluster has an earlier format: its nodes of an earlier version would reject the log.
    """
    record = await load_cluster(storage.kv)
    if record is not None and record.format < MOVING_CURSORS:
        raise UnavailableError(
            f"cursors move with transactions from format {MOVING_CURSORS} of a cluster on, and this one has format {record.format}: update "
            "all its nodes, and try again some seconds later"
        )
    await storage.backend.raise_format()


async def _check_format(storage: Storage) -> None:
    """Raises UnavailableError as long as the cluster may have nodes of a version that truncates past cursors of patterns."""
    record = await load_cluster(storage.kv)
    if record is not None and record.format < PATTERN_CURSORS:
        raise UnavailableError(
            f"cursors of patterns are saved from format {PATTERN_CURSORS} of a cluster on, and this one has format {record.format}: update "
            "all its nodes, and try again some seconds later"
        )
