"""Fixtures for tests of the Pulsar backend: the address of the session's server, and a namespace for each test."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pulsar
import pytest

from tests.servers.pulsar import PulsarServer, admin_request
from tests.servers.pulsar_fixtures import make_namespace
from wal import Secret
from wal.frame import FrameHeader
from wal.storage.pulsar.address import PulsarAddress


@pytest.fixture(scope="session")
def pulsar_server(pulsar_host: str, pulsar_admin_host: str, pulsar_token: str) -> PulsarAddress:
    """The address of a running Pulsar."""
    return server_at(pulsar_host, pulsar_admin_host, pulsar_token)


@pytest.fixture
def address(pulsar_server: PulsarAddress) -> PulsarAddress:
    """An empty namespace."""
    return new_namespace(pulsar_server)


def server_at(host: str, admin_host: str, token: str) -> PulsarAddress:
    """Returns the address of the server that the session's fixtures name so."""
    return PulsarAddress(f"pulsar://{host}", admin_url=f"http://{admin_host}", token=Secret(token) if token else None)


def own(server: PulsarServer) -> PulsarAddress:
    """Returns the address of this server."""
    token = None if server.token is None else Secret(server.token)
    return PulsarAddress(server.url, admin_url=server.admin_url, token=token)


def token_of(server: PulsarAddress) -> str | None:
    """Returns the token that this server requires; None if it requires none."""
    return None if server.token is None else server.token.reveal()


def new_namespace(server: PulsarAddress) -> PulsarAddress:
    """Creates an empty namespace on this server and returns its address."""
    return msgspec.structs.replace(server, namespace=make_namespace(server.admin, token_of(server)).partition("/")[2])


def admin(server: PulsarAddress, method: str, path: str, body: object = None) -> bytes:
    """Makes a request to the admin REST, which must succeed, and returns the answer."""
    status, answer = admin_request(server.admin, method, path, body, token=token_of(server))
    assert 200 <= status < 300, (status, answer)
    return answer


def location_of(address: PulsarAddress, kv: Path) -> tuple[str, dict[str, Any]]:
    """Returns the location of a log there, and its settings."""
    settings = {"kv": str(kv), "pulsar_admin_url": address.admin, "pulsar_token": token_of(address)}
    return f"{address.service_url}/{address.path}", settings


def raw_client(address: PulsarAddress) -> pulsar.Client:
    """Creates a client for the test itself."""
    return pulsar.Client(
        address.service_url,
        authentication=None if address.token is None else pulsar.AuthenticationToken(address.token.reveal()),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )


def headers_in(address: PulsarAddress, pchannel: str) -> list[FrameHeader]:
    """Returns the headers of all frames in the topic of this pchannel, whether they count or not."""
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
