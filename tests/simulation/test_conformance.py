"""The simulation's etcd and broker keep the contracts of the servers that they stand in for, by the suites that run over those."""

from __future__ import annotations

import functools

import pytest

from tests.simulation import apart
from tests.simulation.conformance import SUITES, names


@functools.cache
def failures(suite: str) -> dict[str, list[str]]:
    """Returns how the tests of a suite failed, which run in one process, once."""
    return apart.failures(suite)


@pytest.mark.parametrize(("suite", "name"), [(suite, name) for suite in SUITES for name in names(suite)])
def test_stand_in_keeps_the_contract(suite: str, name: str) -> None:
    assert failures(suite)[name] == []


def test_stand_in_that_breaks_the_contract_is_found() -> None:
    found = apart.failures("etcd", "test_concurrent_counters_lose_no_increment", "test_save_load_remove", broken=True)
    assert found["test_concurrent_counters_lose_no_increment"]
    assert not found["test_save_load_remove"]
