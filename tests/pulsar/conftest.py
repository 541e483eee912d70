"""What tests on a real Pulsar get: a server for the session, and a namespace of its own for each test.

The server gives ledgers of a hundred entries, so that every longer test goes over several. One that the environment names
(WAL_TEST_PULSAR, WAL_TEST_PULSAR_ADMIN) is used as it is.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.servers.fixtures import require
from tests.servers.pulsar import ADDRESS_VARIABLE, ADMIN_VARIABLE, PulsarServer, admin_request, find_pulsar
from wal.backends.pulsar import PulsarAddress

SMALL_LEDGERS: Final = {
    "managedLedgerMaxEntriesPerLedger": 100,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
}
_session: Final = secrets.token_hex(4)
_numbers: Final = itertools.count()


@pytest.fixture(scope="session")
def pulsar_server() -> Iterator[PulsarAddress]:
    """Where a Pulsar runs."""
    url = os.environ.get(ADDRESS_VARIABLE)
    if url:
        yield PulsarAddress(url, admin_url=os.environ.get(ADMIN_VARIABLE))
        return
    require(find_pulsar)
    with PulsarServer(options=SMALL_LEDGERS) as server:
        yield PulsarAddress(server.url, admin_url=server.admin_url)


@pytest.fixture
def namespace(pulsar_server: PulsarAddress) -> Callable[[], PulsarAddress]:
    """Makes a namespace in which nothing is."""
    return lambda: new_namespace(pulsar_server)


@pytest.fixture
def address(pulsar_server: PulsarAddress) -> PulsarAddress:
    """A namespace in which nothing is."""
    return new_namespace(pulsar_server)


def new_namespace(server: PulsarAddress, *, token: str | None = None) -> PulsarAddress:
    """A namespace in which nothing is, on this server."""
    name = f"wal-{_session}-{next(_numbers)}"
    status, body = admin_request(server.admin, "PUT", f"namespaces/public/{name}", {}, token=token)
    assert status == 204, (status, body)
    return PulsarAddress(
        server.service_url, "public", name, admin_url=server.admin_url, token=token, tls_authority=server.tls_authority
    )
