"""Pages of frames, or of the wanted blocks of frames, as messages, and back. Pure.

A frame is sent as it is stored: its head, and whole blocks of its body. The checksums of the frame cover each of them, so the reader checks
the writer's bytes, and nothing in between has to be trusted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Final, Self

from google.protobuf.message import DecodeError

from wal.errors import CorruptionError, InvalidArgumentError
from wal.frame import FrameView, RunKind
from wal.network import Method
from wal.rpc.api import frames_pb2 as proto
from wal.rpc.converters import event_from_proto, event_to_proto, position_from_proto, position_to_proto
from wal.rpc.methods import READ_FRAMES
from wal.storage.base import FramePage, StoredFrame
from wal.storage.read_only import VChannelChoice

Extents = list[tuple[int, int]]


def wanted_extents(view: FrameView, names: VChannelChoice | None) -> Extents:
    """Returns the extents of the stored body that a reader of these vchannels (None: of all) needs: whole blocks, adjacent ones joined."""
    if names is None:
        return [(0, view.header.body_len)] if view.header.body_len else []
    ends, stored_ends = view.runs.block_ends, view.runs.stored_ends
    blocks: set[int] = set()
    for run in view.runs.find(names):
        source = view.runs[run.shared] if run.kind == RunKind.COPY else run
        if source.body_end > source.body_start:
            blocks.update(range(bisect_right(ends, source.body_start), bisect_left(ends, source.body_end) + 1))
    extents: Extents = []
    for block in sorted(blocks):
        start, end = stored_ends[block - 1] if block else 0, stored_ends[block]
        if extents and extents[-1][1] == start:
            extents[-1] = (extents[-1][0], end)
        else:
            extents.append((start, end))
    return extents


class EncodedPage:
    """The message of a page of frames, with the bodies of its frames copied once. Pure.

    A generated message copies each body four times on either side, and reading over the network is mostly copying. So the fields around the
    bodies are encoded by hand here; the bytes are those of `FramePage` in wal/rpc/api/frames.proto.

    The bytes of a `FramePage` message, with the two methods that gRPC calls on a message.
    """

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data: bytes = data

    @classmethod
    def of(cls, page: FramePage, *, start: int, pieces: Iterable[bytes]) -> Self:
        """Returns the message of a page that begins at `start`; `pieces` are the results of `frame_pieces` for its frames."""
        rest = proto.FramePage(
            start=position_to_proto(start),
            next_position=position_to_proto(page.next_position),
            last_event=event_to_proto(page.last_event),
            promised_tick=page.promised_tick,
        )
        return cls(b"".join((*pieces, rest.SerializeToString())))

    @classmethod
    def FromString(cls, data: bytes) -> Self:
        """Returns the message of these bytes, which `page` checks."""
        return cls(data)

    def SerializeToString(self) -> bytes:
        """Returns the bytes."""
        return self.data

    def page(self) -> FramePage:
        """Returns the page. Raises CorruptionError for bytes that are not a message; also, or FormatError, for a damaged head of a frame.

        Damage of a body is found when its blocks are used, as with any other source of frames; so is a block that was not asked for.
        """
        data = self.data
        frames: list[StoredFrame] = []
        rest: list[bytes] = []
        try:
            for number, begin, start, end in fields_in(data, 0, len(data)):
                if number == _FRAMES:
                    frames.append(_frame_in(data, start, end))
                else:
                    rest.append(data[begin:end])
            message = proto.FramePage.FromString(b"".join(rest))
        except (DecodeError, IndexError) as error:
            raise CorruptionError("a page of frames from the server is not a message", expected="a FramePage") from error
        last_event = event_from_proto(message.last_event) if message.HasField("last_event") else None
        return FramePage(frames, position_from_proto(message.next_position), last_event, message.promised_tick)


def frame_pieces(frame: StoredFrame, names: VChannelChoice | None) -> list[bytes]:
    """Returns the part of a page's message for one frame, in pieces, for a reader of these vchannels (None: of all).

    The bodies are not copied.
    """
    view = frame.view
    message = proto.Frame(
        position=position_to_proto(frame.position), next_position=position_to_proto(frame.next_position), head=view.head
    ).SerializeToString()
    pieces = [b"", message]
    size = len(message)
    for start, end in wanted_extents(view, names):
        data = view.stored(start, end)
        first = _PART_START + _varint(start) + _PART_DATA + _varint(len(data))
        prefix = _FRAME_BODY + _varint(len(first) + len(data)) + first
        pieces += (prefix, data)
        size += len(prefix) + len(data)
    pieces[0] = _PAGE_FRAMES + _varint(size)
    return pieces


def _frame_in(data: bytes, start: int, end: int) -> StoredFrame:
    """Returns the frame whose message is data[start:end]; its body stays where it is until it is used."""
    rest: list[bytes] = []
    parts: list[tuple[int, int, int]] = []
    for number, begin, first, last in fields_in(data, start, end):
        if number != _BODY:
            rest.append(data[begin:last])
            continue
        base, data_range = 0, (first, first)
        for field, _, field_start, field_end in fields_in(data, first, last):
            if field == _DATA:
                data_range = field_start, field_end
            elif field == _START:
                base = _number(data, field_start)[0]
        parts.append((base, *data_range))
    parts.sort()
    starts = [base for base, _, _ in parts]

    def body(start: int, end: int) -> bytes:
        at = bisect_right(starts, start) - 1
        if at < 0:
            return b""
        base, first, last = parts[at]
        return data[first + start - base : min(first + end - base, last)]  # too short for bytes that were not sent: damage to the view

    frame = proto.Frame.FromString(b"".join(rest))
    position, following = position_from_proto(frame.position), position_from_proto(frame.next_position)
    if following <= position:
        raise InvalidArgumentError(f"a frame at {position} ends at {following}: a server sends positions that ascend")
    return StoredFrame(position, following, FrameView.decode(frame.head, body))


def fields_in(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yields, for each field of the message data[at:end], its number, its start, and the start and end of its value.

    Raises DecodeError for bytes that are not a message.
    """
    while at < end:
        begin = at
        tag, at = _number(data, at)
        match tag & 7:
            case 0:
                start, at = at, _number(data, at)[1]
            case 1:
                start, at = at, at + 8
            case 2:
                length, start = _number(data, at)
                at = start + length
            case 5:
                start, at = at, at + 4
            case kind:
                raise DecodeError(f"a field of the unknown kind {kind}")
        if at > end:
            raise DecodeError("a field is longer than its message")
        yield tag >> 3, begin, start, at


def _number(data: bytes, at: int) -> tuple[int, int]:
    """Returns the varint at `at`, and its end."""
    number = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, at
        shift += 7
    raise DecodeError("a number has more than 10 bytes")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


READ_PAGES: Final = Method(READ_FRAMES.path, READ_FRAMES.request, EncodedPage)
"""ReadFrames with `EncodedPage` as its response."""

_FRAMES: Final = proto.FramePage.FRAMES_FIELD_NUMBER
_BODY: Final = proto.Frame.BODY_FIELD_NUMBER
_START: Final = proto.BodyPart.START_FIELD_NUMBER
_DATA: Final = proto.BodyPart.DATA_FIELD_NUMBER
_PAGE_FRAMES: Final = bytes((_FRAMES << 3 | 2,))
_FRAME_BODY: Final = bytes((_BODY << 3 | 2,))
_PART_START: Final = bytes((_START << 3,))
_PART_DATA: Final = bytes((_DATA << 3 | 2,))
