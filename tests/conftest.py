"""Runs every test on the chosen event loop, in its long form on request, and fails it if the product blocks the loop.

* `SOAK=1` (set by `make soak`): the `soak` fixture is SOAK_FACTOR instead of 1, Hypothesis tries 1,000 examples, and every
  async test runs on asyncio's loop and on uvloop's.
* `CI` (set by `.ci/run`): about half of the async tests, always the same ones, run on uvloop's loop. Without `SOAK` and `CI` all run on
  asyncio's loop, and those in the folders of EACH_LOOP on both.
* `@pytest.mark.linux`: the test is about what only Linux has, so it is skipped elsewhere, and by `make portable` (tests/portable).
* `@pytest.mark.one_loop`: the subject of the test does not run on the test's loop (the bytes of files; processes that choose their own
  loop), so outside of a soak the test runs on asyncio's.
* `@pytest.mark.soak("what a cheaper test shows")`: only a soak runs the test, or the parameter with this mark. Each guarantee is shown once
  by default, at the cheapest place that can show it; the other combinations, and longer rounds, are in the soak.
* The processes that tests start compile the product once for all of them, and the sessions of Spark share the classes that they load.
* The default run draws no random seed: Hypothesis is derandomized, and `random` begins each test at a seed made of its name. A soak draws a
  new seed and prints it; `WAL_TEST_SEED=N` repeats it.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import random
import re
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Final

import hypothesis
import pytest
import uvloop
from blockbuster import BlockBuster
from blockbuster.blockbuster import BlockBusterFunction

pytest_plugins = [
    "tests.first_words",
    "tests.locations",
    "tests.servers.certificates",
    "tests.servers.fixtures",
    "tests.servers.pulsar_fixtures",
    "tests.times",
]

SOAK: Final = os.environ.get("SOAK", "0") not in ("", "0")
SOAK_FACTOR: Final = 10
CI: Final = bool(os.environ.get("CI"))
EACH_LOOP: Final = ("actors", "channels", "read/pages", "write")
"""Folders below tests/ whose async tests run on both loops: they are quick, and depend on the loop. Those in folders below them do not."""
SHARED: Final = {"shared_spark": "spark", "cluster": "cluster", "cluster_over": "cluster", "pulsar_host": "pulsar"}
"""Fixtures that take long to start, with the group of the tests that use them: one process runs the whole group. A test that has the name
of a group as a parameter belongs to it as well."""
TOGETHER: Final = {"storage/pulsar": "pulsar", "streams/msgstream/pulsar": "pulsar", "typing": "typing"}
"""Folders below tests/ whose tests all belong to a group."""
OF_PULSAR: Final = re.compile(r"127\.0\.0\.1:(6650|8080)|public/default|a\.json\.webtoken")
"""What a page of the docs names that takes a Pulsar to run (`tests/docs/test_pages.py`)."""
ORDER: Final = ("spark", "pulsar", "cluster", "typing")
"""The groups, the longest first. The last one would keep a single process busy at the end of a run."""

SPARK_HOME: Final = Path(sys.prefix) / "spark-home"
"""A home of Spark whose sessions start faster, see tests.spark.java."""
CLASSES: Final = SPARK_HOME / "classes.jsa"
"""The classes that a session of Spark loads: a Java or a Spark for which it was not made ignores it."""

PRODUCT: Final = ("wal", "actors", "broadcaster")
OF_TESTS: Final = ("wal.testing",)
"""The part of it that only tests call: it may block their loops, but not those of product code above it."""
SYNCS: Final = ("fsync", "fdatasync", "sync", "pread", "preadv", "pwrite", "pwritev", "posix_fallocate", "ftruncate")
"""Calls of `os` that wait for a disk and that blockbuster does not watch by default."""

TEST_TIMEOUT_S: Final = 480.0
"""The maximum time of a test on a loop, outside of a soak. Faulthandler, whose limit is higher, shows a hanging loop but not its tasks."""

EXAMPLES: Final = 40
"""Examples of a property test that names no number of its own; a soak tries 1,000."""
hypothesis.settings.register_profile("default", deadline=None, derandomize=True, max_examples=EXAMPLES)
hypothesis.settings.register_profile("soak", deadline=None, print_blob=True, max_examples=100 * SOAK_FACTOR)
hypothesis.settings.load_profile("soak" if SOAK else "default")

SEED: Final = os.environ.setdefault("WAL_TEST_SEED", str(random.SystemRandom().randrange(1, 1 << 32) if SOAK else 0))
"""The seed of this run, in the environment for the processes of pytest-xdist; 0, the same in each run, unless a soak draws one."""


def pytest_report_header() -> str:
    return f"random tests: WAL_TEST_SEED={SEED}"


def pytest_configure(config: pytest.Config) -> None:
    os.environ.pop("COLUMNS", None)  # the width of the terminal of who runs the tests, which would wrap the tables of `wal …`
    if CLASSES.exists():
        os.environ.setdefault("SPARK_HOME", str(SPARK_HOME))
        os.environ.setdefault("SPARK_SUBMIT_OPTS", f"-XX:SharedArchiveFile={CLASSES} -Xlog:cds=off -Xlog:cds+dynamic=off")
    config.addinivalue_line("markers", "linux: about a call, a file or an output that only Linux has; `make portable` skips it")
    config.addinivalue_line("markers", "soak(reason): only a soak runs it; the reason names what shows the same by default")
    config.addinivalue_line("markers", "one_loop: the loop of the test cannot matter; asyncio's is enough outside of a soak")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out tests that only a soak runs, and groups the tests for one process: the tests of a server, else of a file. The groups
    of `ORDER` come first, because they take longest: `make test` keeps this order.
    """
    if not SOAK and (left_out := [item for item in items if item.get_closest_marker("soak")]):
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("soak")]
    ranks: dict[pytest.Item, int] = {}
    for item in items:
        if not hasattr(os, "O_DIRECT") and item.get_closest_marker("linux") is not None:
            item.add_marker(pytest.mark.skip(reason="about what only Linux has"))
        path = item.path.relative_to(Path(__file__).parent)
        fixtures = getattr(item, "fixturenames", ())
        shared = next((group for fixture, group in SHARED.items() if fixture in fixtures), None)
        given = getattr(item, "callspec", None)
        shared = shared or next((group for group in ORDER if given and group in given.params.values()), None)
        shared = shared or TOGETHER.get(path.parent.as_posix())
        page = given.params.get("page") if given and not shared else None
        if isinstance(page, Path) and OF_PULSAR.search(page.read_text()):
            shared = "pulsar"
        item.add_marker(pytest.mark.xdist_group(shared or path.as_posix()))
        ranks[item] = ORDER.index(shared) if shared else len(ORDER)
    items.sort(key=ranks.__getitem__)


