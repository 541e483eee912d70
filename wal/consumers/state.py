"""SavedState: the stored state of a consumer beside the position of its cursor, and its bytes. Pure.

Everything below the position is finished. At and above it, up to the body `covered`, a body is unfinished if it is in one of the `runs`,
and finished otherwise; no body above `covered` was handed out. So the state is small whenever few bodies are unfinished, or few are
finished. A run is all bodies of this reader from the log position `first` to `last`, both inclusive. With `handed` a handler may have its
bodies. `suspicion` is the number of times that a process has died with them:

    0  never                     1  in a page of other messages: it is handed out again in a small group
    2  in a small group: it is handed out alone, and from then on each death is an attempt of its own

Format: the byte 1 (the version), then the MessagePack of [incarnation of the pchannel, handed, covered, runs, tried]. A run is [kind,
position, index, position, index], with kind = suspicion << 1 | handed; `tried` has [position, index, failed attempts, due in ms of wall
time] for each body that failed before. Positions are differences to the previous number. Version 2 ends with the wall time of the save in
ms; it is written if a body has failed before. Version 3 is that of a consumer with a pattern: where others have a position, it has a tick
and the number of a pchannel, and it ends with the names of these pchannels. An empty state belongs to a consumer that has finished
everything below its position, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from wal.consumers.delivery import BodyPosition
from wal.errors import FormatError, corruption
from wal.message.message_id import PackedPosition, packed, unpacked

MERGED: Final = 3
"""The version of the states of consumers with a pattern."""
VERSION: Final = MERGED
"""The newest version. A state without failed bodies is written as version 1, which earlier releases read."""
ALONE: Final = 2
"""The suspicion of a body that is handed out alone."""


class UnfinishedRun(msgspec.Struct, frozen=True, gc=False):
    """Consecutive unfinished bodies of this reader."""

    first: BodyPosition
    last: BodyPosition
    handed: bool = False
    suspicion: int = 0


class Tried(msgspec.Struct, frozen=True, gc=False):
    """A body that has failed `failures` times, and is retried at `due_ms`, milliseconds of wall time."""

    at: BodyPosition
    failures: int
    due_ms: int


class SavedState(msgspec.Struct, frozen=True):
    """The state of a consumer; see the top of the file. `runs` and `tried` are in the order of the log."""

    incarnation: int = 0
    covered: BodyPosition | None = None
    runs: tuple[UnfinishedRun, ...] = ()
    tried: tuple[Tried, ...] = ()
    handed: int = 0
    """The number of bodies that are handed out."""
    saved_ms: int = 0
    """The wall time of the save in ms; 0 if it is not known, as in version 1, or if no body has failed before."""

    @property
    def positions(self) -> list[BodyPosition]:
        """The positions of bodies in this state; some occur several times."""
        runs = [at for run in self.runs for at in (run.first, run.last)]
        return [*(() if self.covered is None else (self.covered,)), *runs, *[entry.at for entry in self.tried]]

    def moved(self, to: Mapping[BodyPosition, BodyPosition], incarnation: int) -> SavedState:
        """Returns the state with other `positions`, and the incarnation of their log."""
        if self.covered is None:
            return self
        runs = [msgspec.structs.replace(run, first=to[run.first], last=to[run.last]) for run in self.runs]
        tried = [msgspec.structs.replace(entry, at=to[entry.at]) for entry in self.tried]
        return msgspec.structs.replace(self, incarnation=incarnation, covered=to[self.covered], runs=tuple(runs), tried=tuple(tried))

    def as_of(self, wall_s: float) -> SavedState:
        """Returns the state for a clock with this time.

        If that is before the save, the clock was set back since; the pauses then last as long as they had left at the save.
        """
        back_ms = self.saved_ms - round(wall_s * 1000)
        if back_ms <= 0:
            return self
        tried = tuple([Tried(entry.at, entry.failures, entry.due_ms - back_ms) for entry in self.tried])
        return msgspec.structs.replace(self, tried=tried, saved_ms=self.saved_ms - back_ms)

    def released(self) -> SavedState:
        """Returns the state of a consumer that lives and has lost only its claim: handed-out bodies are released."""
        runs = tuple([UnfinishedRun(run.first, run.last, False, run.suspicion) for run in self.runs])
        return msgspec.structs.replace(self, runs=runs, handed=0)

    def after_a_death(self) -> SavedState:
        """Returns the state for the next consumer, after the death of the previous one with handed-out bodies.

        All of them are suspect from now on. A death with several bodies counts for none of them; a death with one body that was suspect
        before is a failed attempt of that body.
        """
        if not self.handed:
            return self
        alone = self.handed == 1
        tried = {entry.at: entry for entry in self.tried}
        runs: list[UnfinishedRun] = []
        for run in self.runs:
            if not run.handed:
                runs.append(run)
                continue
            if alone and run.suspicion:
                before = tried.get(run.first)
                tried[run.first] = Tried(run.first, 1 if before is None else before.failures + 1, 0)
            suspicion = ALONE if alone else min(run.suspicion + 1, ALONE)
            runs.append(UnfinishedRun(run.first, run.last, False, suspicion))
        return msgspec.structs.replace(self, runs=tuple(runs), tried=tuple(tried[at] for at in sorted(tried)), handed=0)


NO_STATE: Final = SavedState()
_encode: Final = msgspec.msgpack.Encoder().encode
_Position: TypeAlias = tuple[PackedPosition, int]
_Runs: TypeAlias = list[tuple[int, PackedPosition, int, PackedPosition, int]]
_Tried: TypeAlias = list[tuple[PackedPosition, int, int, int]]
_MergedPosition: TypeAlias = tuple[PackedPosition, int, int]
_MergedRuns: TypeAlias = list[tuple[int, PackedPosition, int, int, PackedPosition, int, int]]
_MergedTried: TypeAlias = list[tuple[PackedPosition, int, int, int, int]]
_decoders: Final[Mapping[int, msgspec.msgpack.Decoder[Any]]] = {
    1: msgspec.msgpack.Decoder(tuple[int, int, _Position, _Runs, _Tried]),
    2: msgspec.msgpack.Decoder(tuple[int, int, _Position, _Runs, _Tried, int]),
    MERGED: msgspec.msgpack.Decoder(tuple[int, int, _MergedPosition, _MergedRuns, _MergedTried, int, list[str]]),
}


def encode_state(state: SavedState) -> bytes:
    """Returns the bytes of a state."""
    if state.covered is None:
        return b""
    positions = _Positions(_names_of(state) if isinstance(state.covered[0], tuple) else [])
    before = 0
    runs = []
    for run in state.runs:
        first = positions.number(run.first)
        encoded = positions.encode(run.first, before), positions.encode(run.last, first)
        runs.append((run.suspicion << 1 | run.handed, *encoded[0], *encoded[1]))
        before = positions.number(run.last)
    before = 0
    tried = []
    for entry in state.tried:
        tried.append((*positions.encode(entry.at, before), entry.failures, entry.due_ms))
        before = positions.number(entry.at)
    fields = (state.incarnation, state.handed, positions.encode(state.covered, 0), runs, tried)
    if positions.names:
        return bytes((MERGED,)) + _encode((*fields, state.saved_ms, positions.names))
    return b"\x02" + _encode((*fields, state.saved_ms)) if state.saved_ms else b"\x01" + _encode(fields)


def decode_state(data: bytes) -> SavedState:
    """Returns the state of these bytes. Raises FormatError for a newer version, CorruptionError for damage."""
    if not data:
        return NO_STATE
    if (decoder := _decoders.get(data[0])) is None:
        raise FormatError(
            f"the state of a consumer has version {data[0]}, and this release reads versions 1 to {VERSION}: use the release that wrote it"
        )
    with corruption("the state of a consumer cannot be decoded", expected="what encode_state returns"):
        incarnation, handed, covered, runs, tried, *rest = decoder.decode(data[1:])
        positions = _Positions(rest.pop() if data[0] == MERGED else [])
        saved = positions.decode(covered, 0), tuple(_runs(runs, positions)), tuple(_tried(tried, positions))
        return SavedState(incarnation, *saved, handed, *rest)


class _Positions:
    """The stored form of positions: a position and an index, or a tick, the number of its pchannel among `names`, and an index."""

    def __init__(self, names: list[str]) -> None:
        self.names: list[str] = names
        self.length: int = 3 if names else 2

    def number(self, at: BodyPosition) -> int:
        """Returns the position or the tick, to which the next one is a difference."""
        number: int = at[0][0] if self.names else at[0]
        return number

    def encode(self, at: BodyPosition, before: int) -> tuple[PackedPosition, ...]:
        number = packed(self.number(at) - before)
        return (number, self.names.index(at[0][1]), at[1]) if self.names else (number, at[1])

    def decode(self, stored: Sequence[PackedPosition], before: int) -> BodyPosition:
        number, index = before + unpacked(stored[0]), unpacked(stored[-1])
        return ((number, self.names[unpacked(stored[1])]), index) if self.names else (number, index)


def _names_of(state: SavedState) -> list[str]:
    """Returns the pchannels in a state of a consumer with a pattern, each once."""
    return sorted({at[0][1] for at in state.positions})


def _runs(stored: Sequence[Any], positions: _Positions) -> Iterator[UnfinishedRun]:
    before, length = 0, positions.length
    for kind, *parts in stored:
        first = positions.decode(parts[:length], before)
        last = positions.decode(parts[length:], positions.number(first))
        before = positions.number(last)
        yield UnfinishedRun(first, last, bool(kind & 1), min(kind >> 1, ALONE))


def _tried(stored: Sequence[Any], positions: _Positions) -> Iterator[Tried]:
    before = 0
    for *position, failures, due_ms in stored:
        at = positions.decode(position, before)
        before = positions.number(at)
        yield Tried(at, failures, due_ms)
