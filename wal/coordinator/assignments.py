"""Assignments: the node and the term of each pchannel, and the earlier nodes that may still hold it. Pure: returns records to save.

How it works. Each pchannel has one record in one of four states (the protocol's PChannelMetaState):

    UNINITIALIZED --assign--> ASSIGNING --assigned--> ASSIGNED --lost--> UNAVAILABLE
                                  ^                      |                    |
                                  +-------- assign ------+------- assign -----+

`assign` raises the term and adds the earlier holder to the histories: nodes that may still hold the pchannel, and that must remove it
before the new one opens it. `assigned` clears them. A term is never assigned twice, not even to the same node: a log on Pulsar opens no
term twice.

Who calls: the leader's assigner. It takes an `AssignmentChange` from a method here, saves it by compare-and-swap, and only then calls
`commit`, which makes it visible and raises the version. So an unsaved change is never visible. A change that was not saved is dropped.

What can go wrong: another leader saved something meanwhile. Then the compare-and-swap fails, and this process has lost the leadership. An
unreadable record is a CorruptionError: it never counts as a pchannel without a node.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

import msgspec

from wal.errors import InvalidArgumentError, corruption
from wal.message import Natural

PREFIX: Final = "assignments/"


class AssignmentState(IntEnum):
    """The states of a pchannel, with the numbers of the protocol's PChannelMetaState."""

    UNINITIALIZED = 1
    ASSIGNING = 2
    ASSIGNED = 3
    UNAVAILABLE = 4


class AccessMode(IntEnum):
    """The mode in which a node holds a pchannel. Only READ_WRITE is assigned so far."""

    READ_WRITE = 0
    READ_ONLY = 1


class NodeStart(msgspec.Struct, frozen=True, order=True):
    """One start of a streaming node. `server_id` is the lease of its session, so a restarted node has another one."""

    server_id: Natural
    address: str


class TermHolder(msgspec.Struct, frozen=True):
    """A node that has opened, or may have opened, a pchannel in `term`."""

    term: Natural
    node: NodeStart
    mode: AccessMode = AccessMode.READ_WRITE


class Assignment(msgspec.Struct, frozen=True):
    """The assignment of one pchannel. `term` is that of its newest owner; 1 before the first.

    `owners` has one entry, or none before the first assignment; a list, so that nodes that only read can be added. `histories` are the
    holders of earlier terms, oldest first, that may still hold it. `floor` is a tick above which the next owner starts. Invariant: no
    earlier owner issued a tick above `floor`.
    """

    name: str
    term: Natural = 1
    state: AssignmentState = AssignmentState.UNINITIALIZED
    owners: tuple[TermHolder, ...] = ()
    histories: tuple[TermHolder, ...] = ()
    floor: Natural = 0

    @property
    def owner(self) -> TermHolder | None:
        """The node that has the pchannel or is about to open it; None before the first assignment."""
        return self.owners[0] if self.owners else None


class Version(msgspec.Struct, frozen=True, order=True):
    """The version of the assignments for clients: `leader` is the token of the counting leader, and `count` rises with each commit that
    changes them. Compared in this order.
    """

    leader: int
    count: int


class AssignmentChange(msgspec.Struct, frozen=True):
    """Records to save at once, each if its key still has the text of `before` (None: no record yet)."""

    before: Mapping[str, Assignment | None]
    after: Mapping[str, Assignment]

    def compare(self) -> dict[str, str | None]:
        """Returns the required values of the keys for the save."""
        return {PREFIX + name: None if record is None else encode(record) for name, record in self.before.items()}

    def saves(self) -> dict[str, str]:
        """Returns the records to save."""
        return {PREFIX + name: encode(record) for name, record in self.after.items()}


