"""TLS and tokens of a client of a log: wrong ones raise an error where others would wait for a server, and no call hangs."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any, Unpack

import pytest

from tests.serve.servers import Child, child, serving
from wal import Message, WALAccesser, open_wal
from wal.errors import AuthenticationError, InvalidArgumentError, UnavailableError, WALError
from wal.network import TlsFiles
from wal.rpc.auth import Token
from wal.runtime.secret import Secret
from wal.serve.access import Access
from wal.settings import SettingsOverrides

HANG_S = 60.0
WAITS_S = 3600.0
"""So long an opening waits here for a server that may come: one that waited where it was refused would hang."""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal.client.log.TIMEOUT_S", WAITS_S)


async def appended(location: str, **settings: Unpack[SettingsOverrides]) -> None:
    async with open_wal(location, **settings) as log:
        await log.raw_append(Message("orders", b"x"))
        async with log.read("orders", follow=False) as scanner:
            assert [message.payload async for message in scanner] == [b"x"]


async def refusal(location: str, **settings: Unpack[SettingsOverrides]) -> WALError:
    """Returns the error of an opening, which does not wait."""
    async with asyncio.timeout(HANG_S):
        with pytest.raises(WALError) as raised:
            await appended(location, **settings)
    return raised.value


async def test_tls(certificates: Path) -> None:
    own = {"certificate": certificates / "server.pem", "key": certificates / "server.key"}
    ca, other = certificates / "ca.pem", certificates / "other-ca.pem"
    client = f"certificate={certificates / 'client.pem'}&key={certificates / 'client.key'}"
    stranger = f"certificate={certificates / 'stranger.pem'}&key={certificates / 'stranger.key'}"
    one_way, mutual = TlsFiles(**own), TlsFiles(ca=ca, **own)
    async with (
        serving(access=Access(listen="127.0.0.1:0", tls=one_way)) as tls,
        serving(access=Access(listen="127.0.0.1:0", tls=mutual)) as both,
        serving() as plain,
    ):
        await appended(f"wal+ssl://{tls.address}?ca={ca}")
        await appended(f"wal+ssl://{both.address}?ca={ca}&{client}")
        wrong = {
            f"wal+ssl://{tls.address}?ca={other}": "name the file of the server's authority with ca=",
            f"wal+ssl://{tls.address}": "name the file of the server's authority with ca=",
            f"wal+ssl://{both.address}?ca={ca}": "give one of its authority with certificate= and key=",
            f"wal+ssl://{both.address}?ca={ca}&{stranger}": "give one of its authority with certificate= and key=",
            f"wal://{tls.address}": "if it has TLS, connect with wal+ssl://",
            f"wal+ssl://{plain.address}?ca={ca}": "does not speak TLS on this port: connect with wal://",
        }
        for location, error in zip(wrong, await asyncio.gather(*map(refusal, wrong)), strict=True):
            assert isinstance(error, UnavailableError), location
            assert wrong[location] in str(error), location


async def test_files_that_cannot_be_read(certificates: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        await open_wal(f"wal+ssl://127.0.0.1:1?ca={certificates / 'none.pem'}")


async def test_tokens() -> None:
    async with serving(access=Access(listen="127.0.0.1:0", tokens=[Token(Secret("open")), Token(Secret("old"))])) as one:
        for token in ("open", "old"):
            async with open_wal(f"wal://{one.address}", token=token) as log:
                await log.vchannels()
        assert "has none" in str(await refusal(f"wal://{one.address}"))
        error = await refusal(f"wal://{one.address}", token="wrong")
        assert isinstance(error, AuthenticationError)
        assert "is not the server's" in str(error)


async def test_token_that_is_taken_back(data_dir: Path) -> None:
    """The server comes back without the token of its clients: appends, calls and readers end with an error about the token."""
    async with child(data_dir, WAL_SERVER_TOKEN="old") as first, open_wal(f"wal://{first.address}", token="old") as log:
        await log.raw_append(Message("orders", b"first"))
        async with log.read("orders") as scanner:
            assert (await anext(scanner)).payload == b"first"
            following = asyncio.ensure_future(anext(scanner))
            await first.kill()
            second = await Child.start(data_dir, listen=first.address, WAL_SERVER_TOKEN="new")
            try:
                await ends_with_the_reason(log, following)
            finally:
                await second.kill()


async def test_tokens_are_read_again_on_sighup(data_dir: Path, tmp_path: Path) -> None:
    """A removed token ends the client; a new token lets in; an unusable file changes nothing."""
    file = tmp_path / "tokens"
    file.write_text("a read,write,admin old\n")
    async with child(data_dir, "--token-file", str(file)) as server:
        location = f"wal://{server.address}"
        async with open_wal(location, token="old") as log:
            await log.raw_append(Message("orders", b"first"))
            async with log.read("orders") as scanner:
                assert (await anext(scanner)).payload == b"first"
                following = asyncio.ensure_future(anext(scanner))
                file.write_text("\n")
                server.process.send_signal(signal.SIGHUP)
                file.write_text("b read,write new\nc read report\n")
                server.process.send_signal(signal.SIGHUP)
                await asyncio.wait((following,), timeout=HANG_S)
                await ends_with_the_reason(log, following)
        async with open_wal(location, token="new") as log:
            last = await log.raw_append(Message("orders", b"second"))
            with pytest.raises(AuthenticationError, match="needs 'admin'"):
                await log.truncate(up_to=last.message_id)
        async with open_wal(location, token="report") as log:
            async with log.read("orders", follow=False, cursor="report") as scanner:
                assert [message.payload async for message in scanner] == [b"first", b"second"]
                await scanner.save()
            for append in (log.raw_append(Message("orders", b"no")), log.raw_append(Message("new", b"no"))):
                with pytest.raises(AuthenticationError, match="needs 'write'"):
                    await append
            with pytest.raises(AuthenticationError, match="needs 'write'"):
                async with log.txn("orders") as txn:
                    await txn.append(b"no")
        assert await server.stop() == 0


async def ends_with_the_reason(log: WALAccesser, following: asyncio.Future[Any]) -> None:
    words = "the token of this call is not the server's"
    async with asyncio.timeout(HANG_S):
        with pytest.raises(AuthenticationError, match=words):
            await log.raw_append(Message("orders", b"second"), idempotency_key="second")
        with pytest.raises(AuthenticationError, match=words):
            await log.vchannels()
        with pytest.raises(AuthenticationError, match=words):
            await log.broadcast().tasks()
        with pytest.raises(AuthenticationError, match=words):
            await following
