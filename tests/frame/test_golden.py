"""Format version 1 does not change: old frames are read, and new frames are written, as in the golden bytes."""

import json
import sys

import pytest

from tests.golden.frame_cases import CASES, COMPRESSED, FOLDER, GOLDEN, describe, encode_case, path_of


@pytest.mark.parametrize("case", CASES)
def test_encoder_writes_the_golden_bytes(case: str) -> None:
    assert b"".join(encode_case(case).buffers) == path_of(case).read_bytes()


@pytest.mark.parametrize("case", GOLDEN)
def test_golden_bytes_decode_as_before(case: str) -> None:
    if case in COMPRESSED:
        pytest.importorskip("backports.zstd" if sys.version_info < (3, 14) else "compression.zstd")
    expected = json.loads((FOLDER / "frame_v1.json").read_text(encoding="utf-8"))
    assert describe(path_of(case).read_bytes()) == expected[case]


def test_every_golden_frame_has_a_case() -> None:
    assert sorted(FOLDER.glob("frame_v1_*.bin")) == sorted(map(path_of, GOLDEN))
