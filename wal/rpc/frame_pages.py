"""Pages of frames, or of the wanted blocks of frames, as messages, and back. Pure.

A frame is sent as it is stored: its head, and whole blocks of its body. The checksums of the frame cover each of them, so the reader checks
what the writer wrote, and nothing in between has to be trusted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from wal.backends import FramePage, StoredFrame
from wal.errors import InvalidArgumentError
from wal.frame import BodySource, FrameView, RunKind
from wal.rpc.api import frames_pb2 as proto
from wal.rpc.positions import event_from_proto, event_to_proto, position_from_proto, position_to_proto

__all__ = ["frame_to_proto", "page_from_proto", "page_to_proto", "stored_frame", "wanted_extents"]

Extents = list[tuple[int, int]]


def page_to_proto(page: FramePage, *, start: int, frames: Iterable[proto.Frame]) -> proto.FramePage:
    """Returns the message of a page that begins at `start`; `frames` are the messages of its frames, by `frame_to_proto`."""
    return proto.FramePage(
        frames=frames,
        start=position_to_proto(start),
        next_position=position_to_proto(page.next_position),
        last_event=event_to_proto(page.last_event),
        promised_tick=page.promised_tick,
    )


def page_from_proto(page: proto.FramePage) -> FramePage:
    """Returns the page of a message. Raises CorruptionError or FormatError for a frame whose head is damaged.

    Damage of a body is found when its blocks are used, as with any other source of frames; so is a block that was not asked for.
    """
    return FramePage(
        [_stored(frame) for frame in page.frames],
        position_from_proto(page.next_position),
        event_from_proto(page.last_event) if page.HasField("last_event") else None,
        page.promised_tick,
    )


def frame_to_proto(position: int, next_position: int, head: bytes, body: BodySource, extents: Extents) -> proto.Frame:
    """Returns the message of a frame with these extents of its body, which are whole blocks."""
    return proto.Frame(
        position=position_to_proto(position),
        next_position=position_to_proto(next_position),
        head=head,
        body=[proto.BodyPart(start=start, data=bytes(body(start, end))) for start, end in extents],
    )


def wanted_extents(view: FrameView, names: frozenset[str] | None) -> Extents:
    """Returns the extents of the body that a reader of these vchannels needs: whole blocks, adjacent ones joined; None: all of it."""
    if names is None:
        return [(0, view.header.body_len)] if view.header.body_len else []
    ends = view.runs.block_ends
    wanted: set[int] = set()
    for run in view.runs.find(names):
        source = view.runs[run.shared] if run.kind == RunKind.COPY else run
        if source.body_end > source.body_start:
            wanted.update(range(bisect_right(ends, source.body_start), bisect_left(ends, source.body_end) + 1))
    extents: Extents = []
    for block in sorted(wanted):
        start = ends[block - 1] if block else 0
        if extents and extents[-1][1] == start:
            extents[-1] = (extents[-1][0], ends[block])
        else:
            extents.append((start, ends[block]))
    return extents


def stored_frame(frame: proto.Frame, body: BodySource) -> StoredFrame:
    """Returns the frame of a message with this body. Raises as `page_from_proto` does."""
    position, following = position_from_proto(frame.position), position_from_proto(frame.next_position)
    if following <= position:
        raise InvalidArgumentError(f"a frame at {position} ends at {following}: a server sends positions that ascend")
    return StoredFrame(position, following, FrameView.decode(frame.head, body))


def _stored(frame: proto.Frame) -> StoredFrame:
    parts = [(part.start, part.data) for part in frame.body]
    starts = [start for start, _ in parts]

    def body(start: int, end: int) -> bytes:
        at = bisect_right(starts, start) - 1
        if at < 0:
            return b""
        base, data = parts[at]
        if base == start and end - start == len(data):
            return data
        return data[start - base : end - base]  # too short for bytes that were not sent: the view treats that as damage

    return stored_frame(frame, body)
