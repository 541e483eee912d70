"""The interface of a log and of a backend: append frames, read them back, truncate, keep a checkpoint, refuse a lower term.

A backend stores frames; vchannels, transactions and readers have no meaning to it. Journal segments, memory and Pulsar messages contain the
same frames; one conformance suite (tests/storage/conformance.py) checks the same guarantees for all backends:

* A frame is durable when `done` is called without an error: synced to disk, or acknowledged by the broker.
* There is one writer per term: after `open` with a higher term, an append in a lower term is never written or acknowledged, not even
  through a handle that is still open. It fails with ChannelFencedError.
* Frames are read as they were appended, in the order of the calls, at strictly ascending positions; the position of a frame never changes.
  No frame is skipped silently: damage raises CorruptionError, a truncated position TruncatedError.
* A failed write or sync is final for the handle: every later append fails with the same StorageError.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import ClassVar, Final, Protocol

import msgspec

from wal.errors import (
    ChannelFencedError,
    ClosedError,
    CorruptionError,
    InvalidArgumentError,
    NoSpaceError,
    TruncatedError,
    WALError,
    WouldBlockError,
)
from wal.frame import EncodedFrame, FrameView, RowsHead, RunName
from wal.message import Lineage, LogPosition, MessageID, Origin

FRAME_BYTES_MAX: Final = 4_718_592
"""The largest encoded frame by default: 4.5 MiB, below Pulsar's limit of 5 MB per message, so that every backend accepts the same
frames."""

REFUSALS: Final = (NoSpaceError, WouldBlockError)
"""The errors that refuse an append without ending the log: nothing was written, and the caller may append again."""

AppendDone = Callable[[int, BaseException | None], None]
"""Called on the loop when the outcome of a frame is known: `(position, None)`, or `(-1, error)`. Outcomes come in append order."""


class StoredFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame in the log, its `position`, and `next_position`: the smallest position that a later frame can have."""

    position: int
    next_position: int
    view: FrameView


class FramePage(msgspec.Struct, frozen=True, gc=False):
    """The result of one `read`: the wanted frames in an extent of the log, and the end of that extent.

    `next_position`: where the next read begins; everything from the start up to here has been examined. `last_event`: (position, index) of
    the newest event in the extent, whether wanted or not; None without an event. `promised_tick`: the largest in the extent: no later frame
    has a tick at or below it; 0 for an empty extent.
    """

    frames: list[StoredFrame]
    next_position: int
    last_event: tuple[int, int] | None
    promised_tick: int


class Memory(Protocol):
    """Memory that bytes are read into, such as a buffer of Arrow: writable through a memoryview, and readable in parts."""

    def slice(self, offset: int, length: int, /) -> Memory:
        """Returns a part of this memory, without a copy."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

    def __len__(self) -> int: ...


class RowsRequest(msgspec.Struct, frozen=True, gc=False):
    """A request for rows of the frames in [start, end) that contain a run of one of `names` (None: all frames).

    `accepts` returns whether the rows of this vchannel (name, incarnation) are wanted. Frames with a tick below `tick_min` or a promise at
    or above `tick_end` are not wanted as rows, nor, with `inserts_only`, frames with messages of other types. About `rows_max` rows, or
    `bytes_max` bytes of bodies, are read into the memory that `allocate` returns; None: no bodies are wanted.
    """

    start: int
    end: int
    names: frozenset[str] | None
    accepts: Callable[[str, int], bool]
    tick_min: int
    tick_end: int
    rows_max: int
    bytes_max: int
    inserts_only: bool
    allocate: Callable[[int], Memory] | None


class RowsFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame at `position` whose rows are all wanted. Its body begins at `body_at` of the page's bodies."""

    position: int
    head: RowsHead
    body_at: int


class RowsPage(msgspec.Struct, frozen=True, gc=False):
    """The result of a `RowsRequest`: as many frames as fit, and their bodies one after the other, checked against their CRCs.

    Checks that `rows_head` leaves to its caller are not made. `next_position`, `last_event` and `promised_tick` are as in a `FramePage`.
    The page ends before the first wanted frame that does not fit, is damaged, or could not be read; then it `is_cut`.
    """

    frames: list[RowsFrame]
    bodies: Memory | None
    next_position: int
    last_event: tuple[int, int] | None
    promised_tick: int
    is_cut: bool


