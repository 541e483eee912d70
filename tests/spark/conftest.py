"""One Spark session for all tests that need one, created for the first of them: it takes longer to start than most tests run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import SparkSession

from tests.conftest import SOAK
from tests.processes import Child
from tests.spark.driver import QUICK
from tests.spark.java import require_java
from tests.spark.place import Place, close_logs
from tests.spark.pulsar_place import PulsarPlace, new_place
from tests.spark.served_place import served
from tests.spark.sink_child import Attempt
from wal.spark.local_session import session


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Yields the session, on two cores of this host. Without Java its tests are skipped, except in CI."""
    require_java()
    place = tmp_path_factory.mktemp("spark")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Spark's own, about the libraries it finds
        made = session(
            "wal-tests",
            settings={
                **QUICK,
                "spark.connect.grpc.binding.address": "127.0.0.1",
                "spark.connect.grpc.binding.port": 0,
                "spark.local.dir": str(place / "local"),
                "spark.sql.warehouse.dir": str(place / "warehouse"),
            },
        )
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def spark(shared_spark: SparkSession) -> Iterator[SparkSession]:
    """Yields the session for one test: its streams are stopped when the test ends, and Spark's own warnings are ignored."""
    with warnings.catch_warnings():
        for kind in (DeprecationWarning, FutureWarning, ResourceWarning):
            warnings.filterwarnings("ignore", category=kind, module=r"pyspark\.|py4j\.")
        warnings.filterwarnings("ignore", category=FutureWarning, message=".*pandas.*")
        yield shared_spark
    for query in shared_spark.streams.active:
        query.stop()


@pytest.fixture
def checkpoint(tmp_path: Path) -> str:
    """Returns the checkpoint location of a query."""
    return str(tmp_path / "checkpoint")


@pytest.fixture(scope="session")
def ended() -> Iterator[Callable[[Attempt], int]]:
    """Runs an attempt of the sink in a process of its own, and returns its exit status."""
    with Child("-m", "tests.spark.sink_child", fresh=True) as server:

        def run(attempt: Attempt) -> int:
            server.tell(msgspec.json.encode(attempt).decode())
            return int(server.line_now())

        yield run


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs a test that has the fixture `place` over a server, and with the mark `on_pulsar`, or in a soak, on Pulsar as well."""
    if "kind_of_place" in metafunc.fixturenames:
        pulsar = SOAK or metafunc.definition.get_closest_marker("on_pulsar") is not None
        metafunc.parametrize("kind_of_place", ["served", *["pulsar"] * pulsar])


@pytest.fixture
def place(kind_of_place: str, data_dir: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    """Yields an empty location for a log other than a journal. There a transaction of the sink has 8 rows, and a producer two of them."""
    if kind_of_place == "pulsar":
        yield request.getfixturevalue("pulsar_place")
        return
    with served(data_dir, pchannels=2, producers_max=4, segment_bytes=1 << 20, txn_bodies_max=8) as place:
        yield place


@pytest.fixture
def pulsar_place(
    pulsar_host: str, pulsar_admin_host: str, pulsar_token: str, pulsar_namespace: str, etcd_address: str
) -> Iterator[PulsarPlace]:
    """Yields an empty place for a log on Pulsar."""
    place = new_place(pulsar_host, pulsar_admin_host, pulsar_token, pulsar_namespace, etcd_address)
    yield place
    close_logs(place.location)
