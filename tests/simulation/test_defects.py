"""The simulation finds defects that are made on purpose, each within twelve runs: of twelve seconds of faults, or of one incident."""

from __future__ import annotations

import pytest

from tests.simulation import apart
from tests.simulation.defects import DEFECTS, FOUND_BY


@pytest.mark.parametrize("defect", DEFECTS)
def test_defect_is_found(defect: str) -> None:
    # The seed that is tried first, where the first ones find nothing: each of their runs takes seconds.
    finds = {"keys_not_recovered": 6, "unanswered_sent_again": 2}
    for seed in sorted(range(1, 13), key=lambda seed: seed != finds.get(defect, 1)):
        result = apart.run(seed, seconds=12, incident=FOUND_BY.get(defect), defect=defect)
        if result.faults:
            assert not any("failed: Traceback" in fault for fault in result.faults), result.faults
            return
    pytest.fail(f"{defect} was not found")