class FrameWeight(msgspec.Struct, frozen=True, gc=False):
    """The cost of a read of one frame, or of adjacent frames: at most this many rows, about this many bytes.

    It begins at `position`, and everything in it is below (`next_position`, 0). Its events have ticks from `first_tick` to `promised_tick`,
    and later events have larger ones.
    """

    position: int
    next_position: int
    first_tick: int
    promised_tick: int
    rows: int
    size: int


class Extent(msgspec.Struct, frozen=True, gc=False):
    """A part of the log, [start, end), whose space is freed as a whole.

    `sealed`: no more frames are added. The last extent is not sealed, and is never dropped. `newest_tick`: no event of a sealed extent has
    a larger tick. `held`: the stored bytes of the extent, where positions do not count bytes.
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

    `end`: the position after the last frame. `last_term`, `last_sequence`: of that frame (0, -1 for an empty log). `promised_tick`: the
    largest tick that was ever promised or assigned, according to the log and its control data. `earliest`: (position, index) of the first
    event that has not been truncated. `clean`: whether the last writer closed the log. `newest`: (position, index) of the newest event,
    which may be truncated; None without an event. `torn_bytes`: the bytes of a partly written frame that was cut off.
    """

    end: int
    last_term: int
    last_sequence: int
    promised_tick: int
    earliest: tuple[int, int]
    clean: bool
    newest: tuple[int, int] | None = None
    torn_bytes: int = 0


class Unread(msgspec.Struct, frozen=True, gc=False):
    """A part of a log with events of some vchannels: the frames that contain them, according to their indexes.

    `events` counts all events and bodies of these frames from the beginning of the part on, including other vchannels: an upper bound for
    the events of the vchannels. `first_tick` is at or below the tick of the first one. Both are None without an index.
    """

    bytes: int
    events: int | None = None
    first_tick: int | None = None

    @classmethod
    def joined(cls, parts: Iterable[Unread]) -> Unread:
        """Returns the sum over parts of a log, given in their order."""
        size = events = 0
        first_tick: int | None = None
        for part in parts:
            size += part.bytes
            events += part.events or 0
            first_tick = part.first_tick if first_tick is None else first_tick
        return cls(size, events, first_tick)


class ReadableLog(abc.ABC):
    """One pchannel's log, open for reading. All methods are called on the loop that opened it."""

    pchannel: str
    incarnation: int

    @property
    def lineage(self) -> Lineage:
        """Returns the restores that the log has gone through."""
        return Lineage(self.incarnation)

    @property
    @abc.abstractmethod
    def durable_end(self) -> int:
        """Returns the position after the last durable frame, where reads end."""

    @property
    @abc.abstractmethod
    def earliest(self) -> tuple[int, int]:
        """Returns the (position, index) of the earliest event: events at or above it are not truncated; (0, 0) before any `truncate`."""

    @property
    def local_earliest(self) -> LogPosition:
        """Returns the earliest event that the log stores itself: above `earliest` where an archive has what lies between."""
        return self.earliest

    def bytes_between(self, start: int, end: int) -> int:
        """Returns the approximate number of bytes of log in [start, end)."""
        return max(0, end - start)

    def unread_for(self, names: frozenset[str], start: tuple[int, int], end: int) -> Unread:
        """Returns the unread part of the log for a reader of these vchannels, from the event `start`, (position, index), up to `end`.

        Computed from indexes, without a scan; without an index, an approximation by `bytes_between`. It may block, and any thread may call
        it.
        """
        return Unread(self.bytes_between(start[0], end))

    @property
    def last_truncated(self) -> tuple[int, int] | None:
        """Returns the newest event below `earliest` if an extent begins there; None without such an event, or if it is unknown."""
        return None

    @property
    def truncated_tick(self) -> int | None:
        """Returns a tick that the last truncated event has, or that comes after it and before the next event; None if it is not known."""
        return None

    @abc.abstractmethod
    async def read(self, start: int, *, names: frozenset[str] | None, bytes_max: int, end: int | None = None) -> FramePage:
        """Returns the durable frames at or after `start` that contain a run of one of `names` (or concern every reader); all frames if
        None.

        A call reads about `bytes_max` bytes of log (at least one frame if there is one). A page may be empty although the extent is not:
        continue at its `next_position` until that is `durable_end`. With `end`, the read ends before the first frame at or above it, or at
        the end of the log. Neither `start` nor `end` need be the position of a frame. Raises TruncatedError when `start` is below the frame
        of the earliest event, CorruptionError for damage in the bytes that it read. Cancelling it is safe.
        """

    @abc.abstractmethod
    async def close(self) -> None:
        """Releases the log. A log that is open for writing is first flushed and marked as closed. Idempotent."""


