"""A frame that breaks one law of the tables but has a valid CRC is refused, and the error names the law."""

import struct

import pytest

from tests.frame.damage import sealed
from tests.frame.drafts import encode, view_of
from tests.golden.frame_cases import path_of
from wal.errors import CorruptionError, FormatError, WALError
from wal.frame import HEADER_BYTES, FrameDraft, FrameHeader, FrameView, Record, RunKind


def columns_of(frame: bytes) -> dict[str, tuple[int, str]]:
    """Returns the offset of each column of the tables and the form of its entries, from the description in `layout`."""
    header = FrameHeader.unpack(frame)
    at = HEADER_BYTES
    found: dict[str, tuple[int, str]] = {}
    for name, form in (("kind", "B"), ("name_len", "H"), ("incarnation", "I"), ("count", "I"), ("offset", "I")):
        found[name] = at, form
        at += header.runs * struct.calcsize(form)
    for name, form, mask in (
        ("index", "I", 1 << 8),
        ("payload_len", "I", 0),
        ("type", "H", 1 << 9),
        ("flags", "B", 1 << 10),
        ("properties_len", "I", 1 << 11),
        ("ext_len", "I", 1 << 12),
    ):
        if not mask or header.incompatible & mask:
            found[name] = at, form
            at += header.records * struct.calcsize(form)
    for name in ("block_end", "block_crc"):
        found[name] = at, "I"
        at += header.blocks * 4
    return found | {"names": (at, "B")}


HEADER_AT = {"first_tick": (40, "Q"), "indices": (56, "I"), "records": (60, "I"), "body_len": (76, "I"), "names_len": (80, "I")}


def changed(case: str, *changes: tuple[str, int, int]) -> bytes:
    """Returns the golden frame after each change has set entry `row` of a column (or a field of the header) to a value."""
    data = bytearray(path_of(case).read_bytes())
    places = columns_of(bytes(data)) | HEADER_AT
    for column, row, value in changes:
        at, form = places[column]
        struct.pack_into(f"<{form}", data, at + row * struct.calcsize(form), value)
    return sealed(bytes(data))


BROKEN: list[tuple[str, list[tuple[str, int, int]], type[WALError], str]] = [
    ("plain", [("first_tick", 0, (1 << 64) - 1), ("indices", 0, 2)], CorruptionError, "ticks from"),
    ("plain", [("indices", 0, 0)], CorruptionError, "1 records have 0 indices"),
    ("plain", [("indices", 0, 2)], CorruptionError, "1 records have 2 indices"),
    ("plain", [("records", 0, 2)], CorruptionError, "tables are 33 bytes long"),
    ("plain", [("records", 0, 0), ("names_len", 0, 10)], CorruptionError, "names are 6 bytes long"),
    ("plain", [("kind", 0, 5)], FormatError, "kind 5"),
    ("plain", [("kind", 0, RunKind.PCHANNEL)], CorruptionError, "a name its kind does not have"),
    ("plain", [("kind", 0, RunKind.SYSTEM)], CorruptionError, "a name its kind does not have"),
    ("plain", [("names", 0, 0xFF)], CorruptionError, "not UTF-8"),
    ("plain", [("payload_len", 0, 6)], CorruptionError, "body offsets"),
    ("plain", [("offset", 0, 1)], CorruptionError, "body offsets"),
    ("plain", [("block_end", 0, 6)], CorruptionError, "block ends"),
    ("plain", [("body_len", 0, 8)], CorruptionError, "body offsets"),
    ("three_vchannels", [("name_len", 0, 7)], CorruptionError, "names are 18 bytes long"),
    ("three_vchannels", [("count", 0, 2)], CorruptionError, "hold 5 of 6 records"),
    ("three_vchannels", [("count", 0, 2), ("count", 1, 3)], CorruptionError, "body offsets"),
    ("three_vchannels", [("index", 0, 1), ("index", 1, 0)], CorruptionError, "index 0 of record 1 does not ascend"),
    ("three_vchannels", [("index", 1, 2)], CorruptionError, "two records share an index"),
    ("three_vchannels", [("index", 2, 6)], CorruptionError, "two records share an index"),
    ("three_vchannels", [("offset", 1, 80), ("offset", 2, 36)], CorruptionError, "body offsets"),
    ("wide_transaction", [("flags", 1, 0), ("flags", 2, 0)], CorruptionError, "two events share an index"),
    ("wide_transaction", [("flags", 2, 0)], CorruptionError, "has no commit"),
    ("wide_transaction", [("flags", 5, 1)], CorruptionError, "has no commit"),
    ("wide_transaction", [("flags", 0, 4)], CorruptionError, "has no commit"),
    ("wide_transaction", [("flags", 0, 3)], CorruptionError, "has no commit"),
    ("wide_transaction", [("flags", 0, 8)], FormatError, "flags 0x8"),
    ("wide_transaction", [("index", 0, 0), ("index", 1, 0)], CorruptionError, "does not ascend"),
    ("wide_transaction", [("indices", 0, 7)], CorruptionError, "an index has no event"),
    ("broadcast", [("flags", 0, 0)], CorruptionError, "one, flagged as a copy|shared run 0"),
    ("broadcast", [("flags", 1, 4)], CorruptionError, "kind 1 has flags"),
    ("broadcast", [("count", 1, 1)], CorruptionError, "copy run 1 names run 1"),
    ("broadcast", [("count", 1, 4)], CorruptionError, "copy run 1 names run 4"),
    ("broadcast", [("count", 3, (1 << 32) - 1)], CorruptionError, "copy run 3 names run 4294967295"),
    ("broadcast", [("index", 0, 1)], CorruptionError, "two events share an index"),
    ("broadcast", [("index", 1, 2)], CorruptionError, "two events share an index"),
    ("broadcast", [("indices", 0, 3)], CorruptionError, "two events share an index"),
    ("term_start", [("indices", 0, 1)], CorruptionError, "an index has no event"),
    ("time_tick", [("indices", 0, 1)], CorruptionError, "0 records have 1 indices"),
    ("time_tick", [("body_len", 0, 1)], CorruptionError, "body offsets"),
    ("several_blocks", [("block_end", 0, 80_000)], CorruptionError, "block ends"),
    ("several_blocks", [("block_end", 0, 0)], CorruptionError, "block ends"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "changes", "error", "text"),
    BROKEN,
    ids=[f"{case} {' '.join(f'{c}[{r}]={v}' for c, r, v in changes)}" for case, changes, _, _ in BROKEN],
)
def test_broken_law_is_named(case: str, changes: list[tuple[str, int, int]], error: type[WALError], text: str) -> None:
    assert changed(case) == path_of(case).read_bytes()
    with pytest.raises(error, match=text):
        view_of(changed(case, *changes)).check_body()