class Assignments:
    """The assignments of all pchannels under the leader with this token. A method that changes something returns an AssignmentChange, or
    None without a change; nothing changes before `commit`.
    """

    def __init__(self, records: Mapping[str, Assignment], *, leader: int, count: int = 0) -> None:
        """`count` is that of the first version: above all versions that this leader has sent to clients, if it leads for a second time."""
        self.records: Mapping[str, Assignment] = dict(records)
        """By name. Each commit replaces the whole mapping, so a caller may keep the old one."""
        self.version: Version = Version(leader, count)

    def add(self, terms: Mapping[str, int]) -> AssignmentChange | None:
        """Adds the new ones of these pchannels, each with the newest term that its log has had."""
        return _change(self.records, {name: Assignment(name, max(1, term)) for name, term in terms.items() if name not in self.records})

    def assign(
        self, targets: Mapping[str, NodeStart], mode: AccessMode = AccessMode.READ_WRITE, *, above: Mapping[str, int] = {}
    ) -> AssignmentChange | None:
        """Assigns each named pchannel to a node, in its next term, or the first one after `above`. A pchannel that its target already has
        is unchanged.

        A pchannel that its target is opening gets another term too: the caller has abandoned that attempt.
        """
        return _change(self.records, {name: self._assigned_to(name, node, mode, above.get(name, 0)) for name, node in targets.items()})

    def assigned(self, name: str, term: int) -> AssignmentChange | None:
        """Records that the owner has opened the pchannel in this term, and no earlier holder holds it. Ignored in any other state or
        term.
        """
        record = self._record(name)
        if record.state is not AssignmentState.ASSIGNING or record.term != term:
            return None
        return _change(self.records, {name: msgspec.structs.replace(record, state=AssignmentState.ASSIGNED, histories=())})

    def lost(self, name: str, term: int) -> AssignmentChange | None:
        """Records that the pchannel is not available at its owner. Ignored unless it is assigned in exactly this term: a report may be
        late.
        """
        record = self._record(name)
        if record.state is not AssignmentState.ASSIGNED or record.term != term:
            return None
        return _change(self.records, {name: msgspec.structs.replace(record, state=AssignmentState.UNAVAILABLE)})

    def raise_floor(self, floors: Mapping[str, int]) -> AssignmentChange | None:
        """Raises the ticks above which the next owners start. A floor never falls."""
        return _change(
            self.records,
            {
                name: msgspec.structs.replace(self._record(name), floor=max(floor, self._record(name).floor))
                for name, floor in floors.items()
            },
        )

    def commit(self, change: AssignmentChange) -> Version:
        """Makes a durable change visible and returns the version, which is a new one if clients get something else now."""
        assert all(self.records.get(name) == record for name, record in change.before.items()), "a change is committed before the next one"
        self.records = {**self.records, **change.after}
        if any(_shown(change.before[name]) != _shown(record) for name, record in change.after.items()):
            self.version = Version(self.version.leader, self.version.count + 1)
        return self.version

    def shown(self) -> dict[NodeStart, list[Assignment]]:
        """Returns the assignments for clients: the pchannels in ASSIGNED, by their nodes. All others are unavailable for now."""
        by_node: dict[NodeStart, list[Assignment]] = {}
        for record in self.records.values():
            if record.state is AssignmentState.ASSIGNED:
                by_node.setdefault(record.owners[0].node, []).append(record)
        return by_node

    def _assigned_to(self, name: str, node: NodeStart, mode: AccessMode, above: int) -> Assignment:
        record = self._record(name)
        owner = record.owner
        if record.state is AssignmentState.ASSIGNED and owner is not None and (owner.node, owner.mode) == (node, mode):
            return record
        histories = record.histories if owner is None else (*record.histories, owner)
        term = max(record.term, above) + 1
        return msgspec.structs.replace(
            record, term=term, state=AssignmentState.ASSIGNING, owners=(TermHolder(term, node, mode),), histories=histories
        )

    def _record(self, name: str) -> Assignment:
        try:
            return self.records[name]
        except KeyError:
            raise InvalidArgumentError(f"no pchannel {name!r}: this log has {len(self.records)} pchannels") from None


def encode(record: Assignment) -> str:
    """Returns the text of a record in the KV: JSON with sorted fields, the same text for the same record."""
    return _encoder.encode(record).decode()


def decode(key: str, text: str) -> Assignment:
    """Returns the record that `key` has in the KV; raises CorruptionError if it is unreadable, or contradicts itself."""
    with corruption("the assignment in the KV cannot be read", expected=key):
        record = _decoder.decode(text)
        if PREFIX + record.name != key:
            raise ValueError(f"it is the record of pchannel {record.name!r}")
        if (record.state is AssignmentState.UNINITIALIZED) == bool(record.owners):
            raise ValueError(f"it is in state {record.state.name} with {len(record.owners)} owners")
        if record.owners and record.owners[0].term != record.term:
            raise ValueError(f"its owner has term {record.owners[0].term}, and the pchannel {record.term}")
        if any(holder.term >= record.term for holder in record.histories):
            raise ValueError(f"a history has a term of {record.term} or more")
    return record


def _shown(record: Assignment | None) -> TermHolder | None:
    """Returns the holder of a pchannel for clients; None while it is unavailable to them."""
    return None if record is None or record.state is not AssignmentState.ASSIGNED else record.owner


def _change(records: Mapping[str, Assignment], after: dict[str, Assignment]) -> AssignmentChange | None:
    after = {name: record for name, record in after.items() if records.get(name) != record}
    return AssignmentChange({name: records.get(name) for name in after}, after) if after else None


_encoder: Final = msgspec.json.Encoder(order="sorted")
_decoder: Final = msgspec.json.Decoder(Assignment)
