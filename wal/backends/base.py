"""The promises of a log and of a backend: append frames, read them back, truncate, keep a checkpoint, refuse a lower term.

A backend knows frames; it knows neither the meaning of vchannels nor transactions nor readers. The same frames lie in journal segments,
in memory and in Pulsar messages; one conformance suite (tests/backends/conformance.py) holds all backends to the same promises:

* A frame is durable when `done` is called without an error: synced to disk, or acknowledged by the broker.
* There is one writer a term: after `open` with a higher term, an append of a lower term is never written nor acknowledged, not even
  through a handle that is still open: it fails with ChannelFencedError.
* Frames come back as they were appended, in the order of the calls, at strictly ascending positions; a position says for good
  where a frame lies. No frame is skipped silently: damage raises CorruptionError, a truncated position TruncatedError.
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
    "Extent",
    "FramePage",
    "LogBackend",
    "LogState",
    "PChannelLog",
    "ReadableLog",
    "StoredFrame",
]

FRAME_BYTES_MAX: Final = 4_718_592
"""The largest encoded frame by default: 4.5 MiB, below Pulsar's limit of 5 MB a message, so that every backend takes the same."""

REFUSALS: Final = (NoSpaceError, WouldBlockError)
"""The errors that refuse an append without ending the log: nothing of it was written, and it may be made again."""

AppendDone = Callable[[int, BaseException | None], None]
"""Called on the loop when the outcome of a frame is known: `(position, None)`, or `(-1, error)`. Outcomes come in append order."""


class StoredFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame in the log, its `position`, and `next_position`: the smallest position that a later frame can have."""

    position: int
    next_position: int
    view: FrameView


class FramePage(msgspec.Struct, frozen=True, gc=False):
    """The answer of one `read`: the wanted frames in an extent of the log, and how far the extent reaches.

    `next_position`: where the next read begins; everything below it (and at or above the start) has been looked at. `last_event`:
    (position, index) of the newest event in the extent, whether wanted or not; None when it holds none. `promised_tick`: the largest
    one of a frame in the extent: no later frame holds a tick at or below it; 0 for an empty extent.
    """

    frames: list[StoredFrame]
    next_position: int
    last_event: tuple[int, int] | None
    promised_tick: int


class Extent(msgspec.Struct, frozen=True, gc=False):
    """A part of the log, [start, end), whose space is given back as a whole.

    `sealed`: no frame is added any more. The last extent is not sealed, and is never dropped. `newest_tick`: no event of a sealed extent
    has a larger tick. `held`: its bytes, where positions do not count bytes.
    """

    start: int
    end: int
    newest_tick: int
    sealed: bool
    held: int | None = None

    @property
    def size(self) -> int:
        """Returns the bytes of the extent."""
        return self.end - self.start if self.held is None else self.held


class LogState(msgspec.Struct, frozen=True, gc=False):
    """The state in which `open` found the log, after it cut a torn tail and synced the rest.

    `end`: the position after the last frame. `last_term`, `last_sequence`: of that frame (0, -1 for an empty log).
    `promised_tick`: the largest tick that was ever promised or given, as far as the log and its control data know.
    `earliest`: (position, index) of the first event that has not been truncated. `clean`: whether the last writer closed the log.
    `newest`: (position, index) of the newest event, None when there is none (it may name a truncated one).
    `torn_bytes`: the bytes of a frame that was begun and cut.
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
    """One pchannel's log for reading. All methods are called on the loop that opened it."""

    pchannel: str
    incarnation: int

    @property
    @abc.abstractmethod
    def durable_end(self) -> int:
        """Returns the position after the last durable frame: reads go up to here."""

    @property
    @abc.abstractmethod
    def earliest(self) -> tuple[int, int]:
        """Returns the earliest event: events at or above this (position, index) are not truncated; (0, 0) before any `truncate`."""

    def bytes_between(self, start: int, end: int) -> int:
        """Returns about how many bytes of log lie in [start, end)."""
        return max(0, end - start)

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        """Returns the newest event below `earliest` if an extent begins there; None when there is none, or it is not known."""
        return None

    @abc.abstractmethod
    async def read(self, start: int, *, names: frozenset[str] | None, bytes_max: int) -> FramePage:
        """Returns the durable frames at or after `start` that hold a run of one of `names` (or for every reader); all of them if None.

        A call reads about `bytes_max` bytes of log (at least one frame if there is one). A page may be empty although the extent is not:
        go on at its `next_position` until that is `durable_end`. `start` need not be the position of a frame. Raises TruncatedError when
        `start` lies below the frame of the earliest event, CorruptionError for damage in what was read. Cancelling it harms nothing.
        """

    @abc.abstractmethod
    async def close(self) -> None:
        """Releases the log; a log that was written is written out and marked as closed before. Idempotent."""


