"""LastEvents: the last event of each vchannel of a pchannel, as of the durable end, and its bytes in a recovery checkpoint. Pure.

Its caller reports durable frames and dropped vchannels. It outlives restarts and truncation: a checkpoint holds it (see `pieces`), and
recovery adds the last events written after the checkpoint. A plain message, a transaction (its commit) and a copy of a broadcast are
events; the log's own messages are not. It has at most one entry for each vchannel that exists.

    5 last events [5, names, incarnations, positions, indices]: a column each, at least one such piece in each state

A state without such a piece was stored by version 0.1.0, and has no last events.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Final

import msgspec

from wal.frame import BROADCAST, CopyNames, FrameDraft, RunName
from wal.message import LogPosition, Natural, PackedPosition, packed, unpacked
from wal.storage.pieces import PieceKind, encode_header, encode_piece
from wal.storage.state_table import Decoders, Live, StateTable

PIECE_NAMES: Final = 1024
"""A piece is cut at this many vchannels, so that encoding one takes well below a millisecond."""
COPIES_MAX: Final = 16
"""So many sets of vchannels with copies wait at most until they are sorted into the table; most broadcasts go to the same vchannels."""


class _EventsPiece(msgspec.Struct, array_like=True, gc=False):
    kind: int
    names: list[str]
    incarnations: list[Natural]
    positions: list[PackedPosition]
    indices: list[Natural]


class LastEvents(StateTable):
    """The last events of one pchannel. `changes` counts the frames with events since the last checkpoint."""

    what = "last events"
    decoders: ClassVar[Decoders] = {PieceKind.LAST_EVENTS: msgspec.msgpack.Decoder(_EventsPiece)}

    def __init__(self) -> None:
        super().__init__()
        self.complete: bool = False
        """Whether a restored state had a table: otherwise events written before it are not known."""
        self._events: dict[RunName, LogPosition] = {}
        # Broadcasts have thousands of copies, so their last events are sorted into the table only when somebody asks.
        self._copies: dict[CopyNames, LogPosition] = {}
        self._stored = 0

    @property
    def added(self) -> int:
        """The number of vchannels that the last stored table does not have, at least."""
        return max(0, len(self._events) - self._stored)

    def durable(self, position: int, draft: FrameDraft) -> None:
        """Notes the events of a frame that became durable; frames come in their order."""
        events = self._events
        for name, run in draft.by_name.items():
            events[name] = (position, run.indices[-1])
        for txn in draft.plain:
            events[txn.name] = (position, txn.first + len(txn.bodies))
        if draft.compatible & BROADCAST:
            for run in draft.runs:
                if run.copies is not None:
                    self._copies[run.copies] = (position, run.indices[0])
            if len(self._copies) > COPIES_MAX:
                self._sort_copies()
        if draft.indices:
            self.changed()

    def get(self, name: RunName) -> LogPosition | None:
        """Returns the log position of the vchannel's last durable event, or None if it never had one."""
        if self._copies:
            self._sort_copies()
        return self._events.get(name)

    def drop(self, name: RunName) -> None:
        """Forgets a vchannel that was dropped. Nothing of it may become durable afterwards."""
        if self._copies:
            self._sort_copies()
        self._events.pop(name, None)

    # -- recovery

    def recovered(self, events: Mapping[RunName, LogPosition], *, live: Live | None = None) -> None:
        """Adds the last events of the frames written after the restored state, for the vchannels that are still `live`."""
        for name, event in events.items():
            if live is None or live(name):
                self._events[name] = event
                self.changed()

    def snapshot(self) -> Iterator[bytes]:
        if self._copies:
            self._sort_copies()
        self._stored = len(self._events)
        return _encode(list(self._events.items()))

    def _restore(self, pieces: Iterable[_EventsPiece], live: Live | None) -> None:
        for piece in pieces:
            self.complete = True
            self._events.update(_rows(piece, live))
        self._stored = len(self._events)

    def _sort_copies(self) -> None:
        events = self._events
        for copies, (position, first) in self._copies.items():
            for index, name in enumerate(copies.names, first):
                known = events.get(name)
                if known is None or known < (position, index):
                    events[name] = (position, index)
        self._copies.clear()


def _encode(rows: list[tuple[RunName, LogPosition]]) -> Iterator[bytes]:
    yield encode_header()
    for start in range(0, max(len(rows), 1), PIECE_NAMES):
        part = rows[start : start + PIECE_NAMES]
        yield encode_piece(
            PieceKind.LAST_EVENTS,
            [
                [name for (name, _), _ in part],
                [incarnation for (_, incarnation), _ in part],
                [packed(position) for _, (position, _) in part],
                [index for _, (_, index) in part],
            ],
        )


def _rows(piece: _EventsPiece, live: Live | None) -> Iterable[tuple[RunName, LogPosition]]:
    names = list(zip(piece.names, piece.incarnations, strict=True))
    events = list(zip(map(unpacked, piece.positions), piece.indices, strict=True))
    return [(name, event) for name, event in zip(names, events, strict=True) if live is None or live(name)]
