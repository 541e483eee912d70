"""TLS with client certificates, users and passwords, on real servers: the clients that get access, the text of a refusal, tokens that
expire."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.servers.etcd import EtcdServer
from tests.storage.kv import etcd_admin
from wal import Message, open_wal
from wal.errors import InvalidArgumentError, UnavailableError
from wal.network import TlsFiles
from wal.storage.kv.etcd import EtcdKV

WAIT_S = 60.0


# -- TLS


@pytest.fixture(scope="module")
def tls_server(etcd_binary: Path, certificates: Path) -> Iterator[EtcdServer]:
    files = (certificates / "server.pem", certificates / "server.key", certificates / "ca.pem")
    with EtcdServer(etcd_binary, tls=files) as server:
        yield server


async def test_tls_with_a_client_certificate(tls_server: EtcdServer, certificates: Path) -> None:
    tls = TlsFiles(ca=certificates / "ca.pem", certificate=certificates / "client.pem", key=certificates / "client.key")
    async with await EtcdKV.open([tls_server.address], root_path="r", tls=tls) as kv, await kv.watch("a") as watch:
        await kv.save("a", "1")
        async with asyncio.timeout(WAIT_S):
            assert (await anext(watch)).value == "1"


async def test_log_with_its_metadata_over_tls(tls_server: EtcdServer, certificates: Path, data_dir: Path) -> None:
    files = f"ca={certificates}/ca.pem&certificate={certificates}/client.pem&key={certificates}/client.key"
    async with open_wal(
        data_dir, kv=f"etcd+ssl://localhost:{tls_server.port}/{data_dir.parent.name}/meta?{files}"
    ) as log:  # a directory of this test
        await log.raw_append(Message("orders", b"1"))
        assert [info.name for info in await log.vchannels()] == ["orders"]


async def test_refused_client_learns_who_refused_it_and_why(tls_server: EtcdServer, certificates: Path) -> None:
    ours = TlsFiles(ca=certificates / "ca.pem", certificate=certificates / "client.pem", key=certificates / "client.key")
    refused = "if it asks its clients for certificates, give one"
    wrong = (
        (TlsFiles(ca=certificates / "ca.pem"), refused),
        (TlsFiles(ca=certificates / "ca.pem", certificate=certificates / "stranger.pem", key=certificates / "stranger.key"), refused),
        (
            TlsFiles(ca=certificates / "other-ca.pem", certificate=certificates / "client.pem", key=certificates / "client.key"),
            "not of an authority that this client trusts: name the file",
        ),
        (None, r"if it has TLS, connect with etcd\+ssl://"),
    )
    for tls, words in wrong:
        began = time.monotonic()
        with pytest.raises(UnavailableError, match=rf"{tls_server.address}: .+{words}"):
            await EtcdKV.open([tls_server.address], tls=tls, timeout_s=WAIT_S)
        assert time.monotonic() - began < WAIT_S / 3, "long before its deadline"
    async with await EtcdKV.open([tls_server.address], root_path="r", tls=ours) as kv:
        await kv.save("b", "1")


# -- users


async def enable_users(address: str, tls: ssl.SSLContext | None = None) -> None:
    """Adds root, who may do everything, and `app`, who may write below `ours/`."""
    await etcd_admin.call(address, "auth/user/add", tls=tls, name="root", password="root-password")
    await etcd_admin.call(address, "auth/user/add", tls=tls, name="app", password="app-password")
    await etcd_admin.call(address, "auth/role/add", tls=tls, name="app")
    permission = {"permType": "READWRITE", "key": etcd_admin.text("ours/"), "range_end": etcd_admin.text("ours0")}
    await etcd_admin.call(address, "auth/role/grant", tls=tls, name="app", perm=permission)
    await etcd_admin.call(address, "auth/role/add", tls=tls, name="root")
    await etcd_admin.call(address, "auth/user/grant", tls=tls, user="root", role="root")
    await etcd_admin.call(address, "auth/user/grant", tls=tls, user="app", role="app")
    await etcd_admin.call(address, "auth/enable", tls=tls)


@pytest.fixture
async def guarded(etcd_binary: Path) -> AsyncIterator[EtcdServer]:
    """An etcd whose tokens expire a second after their last use."""
    server = EtcdServer(etcd_binary, options=["--auth-token-ttl", "1"])
    await asyncio.to_thread(server.start)
    await enable_users(server.address)
    yield server
    server.close()


async def test_users_may_do_what_their_roles_allow(guarded: EtcdServer, data_dir: Path, tmp_path: Path) -> None:
    address = guarded.address
    for user in (("app", "wrong"), ("nobody", "app-password")):
        with pytest.raises(InvalidArgumentError, match="check the user, the password") as caught:
            await EtcdKV.open([address], root_path="ours", user=user)
        assert user[0] in str(caught.value)
        assert user[1] not in str(caught.value)
    with pytest.raises(InvalidArgumentError, match="user name is empty.*check the user".replace(".*", "(.|\n)*")):
        await EtcdKV.open([address], root_path="ours")
    with pytest.raises(InvalidArgumentError, match="permission denied"):
        await EtcdKV.open([address], root_path="theirs", user=("app", "app-password"))
    async with await EtcdKV.open([address], root_path="ours", user=("app", "app-password")) as kv:
        await kv.save("a", "1")
        async with await kv.session(ttl_s=10) as session:
            await session.save("b", "2")
            assert await kv.load_with_prefix("") == (["a", "b"], ["1", "2"])
        beyond = kv.under("x")
        beyond._root = "theirs/"  # a program with a wrong root path would ask this
        with pytest.raises(InvalidArgumentError, match="permission denied"):
            await beyond.watch("a")
        with pytest.raises(InvalidArgumentError, match="permission denied"):
            await beyond.save("a", "1")
    secret = tmp_path / "password"
    secret.write_text("app-password\n")
    async with open_wal(data_dir, kv=f"etcd://app@{address}/ours/meta?password_file={secret}") as log:
        await log.raw_append(Message("orders", b"1"))


async def test_expired_token_is_renewed_by_its_call(guarded: EtcdServer) -> None:
    """A restart forgets all tokens, as their expiry does: reads, writes, sessions and watches continue."""
    async with (
        await EtcdKV.open([guarded.address], root_path="ours", user=("app", "app-password"), timeout_s=30) as kv,
        await kv.watch_with_prefix("") as watch,
        await kv.session(ttl_s=9) as session,
    ):
        await session.save("a", "1")
        await asyncio.to_thread(guarded.restart)
        await kv.save("a", "2")
        assert await kv.load("a") == "2"
        await asyncio.to_thread(guarded.restart)
        assert await kv.load("a") == "2"
        renewals = session.renewals
        async with asyncio.timeout(WAIT_S):
            while session.renewals == renewals:
                await asyncio.sleep(0.01)
        assert session.alive
        async with asyncio.timeout(WAIT_S):
            assert [(await anext(watch)).value for _ in range(2)] == ["1", "2"]
        await kv.save("b", "3")
        async with asyncio.timeout(WAIT_S):
            assert (await anext(watch)).value == "3"


async def test_unused_token_is_renewed(guarded: EtcdServer) -> None:
    async def is_refused(address: str, token: str) -> bool:
        try:
            await etcd_admin.call(address, "kv/range", token=token, key=etcd_admin.text("ours/a"))
        except AssertionError as error:
            assert "invalid auth token" in str(error)
            return True
        return False

    async with await EtcdKV.open([guarded.address], root_path="ours", user=("app", "app-password"), timeout_s=30) as kv:
        await kv.save("a", "1")
        first = await kv.calls.connection.token()
        async with asyncio.timeout(WAIT_S):
            while True:  # etcd looks for old tokens once a second; the loop waits for a refused token
                if await is_refused(guarded.address, str(first)):
                    break
                await asyncio.sleep(1.5)  # each look uses the token
        await kv.save("a", "2")
        assert await kv.load("a") == "2"
        assert await kv.calls.connection.token() != first


async def test_password_without_users_in_etcd_is_accepted(etcd_address: str) -> None:
    async with await EtcdKV.open([etcd_address], root_path="wal-test-users", user=("app", "app-password")) as kv:
        await kv.save("a", "1")
        await kv.remove("a")