class PChannelLog(ReadableLog):
    """One pchannel's log, opened for writing in one term."""

    frames_in_flight: ClassVar[int] = 2
    """The number of frames worth appending before the first outcome; larger for a backend with slow outcomes."""
    group_bytes: int = 4 * 1024 * 1024
    """The size at which a group commit is cut, unless one transaction alone is larger: 4 MiB, so that its frame stays below FRAME_BYTES_MAX
    with its tables; less where several frames in flight are faster than one.
    """
    frame_cost: ClassVar[int] = 0
    """The cost of replaying a frame of any size, in bytes of log that are replayed in the same time."""
    tick_frames: ClassVar[bool] = False
    """Whether readers in other processes get ticks from the log alone, so that TimeTick frames must be written to it."""
    term: int
    state: LogState
    """The state of the log when it was opened; it does not change afterwards."""

    @abc.abstractmethod
    def append(self, frame: EncodedFrame, done: AppendDone) -> None:
        """Queues a frame for writing; returns at once and never raises because of the log's state.

        Frames are written in the order of the calls. `done` is called exactly once for each, in that order, with ChannelFencedError,
        StorageError (`outcome_unknown` is True when a part may have been written), one of REFUSALS (nothing was written; a later append may
        succeed) or ClosedError (appended after `close`).
        """

    async def intend(self, up_to: LogPosition | None) -> None:
        """Shows other processes how far the log may be truncated next, None: not at all. They see it when this returns; `truncate` ends it.

        A process that saves a cursor stores its pin, and then reads the intent. The writer publishes its intent, and then reads the pins.
        So one of the two sees the other.
        """

    @abc.abstractmethod
    async def truncate(self, position: int, index: int) -> None:
        """Makes (position, index) the earliest event; durable when it returns. Does nothing for a position below the current one.

        Space is freed in the backend's own extents, never at or above `position` or `checkpointed`.
        """

    async def free(self, position: int) -> None:
        """Frees the space below a position, for retention: as `truncate`, but an event that an archive has stays an event of the log."""
        await self.truncate(position, 0)

    hint: Callable[[], str] = str
    """Returns why space is not freed, as the end of the error of an append without room; empty without a reason. Called in any thread."""
    sealed: Callable[[], None] | None = None
    """Called on the loop when one more of the `extents` is sealed."""
    failed: Callable[[WALError], None] | None = None
    """Called once on the loop when the log failed for good while no append was waiting: every later append fails with this error."""

    @abc.abstractmethod
    def extents(self) -> list[Extent]:
        """Returns the extents of the log, oldest first and without gaps up to its durable end, including truncated ones that still take
        space.

        Truncating at (the `end` of a sealed extent, 0) frees that extent and all before it, unless `checkpointed` still needs them.
        """

    @property
    @abc.abstractmethod
    def checkpointed(self) -> int | None:
        """Returns the position where recovery begins: nothing at or above it is freed, truncated or not. None: recovery needs nothing."""

    @property
    def write_path(self) -> tuple[str, str]:
        """Returns the path that writes small frames now and the reason, for a log that has a choice; else two empty texts."""
        return "", ""

    @property
    @abc.abstractmethod
    def held_bytes(self) -> int:
        """Returns the bytes that are truncated and could be freed if `checkpointed` were at the end of the log."""

    @property
    @abc.abstractmethod
    def keyed_bytes(self) -> int:
        """Returns the bytes of the frames with keyed events or copies of broadcasts that were written through this handle, each counted as
        at least `frame_cost`."""

    @abc.abstractmethod
    async def read_keyed(self, start: int, *, bytes_max: int) -> FramePage:
        """Returns the durable frames at or after `start` that contain keyed events or copies of broadcasts, truncated or not, with all runs
        readable.

        Recovery uses it to read the frames after `checkpointed`. Otherwise it works like `read`; it raises TruncatedError when `start` is
        below the stored frames.
        """

    @abc.abstractmethod
    async def last_events(self, start: int) -> dict[RunName, LogPosition]:
        """Returns the newest durable event at or after `start`, truncated or not, of each vchannel that has one there.

        Of several incarnations of a name, only the newest is certain to be there. An event whose space was freed is left out, if it is in
        the first extent; below that, the call raises TruncatedError.
        """

    @abc.abstractmethod
    def promise(self, tick: int, limit: int) -> None:
        """Records, without waiting and without writing to the log, that no later event has a tick at or below `tick`.

        `limit` is the oracle's saved limit. Other processes may see both values at once; they need not survive a power cut.
        """

    @abc.abstractmethod
    async def save_state(self, position: int, pieces: Sequence[bytes]) -> None:
        """Stores a recovery checkpoint, the concatenated pieces, that covers everything below `position`; durable when it returns.

        Other checkpoints stay until `release`. Raises NoSpaceError or StorageError when it cannot be stored: nothing else is harmed, and
        the caller may try again.
        """

    def keep_room(self, grown_bytes: int) -> None:
        """Reserves room for a checkpoint that is `grown_bytes` larger than the last one, if there is room now.

        Does not wait. Does nothing where checkpoints are not on a disk of this machine.
        """

    @abc.abstractmethod
    async def load_state(self, position: int) -> bytes:
        """Returns the checkpoint that was saved for this position. Raises a CorruptionError that names the checkpoint when it is missing or
        damaged."""

    @abc.abstractmethod
    async def release(self, position: int, *, state: int | None) -> None:
        """Advances `checkpointed` to `position`: recovery begins there from now on, with the checkpoint of `state` (None: without one).

        Call it when the checkpoint is durably recorded. Space that only an earlier checkpoint needed is freed, and other checkpoints are
        removed. Does nothing for a position below the current one.
        """

    @property
    def map_noted(self) -> bool:
        """Returns whether `note_map` was ever called for this log; True where no other process reads its files."""
        return True

    async def note_map(self) -> None:
        """Records durably that the map of the vchannels is in `LogBackend.folder`: for a process that only reads, its absence is damage
        from now on.
        """


