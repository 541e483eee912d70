"""The message of a page that is made and read by hand: it is the generated one, byte for byte in meaning, and damage is a typed error."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rpc.test_frame_pages import NAMES, frame_message, frames, page_message, parts, positions
from wal.errors import CorruptionError, FormatError, InvalidArgumentError
from wal.frame import EncodedFrame, FrameView
from wal.rpc.api import frames_pb2
from wal.rpc.converters import position_from_proto, position_to_proto
from wal.rpc.frame_pages import EncodedPage, frame_pieces, wanted_extents
from wal.storage.base import FramePage, StoredFrame

LAST = 2**128 - 1
wanted_names = st.none() | st.frozensets(st.sampled_from((*NAMES, "absent")))


def stored(frame: EncodedFrame, position: int) -> StoredFrame:
    head, body = parts(frame)
    return StoredFrame(position, position + 1, FrameView.decode(head, lambda start, end: body[start:end]))


def encoded(found: list[EncodedFrame], names: frozenset[str] | None, position: int) -> tuple[EncodedPage, bytes]:
    """Returns the page of these frames, the first at this position, and the bytes of the generated message of the same page."""
    frames = [stored(frame, position + at) for at, frame in enumerate(found)]
    page = FramePage(frames, position + 9, (position, 3), 2000)
    pieces = [piece for frame in frames for piece in frame_pieces(frame, names)]
    messages = [frame_message(frame, names, position + at) for at, frame in enumerate(found)]
    return EncodedPage.of(page, start=position, pieces=pieces), page_message(page, messages, position).SerializeToString()


@given(st.lists(frames(), max_size=3), wanted_names, st.integers(0, 2**64 - 30))
def test_encoded_page_equals_the_generated_message(found: list[EncodedFrame], names: frozenset[str] | None, position: int) -> None:
    ours, generated = encoded(found, names, position)
    sent = EncodedPage.FromString(ours.SerializeToString())
    assert frames_pb2.FramePage.FromString(sent.data) == frames_pb2.FramePage.FromString(generated)
    page, same = sent.page(), EncodedPage(generated).page()
    for one in (page, same):
        assert (one.next_position, one.last_event, one.promised_tick) == (position + 9, (position, 3), 2000)
        assert [frame.position for frame in one.frames] == [position + at for at in range(len(found))]
        for frame, original in zip(one.frames, found, strict=True):
            body = parts(original)[1]
            assert frame.view.head == parts(original)[0]
            for start, end in wanted_extents(frame.view, names):
                assert frame.view.stored(start, end) == body[start:end]


@given(frames(), wanted_names, positions.filter(lambda position: position < LAST - 9), st.data())
def test_damaged_bytes_are_typed_errors(frame: EncodedFrame, names: frozenset[str] | None, position: int, data: st.DataObject) -> None:
    whole = bytearray(encoded([frame], names, position)[0].data)
    at = data.draw(st.integers(0, len(whole) - 1))
    if data.draw(st.booleans()):
        del whole[at:]
    else:
        whole[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(CorruptionError, FormatError, InvalidArgumentError):
        for found in EncodedPage(bytes(whole)).page().frames:
            found.view.check_body()


def test_position_past_the_last_one_is_refused() -> None:
    assert position_from_proto(position_to_proto(LAST)) == LAST
    with pytest.raises(InvalidArgumentError, match=r"past the last one, 2\*\*128 - 1"):
        encoded([], None, LAST - 8)


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05", b"\xff" * 11, b"\x0b", b"\x0a\x02\x22\x05"])
def test_bytes_that_are_no_message(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="not a message"):
        EncodedPage(data).page()


def test_fields_of_a_later_version_are_left_alone() -> None:
    page, _ = encoded([], None, 5)
    later = page.data + b"\xf8\x06\x01" + b"\xf9\x06" + b"8" * 8 + b"\xfd\x06" + b"4444" + b"\xfa\x06\x02ab"
    assert EncodedPage(later).page() == page.page()
