"""Fixtures of a real Pulsar, one for the session, and of namespaces on it, one for each test.

Its ledgers hold a hundred entries, so that every longer test uses several; it remembers acknowledged parts of batches. It
requires a token, and speaks TLS on a second port.
A server that the environment names (WAL_TEST_PULSAR, WAL_TEST_PULSAR_ADMIN) is used as it is, except by tests that kill it or need its
TLS.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator
from typing import Final

import pytest

from tests.servers.fixtures import require
from tests.servers.pulsar import ADDRESS_VARIABLE, ADMIN_VARIABLE, PulsarServer, admin_request, find_pulsar

SMALL_LEDGERS: Final[dict[str, object]] = {"managedLedgerMaxEntriesPerLedger": 100, "managedLedgerMinLedgerRolloverTimeMinutes": 0}
PARTS_ACKNOWLEDGED: Final[dict[str, object]] = {"acknowledgmentAtBatchIndexLevelEnabled": "true"}
"""The broker remembers which messages of a batch were acknowledged, as docs/howto/pulsar.md advises for message streams."""
KEEP_ALL: Final = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
_session: Final = secrets.token_hex(4)
_numbers: Final = itertools.count()


@pytest.fixture(scope="session")
def pulsar_process() -> Iterator[PulsarServer]:
    """Yields a server that belongs to the session, which a test may kill and restart; prints the end of its log if it no longer answers."""
    require(find_pulsar)
    with PulsarServer(options=SMALL_LEDGERS | PARTS_ACKNOWLEDGED, secured=True) as server:
        yield server
        server.check()


@pytest.fixture(scope="session")
def pulsar_host(request: pytest.FixtureRequest) -> str:
    """`host:port` of the service."""
    url = os.environ.get(ADDRESS_VARIABLE) or request.getfixturevalue("pulsar_process").url
    return str(url).partition("://")[2]


@pytest.fixture(scope="session")
def pulsar_admin_host(request: pytest.FixtureRequest) -> str:
    """`host:port` of the admin REST."""
    named = os.environ.get(ADDRESS_VARIABLE)
    url = os.environ[ADMIN_VARIABLE] if named else request.getfixturevalue("pulsar_process").admin_url
    return str(url).partition("://")[2]


@pytest.fixture(scope="session")
def pulsar_token(request: pytest.FixtureRequest) -> str:
    """The token that the server requires; empty if it requires none."""
    return "" if os.environ.get(ADDRESS_VARIABLE) else str(request.getfixturevalue("pulsar_process").token)


@pytest.fixture
def pulsar_namespace(pulsar_admin_host: str, pulsar_token: str) -> str:
    """An empty namespace, as tenant/namespace."""
    return make_namespace(f"http://{pulsar_admin_host}", pulsar_token or None)


def make_namespace(admin_url: str, token: str | None) -> str:
    """Creates an empty namespace on this server; returns it as tenant/namespace."""
    name = f"public/wal-{_session}-{next(_numbers)}"
    status, body = admin_request(admin_url, "PUT", f"namespaces/{name}", {}, token=token)
    assert status == 204, (status, body)
    return name


def keeping_namespace(admin_url: str, token: str | None) -> str:
    """Creates an empty namespace that keeps acknowledged messages, for message streams; returns it as tenant/namespace."""
    name = make_namespace(admin_url, token)
    status, body = admin_request(admin_url, "POST", f"namespaces/{name}/retention", KEEP_ALL, token=token)
    assert status == 204, (status, body)
    return name
