"""The contract of the protocol, compiled once for all tests."""

from __future__ import annotations

import pytest

from tests.rpc.contract import Contract


@pytest.fixture(scope="session")
def contract(tmp_path_factory: pytest.TempPathFactory) -> Contract:
    return Contract(tmp_path_factory.mktemp("contract"))
