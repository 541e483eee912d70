"""Assigner: carries the plan out: which node has which pchannel, saved before anybody is told.

How it works. After each change of the nodes, and every `ROUND_S`, a round asks the plan for the moves, gives each of these pchannels to its
new node in the table (`Assignments`), and saves that with the raised terms in one transaction: a claim, which every writer of the pchannel
compares. For each pchannel that is being assigned a task then removes it from the nodes that may still hold it, has the new one open it,
and saves that it is assigned. Clients are told of assigned ones only.

Floors: a node gives no tick that an earlier owner may have given. A node that removes a pchannel says above which tick it gave none; of one
that is gone the saved limit of its ticks is taken over, which nobody can raise any more after that.

What can go wrong: an attempt that fails is made again in a higher term, since a log on Pulsar opens no term twice, and at the same node,
unless that is gone: what fails everywhere, such as Pulsar, moves nothing. After a restore of etcd the logs have higher terms than it: a
refusal names the highest one, and the next attempt is above. A node that shows no progress for `PROGRESS_S` is given up for
this term. One that answers neither a Remove nor the question for its status for as long as a lease lives is evicted: its lease is revoked,
at most one in that time. It may not hear of that, and answers readers until its own clock ends the lease: only then what it had is opened
elsewhere. The eviction is saved first, so the next leader waits as well. etcd itself may revoke a lease that is renewed: a member that led
and stood still does, when it goes on (etcd-io/etcd#15247). So a node whose record is gone is asked once more, and waited for while it
answers. A node at whose address another start of it answers is gone, and needs no waiting. What is saved of nodes that are gone is removed
once every floor is above their limits. A write that fails, or is not answered, ends `run`: what is saved has to be read anew, by whoever
leads.
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
"""How often the plan is asked when nothing has changed."""
PROGRESS_S: Final = 30.0
"""How long an opening or a closing may show no progress. The time that it takes in all has no bound."""
GONE_S: Final = 1.0
"""How long a node whose lease is gone has to answer that it is there all the same."""
RECORDS_MAX: Final = 40
"""The most pchannels that change in one transaction: two records each, and as many comparisons."""
_LOOK_S: Final = 1.0
_log: Final = logging.getLogger("wal.cluster")


class LeadingEndedError(Exception):
    """What this leader knows may not be what is saved: the leading begins anew, here or elsewhere."""


class Leases(Protocol):
    """The leases of the nodes' sessions. The number of a lease is the server id of its node."""

    async def lifetime(self, lease: int) -> float:
        """Returns the lifetime in seconds with which a lease was granted, or 0.0 if it is gone, and never comes back."""

    async def revoke(self, lease: int) -> None:
        """Ends a lease; one that is gone already is fine."""


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
        """Why pchannels are not assigned, by name."""
        self.since_s: dict[str, float] = {}
        """Since when each pchannel is in its state, if that is not since before this leader."""
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
        """Held while the owner of a pchannel is asked about a report, by pchannel."""
        self._woken = asyncio.Event()
        self._moves: dict[str, asyncio.Task[None]] = {}
        self._put_off: set[str] = set()
        """The pchannels that move, and that the newest plan would have elsewhere: a round looks at them again when they have moved."""
        self._retries: dict[str, Backoff] = {}
        self._retry_at_s: dict[str, float] = {}
        self._used_terms: dict[str, int] = {}
        """The highest terms that refusals of nodes have named: the logs have had them, and etcd does not know that."""
        self._limits: dict[int, int] = {}
        """The ticks above which lost nodes gave none."""
        self._evicted_s = -math.inf
        self._evicted: dict[int, float] = {}
        """The nodes that this or an earlier leader evicted, with the lifetimes of their leases."""
        self._ends_s: dict[int, float] = {}
        """When the leases of evicted nodes have ended by the nodes' own clocks."""
        self._silencing: dict[int, asyncio.Task[None]] = {}
        """The tasks that wait until nodes whose leases are gone answer nothing, and those that have ended."""
        self._sweep_s = monotonic() + ROUND_S
        self._sweeping: set[asyncio.Task[None]] = set()
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        membership.on_changed = self.wake

    def wake(self) -> None:
        """Has a round look at what has changed."""
        self._woken.set()

    def is_live(self, node: NodeStart) -> bool:
        """Returns whether a node has its lease, as far as this leader knows."""
        return node.server_id in self._membership.nodes

    async def load(self) -> None:
        """Loads which nodes earlier leaders evicted, and saves assignments for the pchannels that have none yet."""
        keys, lifetimes = await self._kv.load_with_prefix(EVICTED)
        for key, lifetime_s in zip(keys, lifetimes, strict=True):
            self._evicted[int(key.removeprefix(EVICTED), 16)] = float(lifetime_s)
        async with self._saving:
            names = [name for name in self._metas if name not in self.assignments.records]
            for first in range(0, len(names), RECORDS_MAX):
                await self._save(self.assignments.add({name: self._metas[name].term for name in names[first : first + RECORDS_MAX]}))

    async def run(self) -> None:
        """Assigns until this process leads no more. Raises the reason."""
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
        """A pchannel is not available at its owner, as a client or the node says: it is opened there anew, in a higher term.

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
        """A client says that a pchannel is not available at its owner. The owner is asked: a client alone ends no term.

        If the owner does not answer, the client is believed.
        """
        if name not in self.assignments.records:
            return
        async with self._verifying.setdefault(name, asyncio.Lock()):  # clients report together: the first one's answer is that of all
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
        """Removes the limits and evictions of nodes that are gone for good, and that no record names: then every floor is above them."""
        try:
            for prefix in (TICKS, EVICTED):
                keys, values = await self._kv.load_with_prefix(prefix)
                for key, value in zip(keys, values, strict=True):
                    server_id = int(key.removeprefix(prefix), 16)
                    records = self.assignments.records.values()
                    named = any(holder.node.server_id == server_id for record in records for holder in (*record.owners, *record.histories))
                    # A node that is starting has a lease before it has a limit, and a limit before it has a record.
                    if not named and server_id not in self._membership.nodes and not await self._leases.lifetime(server_id):
                        await self._kv.change_if({key: value}, removals=[key])
                        for known in (self._limits, self._evicted, self._ends_s, self._silencing):
                            known.pop(server_id, None)
        except WALError as error:
            _log.info("the limits of nodes that are gone stay for now: %s", error)

    # -- rounds

    async def _round(self) -> float:
        """Begins the moves that are due; returns for how long nothing else is, in seconds."""
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
                rested_s = math.inf  # nobody is served there: it may go on if its node is not healthy
            if name in self._moves:
                rested_s = 0.0  # it is not moved again while it moves
            placed[name] = Placed(None if owner is None or owner.node.server_id not in views else owner.node.server_id, rested_s)
        return placed

    async def _assign(self, targets: Mapping[str, int]) -> None:
        """Gives these pchannels to these nodes, durably, and begins to move them."""
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
            for holder in record.histories:
                await self._raise_floor(name, await self._removed(name, holder))
            floor = self.assignments.records[name].floor
            await self._progressing(node, name, self._calls.assign(node, name, term, floor=floor), gives_up=True)
            async with self._saving:
                await self._save(self.assignments.assigned(name, term))
            for kept in (self._retries, self._retry_at_s, self._used_terms, self.troubles):
                kept.pop(name, None)
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
            # No round for what is where the plan wants it: the loss of a node would be as many plans for all pchannels as it had.
            if name in self._put_off or self.assignments.records[name].state is not AssignmentState.ASSIGNED:
                self.wake()

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    async def _removed(self, name: str, holder: TermHolder) -> int:
        """Returns when a node holds a pchannel no more, with a tick above which it gave none."""
        node, backoff, answered_s = holder.node, Backoff(0.1, 2.0), self._monotonic()
        while node.server_id in self._membership.nodes:
            removing = asyncio.ensure_future(self._progressing(node, name, self._calls.remove(node, name, holder.term)))
            try:
                while not removing.done():
                    await asyncio.wait((removing,), timeout=_LOOK_S)
                    await self._evict_silent(node, answered_s)
                return removing.result()
            except SessionLostError as error:  # another start of the node: this one is gone
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
        """Returns when a node whose lease is gone answers nothing any more, which it does for as long as a lease lives at most."""
        until_s = self._monotonic() + self._ttl_s
        try:
            while self._monotonic() < until_s:
                await self._calls.status(node, timeout_s=GONE_S)
                await asyncio.sleep(GONE_S / 4)
        except WALError:
            pass  # it is dead, or has found that its lease is gone
        finally:
            await self._calls.forget(node.server_id)

    async def _progressing(self, node: NodeStart, name: str, call: Coroutine[Any, Any, int | None], *, gives_up: bool = False) -> int:
        """Returns the outcome of a call as long as the node shows progress with the pchannel. Raises UnavailableError otherwise.

        A call that `gives_up` also ends when the node has answered nothing for as long as a lease lives.
        """
        calling = asyncio.ensure_future(call)
        seen, since_s = -1, self._monotonic()
        try:
            while True:
                await asyncio.wait((calling,), timeout=_LOOK_S)
                if calling.done():
                    return calling.result() or 0
                one = self._membership.nodes.get(node.server_id)
                if one is None or one.gone:
                    raise UnavailableError(f"node {node.server_id:x} is gone")
                progress, now_s = one.progress.get(name, -1), self._monotonic()
                if progress != seen:
                    seen, since_s = progress, now_s
                if gives_up and self._membership.silent_s(node.server_id) >= self._ttl_s:
                    raise UnavailableError(f"node {node.server_id:x} answers nothing")
                if now_s - since_s > PROGRESS_S:
                    raise UnavailableError(f"node {node.server_id:x} has shown no progress with pchannel {name} for {PROGRESS_S:.0f} s")
        finally:
            calling.cancel()

    async def _evict_silent(self, node: NodeStart, answered_s: float) -> None:
        """Has the lease of a node revoked that answers neither a Remove, since `answered_s`, nor the question for its status."""
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
            # Also before the answer: the keys may be seen to go before it, or it may not come although the lease is revoked.
            self._ends_s[node.server_id] = self._monotonic() + lifetime_s
            await self._leases.revoke(node.server_id)
            # Whenever it renewed the lease last, that was before this moment.
            self._ends_s[node.server_id] = self._monotonic() + lifetime_s

    # -- floors

    async def _limit_of(self, server_id: int) -> int:
        """Returns a tick above which a node that is gone gave none: its limit, which is this leader's from now on."""
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
