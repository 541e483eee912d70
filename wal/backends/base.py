"""What a log must do to be the WAL's: append frames, read them back, truncate, keep a checkpoint, refuse a lower term.

A backend knows frames and nothing of vchannels' meaning, transactions or readers. The same frames lie in journal segments, in
memory and in Pulsar messages; one conformance suite (tests/backends/conformance.py) holds all backends to the same promises:

* Durable when `done` is called without an error: synced to disk, or acknowledged by the broker.
* One writer a term: after `open` with a higher term, an append of a lower term is never written nor acknowledged, also through a
  handle that is still open: it fails with ChannelFencedError.
* Frames come back as they were appended, in the order of the calls, at strictly ascending positions; a position says for good
  where a frame lies. Nothing is skipped silently: damage is a CorruptionError, a truncated position a TruncatedError.
* A failed write or sync is final for the handle: every later append fails with the same StorageError.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Final

import msgspec

from wal.errors import NoSpaceError, WALError, WouldBlockError
from wal.frame import EncodedFrame, FrameView

__all__ = [
    "FRAME_BYTES_MAX",
    "REFUSALS",
    "AppendDone",
    "FramePage",
    "LogBackend",
    "LogState",
    "PChannelLog",
    "ReadableLog",
    "StoredFrame",
    "Stretch",
]

FRAME_BYTES_MAX: Final = 4_718_592
"""4.5 MiB: the largest encoded frame by default, below Pulsar's limit of 5 MB a message, so that every backend takes the same."""

REFUSALS: Final = (NoSpaceError, WouldBlockError)
"""What refuses an append, of which nothing was written then, without ending the log: it may be made again."""

AppendDone = Callable[[int, BaseException | None], None]
"""Called on the loop when a frame's outcome is known: `(position, None)`, or `(-1, error)`. Outcomes come in append order."""


class StoredFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame in the log, its `position`, and `next_position`: the smallest position that a later frame can have."""

    position: int
    next_position: int
    view: FrameView


class FramePage(msgspec.Struct, frozen=True, gc=False):
    """The answer of one `read`: the frames wanted in a stretch of the log, and how far the stretch goes.

    `next_position`: where the following read begins; everything below it (and at or above the start) has been looked at.
    `last_event`: (position, index) of the newest event in the stretch, whether wanted or not; None when it holds none.
    `promise`: the largest promise of a frame in the stretch: no later frame holds a tick at or below it; 0 for an empty stretch.
    """

    frames: list[StoredFrame]
    next_position: int
    last_event: tuple[int, int] | None
    promised_tick: int


class Stretch(msgspec.Struct, frozen=True, gc=False):
    """A part of the log, [start, end), in which space is given back whole.

    `sealed`: nothing is added any more; the last one is not, and never goes. `newest_tick`: no event of a sealed one has a larger one.
    `held`: its bytes, where positions do not count bytes.
    """

    start: int
    end: int
    newest_tick: int
    sealed: bool
    held: int | None = None

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.end - self.start if self.held is None else self.held


class LogState(msgspec.Struct, frozen=True, gc=False):
    """What `open` found in the log, after it cut a torn tail and synced the rest.

    `end`: the position behind the last frame. `last_term`, `last_sequence`: of that frame (0, -1 for an empty log). `promise`: the
    largest tick that was ever promised or given, as far as the log and its control data know. `earliest`: (position, index) of
    the first event that has not been truncated. `clean`: the last writer closed it. `newest`: (position, index) of the newest
    event, None when there is none (a truncated one may or may not be named). `torn_bytes`: of a frame that was begun and cut.
    """

    end: int
    last_term: int
    last_sequence: int
    promised_tick: int
    earliest: tuple[int, int]
    clean: bool
    newest: tuple[int, int] | None = None
    torn_bytes: int = 0


class ReadableLog(abc.ABC):
    """One pchannel's log as it can be read. All methods are called on the loop that opened it."""

    pchannel: str
    incarnation: int

    @property
    @abc.abstractmethod
    def durable_end(self) -> int:
        """The position behind the last durable frame: reads go up to here."""

    @property
    @abc.abstractmethod
    def earliest(self) -> tuple[int, int]:
        """Events at or above this (position, index) are not truncated; as `truncate` set it, (0, 0) before."""

    def bytes_between(self, start: int, end: int) -> int:
        """About how many bytes of log lie in [start, end)."""
        return max(0, end - start)

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        """The newest event below `earliest` where that is the beginning of a stretch; None when there is none, or it is not known."""
        return None

    @abc.abstractmethod
    async def read(self, start: int, *, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """The durable frames at or after `start` that hold a run of one of `names` (or for every reader); all if None.

        About `bytes_max` bytes of log a call (at least one frame if there is one). A page may be empty although the stretch is
        not: go on at its `next_position` until that is `durable_end`. `start` need not be the position of a frame.
        TruncatedError when `start` lies below the earliest event's frame, CorruptionError for damage in what was read.
        Cancelling it harms nothing.
        """

    @abc.abstractmethod
    async def close(self) -> None:
        """Lets go of it; a log that was written is written out and marked closed before. Idempotent."""


class PChannelLog(ReadableLog):
    """One pchannel's log, opened for writing in one term."""

    frames_in_flight: ClassVar[int] = 2
    """How many frames are worth handing over before the first is answered: more where an answer comes from far."""
    group_bytes: int = 4 * 1024 * 1024
    """Where a group commit is cut, unless one transaction alone is larger: 4 MiB, so that its frame stays below FRAME_BYTES_MAX with
    its tables;
    less where frames on their way side by side are quicker than one."""
    tick_frames: ClassVar[bool] = False
    """Whether readers in other processes learn of ticks from the log alone, so that TimeTick frames have to be written to it."""
    term: int
    state: LogState
    """What was found at opening; it does not change afterwards."""

    @abc.abstractmethod
    def append(self, frame: EncodedFrame, done: AppendDone) -> None:
        """Hands a frame over to be written; returns at once and never raises for the log's own state.

        Frames are written in the order of the calls. `done` is called exactly once for each, in that order, with
        ChannelFencedError, StorageError (`outcome_unknown` True when a part may have been written), one of REFUSALS (nothing was
        written; a later append may succeed) or ClosedError (handed over after `close`).
        """

    @abc.abstractmethod
    async def truncate(self, position: int, index: int) -> None:
        """Makes (position, index) the earliest event; durable when it returns. Going backwards is a no-op.

        Space is given back at the backend's own grain: never anything at or above `position`, or `checkpointed`.
        """

    sealed: Callable[[], None] | None = None
    """Called on the loop when more of the `stretches` are sealed."""
    failed: Callable[[WALError], None] | None = None
    """Called on the loop, once, when the log failed for good without an append that could be told: every later append fails so."""

    @abc.abstractmethod
    def stretches(self) -> list[Stretch]:
        """What the log holds, oldest first and without gaps up to its durable end; truncated ones that are still held included.

        Truncating at (the `end` of a sealed one, 0) gives back that one and all before it, as far as `checkpointed` lets it.
        """

    @property
    @abc.abstractmethod
    def checkpointed(self) -> int | None:
        """Where recovery begins: nothing at or above it is given back, truncated or not. None: nothing is held for it."""

    @property
    @abc.abstractmethod
    def held_bytes(self) -> int:
        """Space that is truncated and could be given back if `checkpointed` were at the end of the log."""

    @property
    @abc.abstractmethod
    def keyed_bytes(self) -> int:
        """Bytes of the frames with keyed events or copies of broadcasts that were written through this handle."""

    @abc.abstractmethod
    async def read_keyed(self, start: int, *, bytes_max: int) -> FramePage:
        """The durable frames at or after `start` that hold keyed events or copies of broadcasts, truncated or not, all their runs
        readable.

        For recovery: it reads what `checkpointed` holds. Otherwise as `read`, TruncatedError when `start` lies below what is held.
        """

    @abc.abstractmethod
    def promise(self, tick: int, limit: int) -> None:
        """Notes, without waiting and without writing to the log, that no later event has a tick at or below `tick`.

        `limit` is the oracle's saved limit. Other processes may see it at once; it need not survive a power cut.
        """

    @abc.abstractmethod
    async def save_state(self, position: int, pieces: Sequence[bytes]) -> None:
        """Stores a recovery checkpoint, these pieces in a row, that covers everything below `position`; durable when it returns.

        Others stay until `release`. NoSpaceError or StorageError when it cannot be stored: nothing else is harmed, try again.
        """

    def keep_room(self, grown_bytes: int) -> None:
        """Has room kept for a checkpoint that is so many bytes larger than the last one, as far as there is room now.

        It waits for nothing. Where checkpoints lie on no disk of this machine it does nothing.
        """

    @abc.abstractmethod
    async def load_state(self, position: int) -> bytes:
        """The checkpoint saved for this position. A missing or damaged one is a CorruptionError that names it."""

    @abc.abstractmethod
    async def release(self, position: int, *, state: int | None) -> None:
        """Moves `checkpointed` on to `position`: recovery begins there from now on, with the checkpoint of `state` (None: without one).

        Call it when that is stored for good. What was held only for an earlier one is given back, and other checkpoints go. Going
        backwards is a no-op.
        """


class LogBackend(abc.ABC):
    """Where pchannels' logs live."""

    name: ClassVar[str]
    """The name of the WAL as `wal_name` reports it."""
    form: ClassVar[int]
    """The form of its message ids (wal.message.FORM_…)."""
    frame_bytes_limit: int
    """The largest encoded frame that this backend can ever take; settings above it are refused. Final once it is started."""
    frame_bytes_source: str = ""
    """Where that limit comes from when somebody can raise it, and how; empty when nobody can."""

    @abc.abstractmethod
    async def start(self) -> None:
        """Takes what the pchannels share; `create` and `open` do it otherwise. Idempotent; after an error it can be tried again."""

    @abc.abstractmethod
    async def create(self, pchannel: str, *, incarnation: int) -> None:
        """Makes an empty log, durably. One that exists but never held a frame is made anew; any other is a FormatError."""

    @abc.abstractmethod
    async def open(self, pchannel: str, *, incarnation: int, term: int, checkpoint: int | None = None) -> PChannelLog:
        """Opens the log for writing in `term`, which must be above every term it was opened in before (ChannelFencedError).

        From then on the handles of lower terms are fenced. Recovers: cuts a torn tail, syncs what is accepted. A log that does
        not exist, or is of another incarnation, or damaged at or below its durable position is a CorruptionError. `checkpoint`:
        what `checkpointed` is at first; a log that has lost something at or above it is a CorruptionError.
        """

    def folder(self, pchannel: str) -> Path | None:
        """The directory of this pchannel, for what other processes are to find beside its log; None when logs are no files."""
        return None

    @abc.abstractmethod
    async def close(self) -> None:
        """Lets go of everything shared by the pchannels. Their handles are closed before. Idempotent."""

    def finish_calls(self) -> None:  # noqa: B027 - a backend without threads of its own has nothing to wait for
        """The first step of `abandon`: waits until what its threads were given for the log is done; no call is taken any more."""

    @abc.abstractmethod
    def abandon(self) -> None:
        """Releases files, threads and locks, of the handles too, once the event loop has ended. Idempotent; any thread may call it.

        It blocks until what the threads were given is done. Nothing is marked as closed: the next opening recovers as after a crash.
        """
