"""Fixtures of real servers, one of each a test session. A missing server fails under CI and is a loud skip elsewhere."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from tests.servers.cache import MissingServerError, say
from tests.servers.etcd import EtcdServer, find_etcd, find_old_etcd
from tests.servers.etcd import started as etcd_started

Found = TypeVar("Found")


def require(find: Callable[[], Found], *, optional: bool = False) -> Found:
    """Returns the result of `find`. On MissingServerError a required server fails the test under CI; otherwise the test is skipped."""
    try:
        return find()
    except MissingServerError as error:
        if os.environ.get("CI") and not optional:
            pytest.fail(f"CI runs against real servers: {error}")
        say(f"TESTS ARE SKIPPED: {error}")
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def etcd_binary() -> Path:
    """Returns the program, for tests that start their own servers."""
    return require(find_etcd)


@pytest.fixture(scope="session")
def old_etcd_binary() -> Path:
    """Returns etcd 3.4, if the system has a package of it."""
    return require(find_old_etcd, optional=True)


@pytest.fixture(scope="session")
def etcd_address() -> Iterator[str]:
    """Yields `host:port` of an etcd that all tests of the session share: each uses its own root path."""
    server = etcd_started()
    (address,) = require(server.__enter__).values()
    yield address
    server.__exit__(None, None, None)


@pytest.fixture(scope="session")
def old_etcd_address(old_etcd_binary: Path) -> Iterator[str]:
    """Yields `host:port` of a shared etcd 3.4."""
    with EtcdServer(old_etcd_binary) as server:
        yield server.address