class LogBackend(abc.ABC):
    """The storage of the logs of pchannels."""

    name: ClassVar[str]
    """The name of the WAL as `wal_name` reports it."""
    form: ClassVar[int]
    """The form of its message ids (wal.message.FORM_…)."""
    frame_bytes_limit: int
    """The largest encoded frame that this backend ever accepts; larger settings are refused. Final once the backend is started."""
    frame_bytes_source: str = ""
    """The origin of that limit and the way to raise it, if it can be raised; else empty."""

    @abc.abstractmethod
    async def start(self) -> None:
        """Acquires the resources that all pchannels share; `create` and `open` do so too. Idempotent; it can be retried after an error."""

    @abc.abstractmethod
    async def create(self, pchannel: str, *, incarnation: int) -> None:
        """Durably creates an empty log. Recreates an existing log that never held a frame; raises FormatError for any other."""

    @abc.abstractmethod
    async def open(self, pchannel: str, *, incarnation: int, term: int, checkpoint: int | None = None) -> PChannelLog:
        """Opens the log for writing in `term`. Raises ChannelFencedError unless the term is above every term in which it was opened before.

        From then on the handles of lower terms are fenced. Opening recovers the log: it cuts a torn tail and syncs the rest.
        Raises CorruptionError for a log that does not exist, is of another incarnation, or is damaged at or below its durable position.
        `checkpoint` is the initial `checkpointed`; raises CorruptionError if the log has lost anything at or above it.
        """

    async def raise_format(self) -> None:  # noqa: B027 - a backend without a format of its own relies on the metadata
        """Records durably that the log has cursors that move with transactions: versions without that feature refuse it. Idempotent."""

    def folder(self, pchannel: str) -> Path | None:
        """Returns the directory of this pchannel, for files beside its log that other processes look for; None when logs are not files."""
        return None

    @abc.abstractmethod
    async def close(self) -> None:
        """Releases everything that the pchannels share. Their handles must be closed first. Idempotent."""

    def finish_calls(self) -> None:  # noqa: B027 - a backend without threads of its own has nothing to wait for
        """Waits until the threads have finished their jobs for the log; no further calls are accepted. This is the first step of
        `abandon`."""

    @abc.abstractmethod
    def abandon(self) -> None:
        """Releases files, threads and locks, including those of the handles, after the event loop has ended. Idempotent; any thread may
        call it.

        It blocks until the threads have finished their jobs. Nothing is marked as closed: the next opening recovers as after a crash.
        """


