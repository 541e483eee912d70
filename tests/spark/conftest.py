"""One Spark session for all tests that need one, created for the first of them: it takes longer to start than most tests run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.driver import QUICK
from tests.spark.java import require_java
from tests.spark.pulsar_place import PulsarPlace, new_place
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


@pytest.fixture
def place(pulsar_host: str, pulsar_admin_host: str, pulsar_token: str, pulsar_namespace: str, etcd_address: str) -> PulsarPlace:
    """Yields an empty place for a log on Pulsar."""
    return new_place(pulsar_host, pulsar_admin_host, pulsar_token, pulsar_namespace, etcd_address)
