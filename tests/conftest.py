"""What every test gets: no blocking call of the product on the loop, the chosen event loop, the long form on request.

* `SOAK=1` (by `make soak`): the `soak` fixture is SOAK_FACTOR instead of 1, Hypothesis tries as many times more examples, and every
  async test runs on asyncio's loop and on uvloop's.
* `CI` set (by `.ci/run`): on both loops as well, and Hypothesis reads and writes no example database, so that a run does not depend on the
  machine's earlier ones. Without either only the folders in EACH_LOOP run on both, because they are quick.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import hypothesis
import pytest
import uvloop
from blockbuster import BlockBuster
from blockbuster.blockbuster import BlockBusterFunction

pytest_plugins = ["tests.servers.fixtures", "tests.servers.pulsar_fixtures"]

SOAK: Final = os.environ.get("SOAK", "0") not in ("", "0")
SOAK_FACTOR: Final = 10
CI: Final = bool(os.environ.get("CI"))
EACH_LOOP: Final = ("actors", "docs")
"""Folders below tests/ whose async tests run on both loops."""

PRODUCT: Final = ("wal", "actors", "broadcaster")
SYNCS: Final = ("fsync", "fdatasync", "sync", "pread", "preadv", "pwrite", "pwritev", "posix_fallocate", "ftruncate")
"""Calls of `os` that wait for a disk and that blockbuster does not watch of itself."""

hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, database=None)
hypothesis.settings.register_profile(
    "soak", deadline=None, print_blob=True, max_examples=hypothesis.settings().max_examples * SOAK_FACTOR
)
hypothesis.settings.load_profile("soak" if SOAK else "ci" if CI else "default")


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """asyncio's own loop; uvloop's too in the folders where that costs little, in CI and in a soak."""
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    if SOAK or CI or folder in EACH_LOOP:
        return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture(autouse=True)
def blockbuster() -> Iterator[BlockBuster]:
    """A blocking call that the product makes on a running loop fails the test. What a test itself does there is not looked at."""
    found = BlockBuster(list(PRODUCT))
    for name in SYNCS:
        found.functions[f"os.{name}"] = BlockBusterFunction(None, f"os.{name}", scanned_modules=list(PRODUCT))
    found.activate()
    try:
        yield found
    finally:
        found.deactivate()


@pytest.fixture(scope="session")
def soak() -> int:
    """By how much a test multiplies its rounds: 1, or SOAK_FACTOR in a soak."""
    return SOAK_FACTOR if SOAK else 1


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """The directory of a journal that does not exist yet."""
    return tmp_path / "data"
