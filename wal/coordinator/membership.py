"""Membership: the live nodes, their health, and the operator's orders about them.

How it works. A node lives while its record is in etcd, which removes it with the node's lease. A watch brings changes, and a list that is
read after a broken watch and once a minute replaces the state. Every `STATUS_PAUSE_S` each node gets a status call. A node is healthy while
it answers, its clock is right, and it writes a format that the cluster has.

Who calls: the assigner reads `nodes` and `views`, and `on_changed` notifies it of every change. `drain` and `pause` save the operator's
orders, so that the next leader follows them.

A node that does not answer never counts as dead here. Its lease decides that, or the assigner, which may revoke the lease. A node at whose
address another start of it answers is dead, and no plan includes it although its lease continues.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec

from wal.channels.cluster import DRAINED, FORMAT, LOG_KEY, NODES, PAUSED, ClusterRecord, NodeRecord, encode, node_from
from wal.coordinator.assignments import NodeStart
from wal.coordinator.node_calls import NodeCalls
from wal.coordinator.plan import NodeView
from wal.errors import InvalidArgumentError, SessionLostError, WALError
from wal.runtime.tasks import end_tasks, keep_task
from wal.storage.kv import KVBase, WatchEvent
from wal.storage.kv.following import follow_prefix

STATUS_PAUSE_S: Final = 1.0
SKEW_MAX_S: Final = 0.5
"""The clock difference above which a node is not healthy: ticks would run ahead of the other nodes' clocks."""
_ALL: Final = "cluster/"
_log: Final = logging.getLogger("wal.cluster")


class LiveNode(msgspec.Struct):
    """A live node: its record; the time of its arrival or last answer; the start of its healthy time (None: it is not healthy); the reason
    why it is not; whether a status call has ended, so that its health is known; and whether another start of it answers at its address
    before its lease has ended.
    """

    record: NodeRecord
    answered_s: float
    healthy_since_s: float | None = None
    trouble: str = ""
    asked: bool = False
    is_gone: bool = False
    failed: dict[str, int] = {}
    """The pchannels that have failed there, with their terms."""
    progress: dict[str, int] = {}
    """The progress of running openings and closings on the node, by pchannel."""

    @property
    def node(self) -> NodeStart:
        return NodeStart(self.record.server_id, self.record.address)


