"""No bytes crash the decoder, make it loop or allocate without bound, or make it return what the laws forbid."""

import os
import random
import struct
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frame.damage import HEADER_FIELDS, LARGE, SMALL, break_cleverly, break_openly, refuse_or, sealed
from tests.frame.drafts import Call, build, encode, plans, view_of
from tests.golden.frame_cases import path_of
from wal.errors import CorruptionError, FormatError
from wal.frame import HEADER_BYTES, FrameView, RunKind

SEED = int(os.environ.get("WAL_TEST_SEED", "0"))
REPLAY = f"replay with WAL_TEST_SEED={SEED} python -m pytest tests/frame/test_damage.py"
FRAMES = [*SMALL] * 8 + [LARGE]


def test_damage_under_a_wrong_crc_is_harmless() -> None:
    dice = random.Random(SEED)
    for turn in range(20_000):
        frame = dice.choice(FRAMES)
        broken = break_openly(frame, dice)
        held = refuse_or(broken)
        assert held is None or held == refuse_or(frame), f"turn {turn}: {REPLAY}"


def test_damage_under_a_right_crc_keeps_the_laws() -> None:
    dice = random.Random(SEED)
    refused = understood = 0
    for turn in range(20_000):
        broken = break_cleverly(dice.choice(FRAMES), dice)
        try:
            held = refuse_or(broken)
        except Exception as error:
            error.add_note(f"turn {turn}: {REPLAY}\n{broken.hex() if len(broken) < 2_000 else len(broken)}")
            raise
        refused, understood = refused + (held is None), understood + (held is not None)
    assert refused > 1_000, "the damage is too small to find anything"
    assert understood > 1_000, "the damage is too large to get past the first check"


@given(plans, st.randoms(use_true_random=False))
def test_broken_frame_is_refused_or_valid(plan: list[Call], dice: random.Random) -> None:
    frame = b"".join(encode(build(plan)[0]).buffers)
    whole = refuse_or(frame)
    assert whole is not None
    held = refuse_or(break_openly(frame, dice))
    assert held is None or held == whole
    refuse_or(break_cleverly(frame, dice))
    assert sealed(frame) == frame


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(data: bytes) -> None:
    assert refuse_or(data) is None
    assert refuse_or(b"WALF\x01\x00\x60\x00" + data) is None
    refuse_or(sealed(b"WALF\x01\x00\x60\x00" + data.ljust(88, b"\x00")))  # it may be a valid frame


@pytest.mark.parametrize(("at", "form"), HEADER_FIELDS)
@pytest.mark.parametrize("case", ["plain", "broadcast", "time_tick"])
def test_huge_number_in_the_header_costs_nothing(at: int, form: str, case: str) -> None:
    data = bytearray(path_of(case).read_bytes())
    struct.pack_into(f"<{form}", data, at, (1 << 8 * struct.calcsize(form)) - 1)
    frame = sealed(bytes(data))
    refuse_or(frame)

    def taken() -> float:
        started = time.thread_time()
        refuse_or(frame)
        return time.thread_time() - started

    assert min(taken() for _ in range(3)) < 0.5
    tracemalloc.start()
    try:
        refuse_or(frame)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000


@pytest.mark.parametrize("width", [1, 2, 4])
def test_huge_number_in_the_tables_costs_no_memory(width: int) -> None:
    form = {1: "B", 2: "H", 4: "I"}[width]
    for frame in SMALL:
        head = FrameView.decode(frame, lambda start, end: b"").header.head_bytes
        for at in range(HEADER_BYTES, head - width + 1):
            data = bytearray(frame)
            struct.pack_into(f"<{form}", data, at, (1 << 8 * width) - 1)
            broken = sealed(bytes(data))
            tracemalloc.start()
            try:
                refuse_or(broken)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert peak < 200_000, at


