"""Invariants: what holds at every step of a run, checked in the moment in which something changes.

Owns what was saved, promised and written so far. A contradiction raises nothing where it happens, in the product's code, but is noted in
`faults`, and the run ends with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from tests.simulation.etcd import EtcdData, Version
from tests.simulation.grpc_server import ServerCall
from tests.simulation.loop import Process
from wal.channels.pchannels import PREFIX as CLAIMS
from wal.coordinator.assignments import PREFIX, Assignment, AssignmentState, decode
from wal.frame import EncodedFrame
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.methods import ASSIGNMENT_DISCOVER, REMOVE

_ROOT: Final = b"wal/"
_State = AssignmentState
_EDGES: Final = {
    None: {_State.UNINITIALIZED},
    _State.UNINITIALIZED: {_State.UNINITIALIZED, _State.ASSIGNING},
    _State.ASSIGNING: {_State.ASSIGNING, _State.ASSIGNED},
    _State.ASSIGNED: {_State.ASSIGNED, _State.ASSIGNING, _State.UNAVAILABLE},
    _State.UNAVAILABLE: {_State.UNAVAILABLE, _State.ASSIGNING},
}
"""The states that may follow a state (`wal.coordinator.assignments`)."""


class Invariants:
    """The invariants of one run. `say` gets each contradiction as a sentence."""

    def __init__(self, data: EtcdData, say: Callable[[str], None]) -> None:
        self.faults: list[str] = []
        self._data: EtcdData = data
        self._say = say
        self.records: dict[str, Assignment] = {}
        """The assignments as they are saved."""
        self._claims: dict[str, int] = {}
        self._assigned: dict[tuple[str, int], set[int]] = {}
        """The nodes to which a pchannel was ever saved as assigned in a term: one, unless etcd was restored."""
        self._given: dict[tuple[str, int], str] = {}
        """The host of the node to which a pchannel was ever saved as given in a term."""
        self._opened: dict[tuple[str, int], Process] = {}
        self._ticks: dict[str, int] = {}
        """The largest tick that was written or promised, by pchannel."""
        self._versions: dict[int, tuple[int, int]] = {}
        self._shown: dict[tuple[int, int], int] = {}
        """A hash of what clients were told in each version."""
        self._fenced: dict[str, int] = {}
        self.removed: dict[tuple[Process, str], int] = {}
        """The newest term in which a node has answered that it has a pchannel no more."""

    def committed(self, revision: int, events: list[Version]) -> None:
        """Judges a transaction of etcd, before anybody is answered."""
        changed: set[str] = set()
        for event in events:
            key = event.key.removeprefix(_ROOT).decode()
            if event.value is None:
                if key.startswith((PREFIX, CLAIMS)):
                    self._fault(f"{key} was removed at revision {revision}")
            elif key.startswith(PREFIX):
                self._saved(decode(key, event.text))
                changed.add(key.removeprefix(PREFIX))
            elif key.startswith(CLAIMS):
                name = key.removeprefix(CLAIMS)
                term = _term(event.text)
                if term < self._claims.get(name, 0):
                    self._fault(f"the claim of {name} went from term {self._claims[name]} back to {term}")
                self._claims[name] = term
        for name in changed:
            record = self.records[name]
            if record.owner is not None and self._claims.get(name) != record.term:
                self._fault(f"{name} is given in term {record.term}, and its claim has {self._claims.get(name)}")

    def opened(self, pchannel: str, term: int, process: Process) -> None:
        """Judges that a process opens a pchannel at the broker."""
        if pchannel not in self.records:
            return  # it is being created
        if self._given.get((pchannel, term)) != process.name:
            self._fault(f"{process.name} opens {pchannel} in term {term}, which was saved as {self._given.get((pchannel, term))}'s")
        other = self._opened.setdefault((pchannel, term), process)
        if other is not process:
            self._fault(f"{process.name} and {other.name} have both opened {pchannel} in term {term}")
        if term <= self.removed.get((process, pchannel), 0):
            self._fault(f"{process.name} opens {pchannel} in term {term}, and has answered that it has it no more in that term")
        if term <= self._fenced.get(pchannel, 0):
            self._fault(f"{process.name} opened {pchannel} in term {term}, after term {self._fenced[pchannel]}")
        self._fenced[pchannel] = term

    def written(self, pchannel: str, frame: EncodedFrame, _position: int) -> None:
        """Judges a frame: all of its ticks are above all that were written or promised."""
        header, before = frame.header, self._ticks.get(pchannel, 0)
        if header.term != self._fenced.get(pchannel, header.term):
            self._fault(f"a frame of term {header.term} was written to {pchannel}, which is in term {self._fenced[pchannel]}")
        if header.indices and header.first_tick <= before:
            self._fault(f"{pchannel} gets tick {header.first_tick} in term {header.term}, and {before} was promised")
        self._ticks[pchannel] = max(before, header.promised_tick)

    def promised(self, pchannel: str, term: int, tick: int, _process: Process) -> None:
        """Notes a promise of the writer of a pchannel."""
        if term == self._fenced.get(pchannel):
            self._ticks[pchannel] = max(self._ticks.get(pchannel, 0), tick)

    def answered(self, call: ServerCall, data: bytes) -> None:
        """Judges what a server sends: assignments as they are saved, in rising versions."""
        if call.path == REMOVE.path:
            request = proto.StreamingNodeManagerRemoveRequest.FromString(call.request)
            pair = call.server, request.pchannel.name
            self.removed[pair] = max(self.removed.get(pair, 0), request.pchannel.term)
        if call.path != ASSIGNMENT_DISCOVER.path:
            return
        response = proto.AssignmentDiscoverResponse.FromString(data)
        if not response.HasField("full_assignment") or response.full_assignment.HasField("answered_by"):
            return
        full = response.full_assignment
        version: tuple[int, int] = (getattr(full.version, "global"), full.version.local)
        if version <= self._versions.get(call.number, (-1, -1)):
            self._fault(f"a stream is pushed version {version} after {self._versions[call.number]}")
        self._versions[call.number] = version
        shown = hash(full.SerializeToString(deterministic=True))
        if self._shown.setdefault(version, shown) != shown:
            self._fault(f"clients are told two different assignments in version {version}")
        for one in full.assignments:
            for channel in one.channels:
                if one.node.server_id not in self._assigned.get((channel.name, channel.term), ()):
                    self._fault(
                        f"clients are told that {channel.name} is at node {one.node.server_id:x} in term {channel.term}: never saved"
                    )

    def _saved(self, record: Assignment) -> None:
        before = self.records.get(record.name)
        state = None if before is None else before.state
        if record.state not in _EDGES[state]:
            self._fault(f"{record.name} went from {state and state.name} to {record.state.name}")
        if before is not None:
            if record.term < before.term:
                self._fault(f"{record.name} went from term {before.term} back to {record.term}")
            if record.floor < before.floor:
                self._fault(f"the floor of {record.name} fell from {before.floor} to {record.floor}")
            if record.state is _State.ASSIGNING and record.owner != before.owner:
                if record.term <= before.term:
                    self._fault(f"{record.name} got another owner in term {record.term}")
                if before.owner is not None and before.owner not in record.histories:
                    self._fault(f"{record.name} forgot its holder of term {before.owner.term}")
        self._note(record)

    def _note(self, record: Assignment) -> None:
        if record.owner is not None:
            self._given[record.name, record.term] = record.owner.node.address.rpartition(":")[0]
            if record.state is _State.ASSIGNED:
                self._assigned.setdefault((record.name, record.term), set()).add(record.owner.node.server_id)
        self.records[record.name] = record

    def restored(self) -> None:
        """etcd was restored from an earlier copy: its data go back. The log does not: its fences and its ticks count."""
        for known in (self.records, self._shown, self._claims, self._given, self._opened, self.removed):
            known.clear()
        for version in self._data.current.values():
            key = version.key.removeprefix(_ROOT).decode()
            if key.startswith(PREFIX):
                self._note(decode(key, version.text))
            elif key.startswith(CLAIMS):
                self._claims[key.removeprefix(CLAIMS)] = _term(version.text)

    @property
    def settled(self) -> bool:
        """Whether every pchannel is assigned, and no history is left."""
        return bool(self.records) and all(each.state is _State.ASSIGNED and not each.histories for each in self.records.values())

    def _fault(self, text: str) -> None:
        self.faults.append(text)
        self._say(f"!!! {text}")


def _term(value: str) -> int:
    decoded: Any = msgspec.json.decode(value)
    term: int = decoded["term"]
    return term