class Membership:
    """The nodes of the cluster in `kv`. `start` it before use, and `close` it."""

    def __init__(
        self,
        kv: KVBase,
        calls: NodeCalls,
        *,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
        silent_max_s: float,
        form: int = FORMAT,
    ) -> None:
        """A node that has not answered for `silent_max_s`, the lifetime of a session, is not healthy.

        `form` is the format that the cluster has, which an update of the leader alone does not raise.
        """
        self.nodes: dict[int, LiveNode] = {}
        """The live nodes by server id."""
        self.drained: set[int] = set()
        self.paused: bool = False
        self.silent_max_s: float = silent_max_s
        self.on_changed: Callable[[], object] = lambda: None
        """Called after each change of the inputs of a plan."""
        self._form = form
        self._kv = kv
        self._calls = calls
        self._monotonic = monotonic
        self._wall = wall
        self._tasks: list[asyncio.Task[None]] = []
        self._asking: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Reads the live nodes, and follows them from then on. Raises the errors of the KV."""
        await self._list()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._follow(), name="nodes"), loop.create_task(self._ask(), name="status of nodes")]

    async def close(self) -> None:
        """Stops following the nodes. Idempotent."""
        await end_tasks(*self._tasks, *self._asking)

    def views(self) -> dict[int, NodeView]:
        """Returns the nodes for a plan. A stopping or lost node is not among them."""
        now_s = self._monotonic()
        return {
            server_id: NodeView(
                0.0 if one.healthy_since_s is None else max(0.001, now_s - one.healthy_since_s),
                drains=server_id in self.drained,
                asked=one.asked,
            )
            for server_id, one in self.nodes.items()
            if not one.record.stopping and not one.is_gone
        }

    def silent_s(self, server_id: int) -> float:
        """Returns the seconds since the last answer of a live node."""
        return self._monotonic() - self.nodes[server_id].answered_s

    def replaced(self, server_id: int, why: WALError) -> None:
        """Marks a node as lost, because another start of it answers at its address, or because it reports that its lease is lost."""
        if (one := self.nodes.get(server_id)) is not None and not one.is_gone:
            one.is_gone = True
            self._judge(one, str(why))
            self.on_changed()

    async def drain(self, server_id: int, *, drain: bool) -> None:
        """Saves that a node gets no pchannels and loses the ones it has, or that it takes some again."""
        if server_id not in self.nodes:
            live_nodes = ", ".join(f"{one:x}" for one in self.nodes) or "none"
            raise InvalidArgumentError(f"no live node {server_id:x}: the live ones are {live_nodes}")
        key = f"{DRAINED}{server_id:016x}"
        await (self._kv.save(key, "") if drain else self._kv.remove(key))
        (self.drained.add if drain else self.drained.discard)(server_id)
        self.on_changed()

    async def pause(self, *, pause: bool) -> None:
        """Saves that the balancer moves nothing, or that it moves pchannels again."""
        await (self._kv.save(PAUSED, "") if pause else self._kv.remove(PAUSED))
        self.paused = pause
        self.on_changed()

    async def raise_format(self, record: ClusterRecord) -> ClusterRecord:
        """Returns the record of the cluster, with the format of this version saved once every live node has supported it for a while.

        From then on an older node gets an error when it starts. An update of some processes alone changes nothing.
        """
        proven = [one for one in self.views().values() if one.healthy_s >= self.silent_max_s]
        every = len(proven) == len(self.nodes) and all(one.record.format >= FORMAT for one in self.nodes.values())
        if record.format < FORMAT and proven and every:
            raised = msgspec.structs.replace(record, format=FORMAT)
            if await self._kv.change_if({LOG_KEY: encode(record)}, saves={LOG_KEY: encode(raised)}) is None:
                _log.info("every node writes format %d, and so does the cluster from now on; it was %d", FORMAT, record.format)
                self._form = FORMAT
                return raised
        return record

    # -- who lives

    async def _list(self) -> None:
        keys, values = await self._kv.load_with_prefix(_ALL)
        records = {record.server_id: record for key, value in zip(keys, values, strict=True) if (record := _node(key, value)) is not None}
        for server_id in self.nodes.keys() - records.keys():
            self._left(server_id)
        for record in records.values():
            self._came(record)
        self.drained = {int(key.removeprefix(DRAINED), 16) for key in keys if key.startswith(DRAINED)}
        self.paused = PAUSED in keys
        # Orders about ended nodes are obsolete: another start of a node has another id.
        for ended_id in self.drained - records.keys():
            await self._kv.remove(f"{DRAINED}{ended_id:016x}")
            self.drained.discard(ended_id)
        self.on_changed()

    async def _follow(self) -> None:
        await follow_prefix(
            self._kv,
            _ALL,
            read=self._list,
            changed=self._changed,
            late=lambda error: _log.warning("what is known of the nodes gets older: %s", error),
        )

    def _changed(self, event: WatchEvent) -> None:
        if not event.key.startswith(NODES):
            return
        if event.value is None:
            self._left(int(event.key.removeprefix(NODES), 16))
        elif (record := _node(event.key, event.value)) is not None:
            self._came(record)
        self.on_changed()

    def _came(self, record: NodeRecord) -> None:
        node = self.nodes.get(record.server_id)
        if node is None:
            _log.info("node %x at %s has come", record.server_id, record.address)
            now_s = self._monotonic()
            self.nodes[record.server_id] = LiveNode(record, now_s)
            self._ask_now(record.server_id)
        else:
            node.record = record

    def _left(self, server_id: int) -> None:
        if (node := self.nodes.pop(server_id, None)) is not None:
            _log.info("node %x at %s is gone", server_id, node.record.address)
            keep_task(self._asking, asyncio.get_running_loop().create_task(self._calls.forget(server_id), name=f"forgetting {server_id:x}"))

    # -- how they are

    async def _ask(self) -> None:
        while True:
            await asyncio.sleep(STATUS_PAUSE_S)
            for server_id in list(self.nodes):
                self._ask_now(server_id)

    def _ask_now(self, server_id: int) -> None:
        name = f"status of node {server_id:x}"
        if all(task.get_name() != name for task in self._asking):
            keep_task(self._asking, asyncio.get_running_loop().create_task(self._ask_one(self.nodes[server_id]), name=name))

    async def _ask_one(self, one: LiveNode) -> None:
        began, wall = self._monotonic(), self._wall()
        try:
            status = await self._calls.status(one.node)
        except SessionLostError as error:
            self.replaced(one.record.server_id, error)
            return
        except WALError as error:
            silent = self._monotonic() - one.answered_s
            if silent >= self.silent_max_s:
                self._judge(one, f"it has not answered for {silent:.0f} s: {error}")
            return
        took = self._monotonic() - began
        one.answered_s, one.is_gone = self._monotonic(), False
        one.failed = {hosted.pchannel.name: hosted.pchannel.term for hosted in status.pchannels if hosted.failed}
        one.progress = {hosted.pchannel.name: hosted.progress for hosted in status.pchannels if not (hosted.available or hosted.failed)}
        # The node read its clock between the request and the answer.
        skew = status.wall_s - (wall + took / 2)
        if abs(skew) > SKEW_MAX_S + took / 2:
            self._judge(one, f"its clock is off by {skew:+.1f} s, and {SKEW_MAX_S} s are allowed: set it by NTP")
        elif one.record.format < self._form:
            self._judge(one, f"it writes format {one.record.format}, and the cluster {self._form}: update it")
        else:
            self._judge(one, "")
        if one.failed:
            self.on_changed()

    def _judge(self, one: LiveNode, trouble: str) -> None:
        """Stores the reason why a node is not healthy; empty if it is."""
        changed = not one.asked or (one.healthy_since_s is None) != bool(trouble)
        one.trouble, one.asked = trouble, True
        if changed:
            one.healthy_since_s = None if trouble else self._monotonic()
            if trouble:
                _log.warning("node %x at %s gets no pchannels: %s", one.record.server_id, one.record.address, trouble)
            self.on_changed()


def _node(key: str, value: str) -> NodeRecord | None:
    """Returns the node of a record. Returns None for another record, and for an unreadable one, whose node counts as absent."""
    if not key.startswith(NODES):
        return None
    try:
        return node_from(key, value)
    except WALError as error:
        _log.warning("%s", error)
        return None
