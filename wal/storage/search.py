"""Searches in the frames of one pchannel's log: the position after a tick, the newest event below a position, the weights of frames. Pure.

A search is a generator that yields the pages it needs and takes each in return, so that the same search runs on an event loop (`run_async`)
and in a thread (`run`). It needs of a log no more than pages and the number of bytes between two positions. Promised ticks ascend from
frame to frame, which makes the search for a tick a binary one.

A question (`Question`) may also yield a `TickRequest`, which a log with an index answers without reading frames, or a `MomentRequest`. The
errors of a log are raised at the `yield`, so that a search can continue after a truncation. See `ReadOnlyPChannelLog.answer`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Container, Generator, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

import msgspec

from wal.errors import TruncatedError, WALError
from wal.frame import RunKind
from wal.message import LogPosition
from wal.storage.base import FramePage, FrameWeight, StoredFrame

PIECES: Final = 64
"""The most weights of an extent without a limit: enough to share it out among the tasks of a job."""
PAGES_MAX: Final = 64
"""The most pages that one search weighs: a server answers within a deadline, with a bounded number of weights."""
PAGE_BYTES: Final = 1 << 20
BACK_BYTES: Final = 1 << 16
"""The distance of a search's first look from its end: the last few frames, where most ticks and most newest events are."""
_NONE: Final = frozenset[str]()

Answer = TypeVar("Answer")
BytesBetween = Callable[[int, int], int]
"""Returns the approximate number of bytes of log in [start, end)."""


class PageRequest(msgspec.Struct, frozen=True, gc=False):
    """The page that a search needs: from `start` on, of frames below `end`; `names` and `bytes_max` as in a read.

    Unless it needs `whole` frames, their bodies and the choice of names may be left out.
    """

    start: int
    end: int
    names: frozenset[str] | None = None
    bytes_max: int = 1
    whole: bool = False


class TickRequest(msgspec.Struct, frozen=True, gc=False):
    """Asks for the answer of `position_after`."""

    time_tick: int
    start: int
    end: int


class MomentRequest(msgspec.Struct, frozen=True, gc=False):
    """Asks for the log as it is now; its answer has `earliest`, `durable_end` and `origin`, as a `LogSnapshot` does."""


Search = Generator[PageRequest, FramePage, Answer]
Question = Generator[Any, Any, Answer]
"""A search that also yields requests other than for pages."""


async def run_async(question: Question[Answer], answer: Callable[[Any], Awaitable[Any]]) -> Answer:
    """Runs a question on the event loop. An error that `answer` raises is raised in the question first."""
    try:
        request = next(question)
        while True:
            try:
                answered = await answer(request)
            except WALError as error:
                request = question.throw(error)
            else:
                request = question.send(answered)
    except StopIteration as end:
        result: Answer = end.value
        return result


def run(question: Question[Answer], answer: Callable[[Any], Any]) -> Answer:
    """Runs a question in the caller's thread. An error that `answer` raises is raised in the question first."""
    try:
        request = next(question)
        while True:
            try:
                answered = answer(request)
            except WALError as error:
                request = question.throw(error)
            else:
                request = question.send(answered)
    except StopIteration as end:
        result: Answer = end.value
        return result


def distance(start: int, end: int) -> int:
    """Returns the measure of a search without byte counts: bytes on a journal, elsewhere the numbers that a client over the network has."""
    return end - start


def position_after(tick: int, start: int, end: int, bytes_between: BytesBetween) -> Search[LogPosition]:
    """Finds the log position in [start, end) after all events with a tick up to this one; (end, 0) without a larger tick."""
    low, high, back = start, end, BACK_BYTES
    while low < high:  # from the end backwards, ever faster
        at = position_before(bytes_between, low, high, back)
        frames = (yield PageRequest(at, end)).frames
        if frames and frames[0].view.header.promised_tick <= tick:
            low = frames[0].next_position
            break
        high, back = at, 4 * back
    while high - low > 1:
        middle = _middle(bytes_between, low, high)
        frames = (yield PageRequest(middle, high)).frames
        if frames and frames[0].view.header.promised_tick <= tick:
            low = frames[0].next_position
        else:
            high = middle
    while low < end:
        page = yield PageRequest(low, end)
        for frame in page.frames:
            header = frame.view.header
            if header.indices and header.first_tick + header.indices - 1 > tick:
                return frame.position, max(0, tick + 1 - header.first_tick)
        low = page.next_position
    return end, 0


def truncated_tick(known: int | None, earliest: LogPosition, end: int, promised_tick: int) -> Search[int]:
    """Finds a tick that all truncated events are at or below, and all that are left above; 0 if nothing was truncated.

    The log begins at `earliest`, and ends at `end` with this promised tick. Where the log does not have a `known` tick, the result is the
    one before the first event that is left, or the promised one without such an event.
    """
    position, index = earliest
    if earliest <= (0, 0):
        return 0
    if known is not None:
        return known
    if position < end and (frames := (yield PageRequest(position, end)).frames):
        return frames[0].view.header.first_tick - 1 + (index if frames[0].position == position else 0)
    return promised_tick


