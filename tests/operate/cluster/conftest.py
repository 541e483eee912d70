"""Fixtures: a cluster for each test, on the session's etcd and Pulsar."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operate.cluster.processes import Cluster
from tests.rpc.conftest import contract
from tests.servers.etcd import EtcdServer

__all__ = ["contract"]


@pytest.fixture
def cluster(
    etcd_address: str, pulsar_host: str, pulsar_admin_host: str, pulsar_token: str, pulsar_namespace: str, tmp_path: Path
) -> Iterator[Cluster]:
    """A cluster that is not started yet."""
    log = f"pulsar://{pulsar_host}/{pulsar_namespace}"
    made = Cluster(etcd_address, log, f"http://{pulsar_admin_host}", pulsar_token, tmp_path, name=f"cluster-{secrets.token_hex(4)}")
    yield made
    made.close()


@pytest.fixture
def own_etcd(etcd_binary: Path) -> Iterator[EtcdServer]:
    """An etcd that the test may stop."""
    with EtcdServer(etcd_binary) as server:
        yield server


@pytest.fixture
def cluster_over(
    own_etcd: EtcdServer, pulsar_host: str, pulsar_admin_host: str, pulsar_token: str, pulsar_namespace: str, tmp_path: Path
) -> Iterator[Cluster]:
    """A cluster over that etcd."""
    log = f"pulsar://{pulsar_host}/{pulsar_namespace}"
    made = Cluster(own_etcd.address, log, f"http://{pulsar_admin_host}", pulsar_token, tmp_path, name="cluster")
    yield made
    made.close()
