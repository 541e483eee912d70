"""The keyed events of a frame, as recovery reads them. Pure.

Owns: which rows of a frame carry an idempotency key, and which event each of them stands for (a wide transaction has the same key in
each of its runs and is one event). Nothing is asked of a frame whose header does not say that it is keyed.
"""

from __future__ import annotations

from operator import attrgetter, gt
from typing import Final

import msgspec

from wal.errors import CorruptionError
from wal.frame import (
    FLAG_COMMIT,
    KEYED,
    FrameView,
    RunName,
    SystemRecord,
    decode_ext,
    decode_key,
    decode_txn,
)
from wal.pchannel.keys import KEY_BYTES_MAX, SEQUENCE_END

__all__ = ["KeyedEvent", "keyed_events"]


class KeyedEvent(msgspec.Struct, gc=False):
    """A keyed event: its index, its scope (the vchannels it was appended to, sorted), its key; a transaction's id and keepalive.

    `text` is the plain key, or with a `sequence` the producer's name.
    """

    index: int
    names: tuple[RunName, ...]
    text: str
    sequence: int | None
    txn_id: int = 0
    keepalive_ms: int = 0


def keyed_events(view: FrameView) -> tuple[list[KeyedEvent], list[str]]:
    """The keyed events of a frame in their order, and the producers that it forgets. Damage is a CorruptionError."""
    if not view.header.compatible & KEYED:
        return [], []
    events: list[KeyedEvent] = []
    commits: dict[int, KeyedEvent] = {}
    forgotten: list[str] = []
    for run in view.system_runs():
        columns = view.columns(run)
        forgotten += [
            payload.decode()
            for payload, kind in zip(columns.payloads, columns.types or (), strict=False)
            if kind == SystemRecord.PRODUCER_FORGOTTEN
        ]
    for name, incarnation, index, flags, ext in view.exts():
        if (found := decode_key(ext)) is None:
            continue
        text, sequence = found
        if not 0 < len(text) <= KEY_BYTES_MAX or (sequence is not None and sequence >= SEQUENCE_END):
            raise CorruptionError(
                f"the idempotency key of a record is damaged: {text[:40]!r}, sequence {sequence}", expected="a key"
            )
        run_name = (name, incarnation)
        if not flags & FLAG_COMMIT:
            events.append(KeyedEvent(index, (run_name,), text, sequence))
        elif (commit := commits.get(index)) is not None:
            commit.names += (run_name,)
        else:
            txn_id, keepalive_ms, _, _ = decode_txn(decode_ext(ext))
            commits[index] = commit = KeyedEvent(index, (run_name,), text, sequence, txn_id, keepalive_ms)
            events.append(commit)
    for commit in commits.values():
        commit.names = tuple(sorted(commit.names))
    if any(map(gt, map(_BY_INDEX, events), map(_BY_INDEX, events[1:]))):
        events.sort(key=_BY_INDEX)
    return events, forgotten


_BY_INDEX: Final = attrgetter("index")
