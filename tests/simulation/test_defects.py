"""The simulation finds defects that are made on purpose, each within twelve runs: of twelve seconds of faults, or of one incident.

Each test makes one defect: it replaces one function of the product in the process of the run. An incident finds those defects that random
faults would find only now and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from tests.simulation.apart import defect
from tests.simulation.broker import SharedLog
from wal.channels.pchannels import load_pchannel
from wal.client.outbox import Outbox
from wal.coordinator.assigner import Assigner
from wal.coordinator.assignments import Assignments
from wal.coordinator.membership import Membership
from wal.node.hosting import Hosting, _Place
from wal.node.session import NodeSession
from wal.serve.manager import NodeManager
from wal.storage.kv.etcd.election import LedKV
from wal.storage.kv.etcd.kv import EtcdKV, LeaderFence
from wal.storage.memory import MemoryStore, StoredChannel
from wal.timestamp import TimestampOracle
from wal.write.copies import CopyTable
from wal.write.idempotency.table import IdempotencyTable


def _replace(owner: Any, name: str, made: Any) -> None:
    assert hasattr(owner, name), f"{owner} has no {name}: the defect is made elsewhere now"
    setattr(owner, name, made)


@defect(found_by="late_frames_are_fenced")
def test_fence_skipped() -> None:
    """The log takes frames of a lower term."""

    def unless_fenced(fail: Callable[..., None]) -> Callable[..., None]:
        def failed(self: SharedLog, error: Exception, *, unknown: bool) -> None:
            if type(error).__name__ != "ChannelFencedError":
                fail(self, error, unknown=unknown)

        return failed

    _replace(SharedLog, "_check_term", lambda _self: None)
    _replace(SharedLog, "fail", unless_fenced(SharedLog.fail))


@defect(found_by="fence_holds_in_later_extents")
def test_fence_of_one_extent() -> None:
    """A fence covers the extent in which it came, and none that begins later."""
    claim, fenced_in = MemoryStore.claim, dict[StoredChannel, int]()

    def claimed(self: MemoryStore, pchannel: str, *, incarnation: int, term: int) -> StoredChannel:
        channel = claim(self, pchannel, incarnation=incarnation, term=term)
        fenced_in[channel] = channel.sealed_end
        return channel

    def check(self: SharedLog) -> None:
        if fenced_in[self._channel] == self._channel.sealed_end:
            check_term(self)

    check_term = SharedLog._check_term
    _replace(MemoryStore, "claim", claimed)
    _replace(SharedLog, "_check_term", check)


@defect(first_seed=6)
def test_keys_not_recovered() -> None:
    """The next owner of a pchannel has none of the keys in its log."""
    _replace(IdempotencyTable, "replay", lambda _self, _position, _view, *, live=None: 0)
    _replace(IdempotencyTable, "restore", lambda _self, _blob, *, live=None: None)


@defect(first_seed=2)
def test_unanswered_sent_again() -> None:
    """A client sends everything again that was not answered, with a key or without."""
    restart = Outbox.restart
    _replace(Outbox, "restart", lambda self, *, answered=False: restart(self, answered=True))


@defect(found_by="promises_of_a_lost_node_hold")
def test_promise_not_observed() -> None:
    """A node does not raise its ticks above the ticks that it gets."""
    _replace(TimestampOracle, "observe", lambda _self, _tick, **_: None)


@defect()
def test_shown_before_assigned() -> None:
    """Clients get pchannels that their node has not opened yet."""

    def shown(self: Assignments) -> dict[Any, list[Any]]:
        by_node: dict[Any, list[Any]] = {}
        for record in self.records.values():
            if record.owner is not None:
                by_node.setdefault(record.owner.node, []).append(record)
        return by_node

    _replace(Assignments, "shown", shown)


@defect()
def test_visible_before_saved() -> None:
    """A leader pushes a change first, and saves it then."""
    save = Assigner._save

    async def saved(self: Any, change: Any) -> bool:
        if change is None:
            return False
        before, version = self.assignments.records, self.assignments.version
        self.assignments.commit(change)
        self.on_version()
        await asyncio.sleep(0.05)
        self.assignments.records, self.assignments.version = before, version
        return await save(self, change)

    _replace(Assigner, "_save", saved)


@defect()
def test_histories_forgotten() -> None:
    """A pchannel that is given away forgets who may still hold it."""
    given = Assignments._assigned_to

    def forgetting(self: Assignments, *args: Any) -> Any:
        return msgspec.structs.replace(given(self, *args), histories=())

    _replace(Assignments, "_assigned_to", forgetting)


@defect()
def test_term_not_raised() -> None:
    """A pchannel is given to its next owner in the term of the last one."""
    given = Assignments._assigned_to

    def kept(self: Assignments, name: str, *args: Any) -> Any:
        record, before = given(self, name, *args), self._record(name)
        if before.owner is None or record is before:
            return record
        owners = tuple(msgspec.structs.replace(owner, term=before.term) for owner in record.owners)
        return msgspec.structs.replace(record, term=before.term, owners=owners, histories=())

    _replace(Assignments, "_assigned_to", kept)


@defect()
def test_claim_not_saved() -> None:
    """A leader saves who gets a pchannel, and not the claim that its writers compare."""
    changes = LedKV.change_if

    async def changed(self: Any, compare: Any, *, saves: Any = None, removals: Any = ()) -> str | None:
        if any(key.startswith("assignments/") for key in saves):
            saves = {key: value for key, value in saves.items() if not key.startswith("pchannels/")}
            compare = {key: value for key, value in compare.items() if not key.startswith("pchannels/")}
        return await changes(self, compare, saves=saves, removals=removals)

    _replace(LedKV, "change_if", changed)


@defect()
def test_version_not_raised() -> None:
    """Clients are pushed other assignments under the same version."""
    commit = Assignments.commit

    def committed(self: Assignments, change: Any) -> Any:
        commit(self, change)
        self.version = type(self.version)(self.version.leader, 1)
        return self.version

    _replace(Assignments, "commit", committed)


@defect(found_by="woken_node_answers_nothing")
def test_lease_not_asked() -> None:
    """A node answers, and continues, also without its lease."""

    async def never(_self: NodeSession) -> None:
        await asyncio.get_running_loop().create_future()

    _replace(NodeSession, "alive", property(lambda _self: True))
    _replace(NodeSession, "_watch", never)


@defect(found_by="late_assign_opens_nothing")
def test_claim_not_compared() -> None:
    """A node opens a pchannel in its present term, and ignores the term of the call."""

    async def opened(self: NodeManager, info: Any, floor: int) -> None:
        meta = await load_pchannel(self._claims, info.name)
        await self._view.catch_up()
        self._node.oracle.adopt(floor)
        await self._node.hosting.open(meta)

    _replace(NodeManager, "_open", opened)


@defect(found_by="assign_after_remove_opens_nothing")
def test_calls_not_ordered() -> None:
    """A node opens and closes pchannels in whatever order the calls come."""
    _replace(Hosting, "_admit", lambda self, name, _term, *, available: self._places.setdefault(name, _Place()))
    _replace(Hosting, "_check_newest", lambda _self, _place, _name, _term, *, available: None)


@defect(found_by="watch_that_missed_a_death")
def test_watch_merged() -> None:
    """A leader that reads the nodes again adds them to its old list: the dead stay."""
    listed = Membership._list

    async def merged(self: Membership) -> None:
        known = dict(self.nodes)
        await listed(self)
        self.nodes = {**known, **self.nodes}

    _replace(Membership, "_list", merged)


@defect(found_by="promises_of_a_lost_node_hold")
def test_floor_not_taken_over() -> None:
    """A leader has the next owner start wherever it likes."""

    async def no_limit(_self: Assigner, _server_id: int) -> int:
        return 0

    _replace(Assigner, "_limit_of", no_limit)


@defect(found_by="leader_and_node_die_together")
def test_copies_not_recovered() -> None:
    """The next owner of a pchannel has none of the broadcasts in its log."""
    _replace(CopyTable, "replay", lambda _self, _position, _view: 0)
    _replace(CopyTable, "restore", lambda _self, _blob: None)


@defect(found_by="leader_reads_anew_amid_moves")
def test_versions_begin_anew() -> None:
    """A restarted leader counts its versions from zero again."""
    made = Assignments.__init__
    _replace(Assignments, "__init__", lambda self, records, *, leader, count=0: made(self, records, leader=leader))


@defect(found_by="leader_goes_on_over_a_restored_etcd")
def test_restore_not_noticed() -> None:
    """A leader does not check whether its saved records still exist."""

    async def commit_as(self: Any, leader: Any, batch: Any) -> Any:
        if leader is not None:
            leader.revision = 0
        return await commits(self, leader, batch)

    commits = EtcdKV.commit_as
    _replace(EtcdKV, "commit_as", commit_as)
    _replace(LeaderFence, "check", lambda _self, _responses, _revision: None)
