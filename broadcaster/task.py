"""Task: one broadcast from its keys to its last ack. Pure: its methods take events, and return what is to be written next.

Owns which copies are durable, which are acknowledged, and the resulting state; EDGES has every transition. Guarantees: nothing is written
before the intent is durable; a durable copy is never appended again; a copy with an unknown outcome is never assumed missing (it is
appended again, and the log answers with a copy that it already has). DONE, ABORTED and WITHDRAWN are final; then its owner removes the
task.

Copies and acks are bits of an int, in the order of `header.vchannels`. The vchannels of one pchannel are a lane: they share one frame, one
outcome and one backoff. A vchannel whose log refuses its copy permanently makes the task STUCK once the other copies are durable. The task
keeps its keys and is listed, the copy is retried periodically (the vchannel may be recreated), and an operator may abort it. A broadcast
that every vchannel refuses at once, or that no log has room for, is WITHDRAWN if no part of it is in a log: its caller gets the error and
nothing of it remains. Once any part of it is in a log, a lane without room is retried until the log has room: it is `delayed`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

import msgspec

from broadcaster.message import EDGES, BroadcastState
from wal.errors import InvalidArgumentError, NoSpaceError, WALError
from wal.message import BroadcastHeader
from wal.runtime.backoff import Backoff

BACKOFF_MIN_S: Final = 0.01
BACKOFF_MAX_S: Final = 10.0
TICK_LOGICAL_BITS: Final = 18
"""A broadcast's id is a time tick; the bits above these are its milliseconds."""


class StepKind(enum.Enum):
    """The kind of messages that a step writes."""

    COPIES = "copies"
    ABORTS = "aborts"


class Step(msgspec.Struct, frozen=True):
    """A frame to write: copies of the broadcast, or ABORT_BROADCAST messages, for these vchannels of a pchannel."""

    kind: StepKind
    pchannel: str
    vchannels: tuple[str, ...]


class _Lane(msgspec.Struct):
    """The vchannels of one pchannel, as bits.

    `refused`: they will not take their copy; `unknown`: the outcome of their last append is unknown; `aborted`: they got the abort. `full`:
    the log had no room for the last frame, and wrote no part of it. `busy`: a frame is under way, for the vchannels in `frame`; `waiting`:
    a backoff is under way.
    """

    members: int
    refused: int = 0
    unknown: int = 0
    aborted: int = 0
    backoff: Backoff = msgspec.field(default_factory=lambda: Backoff(BACKOFF_MIN_S, BACKOFF_MAX_S))
    busy: bool = False
    frame: int = 0
    waiting: bool = False
    full: bool = False
    error: WALError | None = None


