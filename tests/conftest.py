"""Every test runs without blocking calls of the product on the loop, on the chosen event loop, and in its long form on request.

* `SOAK=1` (by `make soak`): the `soak` fixture is SOAK_FACTOR instead of 1, Hypothesis tries as many times more examples, and every
  async test runs on asyncio's loop and on uvloop's.
* `CI` set (by `.ci/run`): of the async tests about half run on uvloop's loop, always the same ones, and Hypothesis reads and writes no
  example database, so that a run does not depend on the machine's earlier ones. Without either all run on asyncio's, and on both in
  the folders in EACH_LOOP.
* `@pytest.mark.one_loop`: what the test looks at does not run on its own loop (the bytes of files; processes that choose theirs), so
  outside of a soak it runs on asyncio's.
* The processes that tests start compile the product once, not each of them again.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

import hypothesis
import pytest
import uvloop
from blockbuster import BlockBuster
from blockbuster.blockbuster import BlockBusterFunction

pytest_plugins = ["tests.first_words", "tests.servers.fixtures", "tests.servers.pulsar_fixtures"]

SOAK: Final = os.environ.get("SOAK", "0") not in ("", "0")
SOAK_FACTOR: Final = 10
CI: Final = bool(os.environ.get("CI"))
EACH_LOOP: Final = ("actors", "channels", "pchannel")
"""Folders below tests/ whose async tests run on both loops: they are quick, and near to the loop."""
SHARED: Final = {"shared_spark": "spark", "pulsar_host": "pulsar"}
"""Fixtures that take long to start, with the group of the tests that use them: one process runs all of a group."""
TOGETHER: Final = {"docs": "pulsar", "pulsar": "pulsar"}
"""Folders whose tests all belong to a group."""
ORDER: Final = ("spark", "pulsar")
"""The groups, the longest first."""

PRODUCT: Final = ("wal", "actors", "broadcaster")
SYNCS: Final = ("fsync", "fdatasync", "sync", "pread", "preadv", "pwrite", "pwritev", "posix_fallocate", "ftruncate")
"""Calls of `os` that wait for a disk and that blockbuster does not watch of itself."""

EXAMPLES: Final = 40
"""Examples of a property test that names no number; a soak tries 1,000, ten times Hypothesis' own default."""
hypothesis.settings.register_profile("default", deadline=None, print_blob=True, max_examples=EXAMPLES)
hypothesis.settings.register_profile("ci", deadline=None, print_blob=True, database=None, max_examples=EXAMPLES)
hypothesis.settings.register_profile("soak", deadline=None, print_blob=True, max_examples=100 * SOAK_FACTOR)
hypothesis.settings.load_profile("soak" if SOAK else "ci" if CI else "default")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "one_loop: the loop of the test cannot matter; asyncio's is enough outside of a soak"
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Assigns the tests that one process runs as a whole: those that share a server, else those of a file.

    Those that share a server come first, because they take longest: `make test` keeps this order.
    """
    ranks: dict[pytest.Item, int] = {}
    for item in items:
        path = item.path.relative_to(Path(__file__).parent)
        fixtures = getattr(item, "fixturenames", ())
        shared = next((group for fixture, group in SHARED.items() if fixture in fixtures), None)
        shared = shared or TOGETHER.get(path.parts[0])
        item.add_marker(pytest.mark.xdist_group(shared or path.as_posix()))
        ranks[item] = ORDER.index(shared) if shared else len(ORDER)
    items.sort(key=ranks.__getitem__)


def pytest_collection_finish() -> None:
    """Freezes what exists after collection, so that no later garbage collection has to traverse it."""
    gc.collect()
    gc.freeze()


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """asyncio's own loop and uvloop's: both, or in CI one of them, which the name of the test decides, or asyncio's."""
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    asyncios, uvloops = {"asyncio": asyncio.new_event_loop}, {"uvloop": uvloop.new_event_loop}
    if SOAK or folder in EACH_LOOP:
        return {**asyncios, **uvloops}
    if CI and item.get_closest_marker("one_loop") is None and zlib.crc32(item.name.encode()) % 2:
        return uvloops
    return asyncios


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> Iterator[None]:
    """Where Python is told to leave no bytecode beside the sources, the processes that tests start share what they compile in here.

    Importing the product takes twice as long without, and some hundreds of them do.
    """
    if not sys.dont_write_bytecode:
        yield
        return
    with (
        tempfile.TemporaryDirectory(prefix="wal-pyc-", ignore_cleanup_errors=True) as directory,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", directory)
        yield


@pytest.fixture(autouse=True)
def blockbuster() -> Iterator[BlockBuster]:
    """A blocking call that the product makes on a running loop fails the test. What a test itself does there is not looked at."""
    found = BlockBuster(list(PRODUCT))
    for name in SYNCS:
        found.functions[f"os.{name}"] = BlockBusterFunction(None, f"os.{name}", scanned_modules=list(PRODUCT))
    # The kernel has the answer in memory: no disk is touched, and the directory has to be that of the moment of the call.
    found.functions["os.getcwd"].can_block_in("wal/location.py", "absolute_path")
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
