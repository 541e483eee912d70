"""Format version 1 is these bytes: what was written once is read for good, and written the same way."""

import json

import pytest

from tests.golden.frame_cases import CASES, FOLDER, describe, encode_case, path_of


@pytest.mark.parametrize("case", CASES)
def test_todays_encoder_writes_these_bytes(case: str) -> None:
    assert b"".join(encode_case(case).buffers) == path_of(case).read_bytes()


@pytest.mark.parametrize("case", CASES)
def test_these_bytes_are_read_as_before(case: str) -> None:
    expected = json.loads((FOLDER / "frame_v1.json").read_text(encoding="utf-8"))
    assert describe(path_of(case).read_bytes()) == expected[case]


def test_every_golden_frame_has_a_case() -> None:
    assert sorted(FOLDER.glob("frame_v1_*.bin")) == sorted(map(path_of, CASES))