def pytest_collection_finish() -> None:
    """Freezes all objects that exist after collection, so that no later garbage collection traverses them."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """Bounds a test on a loop, outside of a soak: it fails at the `await` that does not end, whose condition a defect may never bring."""
    if SOAK or not isinstance(item, pytest.Function) or not inspect.iscoroutinefunction(item.obj):
        return
    test = item.obj

    @wraps(test)
    async def bounded(*args: object, **kwargs: object) -> None:
        async with asyncio.timeout(TEST_TIMEOUT_S):
            await test(*args, **kwargs)

    item.obj = bounded


@pytest.hookimpl(trylast=True)  # after the fixtures of the test have ended
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ends the fixtures of the session after the last test of the groups in this process.

    Their servers would otherwise idle to the end of the run. A later test that uses such a fixture gets a new one.
    """
    if nextitem is not None and _group(item) in ORDER and _group(nextitem) not in ORDER:
        item.session._setupstate.teardown_exact(None)


def _group(item: pytest.Item) -> object:
    marker = item.get_closest_marker("xdist_group")
    return marker.args[0] if marker else None


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Returns the loops of this test: asyncio's and uvloop's, or in CI one of them by the name of the test, or asyncio's alone."""
    folder = item.path.relative_to(Path(__file__).parent).parent.as_posix()
    asyncios, uvloops = {"asyncio": asyncio.new_event_loop}, {"uvloop": uvloop.new_event_loop}
    if SOAK or folder in EACH_LOOP:
        return {**asyncios, **uvloops}
    if CI and item.get_closest_marker("one_loop") is None and zlib.crc32(item.name.encode()) % 2:
        return uvloops
    return asyncios


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> Iterator[None]:
    """Shares compiled bytecode between the processes that tests start, if Python is set to write none beside the sources.

    Without it importing the product takes twice as long, and some hundreds of processes do so.
    """
    if not sys.dont_write_bytecode:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="wal-pyc-", ignore_cleanup_errors=True) as directory, pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        patch.setenv("PYTHONPYCACHEPREFIX", directory)
        yield


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    """Begins `random` at a seed made of the run's seed and the name of the test."""
    random.seed(f"{SEED} {request.node.nodeid}")
    if SEED != "0":
        print(f"replay with WAL_TEST_SEED={SEED} python -m pytest '{request.node.nodeid}'")


@pytest.fixture(autouse=True)
def blockbuster() -> Iterator[BlockBuster]:
    """Fails the test if the product makes a blocking call on a running loop. Blocking calls of the test itself are allowed."""
    found = BlockBuster(list(PRODUCT), excluded_modules=list(OF_TESTS))
    for name in filter(partial(hasattr, os), SYNCS):
        found.functions[f"os.{name}"] = BlockBusterFunction(
            None, f"os.{name}", scanned_modules=list(PRODUCT), excluded_modules=list(OF_TESTS)
        )
    # The kernel answers from memory without touching a disk, and the directory must be the current one at the time of the call.
    found.functions["os.getcwd"].can_block_in("wal/location.py", "absolute_path")
    # The end of a loop joins the thread that has shut its executor down, which on a busy machine may take a moment longer.
    acquire = found.functions["threading.Lock.acquire"]
    acquire.can_block_in("asyncio/runners.py", "close")
    # The last server or channel of gRPC joins a thread when it is freed, at a moment that its user cannot choose.
    collecting, is_allowed = list[str](), acquire.can_block_predicate

    def collected(phase: str, _info: dict[str, int]) -> None:
        collecting[:] = [phase] if phase == "start" else []

    acquire.can_block_predicate = lambda *args, **kwargs: bool(collecting) or is_allowed(*args, **kwargs)
    gc.callbacks.append(collected)
    found.activate()
    try:
        yield found
    finally:
        found.deactivate()
        gc.callbacks.remove(collected)


@pytest.fixture(scope="session")
def soak() -> int:
    """Returns the factor by which a test multiplies its rounds: 1, or SOAK_FACTOR in a soak."""
    return SOAK_FACTOR if SOAK else 1


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Returns the directory of a journal that does not exist yet."""
    return tmp_path / "data"