class TailView(Protocol):
    """The log's end as a reader sees it at one moment: everything at or below `promised_tick` is below `durable_end`."""

    @property
    def durable_end(self) -> int: ...

    @property
    def promised_tick(self) -> int: ...

    @property
    def newest(self) -> LogPosition | None:
        """The newest durable event, or None before any."""

    @property
    def failure(self) -> BaseException | None:
        """The error that ended the log, None while it is open."""


class LogMoment(TailView, Protocol):
    """A log at one moment: its end as a reader sees it, its `earliest` event that is not truncated, and an origin that names it.

    `last_truncated` is the newest event below `earliest`, None if it is unknown.
    """

    @property
    def origin(self) -> Origin: ...

    @property
    def lineage(self) -> Lineage: ...

    @property
    def earliest(self) -> LogPosition: ...

    @property
    def last_truncated(self) -> LogPosition | None: ...


class LogSnapshot(msgspec.Struct, frozen=True, gc=False):
    """A log at one moment: everything at or below `promised_tick` is below `durable_end`, and nothing above that tick may be shown.

    `origin` identifies the log: its pchannel, incarnation and form of ids; the position is arbitrary. `lineage`: the restores of the log.
    `earliest` is the (position, index) of the first event that is not truncated, `newest` that of the newest known event, None before any
    event; `last_truncated` the newest event below `earliest`, None if it is unknown. `closed`: no writer has the log open; a killed writer
    leaves it False. `truncated_tick`: see `ReadableLog.truncated_tick`.
    """

    origin: Origin
    lineage: Lineage
    term: int
    durable_end: int
    earliest: LogPosition
    promised_tick: int
    closed: bool
    newest: LogPosition | None
    last_truncated: LogPosition | None = None
    truncated_tick: int | None = None

    @property
    def failure(self) -> BaseException | None:
        """None: another writer may open the log at any time, so it may always continue."""
        return None


def not_above(pchannel: str, owner: int, term: int) -> ChannelFencedError:
    """Returns the error of an opening in a term that is not above that of the owner."""
    return ChannelFencedError(
        f"pchannel {pchannel!r} was opened in term {owner}; term {term} is not above it: take a higher one", term=owner
    )


def other_term(pchannel: str, owner: int, term: int) -> ChannelFencedError:
    """Returns the error of a handle of this term whose log belongs to another owner."""
    return ChannelFencedError(f"pchannel {pchannel!r} is owned by term {owner} now; this handle is of term {term}", term=owner)


def other_log(pchannel: str, incarnation: int, expected: int, *, path: str = "") -> CorruptionError:
    """Returns the error of an opening that finds a log of another incarnation than the metadata name."""
    return CorruptionError(
        f"the log of pchannel {pchannel!r} is of incarnation {incarnation:#x}", path=path, expected=f"incarnation {expected:#x}"
    )


def past_end(position: object, end: object) -> InvalidArgumentError:
    """Returns the error of a truncation above the end of the log."""
    return InvalidArgumentError(
        f"truncation up to position {position} is past the end of the log, {end}: truncate at the position of a frame that was acknowledged"
    )


def too_long(frame_bytes: int, limit: int) -> InvalidArgumentError:
    """Returns the error of an append of a frame that is larger than the log's limit."""
    return InvalidArgumentError(f"a frame of {frame_bytes} bytes is above the limit of {limit}: make smaller frames")


def closed_before(pchannel: str) -> ClosedError:
    """Returns the error of an append to a log that was closed before."""
    return ClosedError(f"pchannel {pchannel!r} was closed before this append")


def truncated(pchannel: str, start: object, earliest: object, *, event: MessageID | None) -> TruncatedError:
    """Returns the error of a read below the earliest event; `event` is that, None for a log without events."""
    return TruncatedError(
        f"position {start} of pchannel {pchannel!r} has been truncated; the earliest event is at {earliest}", earliest=event
    )


def released(pchannel: str, start: object, held: object) -> TruncatedError:
    """Returns the error of a read of a frame whose space was freed."""
    return TruncatedError(f"position {start} of pchannel {pchannel!r} is gone; what is held begins at {held}", earliest=None)