class PChannelLog(ReadableLog):
    """One pchannel's log, opened for writing in one term."""

    frames_in_flight: ClassVar[int] = 2
    """How many frames are worth handing over before the first is answered: more where answers take long."""
    group_bytes: int = 4 * 1024 * 1024
    """Where a group commit is cut, unless one transaction alone is larger: 4 MiB, so that its frame stays below FRAME_BYTES_MAX with its
    tables; less where several frames in flight are quicker than one."""
    tick_frames: ClassVar[bool] = False
    """Whether readers in other processes learn of ticks from the log alone, so that TimeTick frames have to be written to it."""
    term: int
    state: LogState
    """The state in which the log was found at opening; it does not change afterwards."""

    @abc.abstractmethod
    def append(self, frame: EncodedFrame, done: AppendDone) -> None:
        """Hands over a frame to be written; returns at once and never raises for the log's own state.

        Frames are written in the order of the calls. `done` is called exactly once for each, in that order, with ChannelFencedError,
        StorageError (`outcome_unknown` is True when a part may have been written), one of REFUSALS (nothing was written; a later append
        may succeed) or ClosedError (handed over after `close`).
        """

    @abc.abstractmethod
    async def truncate(self, position: int, index: int) -> None:
        """Makes (position, index) the earliest event; durable when it returns. Does nothing for a position below the present one.

        Space is given back in the backend's own extents: never at or above `position` or `checkpointed`.
        """

    sealed: Callable[[], None] | None = None
    """Called on the loop when more of the `extents` are sealed."""
    failed: Callable[[WALError], None] | None = None
    """Called on the loop, once, when the log failed for good and no append was there to fail: every later append fails so."""

    @abc.abstractmethod
    def extents(self) -> list[Extent]:
        """Returns the extents that the log holds, oldest first and without gaps up to its durable end; truncated ones still held
        included.

        Truncating at (the `end` of a sealed one, 0) gives back that extent and all before it, as far as `checkpointed` allows.
        """

    @property
    @abc.abstractmethod
    def checkpointed(self) -> int | None:
        """Returns where recovery begins: nothing at or above it is given back, truncated or not. None: nothing is held for it."""

    @property
    @abc.abstractmethod
    def held_bytes(self) -> int:
        """Returns the bytes that are truncated and could be given back if `checkpointed` were at the end of the log."""

    @property
    @abc.abstractmethod
    def keyed_bytes(self) -> int:
        """Returns the bytes of the frames with keyed events or copies of broadcasts that were written through this handle."""

    @abc.abstractmethod
    async def read_keyed(self, start: int, *, bytes_max: int) -> FramePage:
        """Returns the durable frames at or after `start` that hold keyed events or copies of broadcasts, truncated or not, all runs
        readable.

        It is for recovery, and reads what `checkpointed` holds. Otherwise it is as `read`; it raises TruncatedError when `start` lies
        below what is held.
        """

    @abc.abstractmethod
    def promise(self, tick: int, limit: int) -> None:
        """Notes, without waiting and without writing to the log, that no later event has a tick at or below `tick`.

        `limit` is the oracle's saved limit. Other processes may see both at once; they need not survive a power cut.
        """

    @abc.abstractmethod
    async def save_state(self, position: int, pieces: Sequence[bytes]) -> None:
        """Stores a recovery checkpoint, these pieces in a row, that covers everything below `position`; durable when it returns.

        Other checkpoints stay until `release`. Raises NoSpaceError or StorageError when it cannot be stored: nothing else is harmed, try
        again.
        """

    def keep_room(self, grown_bytes: int) -> None:
        """Has room kept for a checkpoint that is `grown_bytes` larger than the last one, as far as there is room now.

        It waits for nothing. It does nothing where checkpoints lie on no disk of this machine.
        """

    @abc.abstractmethod
    async def load_state(self, position: int) -> bytes:
        """Returns the checkpoint that was saved for this position. Raises a CorruptionError that names it when it is missing or damaged."""

    @abc.abstractmethod
    async def release(self, position: int, *, state: int | None) -> None:
        """Moves `checkpointed` on to `position`: recovery begins there from now on, with the checkpoint of `state` (None: without one).

        Call it when the checkpoint is recorded for good. Space that was held only for an earlier one is given back, and other checkpoints
        are removed. Does nothing for a position below the present one.
        """


class LogBackend(abc.ABC):
    """The place where the logs of pchannels are kept."""

    name: ClassVar[str]
    """The name of the WAL as `wal_name` reports it."""
    form: ClassVar[int]
    """The form of its message ids (wal.message.FORM_…)."""
    frame_bytes_limit: int
    """The largest encoded frame that this backend can ever take; larger settings are refused. Final once the backend is started."""
    frame_bytes_source: str = ""
    """Where that limit comes from and how to raise it, if somebody can; else empty."""

    @abc.abstractmethod
    async def start(self) -> None:
        """Takes the resources that all pchannels share, as `create` and `open` do. Idempotent; after an error it can be tried again."""

    @abc.abstractmethod
    async def create(self, pchannel: str, *, incarnation: int) -> None:
        """Makes an empty log, durably. Recreates one that exists but never held a frame; raises FormatError for any other."""

    @abc.abstractmethod
    async def open(self, pchannel: str, *, incarnation: int, term: int, checkpoint: int | None = None) -> PChannelLog:
        """Opens the log for writing in `term`, which must be above every term in which it was opened before (ChannelFencedError).

        From then on the handles of lower terms are fenced. Opening recovers the log: it cuts a torn tail and syncs what it accepts.
        Raises CorruptionError for a log that does not exist, is of another incarnation, or is damaged at or below its durable position.
        `checkpoint` is what `checkpointed` is at first; a log that has lost something at or above it raises CorruptionError.
        """

    def folder(self, pchannel: str) -> Path | None:
        """Returns the directory of this pchannel, for files beside its log that other processes look for; None when logs are no files."""
        return None

    @abc.abstractmethod
    async def close(self) -> None:
        """Releases everything that the pchannels share. Their handles are closed before. Idempotent."""

    def finish_calls(self) -> None:  # noqa: B027 - a backend without threads of its own has nothing to wait for
        """Waits until the threads have done what they were given for the log; no call is taken any more. The first step of `abandon`."""

    @abc.abstractmethod
    def abandon(self) -> None:
        """Releases files, threads and locks, of the handles too, after the event loop has ended. Idempotent; any thread may call it.

        It blocks until the threads have done what they were given. Nothing is marked as closed: the next opening recovers as after a
        crash.
        """
