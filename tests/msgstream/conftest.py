"""The fixture of the conformance suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.msgstream.media import PLACES, Place


@pytest.fixture(params=list(PLACES))
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """A place with channels, of each medium in turn."""
    async with PLACES[request.param](request, tmp_path) as opened:
        yield opened