def test_time_grows_with_the_frame_and_not_faster() -> None:
    """Indices descend in every row, over as many runs as fit, which is the worst case for the checks of order."""

    def frame(runs: int) -> bytes:
        tables = (
            struct.pack(
                f"<{runs}B{runs}H{runs}I{runs}I{runs}I{runs}I{runs}I",
                *[RunKind.VCHANNEL] * runs,
                *[4] * runs,
                *range(runs),
                *[1] * runs,
                *[0] * runs,
                *reversed(range(runs)),
                *[0] * runs,
            )
            + b"name" * runs
        )
        header = bytearray(path_of("time_tick").read_bytes())
        struct.pack_into("<I", header, 8, 1 << 8)
        struct.pack_into("<IIIIIII", header, 56, runs, runs, runs, 0, len(tables), 0, 4 * runs)
        return sealed(bytes(header) + tables)

    def taken(data: bytes) -> float:
        started = time.process_time()
        view_of(data)
        return time.process_time() - started

    small, large = frame(1_000), frame(64_000)
    assert len(view_of(large).runs) == 64_000
    assert min(taken(large) for _ in range(3)) < 64 * 20 * max(min(taken(small) for _ in range(5)), 1e-4)


@pytest.mark.parametrize("flip", [0, 7])
def test_block_with_a_wrong_crc_is_never_returned(flip: int) -> None:
    head = FrameView.decode(LARGE, lambda start, end: b"").header.head_bytes
    body = bytearray(LARGE[head:])
    body[20_000] ^= 1 << flip
    view = FrameView.decode(LARGE[:head], lambda start, end: bytes(body[start:end]))
    bad = [run for run in view.runs if run.body_start <= 20_000 < run.body_end]
    for _ in range(2):
        for run in bad:
            with pytest.raises(CorruptionError, match="block"):
                view.columns(run)
        with pytest.raises(CorruptionError):
            view.check_body()
    assert view.columns(view.runs[2]).payloads[1] == b"last"


@pytest.mark.parametrize("case", ["plain", "several_blocks"])
def test_bad_block_is_fetched_again_and_not_cached(case: str) -> None:
    frame = path_of(case).read_bytes()
    head = FrameView.decode(frame, lambda start, end: b"").header.head_bytes
    healthy = False

    def body(start: int, end: int) -> bytes:
        piece = frame[head + start : head + end]
        return piece if healthy else piece[:-1] + b"!"

    view = FrameView.decode(frame[:head], body)
    for _ in range(2):
        with pytest.raises(CorruptionError):
            view.columns(view.runs[0])
    healthy = True
    assert view.columns(view.runs[0]).payloads == view_of(frame).columns(view_of(frame).runs[0]).payloads


@pytest.mark.parametrize("answer", [b"", b"short", b"x" * 100_000])
def test_body_of_another_length_is_damage(answer: bytes) -> None:
    view = FrameView.decode(path_of("plain").read_bytes(), lambda start, end: answer)
    with pytest.raises(CorruptionError, match="cut short"):
        view.columns(view.runs[0])


def test_newer_format_is_a_format_error(subtests: pytest.Subtests) -> None:
    cases = [(4, "H", 2, "format version 2 .* upgrade"), (8, "I", 2, "codec 2"), (8, "I", 1 << 13, "features 0x2000")]
    for at, form, value, text in cases:
        with subtests.test(repr(at)):
            data = bytearray(path_of("plain").read_bytes())
            struct.pack_into(f"<{form}", data, at, value)
            with pytest.raises(FormatError, match=text):
                view_of(sealed(bytes(data)))


def test_compatible_feature_is_read() -> None:
    data = bytearray(path_of("plain").read_bytes())
    struct.pack_into("<I", data, 12, 1)
    view = view_of(sealed(bytes(data)))
    assert view.header.compatible == 1
    assert view.columns(view.runs[0]).payloads == [b"created"]


def test_other_system_record_is_not_a_term_start() -> None:
    data = bytearray(path_of("term_start").read_bytes())
    at = HEADER_BYTES + 15 + 4  # the type is after the run and the length of the payload
    assert struct.unpack_from("<H", data, at) == (1,)
    struct.pack_into("<H", data, at, 3)
    assert view_of(sealed(bytes(data))).term_start() is None
    del data[at : at + 2]  # no type column
    struct.pack_into("<I", data, 8, 0)
    struct.pack_into("<I", data, 72, struct.unpack_from("<I", data, 72)[0] - 2)
    assert view_of(sealed(bytes(data))).term_start() is None
