"""Access to Pulsar: TLS, tokens, and the errors for a missing or wrong one; locations and their errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.process import free_ports
from tests.servers.pulsar import PulsarServer
from tests.storage.pulsar.conftest import location_of, new_namespace, own
from wal import Message, open_wal
from wal.errors import InvalidArgumentError, StorageError
from wal.location import PulsarLocation, parse_location


async def test_tls_and_a_token(pulsar_process: PulsarServer, tmp_path: Path) -> None:
    address = new_namespace(own(pulsar_process))
    _, settings = location_of(address, tmp_path / "kv")
    location = f"{pulsar_process.tls_url}/{address.path}"
    async with open_wal(location, **settings, pulsar_tls_authority=str(pulsar_process.authority)) as log:
        result = await log.raw_append(Message("v", b"over TLS"))
        assert result.message_id is not None
        async with log.read("v", follow=False) as scanner:
            assert [message.payload async for message in scanner] == [b"over TLS"]


@pytest.mark.parametrize(("token", "says"), [(None, "wants a token.*pulsar_token"), ("not.a.token", "does not accept the token")])
async def test_error_for_a_bad_token_names_it(pulsar_process: PulsarServer, tmp_path: Path, token: str | None, says: str) -> None:
    location, settings = location_of(new_namespace(own(pulsar_process)), tmp_path / "kv")
    with pytest.raises(InvalidArgumentError, match=says) as caught:
        await open_wal(location, **{**settings, "pulsar_token": token})
    assert token is None or token not in str(caught.value)


async def test_namespace_that_does_not_exist(pulsar_process: PulsarServer, tmp_path: Path) -> None:
    address = own(pulsar_process)
    _, settings = location_of(address, tmp_path / "kv")
    with pytest.raises(InvalidArgumentError, match=r"has no namespace public/nowhere.*namespaces create"):
        await open_wal(f"{address.service_url}/public/nowhere", **settings)


async def test_server_that_does_not_answer(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with pytest.raises(StorageError, match=r"did not answer.*pulsar_admin_url"):
        await open_wal(f"pulsar://127.0.0.1:{port}/public/default", kv=str(tmp_path / "kv"), pulsar_admin_url=f"http://127.0.0.1:{port}")


@pytest.mark.parametrize("read_only", [False, True])
async def test_log_needs_a_place_for_its_metadata(read_only: bool) -> None:
    with pytest.raises(InvalidArgumentError, match="give the setting kv"):
        await open_wal("pulsar://localhost/public/default", read_only=read_only)


def test_locations() -> None:
    assert parse_location("pulsar://h:1234/t/n").pulsar == PulsarLocation("pulsar://h:1234", "t", "n")
    assert parse_location("pulsar://a,b:7/t/n").pulsar == PulsarLocation("pulsar://a:6650,b:7", "t", "n")
    assert parse_location("pulsar+ssl://[::1]/t/n").pulsar == PulsarLocation("pulsar+ssl://[::1]:6651", "t", "n")
    assert str(parse_location("pulsar://h/t/n")) == "pulsar://h:6650/t/n"
    for wrong in ("pulsar://h", "pulsar://h/t", "pulsar://h/t/n/p", "pulsar:///t/n", "pulsar://h:x/t/n", "pulsar://h/t/a b"):
        with pytest.raises(InvalidArgumentError, match="pulsar://host"):
            parse_location(wrong)
    with pytest.raises(InvalidArgumentError, match="pulsar_token") as caught:
        parse_location("pulsar://secret@h/t/n")
    assert "secret" not in str(caught.value)
