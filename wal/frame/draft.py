"""FrameDraft: the records of the next frame, gathered run by run until the frame is encoded.

Owns: the assignment of records to runs and indices. Indices are assigned in the order of the calls, over all runs, which is the order
of events. Pure: it neither waits nor reads a clock, and it has no limits (its caller cuts frames by size).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.frame.ext import encode_broadcast, encode_txn
from wal.frame.layout import BROADCAST, CURSORS, DEFAULT_TYPE, FLAG_BODY, FLAG_COMMIT, FLAG_COPY, KEYED, SCHEDULES, RunKind, SystemRecord

RunName = tuple[str, int]
"""A vchannel in a frame: its name and the number of its incarnation."""


class Record(msgspec.Struct, gc=False):
    """The fields of one record: of its row, and of its part of the body. A caller may subclass it to add more."""

    payload: bytes = b""
    message_type: int = DEFAULT_TYPE
    flags: int = 0
    properties: bytes = b""
    ext: bytes = b""


class Payloads(msgspec.Struct, gc=False):
    """The bodies of a transaction if all of them are INSERTs without properties: their payloads, and the length of each."""

    payloads: list[bytes]
    lengths: list[int]

    def __len__(self) -> int:
        return len(self.payloads)


class PlainTxn(msgspec.Struct, gc=False):
    """A transaction over one vchannel, in a draft of such transactions only: its first index, its bodies, and the ext of its commit."""

    name: RunName
    first: int
    bodies: Payloads
    ext: bytes


class CopyNames:
    """The vchannels of a broadcast's copies in a frame, and the stored columns of their runs in the tables of a frame.

    These bytes do not depend on the frame: many broadcasts go to the same thousand vchannels, and share one such object. `names` has at
    least one vchannel, each once (InvalidArgumentError otherwise); `texts` are their names without the incarnations. The columns `kinds`,
    `name_lens` and `incarnations` begin with the SHARED run that precedes the copies; `joined` are the names in UTF-8.
    """

    __slots__ = ("_members", "count", "incarnations", "joined", "kinds", "name_lens", "names", "texts")

    def __init__(self, names: Sequence[RunName]) -> None:
        _check_names(names, set(names), of="a broadcast")
        self.names: tuple[RunName, ...] = tuple(names)
        self.texts: list[str] = [name for name, _ in self.names]
        self.count: int = len(self.names)
        encoded = [text.encode() for text in self.texts]
        incarnations = [incarnation for _, incarnation in self.names]
        self.kinds: bytes = bytes((RunKind.SHARED,)) + bytes((RunKind.COPY,)) * self.count
        self.name_lens: bytes = struct.pack(f"<{1 + self.count}H", 0, *map(len, encoded))
        self.incarnations: bytes = struct.pack(f"<{1 + self.count}I", 0, *incarnations)
        self.joined: bytes = b"".join(encoded)
        self._members: frozenset[RunName] | None = None

    @property
    def members(self) -> frozenset[RunName]:
        """The vchannels as a set, created at its first use."""
        if self._members is None:
            self._members = frozenset(self.names)
        return self._members


class Run(msgspec.Struct, gc=False):
    """The records of one vchannel (or of one other `kind`) in a draft, with the index of each.

    `copies` of a SHARED run are the vchannels that its record is for; each becomes a COPY run after it.
    """

    kind: RunKind
    name: str
    incarnation: int
    records: list[Record]
    indices: list[int]
    copies: CopyNames | None = None


class FrameDraft:
    """Gathers records. `indices` is the number of indices assigned so far: the frame needs this many ticks.

    The encoder also reads these: `by_name` are the VCHANNEL runs. `in_order` is True while the records, taken run after run, have the
    indices 0, 1, 2 … `has_flags` is True once a record has a flag, which only `commit` and `broadcast` set. `compatible` are the flags of
    the header by which recovery finds the frame: KEYED once an event has an idempotency key, BROADCAST once there is a copy, CURSORS once
    there is the state of a cursor, SCHEDULES once a message is scheduled or waits no more. `plain` are the transactions of a draft that has
    nothing else but cursors; any other addition turns them into runs.
    """

    __slots__ = ("_cursors", "by_name", "compatible", "has_flags", "in_order", "indices", "plain", "runs")

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.plain: list[PlainTxn] = []
        self.indices: int = 0
        self.by_name: dict[RunName, Run] = {}
        self.in_order: bool = True
        self.has_flags: bool = False
        self.compatible: int = 0
        self._cursors: dict[Hashable, Callable[[], bytes]] = {}

    def append(self, name: RunName, records: Sequence[Record], *, keyed: bool = False) -> int:
        """Adds plain messages for one vchannel, in order; returns the first index; the others follow without gaps.

        `keyed`: some of them have an idempotency key in their ext.
        """
        if keyed:
            self.compatible |= KEYED
        if self.plain:
            self._make_runs()
        first = self.indices
        self.indices = end = first + len(records)
        run = self.by_name.get(name)
        if run is None:
            if records:
                run = self.by_name[name] = Run(_VCHANNEL, name[0], name[1], list(records), list(range(first, end)))
                self.runs.append(run)
            return first
        if run is not self.runs[-1]:
            self.in_order = False
        run.records += records
        run.indices += range(first, end)
        return first

    def commit(
        self, bodies: Sequence[tuple[RunName, Record]], *, names: Sequence[RunName], txn_id: int, keepalive_ms: int, key: bytes = b""
    ) -> int:
        """Adds a transaction over `names`: its bodies in append order, then its commit; returns the index of the commit.

        `key` is the ext of its idempotency key (`encode_key`); each of its commit rows carries it. Without names, with a duplicate name, or
        with a body for a name that is not among them it raises InvalidArgumentError; the draft is unchanged then.
        """
        counts = dict.fromkeys(names, 0)
        _check_names(names, counts, of="a transaction")
        for name, _ in bodies:
            if name not in counts:
                raise InvalidArgumentError(f"a body for {name} in a transaction over {list(names)}: name it in `names`")
            counts[name] += 1
        if len(counts) == 1:
            records = [record for _, record in bodies]
            return self.commit_one(names[0], records, txn_id=txn_id, keepalive_ms=keepalive_ms, key=key)
        self.has_flags = True
        if key:
            self.compatible |= KEYED
        if self.plain:
            self._make_runs()
        self.in_order = False
        for name, record in bodies:
            run = self.by_name.get(name) or self._new_run(name)
            record.flags = FLAG_BODY
            run.records.append(record)
            run.indices.append(self.indices)
            self.indices += 1
        commit = self.indices
        for name, count in counts.items():
            run = self.by_name.get(name) or self._new_run(name)
            ext = encode_txn(txn_id=txn_id, keepalive_ms=keepalive_ms, bodies=count, bodies_total=len(bodies))
            run.records.append(Record(b"", DEFAULT_TYPE, FLAG_COMMIT, b"", ext + key))
            run.indices.append(commit)
        self.indices += 1
        return commit

    def commit_one(self, name: RunName, bodies: list[Record] | Payloads, *, txn_id: int, keepalive_ms: int, key: bytes = b"") -> int:
        """Adds a transaction over one vchannel, the usual case, as `commit` does; returns the index of the commit."""
        self.has_flags = True
        if key:
            self.compatible |= KEYED
        count = len(bodies)
        ext = encode_txn(txn_id=txn_id, keepalive_ms=keepalive_ms, bodies=count, bodies_total=count) + key
        first = self.indices
        self.indices = first + count + 1
        if bodies.__class__ is Payloads and not self.runs:
            self.plain.append(PlainTxn(name, first, bodies, ext))
        else:
            if self.plain:
                self._make_runs()
            self._add_txn(name, first, bodies, ext)
        return first + count

    def broadcast(self, names: Sequence[RunName] | CopyNames, record: Record, *, header: bytes) -> int:
        """Adds one payload with a copy for each of `names`; returns the index of the first copy, the others follow in order.

        Without names, or with a duplicate name, it raises InvalidArgumentError; the draft is unchanged then.
        """
        copies = names if isinstance(names, CopyNames) else CopyNames(names)
        if self.plain:
            self._make_runs()
        self.in_order = False
        self.has_flags = True
        self.compatible |= BROADCAST
        first = self.indices
        record.flags = FLAG_COPY
        record.ext = encode_broadcast(header)
        self.runs.append(Run(_SHARED, "", 0, [record], [first], copies))
        self.indices = first + copies.count
        return first

    def pchannel(self, record: Record) -> int:
        """Adds a message for every reader of the pchannel; returns its index."""
        index = self.indices
        self._special(RunKind.PCHANNEL, record, index)
        self.indices += 1
        return index

    def system(self, kind: SystemRecord, payload: bytes) -> None:
        """Adds a record of the log's own, which takes no index and is not delivered."""
        self._special(RunKind.SYSTEM, Record(payload, int(kind)), 0)

    def term_start(self, *, previous_term: int, previous_last_sequence: int) -> None:
        """Adds the record that makes this the first frame of a term."""
        self.system(SystemRecord.TERM_START, TERM_START.pack(previous_term, previous_last_sequence))

    def producer_forgotten(self, name: str) -> None:
        """Adds the record that makes recovery forget a producer."""
        self.compatible |= KEYED
        self.system(SystemRecord.PRODUCER_FORGOTTEN, name.encode())

    def scheduled(self, message: bytes) -> None:
        """Adds the record of a message that waits for its delivery time; it takes no index, and is not delivered."""
        self.compatible |= SCHEDULES
        self.system(SystemRecord.SCHEDULED, message)

    def unscheduled(self, numbers: bytes) -> None:
        """Adds the record of messages that wait no more."""
        self.compatible |= SCHEDULES
        self.system(SystemRecord.UNSCHEDULED, numbers)

    def cursor(self, key: Hashable, encode: Callable[[], bytes]) -> None:
        """Sets the state of the cursor with this key as of this frame. Of several states of one cursor only the last is encoded."""
        self.compatible |= CURSORS
        self._cursors[key] = encode

    def take_cursors(self) -> list[bytes]:
        """Returns the states of the cursors; the encoder calls it once, when nothing more is added. They are CURSOR records."""
        states = [encode() for encode in self._cursors.values()]
        self._cursors.clear()
        return states

    def _make_runs(self) -> None:
        """Turns the plain transactions into runs, before something else is added."""
        plain, self.plain = self.plain, []
        for txn in plain:
            self._add_txn(txn.name, txn.first, txn.bodies, txn.ext)

    def _add_txn(self, name: RunName, first: int, bodies: list[Record] | Payloads, ext: bytes) -> None:
        run = self.by_name.get(name) or self._new_run(name)
        if run is not self.runs[-1]:
            self.in_order = False
        records = list(map(Record, bodies.payloads)) if isinstance(bodies, Payloads) else bodies
        for record in records:
            record.flags = FLAG_BODY
        run.records += records
        run.records.append(Record(b"", DEFAULT_TYPE, FLAG_COMMIT, b"", ext))
        run.indices += range(first, first + len(records) + 1)

    def _new_run(self, name: RunName) -> Run:
        run = self.by_name[name] = Run(_VCHANNEL, name[0], name[1], [], [])
        self.runs.append(run)
        return run

    def _special(self, kind: RunKind, record: Record, index: int) -> None:
        if self.plain:
            self._make_runs()
        self.in_order = False
        run = next((run for run in self.runs if run.kind is kind), None)
        if run is None:
            run = Run(kind, "", 0, [], [])
            self.runs.append(run)
        run.records.append(record)
        run.indices.append(index)


def _check_names(names: Sequence[RunName], distinct: Collection[RunName], *, of: str) -> None:
    if not names or len(distinct) != len(names):
        raise InvalidArgumentError(f"{of} over {list(names)}: name at least one vchannel, and each of them once")


_VCHANNEL: Final = RunKind.VCHANNEL  # an enum member costs a lookup of its own in the loop over 256 runs
_SHARED: Final = RunKind.SHARED
TERM_START: Final = struct.Struct("<QQ")
