"""Assigner: executes the plan: the node of each pchannel, saved before any node or client gets it.

How it works. After each change of the nodes, and every `ROUND_S`, a round computes the moves of the plan and assigns each of these
pchannels to its new node in the table (`Assignments`). It saves the table with the raised terms in one transaction: a claim, which every
writer of the pchannel compares. For each assigned pchannel a task then removes it from the nodes that may still hold it, has the new one
open it, and saves that it is assigned. Clients get only assigned pchannels.

Floors: a node issues no tick that an earlier owner may have issued. A node that removes a pchannel returns a tick above which it issued
none. For a lost node the saved limit of its ticks is taken over, and no process can raise that limit afterwards.

What can go wrong:

* A failed attempt is repeated in a higher term, since a log on Pulsar opens no term twice, and at the same node, unless that is lost. A
  failure of all nodes, such as one of Pulsar, moves nothing.
* After a restore of etcd the logs have higher terms than etcd: a node's error names the highest one, and the next attempt is above. The
  owners of these terms are not known, so the pchannel is removed from every other node first, and no tick of theirs is issued again.
* A node that shows no progress for `PROGRESS_S` is abandoned for this term.
* A node that answers neither a Remove nor a status call for the lifetime of a lease is evicted: its lease is revoked, at most one in that
  time. The node may not notice that, and answers readers until its own clock ends the lease: only then its pchannels are opened elsewhere.
  The eviction is saved first, so the next leader waits as well.
* etcd itself may revoke a lease that is renewed: a member that led and was suspended does so when it resumes (etcd-io/etcd#15247). So a
  node whose record is missing is called once more, and waited for while it answers.
* A node at whose address another start of it answers is lost, and needs no waiting.
* The saved state of lost nodes is removed once every floor is above their limits.
* A write that fails, or is not answered, ends `run`: the next leader has to read the saved state again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

from wal.channels.cluster import EVICTED, TICKS, evicted_key, ticks_key
from wal.channels.pchannels import PREFIX, PChannelMeta, encode
from wal.coordinator.assignments import AssignmentChange, Assignments, AssignmentState, NodeStart, TermHolder
from wal.coordinator.membership import Membership
from wal.coordinator.node_calls import NodeCalls
from wal.coordinator.plan import MassLoss, Placed, plan
from wal.errors import ChannelFencedError, SessionLostError, UnavailableError, UnknownOutcomeError, UnmatchedChannelTermError, WALError
from wal.runtime.backoff import Backoff
from wal.runtime.tasks import end_tasks, keep_task
from wal.storage.kv import KVBase
from wal.timestamp import LOGICAL_BITS
from wal.timestamp.oracle import SavedLimit

ROUND_S: Final = 60.0
"""The interval of plans when nothing has changed."""
PROGRESS_S: Final = 30.0
"""The maximum time without progress of an opening or a closing. Its total time has no limit."""
GONE_S: Final = 1.0
"""The time that a node without a lease has to answer that it still runs."""
RECORDS_MAX: Final = 40
"""The maximum number of pchannels that change in one transaction: two records each, and as many comparisons."""
_LOOK_S: Final = 1.0
_log: Final = logging.getLogger("wal.cluster")


class LeadingEndedError(Exception):
    """The state of this leader may differ from the saved state: the leadership starts again, here or elsewhere."""


class Leases(Protocol):
    """The leases of the nodes' sessions. The number of a lease is the server id of its node."""

    async def lifetime(self, lease: int) -> float:
        """Returns the lifetime in seconds with which a lease was granted. Returns 0.0 for a lease that has ended, which never comes
        back.
        """

    async def revoke(self, lease: int) -> None:
        """Ends a lease; does nothing if it has ended already."""


