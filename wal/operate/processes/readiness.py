"""Readiness: whether the whole cluster can be used, by the records in etcd. Every coordinator and node reports it to probes.

How it works. It follows the assignments of all pchannels and the records of live nodes. The cluster is ready while each pchannel is
ASSIGNED to a live node and no earlier holder may still have it. A pchannel may be otherwise for `BOUND_S`, since a move is not an outage.
At the first check the bound does not apply: a starting cluster is not ready before everything is assigned. While etcd has not answered for
longer than `BOUND_S`, the state is unknown, and the cluster is not ready either. An open watch stays silent when etcd is lost, so the
component loads a key every `ASK_S`.

Live is not ready: a process of a cluster that is not ready still serves its part. So readiness is a separate service of gRPC's health,
`readiness`, for a rollout that must stop; the reason is in GetComponentStates and in the logs.

`Placement` is pure: it takes the records and the time, and returns the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from wal.channels.cluster import NODES
from wal.coordinator.assignments import PREFIX, Assignment, AssignmentState, decode
from wal.errors import ClosedError, KeyNotExistError, WALError
from wal.runtime.tasks import end_tasks
from wal.storage.kv import KVBase, WatchEvent
from wal.storage.kv.following import follow_prefix

BOUND_S: Final = 5.0
"""The time that a pchannel may be on no node before the cluster is not ready: longer than a move, shorter than the loss of a node."""
LOOK_S: Final = 0.5
ASK_S: Final = 1.0
_NAMED: Final = 3
"""The maximum number of pchannels in the reason."""
_log: Final = logging.getLogger("wal.cluster")


class Placement:
    """The time since when each pchannel is misplaced."""

    def __init__(self) -> None:
        self._since_s: dict[str, float] = {}
        self._looked = False

    @property
    def sound(self) -> bool:
        """Whether the newest check was without findings: until the records change, another check has the same result."""
        return self._looked and not self._since_s

    def look(self, records: Mapping[str, Assignment], live: Mapping[int, object], now_s: float) -> str:
        """Returns the reason why the cluster is not ready, or an empty text. `live` are the server ids of the live nodes."""
        if not records:
            return "no pchannel is known yet"
        troubles = {name: trouble for name, record in records.items() if (trouble := _trouble(record, live))}
        first_s = now_s if self._looked else now_s - BOUND_S
        self._since_s = {name: self._since_s.get(name, first_s) for name in troubles}
        self._looked = True
        overdue = sorted((since_s, name) for name, since_s in self._since_s.items() if now_s - since_s >= BOUND_S)
        if not overdue:
            return ""
        reasons = [f"pchannel {name} {troubles[name]} for {now_s - since_s:.0f} s" for since_s, name in overdue[:_NAMED]]
        others = f", and {len(overdue) - _NAMED} others" if overdue[_NAMED:] else ""
        return "; ".join(reasons) + others


def _trouble(record: Assignment, live: Mapping[int, object]) -> str:
    """Returns the problem with the assignment of a pchannel, or an empty text."""
    if record.owner is None:
        return "has not been on any node"
    if record.owner.node.server_id not in live:
        return f"is on node {record.owner.node.server_id:x}, which is gone,"
    if record.state is not AssignmentState.ASSIGNED:
        return f"is {record.state.name} at {record.owner.node.address}"
    if record.histories:
        return f"may still be at {record.histories[0].node.address}"
    return ""


class Readiness:
    """Follows the records in `kv`, and calls `report` with the reason, or an empty text, when it changes. `start` it, and `close` it."""

    def __init__(self, kv: KVBase, report: Callable[[str], Awaitable[None]], *, monotonic: Callable[[], float] | None = None) -> None:
        self._kv = kv
        self._report = report
        self._monotonic = monotonic or asyncio.get_running_loop().time
        self._placement = Placement()
        self._records: dict[str, Assignment] = {}
        self._live: dict[int, str] = {}
        self._changed = True
        """Whether a record has changed since the newest check."""
        self._answered_s: dict[str, float] = {}
        """The time at which the records below each prefix were last known to be the newest; infinite while a watch is open."""
        self._asked_s = 0.0
        """The time of the last request that etcd has answered."""
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Starts following the records."""
        loop = asyncio.get_running_loop()
        self._asked_s = -BOUND_S + self._monotonic()
        self._tasks.append(loop.create_task(self._ask(), name="readiness: does etcd answer"))
        for prefix, take in ((PREFIX, self._take_record), (NODES, self._take_node)):
            self._answered_s[prefix] = -BOUND_S + self._monotonic()
            self._tasks.append(loop.create_task(self._follow(prefix, take), name=f"readiness: {prefix}"))
        self._tasks.append(loop.create_task(self._look(), name="readiness"))

    async def close(self) -> None:
        """Stops following the records. Idempotent."""
        await end_tasks(*self._tasks)

    async def _look(self) -> None:
        reported: str | None = None
        while True:
            now_s = self._monotonic()
            unknown_s = now_s - min(self._asked_s, *self._answered_s.values())
            if unknown_s >= BOUND_S:
                why = "etcd does not say where the pchannels are"
            elif self._changed or not self._placement.sound:
                self._changed = False
                why = self._placement.look(self._records, self._live, now_s)
            else:
                why = ""
            if reported is None or bool(why) != bool(reported):
                if why and reported is not None:
                    _log.warning("the cluster is not ready: %s", why)
                elif reported:
                    _log.info("the cluster is ready: every pchannel is on a live node")
            if why != reported:
                reported = why
                await self._report(why)
            await asyncio.sleep(LOOK_S)

    async def _ask(self) -> None:
        while True:
            asked_s = self._monotonic()
            try:
                await self._kv.load(PREFIX)
            except KeyNotExistError:
                self._asked_s = asked_s
            except ClosedError:
                return
            except WALError as error:
                _log.debug("etcd does not answer: %s", error)
            else:
                self._asked_s = asked_s
            await asyncio.sleep(ASK_S)

    async def _follow(self, prefix: str, take: Callable[[str, str | None], None]) -> None:
        present_keys: set[str] = set()

        async def read() -> None:
            keys, texts = await self._kv.load_with_prefix(prefix)
            for key, text in zip(keys, texts, strict=True):
                take(key, text)
            for deleted in present_keys - set(keys):
                take(deleted, None)
            present_keys.clear()
            present_keys.update(keys)
            self._answered_s[prefix] = float("inf")

        def changed(event: WatchEvent) -> None:
            present_keys.add(event.key)
            take(event.key, event.value)

        def late(error: WALError) -> None:
            _log.debug("readiness is not followed now: %s", error)
            self._answered_s[prefix] = min(self._answered_s[prefix], self._monotonic())

        await follow_prefix(self._kv, prefix, read=read, changed=changed, late=late)

    def _take_record(self, key: str, text: str | None) -> None:
        self._changed = True
        name = key.removeprefix(PREFIX)
        if text is None:
            self._records.pop(name, None)
        else:
            self._records[name] = decode(key, text)

    def _take_node(self, key: str, text: str | None) -> None:
        self._changed = True
        server_id = int(key.removeprefix(NODES), 16)
        if text is None:
            self._live.pop(server_id, None)
        else:
            self._live[server_id] = text