def test_name_cut_within_a_character_is_refused() -> None:
    frame = changed("three_vchannels", ("name_len", 1, 4 + 4), ("name_len", 2, 6 - 3))
    with pytest.raises(CorruptionError, match="not UTF-8"):
        view_of(frame)


def test_two_runs_of_one_vchannel_are_refused() -> None:
    draft = FrameDraft()
    draft.append(("aa", 1), [Record(b"x")])
    draft.append(("bb", 2), [Record(b"y")])
    data = bytearray(b"".join(encode(draft).buffers))
    places = columns_of(bytes(data))
    data[places["names"][0] : places["names"][0] + 4] = b"aaaa"
    assert [(run.name, run.incarnation) for run in view_of(sealed(bytes(data))).runs] == [("aa", 1), ("aa", 2)]
    struct.pack_into("<II", data, places["incarnation"][0], 1, 1)
    with pytest.raises(CorruptionError, match="a vchannel has two runs"):
        view_of(sealed(bytes(data)))


@pytest.mark.parametrize("case", ["plain", "broadcast", "time_tick"])
def test_head_that_is_cut_short_says_so(case: str) -> None:
    frame = path_of(case).read_bytes()
    head = FrameView.decode(frame, lambda start, end: b"").header.head_bytes
    for length in range(head):
        with pytest.raises(CorruptionError, match="cut short"):
            FrameView.decode(frame[:length], lambda start, end: b"")
    assert FrameView.decode(frame[:head], lambda start, end: b"").header.head_bytes == head


@pytest.mark.parametrize("previous", [b"", b"x" * 15, b"x" * 17])
def test_term_start_of_another_length_is_damage(previous: bytes) -> None:
    frame = path_of("term_start").read_bytes()
    header = FrameHeader.unpack(frame)
    data = bytearray(frame[: header.head_bytes] + previous)
    places = columns_of(frame)
    for column in ("payload_len", "block_end"):
        struct.pack_into("<I", data, places[column][0], len(previous))
    struct.pack_into("<I", data, 76, len(previous))
    if not previous:  # no body: no blocks
        at = places["block_end"][0]
        del data[at : at + 8]
        struct.pack_into("<II", data, 68, 0, header.tables_len - 8)
    with pytest.raises(CorruptionError, match="wrong length"):
        view_of(sealed(bytes(data))).term_start()
