"""What went wrong in other systems, replayed: each incident costs what it must, and none of the guarantees.

Some are left to the soak: those that wait for the balancer or for a recovery, and those that the default tests show otherwise, over real
processes or with a defect that the incident finds.
"""

from __future__ import annotations

import pytest

from tests.simulation import apart
from tests.simulation.incidents import INCIDENTS

SOAK = pytest.mark.soak("the default tests show it over real processes, or with a defect that the incident finds")


@pytest.mark.parametrize("incident", [pytest.param(name, marks=SOAK if INCIDENTS[name].is_long else ()) for name in INCIDENTS])
def test_incident(incident: str, soak: int) -> None:
    """Each incident by one seed; in the soak by ten."""
    for seed in range(1, soak + 1):
        result = apart.run(seed, incident=incident)
        assert not result.faults, apart.failure_of(result, f"--incident {incident}")