class Assigner:
    """The assignments of one leader. `load` comes first; then `run` until it raises."""

    def __init__(
        self,
        kv: KVBase,
        metas: dict[str, PChannelMeta],
        assignments: Assignments,
        membership: Membership,
        calls: NodeCalls,
        *,
        leases: Leases,
        monotonic: Callable[[], float],
        expected_nodes: int | None,
        ttl_s: float,
        wait_s: float,
    ) -> None:
        """`metas` are the claims, which rise with the terms. A node that answers nothing for `ttl_s` may be evicted.

        A cluster whose pchannels were never assigned waits `wait_s` for its nodes, or until there are `expected_nodes` of them.
        """
        self.assignments: Assignments = assignments
        self.troubles: dict[str, str] = {}
        """The reasons why pchannels are not assigned, by name."""
        self.since_s: dict[str, float] = {}
        """The time at which each pchannel entered its state, if that was under this leader."""
        self.on_version: Callable[[], object] = lambda: None
        """Called after each change of the assignments."""
        self._kv = kv
        self._metas = metas
        self._membership = membership
        self._calls = calls
        self._leases = leases
        self._monotonic = monotonic
        self._expected = expected_nodes or math.inf
        self._wait_until_s = monotonic() + wait_s
        self._began_s = monotonic()
        self._mass = MassLoss(ttl_s=ttl_s)
        self._ttl_s = ttl_s
        self._doubts = False
        self._saving = asyncio.Lock()
        self._verifying: dict[str, asyncio.Lock] = {}
        """By pchannel, the lock that is held while its owner is called to verify a report."""
        self._woken = asyncio.Event()
        self._moves: dict[str, asyncio.Task[None]] = {}
        self._put_off: set[str] = set()
        """Moving pchannels that the newest plan would place elsewhere: a round checks them again when they have moved."""
        self._retries: dict[str, Backoff] = {}
        self._retry_at_s: dict[str, float] = {}
        self._used_terms: dict[str, int] = {}
        """The highest terms in errors of nodes: the logs have had them, and etcd has no record of them."""
        self._limits: dict[int, int] = {}
        """The ticks above which lost nodes issued none."""
        self._evicted_s = -math.inf
        self._evicted: dict[int, float] = {}
        """The nodes that this or an earlier leader evicted, with the lifetimes of their leases."""
        self._ends_s: dict[int, float] = {}
        """The times at which the leases of evicted nodes end by the nodes' own clocks."""
        self._silencing: dict[int, asyncio.Task[None]] = {}
        """The tasks that wait until nodes without leases answer nothing, including ended tasks."""
        self._sweep_s = monotonic() + ROUND_S
        self._sweeping: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        membership.on_changed = self.wake

    def wake(self) -> None:
        """Schedules a round for the changes."""
        self._woken.set()

    def is_live(self, node: NodeStart) -> bool:
        """Returns whether a node has its lease, as far as this leader can tell."""
        return node.server_id in self._membership.nodes

    async def load(self) -> None:
        """Loads the nodes that earlier leaders evicted, and saves assignments for the pchannels without one."""
        keys, lifetimes = await self._kv.load_with_prefix(EVICTED)
        for key, lifetime_s in zip(keys, lifetimes, strict=True):
            self._evicted[int(key.removeprefix(EVICTED), 16)] = float(lifetime_s)
        async with self._saving:
            names = [name for name in self._metas if name not in self.assignments.records]
            for first in range(0, len(names), RECORDS_MAX):
                await self._save(self.assignments.add({name: self._metas[name].term for name in names[first : first + RECORDS_MAX]}))

    async def run(self) -> None:
        """Assigns until this process loses the leadership. Raises the reason."""
        try:
            while True:
                self._woken.clear()
                pause_s = await self._round()
                if self._monotonic() >= self._sweep_s:
                    self._sweep_s = self._monotonic() + ROUND_S
                    keep_task(self._sweeping, asyncio.get_running_loop().create_task(self.sweep(), name="limits of nodes that are gone"))
                waiting = asyncio.ensure_future(self._woken.wait())
                await asyncio.wait((waiting, self._failure), timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if self._failure.done():
                    self._failure.result()
        finally:
            self._failure.cancel()
            await end_tasks(*self._moves.values(), *self._sweeping, *self._silencing.values())

    async def lost(self, name: str, term: int, why: str) -> None:
        """Handles a report by a client or the node that a pchannel is not available at its owner: it is opened there again, in a higher
        term.

        If that cannot be saved, `run` raises the reason, and not this call, which a client made.
        """
        async with self._saving:
            try:
                if name in self.assignments.records and await self._save(self.assignments.lost(name, term)):
                    _log.warning(
                        "pchannel %s is not available in term %d: %s",
                        name,
                        term,
                        why,
                        extra={"wal_event": "pchannel lost", "wal_pchannel": name, "wal_term": term},
                    )
                    self.troubles[name] = why
            except LeadingEndedError as error:
                self._fail(error)
        self.wake()

    async def reported(self, name: str, term: int, why: str) -> None:
        """Handles a client's report that a pchannel is not available at its owner. The owner is called: a client alone ends no term.

        If the owner does not answer, the report counts.
        """
        if name not in self.assignments.records:
            return
        async with self._verifying.setdefault(name, asyncio.Lock()):  # clients report together: the first answer is for all of them
            record = self.assignments.records[name]
            if record.state is not AssignmentState.ASSIGNED or record.term != term or record.owner is None:
                return
            try:
                status = await self._calls.status(record.owner.node)
            except WALError as error:
                _log.info("the owner of pchannel %s did not answer whether it is available there: %s", name, error)
            else:
                if any(one.available and (one.pchannel.name, one.pchannel.term) == (name, term) for one in status.pchannels):
                    _log.info("pchannel %s is available in term %d, and %s", name, term, why)
                    return
            await self.lost(name, term, why)

    async def sweep(self) -> None:
        """Removes the limits and evictions of nodes that have ended for good, and that no record names: then every floor is above them."""
        try:
            for prefix in (TICKS, EVICTED):
                keys, values = await self._kv.load_with_prefix(prefix)
                for key, value in zip(keys, values, strict=True):
                    server_id = int(key.removeprefix(prefix), 16)
                    records = self.assignments.records.values()
                    named = any(holder.node.server_id == server_id for record in records for holder in (*record.owners, *record.histories))
                    # A starting node has a lease before it has a limit, and a limit before it has a record.
                    if not named and server_id not in self._membership.nodes and not await self._leases.lifetime(server_id):
                        await self._kv.change_if({key: value}, removals=[key])
                        for table in (self._limits, self._evicted, self._ends_s, self._silencing):
                            table.pop(server_id, None)
        except WALError as error:
            _log.info("the limits of nodes that are gone stay for now: %s", error)

    # -- rounds

    async def _round(self) -> float:
        """Begins the moves that are due; returns the seconds until the next one is due."""
        now_s, live = self._monotonic(), self._membership.nodes
        for one in list(live.values()):
            for name, term in one.failed.items():
                record = self.assignments.records.get(name)
                if record is not None and record.term == term:
                    await self.lost(name, term, "the node says that it has failed there")
        doubt_s = self._mass.look(live, now_s)
        if doubt_s:
            if not self._doubts:
                _log.warning("more than half of the nodes vanished at once, which may be etcd's doing: nothing moves for %.0f s", doubt_s)
            self._doubts = True
            return doubt_s
        self._doubts = False
        views = self._membership.views()
        if self._is_first() and sum(view.asked for view in views.values()) < self._expected and now_s < self._wait_until_s:
            return self._wait_until_s - now_s
        targets = plan(self._placed(now_s, views), views, paused=self._membership.paused)
        for name, record in self.assignments.records.items():
            owner = record.owner
            if name in targets or name in self._moves or owner is None or record.state is AssignmentState.ASSIGNED:
                continue
            if owner.node.server_id in views and self._retry_at_s.get(name, 0.0) <= now_s:
                targets[name] = owner.node.server_id
        due = {name: server_id for name, server_id in targets.items() if name not in self._moves}
        self._put_off = targets.keys() & self._moves.keys()
        await self._assign(due)
        pauses = [at - now_s for name, at in self._retry_at_s.items() if at > now_s and name not in self._moves]
        return max(0.01, min([ROUND_S, *pauses]))

    def _is_first(self) -> bool:
        return all(record.state is AssignmentState.UNINITIALIZED for record in self.assignments.records.values())

    def _placed(self, now_s: float, views: Mapping[int, object]) -> dict[str, Placed]:
        placed: dict[str, Placed] = {}
        for name, record in self.assignments.records.items():
            owner = record.owner
            rested_s = now_s - self.since_s[name] if name in self.since_s else math.inf
            if record.state is not AssignmentState.ASSIGNED:
                rested_s = math.inf  # no client is served there: it may move again if its node is not healthy
            if name in self._moves:
                rested_s = 0.0  # it is not moved again while it moves
            placed[name] = Placed(None if owner is None or owner.node.server_id not in views else owner.node.server_id, rested_s)
        return placed

    async def _assign(self, targets: Mapping[str, int]) -> None:
        """Assigns these pchannels to these nodes, durably, and begins to move them."""
        names = list(targets)
        for first in range(0, len(names), RECORDS_MAX):
            some = names[first : first + RECORDS_MAX]
            async with self._saving:
                nodes = {name: self._membership.nodes[targets[name]].node for name in some if targets[name] in self._membership.nodes}
                change = self.assignments.assign(nodes, above=self._used_terms)
                if not await self._save(change):
                    continue
                assert change is not None, "it was saved"
                for name in change.after:
                    self._moves[name] = asyncio.get_running_loop().create_task(self._move(name), name=f"moving {name}")

    # -- one pchannel

    async def _move(self, name: str) -> None:
        """Moves a pchannel to its owner: away from earlier holders first."""
        record = self.assignments.records[name]
        assert record.owner is not None, "it was assigned"
        node, term = record.owner.node, record.term
        try:
            for holder in (*self._unknown_holders(name, node, term), *record.histories):
                await self._raise_floor(name, await self._removed(name, holder))
            floor = self.assignments.records[name].floor
            await self._progressing(node, name, self._calls.assign(node, name, term, floor=floor), gives_up=True)
            async with self._saving:
                await self._save(self.assignments.assigned(name, term))
            for table in (self._retries, self._retry_at_s, self._used_terms, self.troubles):
                table.pop(name, None)
            _log.info("pchannel %s is at node %x in term %d", name, node.server_id, term)
        except WALError as error:
            if isinstance(error, SessionLostError):
                self._membership.replaced(node.server_id, error)
            if isinstance(error, ChannelFencedError | UnmatchedChannelTermError):
                self._used_terms[name] = max(error.term, self._used_terms.get(name, 0))
            self.troubles[name] = str(error)
            pause_s = self._retries.setdefault(name, Backoff(0.1, 5.0)).next()
            self._retry_at_s[name] = self._monotonic() + pause_s
            _log.warning(
                "pchannel %s could not be assigned to node %x in term %d: %s",
                name,
                node.server_id,
                term,
                error,
                extra={"wal_event": "assignment failed", "wal_pchannel": name, "wal_term": term, "wal_node": f"{node.server_id:x}"},
            )
        except Exception as failure:
            self._fail(failure)
        finally:
            del self._moves[name]
            # No round for a pchannel that is at the planned node: otherwise the loss of a node would cause a plan for each of its
            # pchannels.
            if name in self._put_off or self.assignments.records[name].state is not AssignmentState.ASSIGNED:
                self.wake()

    def _unknown_holders(self, name: str, node: NodeStart, term: int) -> list[TermHolder]:
        """Returns the nodes that may hold a pchannel in a term that only its log has, since etcd was restored; none without such a term."""
        if name not in self._used_terms:
            return []
        others = [one.node for server_id, one in self._membership.nodes.items() if server_id != node.server_id]
        return [TermHolder(term - 1, other) for other in others]

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    async def _removed(self, name: str, holder: TermHolder) -> int:
        """Waits until a node no longer holds a pchannel; returns a tick above which it issued none."""
        node, backoff, answered_s = holder.node, Backoff(0.1, 2.0), self._monotonic()
        while node.server_id in self._membership.nodes:
            removing = asyncio.ensure_future(self._progressing(node, name, self._calls.remove(node, name, holder.term)))
            try:
                while not removing.done():
                    await asyncio.wait((removing,), timeout=_LOOK_S)
                    await self._evict_silent(node, answered_s)
                return removing.result()
            except SessionLostError as error:  # another start of the node: this one has ended
                self._membership.replaced(node.server_id, error)
                return await self._limit_of(node.server_id)
            except WALError as error:
                if node.server_id not in self._membership.nodes:
                    break
                if not isinstance(error, UnavailableError | UnknownOutcomeError):
                    answered_s = self._monotonic()
                _log.warning("pchannel %s could not be removed from node %x yet: %s", name, node.server_id, error)
                await self._evict_silent(node, answered_s)
            finally:
                removing.cancel()
            await asyncio.sleep(backoff.next())
        silencing = self._silencing.get(node.server_id)
        if silencing is None:
            silencing = asyncio.get_running_loop().create_task(self._silent(node), name=f"is node {node.server_id:x} silent")
            self._silencing[node.server_id] = silencing
        await asyncio.shield(silencing)
        if (lifetime_s := self._evicted.get(node.server_id)) is not None:
            # An earlier leader may have revoked the lease a moment ago.
            left_s = self._ends_s.setdefault(node.server_id, self._monotonic() + lifetime_s) - self._monotonic()
            await asyncio.sleep(max(0.0, left_s))
        return await self._limit_of(node.server_id)

    async def _silent(self, node: NodeStart) -> None:
        """Waits until a node without a lease answers nothing any more, at most for the lifetime of a lease."""
        until_s = self._monotonic() + self._ttl_s
        try:
            while self._monotonic() < until_s:
                await self._calls.status(node, timeout_s=GONE_S)
                await asyncio.sleep(GONE_S / 4)
        except WALError:
            pass  # it is dead, or has noticed that its lease has ended
        finally:
            await self._calls.forget(node.server_id)

    async def _progressing(self, node: NodeStart, name: str, call: Coroutine[Any, Any, int | None], *, gives_up: bool = False) -> int:
        """Returns the outcome of a call as long as the node shows progress with the pchannel. Raises UnavailableError otherwise.

        A call that `gives_up` also ends when the node has answered nothing for the lifetime of a lease.
        """
        calling = asyncio.ensure_future(call)
        last_progress, since_s = -1, self._monotonic()
        try:
            while True:
                await asyncio.wait((calling,), timeout=_LOOK_S)
                if calling.done():
                    return calling.result() or 0
                one = self._membership.nodes.get(node.server_id)
                if one is None or one.is_gone:
                    raise UnavailableError(f"node {node.server_id:x} is gone")
                progress, now_s = one.progress.get(name, -1), self._monotonic()
                if progress != last_progress:
                    last_progress, since_s = progress, now_s
                if gives_up and self._membership.silent_s(node.server_id) >= self._ttl_s:
                    raise UnavailableError(f"node {node.server_id:x} answers nothing")
                if now_s - since_s > PROGRESS_S:
                    raise UnavailableError(f"node {node.server_id:x} has shown no progress with pchannel {name} for {PROGRESS_S:.0f} s")
        finally:
            calling.cancel()

    async def _evict_silent(self, node: NodeStart, answered_s: float) -> None:
        """Revokes the lease of a node that answers neither a Remove, since `answered_s`, nor a status call."""
        now_s = self._monotonic()
        if node.server_id not in self._membership.nodes:
            return
        if min(now_s - answered_s, self._membership.silent_s(node.server_id)) < self._ttl_s:
            return
        if now_s - max(self._evicted_s, self._began_s) >= self._ttl_s:
            self._evicted_s = now_s
            _log.warning("node %x answers nothing, and is evicted", node.server_id)
            lifetime_s = await self._leases.lifetime(node.server_id)
            await self._kv.save(evicted_key(node.server_id), str(lifetime_s))
            self._evicted[node.server_id] = lifetime_s
            # Also before the answer: the keys may disappear before it, or it may be lost although the lease is revoked.
            self._ends_s[node.server_id] = self._monotonic() + lifetime_s
            await self._leases.revoke(node.server_id)
            # The last renewal of the lease was before this moment.
            self._ends_s[node.server_id] = self._monotonic() + lifetime_s

    # -- floors

    async def _limit_of(self, server_id: int) -> int:
        """Returns a tick above which a lost node issued none: its limit, which belongs to this leader from now on."""
        if server_id not in self._limits:
            limit_ms = await SavedLimit(self._kv, ticks_key(server_id)).take_over(lambda saved_ms: saved_ms)
            self._limits[server_id] = limit_ms << LOGICAL_BITS
        return self._limits[server_id]

    async def _raise_floor(self, name: str, floor: int) -> None:
        async with self._saving:
            await self._save(self.assignments.raise_floor({name: floor}))

    # -- saving

    async def _save(self, change: AssignmentChange | None) -> bool:
        """Saves a change with the claims that it raises, and makes it visible; returns whether there was one. Call it in turn."""
        if change is None:
            return False
        raised = {
            name: PChannelMeta(name, self._metas[name].incarnation, record.term)
            for name, record in change.after.items()
            if record.owners and record.term > self._metas[name].term
        }
        compare = change.compare() | {PREFIX + name: encode(self._metas[name]) for name in raised}
        saves = change.saves() | {PREFIX + name: encode(meta) for name, meta in raised.items()}
        try:
            if (other := await self._kv.change_if(compare, saves=saves)) is not None:
                raise LeadingEndedError(f"{other} was changed by another process")
        except WALError as error:
            raise LeadingEndedError(str(error)) from error
        self._metas.update(raised)
        before = self.assignments.records
        self.assignments.commit(change)
        for name, record in change.after.items():
            if name not in before or before[name].state is not record.state:
                self.since_s[name] = self._monotonic()
        self.on_version()
        return True
