"""Compressed frames hold what plain ones hold, block by block, and damage of them is found."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given

from tests.frame.damage import sealed
from tests.frame.drafts import HEADER, Call, build, contents, encode, plans, view_of
from tests.golden.frame_cases import encode_case, path_of
from wal.errors import CorruptionError, FormatError
from wal.frame import Compressor, EncodedFrame, FrameDraft, FrameView, Record, encode_frame
from wal.frame.codec import BODY_BYTES_MIN, decompress, load_zstd
from wal.rpc.frame_pages import wanted_extents

A, B = ("orders", 1), ("stock", 2)


def compressed(draft: FrameDraft) -> EncodedFrame:
    return encode_frame(draft, **HEADER, promised_tick=None if draft.indices else 99, compressor=Compressor())


def data_of(frame: EncodedFrame) -> bytes:
    data = b"".join(frame.buffers)
    assert len(data) == frame.length == frame.header.frame_bytes
    return data


@given(plans)
def test_contents_are_those_of_a_plain_frame(plan: list[Call]) -> None:
    plain, frame = encode(build(plan)[0]), compressed(build(plan)[0])
    assert frame.length <= plain.length + 4 * frame.header.blocks
    assert contents(view_of(data_of(frame))) == contents(view_of(data_of(plain)))
    assert frame.vchannels == plain.vchannels
    view = view_of(data_of(frame))
    view.check_body()
    whole = view.whole_body()
    assert whole is not None
    assert bytes(whole) == b"".join(plain.buffers[1:])


def test_incompressible_block_is_stored_as_it_is() -> None:
    view = view_of(path_of("compressed").read_bytes())
    sizes = [end - start for start, end in zip((0, *view.runs.block_ends), view.runs.block_ends, strict=False)]
    stored = [end - start for start, end in zip((0, *view.runs.stored_ends), view.runs.stored_ends, strict=False)]
    assert stored[0] < sizes[0] // 20
    assert stored[1:] == sizes[1:]
    noise = FrameDraft()
    noise.append(A, [Record(view.columns(view.runs[1]).payloads[0])])
    assert compressed(noise).header.codec == 0, "a frame of which no block shrinks is a plain one"


@pytest.mark.parametrize(("size", "codec"), [(BODY_BYTES_MIN - 1, 0), (BODY_BYTES_MIN, 1)])
def test_body_within_a_sector_is_not_compressed(size: int, codec: int) -> None:
    draft = FrameDraft()
    draft.append(A, [Record(bytes(size))])
    assert compressed(draft).header.codec == codec


def test_only_the_blocks_of_a_reader_are_fetched() -> None:
    text = b'{"order": 7, "state": "created"}'
    draft = FrameDraft()
    draft.append(A, [Record(text * 1000) for _ in range(3)])
    draft.append(B, [Record(text[::-1] * 1000)])
    data = data_of(compressed(draft))
    fetched: list[tuple[int, int]] = []
    view = view_of(data)

    def body(start: int, end: int) -> bytes:
        fetched.append((start, end))
        return data[view.header.head_bytes + start : view.header.head_bytes + end]

    reading = FrameView.decode(data, body)
    run = reading.runs[1]
    reading.fetch(run)
    ends = reading.runs.stored_ends
    assert fetched == [(ends[-2], ends[-1])] == wanted_extents(reading, frozenset(("stock",)))
    assert wanted_extents(reading, None) == [(0, ends[-1])] == wanted_extents(reading, frozenset(("orders", "stock")))
    assert reading.columns(run).payloads == [text[::-1] * 1000]
    assert reading.stored(*fetched[0]) == body(*fetched[0])


def test_every_flipped_bit_of_the_body_is_damage() -> None:
    frame = encode_case("compressed")
    data, head = bytearray(data_of(frame)), frame.header.head_bytes
    for at in range(head, head + 400):
        data[at] ^= 1 << at % 8
        with pytest.raises(CorruptionError, match="CRC32C"):
            view_of(bytes(data)).check_body()
        data[at] ^= 1 << at % 8


def test_block_table_that_lies_is_damage() -> None:
    frame = encode_case("compressed")
    data = bytearray(data_of(frame))
    blocks, names = frame.header.blocks, frame.header.names_len
    ends = frame.header.head_bytes - names - 12 * blocks
    for column, text in ((0, "another size|body offsets|do not ascend"), (8, "cut short|do not ascend|CRC32C")):
        at = ends + column * blocks
        (end,) = struct.unpack_from("<I", data, at)
        for wrong in (0, end - 1, end + 1, 1 << 31):
            struct.pack_into("<I", data, at, wrong)
            with pytest.raises(CorruptionError, match=text):
                contents(view_of(sealed(bytes(data))))
        struct.pack_into("<I", data, at, end)


@pytest.mark.parametrize("stored", [b"", b"no zstd at all", load_zstd().compress(bytes(1 << 20)), load_zstd().compress(bytes(9)) + b"x"])
def test_block_of_another_size_is_damage(stored: bytes) -> None:
    with pytest.raises(CorruptionError, match="compressed block"):
        decompress(stored, 1000)


def test_unknown_codec_is_a_newer_format() -> None:
    data = bytearray(path_of("compressed").read_bytes())
    (flags,) = struct.unpack_from("<I", data, 8)
    struct.pack_into("<I", data, 8, flags & ~0xFF | 2)
    with pytest.raises(FormatError, match="codec 2"):
        view_of(sealed(bytes(data)))
