"""Damage for the tests: ways to break a frame with an invalid or a valid CRC, and the allowed outcomes.

`outcome` reads everything in a frame, as a reader would, and compares it with the documented laws, which are stated plainly here.
"""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from typing import Any

import google_crc32c

from tests.frame.drafts import view_of
from tests.golden.frame_cases import CASES, path_of
from wal.errors import CorruptionError, FormatError
from wal.frame import FLAG_BODY, FLAG_COMMIT, FLAG_COPY, HEADER_BYTES, FrameHeader, FrameView, RunKind, RunRow, decode_ext, decode_txn

CRC_AT = HEADER_BYTES - 4
HEADER_FIELDS = [(4, "H"), (6, "H"), *((at, "I") for at in (8, 12, *range(56, 84, 4))), *((at, "Q") for at in range(16, 56, 8))]
"""The offset and width of each field of the header, except the magic."""

SMALL = sorted((path_of(case).read_bytes() for case in CASES if case != "several_blocks"), key=len)
LARGE = path_of("several_blocks").read_bytes()


def refuse_or(data: bytes) -> Any | None:
    """Returns the content of the frame, or None if it is refused. Any other exception, or a broken law, fails the test."""
    try:
        view = view_of(data)
        view.check_body()
        term = view.term_start()
        held = [(run, None if run.kind == RunKind.COPY else view.columns(run)) for run in view.runs]
    except (CorruptionError, FormatError):
        return None
    check_laws(view, held)
    return view.header, term, held


def check_laws(view: FrameView, held: list[tuple[RunRow, Any]]) -> None:
    """Asserts the laws that every decoded frame keeps."""
    header = view.header
    assert header.first_tick + header.indices <= 1 << 64
    body = rows = 0
    taken: list[int] = []
    commits: set[int] = set()
    names: set[tuple[str, int]] = set()
    followed: dict[int, int] = {}
    for run, columns in held:
        assert (run.name != "") == (run.kind in (RunKind.VCHANNEL, RunKind.COPY))
        assert (run.first, run.body_start) == (rows, body)
        rows, body = run.end, run.body_end
        if run.kind == RunKind.COPY:
            shared = view.runs[run.shared]
            assert shared.kind == RunKind.SHARED
            assert run.first == run.end
            assert run.index == shared.index + followed.setdefault(run.shared, 0)
            followed[run.shared] += 1
            taken.append(run.index)
            continue
        count = run.end - run.first
        fields = [columns.payloads, columns.properties or [], columns.exts or []]
        assert all(len(field) in (0, count) for field in fields)
        assert sum(len(part) for field in fields for part in field) == run.body_end - run.body_start
        flags = columns.flags or [0] * count
        if run.kind == RunKind.SHARED:
            assert flags == [FLAG_COPY]
        elif run.kind == RunKind.VCHANNEL:
            assert (run.name, run.incarnation) not in names
            names.add((run.name, run.incarnation))
            assert set(flags) <= {0, FLAG_BODY, FLAG_COMMIT}
            assert all(after != 0 for flag, after in pairwise([*flags, 0]) if flag == FLAG_BODY)
            assert all(one < other for one, other in pairwise(columns.indices))
            commits.update(index for index, flag in zip(columns.indices, flags, strict=True) if flag == FLAG_COMMIT)
            taken += [index for index, flag in zip(columns.indices, flags, strict=True) if flag != FLAG_COMMIT]
        else:
            assert not any(flags)
            taken += columns.indices if run.kind == RunKind.PCHANNEL else []
        for ext in columns.exts or []:
            try:
                decode_txn(decode_ext(ext))
            except (CorruptionError, FormatError):
                pass
    assert (rows, body) == (header.records, header.body_len)
    assert sorted([*taken, *commits]) == list(range(header.indices))


def break_openly(frame: bytes, dice: random.Random) -> bytes:
    """Damages bytes without updating the CRC: flips bits, removes bytes, inserts them, or copies them from another part."""
    data = bytearray(frame)
    for _ in range(dice.randint(1, 3)):
        at, length = dice.randrange(len(data) + 1), dice.randint(1, 40)
        match dice.randrange(5):
            case 0 if data:
                data[at % len(data)] ^= 1 << dice.randrange(8)
            case 1:
                del data[at:]
            case 2:
                del data[at : at + length]
            case 3:
                data[at:at] = dice.randbytes(length)
            case _:
                source = dice.choice((*SMALL, frame))
                start = dice.randrange(len(source))
                data[at : at + length] = source[start : start + length]
    return bytes(data)


def break_cleverly(frame: bytes, dice: random.Random) -> bytes:
    """Changes fields of header and tables, or the body, with valid CRCs, as a writer with a defect might."""
    data = bytearray(frame)
    for _ in range(dice.choice((1, 1, 2, 3))):
        tables_end = HEADER_BYTES + struct.unpack_from("<I", data, 72)[0]
        match dice.randrange(4):
            case 0:
                write(data, *dice.choice(HEADER_FIELDS), dice)
            case 1 if tables_end > HEADER_BYTES:
                form = dice.choice("BHI")
                write(data, dice.randrange(HEADER_BYTES, max(tables_end, HEADER_BYTES + 1)), form, dice)
            case 2:
                at = dice.randint(HEADER_BYTES, max(HEADER_BYTES, min(tables_end, len(data))))
                change = dice.randbytes(dice.choice((1, 2, 4, 8, 15)))
                if dice.random() < 0.5:
                    data[at:at] = change
                    tables_end += len(change)
                else:
                    del data[at : at + len(change)]
                    tables_end = max(HEADER_BYTES, tables_end - len(change))
                struct.pack_into("<I", data, 72, min(tables_end - HEADER_BYTES, 0xFFFF_FFFF))
            case _ if len(data) > tables_end:
                write(data, dice.randrange(tables_end, len(data)), dice.choice("BHI"), dice)
    return sealed(bytes(data))


def write(data: bytearray, at: int, form: str, dice: random.Random) -> None:
    """Changes a field to a neighbour of its value, to an extreme, or to the value of another field."""
    width = struct.calcsize(form)
    if at + width > len(data):
        return
    (value,) = struct.unpack_from(f"<{form}", data, at)
    top = (1 << 8 * width) - 1
    changed = dice.choice((value + 1, value - 1, 0, 1, 2, top, top >> 1, value ^ (1 << dice.randrange(8 * width)), dice.randrange(64)))
    struct.pack_into(f"<{form}", data, at, changed & top)


def sealed(frame: bytes) -> bytes:
    """Returns the frame with the CRCs that its blocks, header and tables should have, as far as these can be found."""
    data = bytearray(frame)
    try:
        header = FrameHeader.unpack(frame)
    except (CorruptionError, FormatError):
        return frame
    tables_end = HEADER_BYTES + header.tables_len
    if tables_end > len(data):
        return frame
    crcs_at = tables_end - header.names_len - 4 * header.blocks
    ends_at = crcs_at - 4 * header.blocks
    if ends_at >= HEADER_BYTES:
        start = 0
        for block in range(header.blocks):
            (end,) = struct.unpack_from("<I", data, ends_at + 4 * block)
            crc = google_crc32c.value(bytes(data[tables_end + start : tables_end + end]))
            struct.pack_into("<I", data, crcs_at + 4 * block, crc)
            start = end
    crc = google_crc32c.value(bytes(data[:CRC_AT]) + bytes(data[HEADER_BYTES:tables_end]))
    struct.pack_into("<I", data, CRC_AT, crc)
    return bytes(data)
