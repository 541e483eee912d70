"""What tests on a real Pulsar get: a server for the session, and a namespace of its own for each test.

The server gives ledgers of a hundred entries, so that every longer test goes over several. One that the environment names
(WAL_TEST_PULSAR, WAL_TEST_PULSAR_ADMIN) is used as it is.
"""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import pulsar
import pytest

from tests.servers.fixtures import require
from tests.servers.pulsar import ADDRESS_VARIABLE, ADMIN_VARIABLE, PulsarServer, admin_request, find_pulsar
from wal.backends.pulsar import PulsarAddress
from wal.frame import FrameHeader

SMALL_LEDGERS: Final = {
    "managedLedgerMaxEntriesPerLedger": 100,
    "managedLedgerMinLedgerRolloverTimeMinutes": 0,
}
_session: Final = secrets.token_hex(4)
_numbers: Final = itertools.count()


@pytest.fixture(scope="session")
def pulsar_process() -> Iterator[PulsarServer]:
    """A server of the session's own, which a test may kill and start again; it wants a token, and speaks TLS on a second port."""
    require(find_pulsar)
    with PulsarServer(options=SMALL_LEDGERS, secured=True) as server:
        yield server


@pytest.fixture(scope="session")
def pulsar_server(request: pytest.FixtureRequest) -> PulsarAddress:
    """Where a Pulsar runs."""
    url = os.environ.get(ADDRESS_VARIABLE)
    return (
        own(request.getfixturevalue("pulsar_process"))
        if not url
        else PulsarAddress(url, admin_url=os.environ.get(ADMIN_VARIABLE))
    )


@pytest.fixture
def address(pulsar_server: PulsarAddress) -> PulsarAddress:
    """A namespace in which nothing is."""
    return new_namespace(pulsar_server)


def own(server: PulsarServer) -> PulsarAddress:
    """The address of this server."""
    return PulsarAddress(server.url, admin_url=server.admin_url, token=server.token)


def new_namespace(server: PulsarAddress) -> PulsarAddress:
    """A namespace in which nothing is, on this server."""
    name = f"wal-{_session}-{next(_numbers)}"
    admin(server, "PUT", f"namespaces/public/{name}", {})
    return msgspec.structs.replace(server, namespace=name)


def admin(server: PulsarAddress, method: str, path: str, body: object = None) -> bytes:
    """A request to the admin REST that succeeds."""
    status, answer = admin_request(server.admin, method, path, body, token=server.token)
    assert 200 <= status < 300, (status, answer)
    return answer


def location_of(address: PulsarAddress, kv: Path) -> tuple[str, dict[str, Any]]:
    """The location of a log there, and its settings."""
    settings = {"kv": str(kv), "pulsar_admin_url": address.admin, "pulsar_token": address.token}
    return f"{address.service_url}/{address.path}", settings


def raw_client(address: PulsarAddress) -> pulsar.Client:
    """A client of the test's own."""
    return pulsar.Client(
        address.service_url,
        authentication=None if address.token is None else pulsar.AuthenticationToken(address.token),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


def headers_in(address: PulsarAddress, pchannel: str) -> list[FrameHeader]:
    """The headers of all frames that lie in the topic of this pchannel, whatever they are worth."""
    client = raw_client(address)
    try:
        reader = client.create_reader(address.topic(pchannel), pulsar.MessageId.earliest)
        found: list[FrameHeader] = []
        while reader.has_message_available():
            data = reader.read_next().data()
            if data:
                found.append(FrameHeader.unpack(data))
        return found
    finally:
        client.close()