class Task:
    """One broadcast over `places` (pchannel → its vchannels of the broadcast); `place` sets them if they are not known yet."""

    def __init__(self, header: BroadcastHeader, places: Mapping[str, Iterable[str]] | None = None, *, recovered: bool = False) -> None:
        self.header = header
        self.state = BroadcastState.PENDING
        self.finished = False
        self.on_move: Callable[[BroadcastState, BroadcastState], None] | None = None
        """Called with the state before and after each change."""
        self.reason: str | None = None
        """The reason for its abort; None if it was not aborted."""
        self.appended = 0
        self.acked = 0
        self._full = (1 << len(header.vchannels)) - 1
        self._unsaved = 0
        self._recovered = recovered
        self._index: dict[str, int] = {}
        self._lanes: dict[str, _Lane] = {}
        if places is not None:
            self.place(places)

    @property
    def broadcast_id(self) -> int:
        return self.header.broadcast_id

    @property
    def pchannels(self) -> tuple[str, ...]:
        return tuple(self._lanes)

    @property
    def complete(self) -> bool:
        """True if every copy is durable."""
        return self.appended == self._full

    @property
    def traceless(self) -> bool:
        """True if no log can have any part of it."""
        return not self.appended and not any(lane.unknown or lane.busy for lane in self._lanes.values())

    @property
    def uncertain(self) -> bool:
        """True if a log may hold copies whose outcome is unknown."""
        return any(lane.unknown for lane in self._lanes.values())

    @property
    def delayed(self) -> bool:
        """True if no frame is under way, and a log has no room for its copies while another has, or may have, its own."""
        lanes = self._lanes.values()
        is_pending = self.state is BroadcastState.PENDING and not self._unsaved
        return is_pending and any(lane.full for lane in lanes) and not any(lane.busy for lane in lanes)

    @property
    def missing_appends(self) -> tuple[str, ...]:
        return self._names(self._full & ~self.appended)

    @property
    def missing_acks(self) -> tuple[str, ...]:
        return self._names(self._full & ~self.acked) if self.header.needs_ack else ()

    @property
    def last_error(self) -> WALError | None:
        """The error that prevents one of its frames from being written, or None."""
        return next((lane.error for lane in self._lanes.values() if lane.error is not None), None)

    def touched(self) -> tuple[str, ...]:
        """Returns the pchannels whose logs have copies of it."""
        return tuple(pchannel for pchannel, lane in self._lanes.items() if lane.members & self.appended)

    # -- what is written

    def place(self, places: Mapping[str, Iterable[str]]) -> None:
        """Sets, once, the pchannels of its vchannels. Nothing is written before."""
        if len(places) == 1:
            self._lanes = {pchannel: _Lane(self._full) for pchannel in places}
        else:
            self._lanes = {pchannel: _Lane(self._mask(names)) for pchannel, names in places.items()}

    def withdraw(self) -> None:
        """Ends the broadcast before its pchannels are set, so that no part of it can be in a log."""
        self._move(BroadcastState.WITHDRAWN)

    def saving(self) -> None:
        """Records that an intent (to broadcast, to abort) is being saved: nothing is written until `saved` has been called as often."""
        self._unsaved += 1

    def saved(self) -> None:
        """Records that an intent is durable."""
        self._unsaved -= 1
        self._settle()

    def steps(self) -> list[Step]:
        """Returns the frames to write now; each is under way until `took`, `failed` or `put_back` is called with it."""
        if self._unsaved or self.finished:
            return []
        steps = []
        # The outcomes of the other lanes decide whether a lane without room is retried.
        undecided = not self.appended and self._untouched() and any(lane.busy for lane in self._lanes.values())
        for pchannel, lane in self._lanes.items():
            # A lane has one frame under way. During its backoff, and while its retry is undecided, it writes nothing.
            if lane.busy or lane.waiting or (lane.full and undecided):
                continue
            kind, mask = StepKind.COPIES, lane.members & ~self.appended
            if self.state is BroadcastState.ABORTING:
                mask &= lane.unknown
                if not mask:
                    kind, mask = StepKind.ABORTS, lane.members & self.appended & ~lane.aborted
            if mask:
                lane.busy = True
                lane.frame = mask
                steps.append(Step(kind, pchannel, self._names(mask)))
        return steps

    def took(self, step: Step, refusals: Mapping[str, WALError]) -> float | None:
        """Records that a frame is durable except for the vchannels that refused; returns the seconds until those are retried, or None."""
        lane = self._lane_of(step)
        refused = self._mask(refusals)
        if step.kind is StepKind.ABORTS:
            # A vchannel that takes no more messages has no reader that needs the abort.
            lane.aborted |= lane.frame
            return self._outcome(lane, 0, ())
        lane.full = False
        self.appended |= lane.frame & ~refused
        lane.refused &= ~self.appended
        lane.unknown &= ~lane.frame
        return self._outcome(lane, refused, refusals.values())

    def failed(self, step: Step, error: WALError) -> float | None:
        """Records that no part of a frame is known to be durable; returns the seconds until it is retried, or None for never."""
        lane = self._lane_of(step)
        if step.kind is StepKind.ABORTS:
            lane.error = error
            return self._back_off(lane, final=not error.retryable)
        if error.outcome_unknown:
            lane.unknown |= lane.frame
        lane.full = isinstance(error, NoSpaceError)
        return self._outcome(lane, 0 if error.retryable else lane.frame, (error,))

    def put_back(self, step: Step) -> None:
        """Records that a frame was never passed to the log."""
        self._lane_of(step)

    def retry(self, pchannel: str) -> None:
        """Records that the backoff of this lane has ended."""
        self._lanes[pchannel].waiting = False

    # -- what the caller reports

    def ack(self, vchannel: str) -> int | None:
        """Returns the bit of a new ack, or None if it changes nothing; InvalidArgumentError if the vchannel is not in the broadcast."""
        at = self._bit(vchannel)
        # An aborted or finished broadcast takes no acks; without `needs_ack`, or after the first one, an ack changes nothing.
        if self.state is BroadcastState.ABORTING or self.finished or not self.header.needs_ack or self.acked >> at & 1:
            return None
        self.acked |= 1 << at
        self._settle()
        return at

    def ack_rest(self, vchannels: Collection[str]) -> None:
        """Acknowledges these vchannels if they include all that have not acknowledged yet, and none otherwise."""
        missing = self.missing_acks
        if vchannels and set(missing).issubset(vchannels):
            for vchannel in missing:
                self.ack(vchannel)

    def abort(self, reason: str) -> bool:
        """Aborts the broadcast, which is an intent to be saved and ends every backoff. Returns False if it was aborted before."""
        if self.state is BroadcastState.ABORTING:
            return False
        self.reason = reason
        self._move(BroadcastState.ABORTING)
        for lane in self._lanes.values():
            lane.backoff.reset()
            lane.waiting = False
        self.saving()
        return True

    def restore(self, *, appended: Iterable[str], acked: int, reason: str | None, aborted: Iterable[str]) -> None:
        """Sets the recovered state of the broadcast: once, before any other call."""
        self.appended = self._mask(appended)
        self.acked = acked & self._full
        aborted_mask = self._mask(aborted)
        for lane in self._lanes.values():
            lane.aborted = aborted_mask & lane.members
        self._index = {}  # rebuilt when an ack comes: there may be many tasks, each with thousands of names
        if reason is not None:
            self.reason = reason
            self._move(BroadcastState.ABORTING)
        self._settle()

    # -- the state that follows

    def _settle(self) -> None:
        if self.finished:
            return
        lanes = self._lanes.values()
        if self.state is BroadcastState.ABORTING:
            if not self._unsaved and all(self._over(lane) for lane in lanes):
                self._move(BroadcastState.ABORTED)
            return
        busy = any(lane.busy for lane in lanes)
        refused = nowhere = 0
        for lane in lanes:
            refused |= lane.refused
            nowhere |= lane.members if lane.full else lane.refused
        if self.complete and not busy:
            acked = self.acked == self._full or not self.header.needs_ack
            self._move(BroadcastState.DONE if acked else BroadcastState.WAIT_ACK)
        # No copy exists, every vchannel refused or had no room, no log can have a part of it, and no frame can still succeed.
        elif not self.appended and nowhere == self._full and self._untouched() and not busy:
            self._move(BroadcastState.WITHDRAWN)
        else:
            stuck = refused and not self._full & ~self.appended & ~refused
            self._move(BroadcastState.STUCK if stuck else BroadcastState.PENDING)

    def _over(self, lane: _Lane) -> bool:
        return not lane.busy and not lane.unknown and not (lane.members & self.appended & ~lane.aborted)

    def _untouched(self) -> bool:
        """Returns whether the broadcast has no trace outside its caller. A task that was ever STUCK stays until it is aborted."""
        return self.state is BroadcastState.PENDING and not (self.uncertain or self.acked or self._recovered)

    def _move(self, to: BroadcastState) -> None:
        if to is not self.state:
            if to not in EDGES[self.state]:
                raise RuntimeError(f"broadcast {self.broadcast_id} cannot go from {self.state.name} to {to.name}")
            before, self.state = self.state, to
            self.finished = not EDGES[to]
            if self.on_move is not None:
                self.on_move(before, to)

    def _outcome(self, lane: _Lane, refused: int, errors: Iterable[WALError]) -> float | None:
        """Ends a frame of copies, or a frame of aborts that had no error."""
        lane.refused |= refused
        lane.error = next(iter(errors), None)
        self._settle()
        # Once the broadcast is aborted, only copies with an unknown outcome are retried.
        given_up = self.state is BroadcastState.ABORTING and not lane.unknown
        if lane.error is None or self.finished or given_up:
            lane.backoff.reset()
            return None
        return self._back_off(lane, final=bool(refused))

    def _back_off(self, lane: _Lane, *, final: bool) -> float:
        pause_s = lane.backoff.next()
        lane.waiting = True
        return BACKOFF_MAX_S if final else pause_s

    def _lane_of(self, step: Step) -> _Lane:
        lane = self._lanes[step.pchannel]
        lane.busy = False
        return lane

    def _bit(self, vchannel: str) -> int:
        if not self._index:
            self._index = {name: at for at, name in enumerate(self.header.vchannels)}
        at = self._index.get(vchannel)
        if at is None:
            raise InvalidArgumentError(
                f"vchannel {vchannel!r} is not in broadcast {self.broadcast_id}, which has {len(self._index)} of them: "
                "acknowledge the vchannel that the copy came from"
            )
        return at

    def _mask(self, vchannels: Iterable[str]) -> int:
        return mask_of(self._bit(name) for name in vchannels)

    def _names(self, mask: int) -> tuple[str, ...]:
        if mask == self._full:
            return self.header.vchannels
        return tuple(self.header.vchannels[at] for at in bits(mask))


def bits(mask: int) -> list[int]:
    """Returns the bits that are set, ascending."""
    return [at for at, bit in enumerate(reversed(f"{mask:b}")) if bit == "1"]


def mask_of(indices: Iterable[int]) -> int:
    """Returns the bitmap with these bits set."""
    index_list = list(indices)
    stored = bytearray(max(index_list, default=0) // 8 + 1)
    for at in index_list:
        stored[at >> 3] |= 1 << (at & 7)
    return int.from_bytes(stored, "little")
