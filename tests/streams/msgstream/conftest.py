"""The fixture of the conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.streams.msgstream.media import PLACES, Place


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each test of the suite on every medium; by default on Pulsar only those marked `on_pulsar`, whose outcome it decides."""
    if "place" in metafunc.fixturenames:
        decides = metafunc.definition.get_closest_marker("on_pulsar") is not None
        soak = pytest.mark.soak("the stream decides it alone, as on the other media")
        marks = {"pulsar": () if decides else soak}
        metafunc.parametrize("place", [pytest.param(name, marks=marks.get(name, ())) for name in PLACES], indirect=True)


@pytest.fixture
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """A place with channels, of each medium in turn."""
    async with PLACES[request.param](request, tmp_path) as opened:
        yield opened
