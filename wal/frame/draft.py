"""FrameDraft: the records of the next frame, gathered run by run until the frame is encoded.

Owns: which run a record goes to and which index it takes. Indices are given in the order of the calls, over all runs: that is the
order of events. Pure: it neither waits nor reads a clock, and it knows no limits (its caller cuts frames by size).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from wal.frame.ext import ExtTag, encode_ext, encode_txn
from wal.frame.layout import DEFAULT_TYPE, FLAG_BODY, FLAG_COMMIT, FLAG_COPY, RunKind, SystemRecord

__all__ = ["FrameDraft", "Record", "Run", "RunName"]

RunName = tuple[str, int]
"""A vchannel in a frame: its name and the number of its incarnation."""


class Record(msgspec.Struct, gc=False):
    """What a record row and its part of the body are made of; callers may subclass it to carry more beside it."""

    payload: bytes = b""
    message_type: int = DEFAULT_TYPE
    flags: int = 0
    properties: bytes = b""
    ext: bytes = b""


class Run(msgspec.Struct, gc=False):
    """The records of one vchannel (or of one other `kind`) in a draft, with the index of each."""

    kind: RunKind
    name: str
    incarnation: int
    records: list[Record]
    indices: list[int]
    shared: int = 0


class FrameDraft:
    """Gathers records. `indices` is the number of indices given so far: the frame needs as many ticks."""

    __slots__ = ("_by_name", "indices", "runs")

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.indices = 0
        self._by_name: dict[RunName, Run] = {}

    def append(self, name: RunName, records: Sequence[Record]) -> int:
        """Plain messages for one vchannel, in order; returns the index of the first, the others follow it densely."""
        first = self.indices
        count = len(records)
        run = self._by_name.get(name) or self._new_run(name)
        run.records += records
        run.indices += range(first, first + count)
        self.indices = first + count
        return first

    def commit(
        self,
        bodies: Sequence[tuple[RunName, Record]],
        *,
        names: Sequence[RunName],
        txn_id: int,
        keepalive_ms: int,
    ) -> int:
        """A transaction over `names`: its bodies in append order, then its commit; returns the index of the commit."""
        counts = dict.fromkeys(names, 0)
        for name, record in bodies:
            run = self._by_name.get(name) or self._new_run(name)
            record.flags = FLAG_BODY
            run.records.append(record)
            run.indices.append(self.indices)
            self.indices += 1
            counts[name] += 1
        commit = self.indices
        for name in names:
            run = self._by_name.get(name) or self._new_run(name)
            ext = encode_txn(txn_id=txn_id, keepalive_ms=keepalive_ms, bodies=counts[name], bodies_total=len(bodies))
            run.records.append(Record(b"", DEFAULT_TYPE, FLAG_COMMIT, b"", ext))
            run.indices.append(commit)
        self.indices += 1
        return commit

    def broadcast(self, names: Sequence[RunName], record: Record, *, header: bytes) -> int:
        """One payload with a copy for each of `names`; returns the index of the first copy, the others follow in order."""
        first = self.indices
        record.flags = FLAG_COPY
        record.ext = encode_ext({ExtTag.BROADCAST: header})
        shared = len(self.runs)
        self.runs.append(Run(RunKind.SHARED, "", 0, [record], [first]))
        self.runs.extend(Run(RunKind.COPY, name, incarnation, [], [], shared) for name, incarnation in names)
        self.indices = first + len(names)
        return first

    def pchannel(self, record: Record) -> int:
        """A message for every reader of the pchannel; returns its index."""
        index = self.indices
        self._special(RunKind.PCHANNEL, record, index)
        self.indices += 1
        return index

    def system(self, kind: SystemRecord, payload: bytes) -> None:
        """A record of the log's own; it takes no index and is delivered to nobody."""
        self._special(RunKind.SYSTEM, Record(payload, int(kind)), 0)

    def term_start(self, *, previous_term: int, previous_last_sequence: int) -> None:
        """The record that makes this the first frame of a term."""
        self.system(SystemRecord.TERM_START, TERM_START.pack(previous_term, previous_last_sequence))

    def _new_run(self, name: RunName) -> Run:
        run = self._by_name[name] = Run(RunKind.VCHANNEL, name[0], name[1], [], [])
        self.runs.append(run)
        return run

    def _special(self, kind: RunKind, record: Record, index: int) -> None:
        run = next((run for run in self.runs if run.kind is kind), None)
        if run is None:
            run = Run(kind, "", 0, [], [])
            self.runs.append(run)
        run.records.append(record)
        run.indices.append(index)


TERM_START: Final = struct.Struct("<QQ")