def event_below(since: LogPosition, below: LogPosition, earliest: LogPosition, bytes_between: BytesBetween) -> Search[LogPosition | None]:
    """Finds the newest event in [since, below) of a log that begins at `earliest`; None without one, or if it was truncated."""
    if below[1]:
        event = (below[0], below[1] - 1)
        return event if event >= since else None
    start, upper, back = max(since[0], earliest[0]), below[0], BACK_BYTES
    while start < upper:
        lower = at = position_before(bytes_between, start, upper, back)
        newest: LogPosition | None = None
        while at < upper:
            try:
                page = yield PageRequest(at, upper, _NONE, PAGE_BYTES)
            except TruncatedError:
                return None
            newest, at = page.last_event or newest, page.next_position
        if newest is not None:
            return newest if newest >= since else None
        upper, back = lower, 4 * back
    return None


def newest_tick(newest: LogPosition | None, earliest: LogPosition) -> Search[int]:
    """Finds the tick of the newest event of a log that begins at `earliest`; 0 if all events are truncated."""
    if newest is None or newest < earliest:
        return 0
    try:
        page = yield PageRequest(newest[0], newest[0] + 1)
    except TruncatedError:
        return 0  # truncated meanwhile, like everything before it
    return page.frames[0].view.header.first_tick + newest[1]


class Weighed(msgspec.Struct, frozen=True):
    """The weights of frames, in the order of the log, and the position up to which the search looked."""

    weights: Sequence[FrameWeight]
    upto: int


def weigh(
    start: int, end: int, choice: Container[str] | None, *, rows_max: int | None = None, bytes_max: int | None = None
) -> Search[Weighed]:
    """Finds the weights of the frames in [start, end) that hold rows of these vchannels, or of all.

    It ends after the first frame that exceeds a limit, or after 64 pages.
    """
    weights: list[FrameWeight] = []
    names = choice if isinstance(choice, frozenset) else None
    rows = size = 0
    for _ in range(PAGES_MAX):
        if start >= end:
            break
        page = yield PageRequest(start, end, names, PAGE_BYTES)
        for frame in page.frames:
            if (weight := weight_of(frame, choice)) is None:
                continue
            weights.append(weight)
            rows, size = rows + weight.rows, size + weight.size
            if exceeds(rows, rows_max) or exceeds(size, bytes_max):
                return Weighed(weights, frame.next_position)
        start = page.next_position
    return Weighed(weights, start)


def exceeds(amount: int, limit: int | None) -> bool:
    """Returns whether this amount is above the limit, if there is one."""
    return limit is not None and amount > limit


def within(weights: Iterable[FrameWeight], rows_max: int | None, bytes_max: int | None) -> Iterator[FrameWeight]:
    """Yields these weights, up to and including the first that brings their total above a limit."""
    rows = size = 0
    for weight in weights:
        yield weight
        rows, size = rows + weight.rows, size + weight.size
        if exceeds(rows, rows_max) or exceeds(size, bytes_max):
            return


def weigh_pieces(start: int, end: int, bytes_between: BytesBetween) -> list[FrameWeight]:
    """Returns the weights of at most 64 pieces of about equal bytes; only their positions and sizes are known. Reads no frame."""
    total = bytes_between(start, end)
    if not total:
        return []
    grain = -(-total // PIECES)
    weights: list[FrameWeight] = []
    while start < end:
        following = _forward(bytes_between, start, end, grain)
        weights.append(FrameWeight(start, following, 0, 0, 0, bytes_between(start, following)))
        start = following
    return weights


def weight_of(frame: StoredFrame, choice: Container[str] | None) -> FrameWeight | None:
    """Returns the weight of this frame for these vchannels, or for all; None when it has no rows of them."""
    view = frame.view
    header = view.header
    if choice is None:
        rows, size = header.indices, header.frame_bytes
    else:
        runs = [run for run in view.runs.find(choice) if run.kind != RunKind.SYSTEM]
        rows = sum(1 if run.kind == RunKind.COPY else run.end - run.first for run in runs)
        size = sum(run.body_end - run.body_start for run in runs)
    if not rows:
        return None
    return FrameWeight(frame.position, frame.next_position, header.first_tick, header.promised_tick, rows, size)


def _forward(bytes_between: BytesBetween, start: int, end: int, size: int) -> int:
    """Returns the first position above `start` with at least `size` bytes before it, or the end."""
    low, high = start, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bytes_between(start, middle) >= size else (middle, high)
    return high


def _middle(bytes_between: BytesBetween, start: int, end: int) -> int:
    """Returns a position between these two with about as many bytes before it as after it, if their number is known."""
    size = bytes_between(start, end)
    middle = _forward(bytes_between, start, end, size // 2) if size else end
    return middle if middle < end else (start + end) // 2


def position_before(bytes_between: BytesBetween, start: int, end: int, size: int) -> int:
    """Returns the last position below `end` with at least `size` bytes after it, or the start."""
    low, high = start, end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if bytes_between(middle, end) >= size else (low, middle)
    return low
