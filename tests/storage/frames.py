"""Frames for the tests of backends: created as the write path creates them, and compared by the messages that a reader gets."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Sequence

from wal.frame import EncodedFrame, FrameDraft, FrameView, Record, RunKind, encode_frame, encode_key
from wal.message import MessageType
from wal.storage.base import FramePage, PChannelLog, StoredFrame

INCARNATION = 0x1CE
CLOCK = itertools.count(1 << 20)
"""Ticks for all frames of a test session: later frames have larger ticks."""


class FrameMaker:
    """The frames of one writer: dense sequences in its term, ticks that ascend over all writers."""

    def __init__(self, term: int, incarnation: int = INCARNATION) -> None:
        self.term = term
        self.incarnation = incarnation
        self.sequence = 0

    def data(self, *records: tuple[str, bytes], properties: bytes = b"") -> EncodedFrame:
        """Returns a frame with these (vchannel, payload), in this order."""
        draft = FrameDraft()
        for name, payload in records:
            draft.append((name, 1), [Record(payload, properties=properties)])
        return self._encode(draft)

    def keyed(self, *records: tuple[str, bytes]) -> EncodedFrame:
        """Returns the same frame, each record with the start of its payload as its idempotency key."""
        draft = FrameDraft()
        for name, payload in records:
            draft.append((name, 1), [Record(payload, ext=encode_key(payload[:40].decode()))], keyed=True)
        return self._encode(draft)

    def time_tick(self) -> EncodedFrame:
        """Returns a frame without an event, as a TimeTick is."""
        return self._encode(FrameDraft())

    def term_start(self, previous_term: int = 0, previous_last_sequence: int = 0) -> EncodedFrame:
        draft = FrameDraft()
        draft.term_start(previous_term=previous_term, previous_last_sequence=previous_last_sequence)
        return self._encode(draft)

    def broadcast(self, names: Sequence[str], payload: bytes) -> EncodedFrame:
        draft = FrameDraft()
        draft.broadcast([(name, 1) for name in names], Record(payload, int(MessageType.INSERT)), header=b"\x80")
        return self._encode(draft)

    def pchannel_wide(self, payload: bytes) -> EncodedFrame:
        draft = FrameDraft()
        draft.pchannel(Record(payload))
        return self._encode(draft)

    def _encode(self, draft: FrameDraft) -> EncodedFrame:
        first_tick = next(CLOCK) << 12
        frame = encode_frame(
            draft,
            incarnation=self.incarnation,
            term=self.term,
            sequence=self.sequence,
            first_tick=first_tick,
            promised_tick=None if draft.indices else first_tick,
        )
        self.sequence += 1
        return frame


def append(log: PChannelLog, frame: EncodedFrame) -> asyncio.Future[int]:
    """Submits a frame; the future holds its position, or its error. A second answer to one frame raises."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    answered = False

    def done(position: int, error: BaseException | None) -> None:
        nonlocal answered
        assert not answered, "done was called twice"
        answered = True
        if error is not None:
            assert position == -1
            future.set_exception(error)
        else:
            future.set_result(position)

    log.append(frame, done)
    assert not answered, "done was called inside append"
    return future


async def append_all(log: PChannelLog, frames: Iterable[EncodedFrame]) -> list[int]:
    """Submits all frames at once; returns their positions when all are durable."""
    return list(await asyncio.gather(*[append(log, frame) for frame in frames]))


def content(view: FrameView, names: frozenset[str] | None = None) -> tuple[object, ...]:
    """Returns everything that a reader of these names (None: of all) can get from a frame, for comparison."""
    runs = list(view.runs)
    shared = {run.shared for run in runs if names is not None and run.kind == RunKind.COPY and run.name in names}
    return (
        view.header,
        tuple(
            (run, view.columns(run) if run.kind != RunKind.COPY else None)
            for ordinal, run in enumerate(runs)
            if names is None or run.name in names or run.kind == RunKind.PCHANNEL or ordinal in shared
        ),
    )


def content_of(frame: EncodedFrame, names: frozenset[str] | None = None) -> tuple[object, ...]:
    """Returns the same for a frame that was not written yet."""
    head, *blocks = frame.buffers
    body = b"".join(blocks)
    return content(FrameView.decode(head, lambda start, end: body[start:end]), names)


async def pages(
    log: PChannelLog, start: int = 0, *, names: frozenset[str] | None = None, bytes_max: int = 1 << 20, end: int | None = None
) -> list[FramePage]:
    """Returns the pages from `start` to the durable end at the call, each beginning where the one before ended."""
    end = log.durable_end if end is None else end
    found: list[FramePage] = []
    while start < end:
        page = await log.read(start, names=names, bytes_max=bytes_max)
        assert page.next_position > start, "a page must move on"
        found.append(page)
        start = page.next_position
    return found


async def read_all(log: PChannelLog, start: int = 0, *, names: frozenset[str] | None = None, bytes_max: int = 1 << 20) -> list[StoredFrame]:
    """The frames of those pages."""
    return [frame for page in await pages(log, start, names=names, bytes_max=bytes_max) for frame in page.frames]


async def keyed_pages(log: PChannelLog, start: int, *, bytes_max: int = 1 << 20) -> list[FramePage]:
    """Returns the pages of frames with keyed events, from `start` to the durable end."""
    end = log.durable_end
    found: list[FramePage] = []
    while start < end:
        page = await log.read_keyed(start, bytes_max=bytes_max)
        assert page.next_position > start, "a page must move on"
        found.append(page)
        start = page.next_position
    return found


async def read_keyed(log: PChannelLog, start: int, *, bytes_max: int = 1 << 20) -> list[StoredFrame]:
    """The frames of those pages."""
    return [frame for page in await keyed_pages(log, start, bytes_max=bytes_max) for frame in page.frames]
