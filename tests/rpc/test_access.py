"""Tokens, TLS and mutual TLS, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import pytest

from tests.rpc.server import LISTING, WAIT_S, Server, connected, listed, serving
from tests.servers.process import free_ports
from wal.errors import AuthenticationError, InvalidArgumentError, UnavailableError
from wal.network import Method, ServerCertificate, TlsFiles
from wal.network.reach import LOOK_S
from wal.requests.rights import Right
from wal.rpc import auth, methods
from wal.rpc.api import frames_pb2
from wal.rpc.auth import RIGHTS, WARNING_PAUSE_S, Token, TokenCheck
from wal.rpc.headers import token_header
from wal.rpc.methods import MILVUS_PRODUCE, READ_FRAMES, SUBMIT
from wal.rpc.serving import add_handlers, listen
from wal.runtime.secret import Secret


async def test_token_lets_in_and_another_or_none_does_not() -> None:
    check = TokenCheck([Token(Secret("old")), Token(Secret("new"))], monotonic=time.monotonic)
    async with serving(Server(), interceptors=[check]) as port:
        for token in ("old", "new"):
            async with connected(port, token=Secret(token)) as connection:
                assert await listed(connection) == ["orders"]
                stream = await connection.stream(MILVUS_PRODUCE, "producing")
                assert await stream.read() is not None
                stream.cancel()
        for refused, words in ((Secret("other"), "is not the server's"), (None, "has none")):
            async with connected(port, token=refused) as connection:
                with pytest.raises(AuthenticationError, match=words) as answer:
                    await listed(connection)
                assert "other" not in str(answer.value)
                stream = await connection.stream(MILVUS_PRODUCE, "producing")
                with pytest.raises(InvalidArgumentError, match=words):
                    await stream.read()
                with pytest.raises(InvalidArgumentError, match=words):
                    async for _ in connection.responses(READ_FRAMES, frames_pb2.ReadFramesRequest(), "reading"):
                        pass


async def test_status_of_a_wrong_token_is_one_that_every_client_knows() -> None:
    async with (
        serving(Server(), interceptors=[TokenCheck([Token(Secret("a"))], monotonic=time.monotonic)]) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await channel.unary_unary(SUBMIT.path, **SUBMIT.serializers())(LISTING)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_check_needs_a_token_that_can_be_sent() -> None:
    with pytest.raises(InvalidArgumentError, match="without a token"):
        TokenCheck([], monotonic=time.monotonic)
    with pytest.raises(InvalidArgumentError, match="printable ASCII"):
        Token(Secret("ä"))


READER, WRITER = frozenset([Right.READ]), frozenset([Right.WRITE])


async def test_token_lets_in_as_far_as_its_rights_reach() -> None:
    check = TokenCheck([Token(Secret("r"), "report", READER), Token(Secret("w"), "shop", WRITER)], monotonic=time.monotonic)
    async with serving(Server(), interceptors=[check]) as port:
        async with connected(port, token=Secret("r")) as reader:
            assert await listed(reader) == ["orders"]
            stream = await reader.stream(MILVUS_PRODUCE, "producing")
            with pytest.raises(AuthenticationError, match=r"no right to .*Produce, which needs 'write'"):
                await stream.read()
        async with connected(port, token=Secret("w")) as writer:
            stream = await writer.stream(MILVUS_PRODUCE, "producing")
            assert await stream.read() is not None
            with pytest.raises(AuthenticationError, match="which needs 'read'"):
                await anext(writer.responses(READ_FRAMES, frames_pb2.ReadFramesRequest(), "reading"))
            stream.cancel()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                call = channel.unary_stream(READ_FRAMES.path, **READ_FRAMES.serializers())
                await call(frames_pb2.ReadFramesRequest(), metadata=[token_header(Secret("w"))]).read()
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_each_method_needs_one_right() -> None:
    every = [method.path for method in vars(methods).values() if isinstance(method, Method) and method is not SUBMIT]
    assert sorted(RIGHTS) == sorted(every)
    listed = [method.path for names in (auth._READS, auth._WRITES, auth._SERVES) for method in names]
    assert len(listed) == len(set(listed))


async def test_stream_ends_when_its_token_is_taken_back() -> None:
    old, new = Token(Secret("old"), "old"), Token(Secret("new"), "new")
    check = TokenCheck([old, new], monotonic=time.monotonic)
    async with (
        serving(Server(), interceptors=[check]) as port,
        connected(port, token=Secret("old")) as first,
        connected(port, token=Secret("new")) as second,
    ):
        streams = [await one.stream(MILVUS_PRODUCE, "producing") for one in (first, second)]
        for stream in streams:
            assert await stream.read() is not None
        check.renew([msgspec.structs.replace(new, rights=READER | WRITER)])
        with pytest.raises(AuthenticationError, match="is not the server's"):
            await streams[0].read()
        with pytest.raises(AuthenticationError):
            await listed(first)
        assert await listed(second) == ["orders"]
        check.renew([msgspec.structs.replace(new, rights=READER)])
        with pytest.raises(AuthenticationError):
            await streams[1].read()
        assert await listed(second) == ["orders"]


async def test_token_that_is_taken_back_while_the_request_arrives() -> None:
    check = TokenCheck([Token(Secret("old"))], monotonic=time.monotonic)

    class Taking(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpcio has no types
        """Takes the token back once the call was let in, before its handler begins."""

        async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
            handler = await continuation(details)
            check.renew([Token(Secret("new"))])
            return handler

    async with serving(Server(), interceptors=[check, Taking()]) as port, connected(port, token=Secret("old")) as connection:
        with pytest.raises(AuthenticationError, match="is not the server's"):
            await listed(connection)


async def test_refused_calls_are_told_at_most_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 100.0
    check = TokenCheck([Token(Secret("r"), "report", READER)], monotonic=lambda: now_s)
    async with serving(Server(), interceptors=[check]) as port, connected(port, token=Secret("wrong")) as connection:
        for _ in range(3):
            with pytest.raises(AuthenticationError):
                await listed(connection)
        now_s += WARNING_PAUSE_S
        with pytest.raises(AuthenticationError):
            await listed(connection)
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [line.partition(" was refused for its token")[2] for line in said] == [
        "",
        " (2 other calls were refused since the last such line)",
    ]
    assert all(line.startswith("a call from ipv4:127.0.0.1:") and "wrong" not in line for line in said)


async def test_certificate_is_renewed_while_a_server_runs(certificates: Path) -> None:
    async def shown(port: int) -> str:
        """Returns the certificate that a server shows, in PEM."""
        return (await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))).strip()

    names = ("server", "elsewhere")
    first, second = (TlsFiles(certificate=certificates / f"{name}.pem", key=certificates / f"{name}.key") for name in names)
    certificate = await ServerCertificate.of(first)
    server = grpc.aio.server()
    add_handlers(server, Server().handlers())
    port = await listen(server, "127.0.0.1:0", tls=certificate)
    await server.start()
    try:
        async with connected(port, tls=TlsFiles(ca=certificates / "ca.pem")) as connection:
            assert await listed(connection) == ["orders"]
            for wrong in (
                TlsFiles(certificate=first.certificate, key=second.key),
                msgspec.structs.replace(second, ca=certificates / "ca.pem"),
            ):
                with pytest.raises(InvalidArgumentError):
                    await certificate.renew(wrong)
            assert await shown(port) == (certificates / "server.pem").read_text().strip()
            await certificate.renew(second)
            assert await shown(port) == (certificates / "elsewhere.pem").read_text().strip()
            assert await listed(connection) == ["orders"], "a connection that has begun stays"
    finally:
        await server.stop(None)


async def test_tls_and_mutual_tls(certificates: Path) -> None:
    own = {"certificate": certificates / "server.pem", "key": certificates / "server.key"}
    ca = certificates / "ca.pem"
    client = TlsFiles(ca=ca, certificate=certificates / "client.pem", key=certificates / "client.key")
    stranger = TlsFiles(ca=ca, certificate=certificates / "stranger.pem", key=certificates / "stranger.key")
    distrusting = TlsFiles(ca=certificates / "other-ca.pem")
    async with serving(Server(), tls=TlsFiles(**own)) as port:
        for tls in (TlsFiles(ca=ca), client):
            async with connected(port, tls=tls) as connection:
                assert await listed(connection) == ["orders"]
        await refused(port, distrusting, "not of an authority that this client trusts: name the file")
        await refused(port, None, "if it has TLS, connect with wal")
        async with connected(port, tls=TlsFiles(ca=ca), host="localhost") as connection:
            assert await listed(connection) == ["orders"]
    async with serving(Server(), tls=TlsFiles(ca=ca, **own)) as port:
        async with connected(port, tls=client) as connection:
            assert await listed(connection) == ["orders"]
        for wrong in (TlsFiles(ca=ca), stranger, None):
            await refused(port, wrong, "if it asks its clients for certificates, give one")
    async with serving(Server()) as port:
        await refused(port, client, "does not speak TLS on this port: connect with wal://")
    elsewhere = {"certificate": certificates / "elsewhere.pem", "key": certificates / "elsewhere.key"}
    async with serving(Server(), tls=TlsFiles(**elsewhere)) as port:
        await refused(port, TlsFiles(ca=ca), "certificate is of another host: connect by a name")


async def test_port_of_a_web_server_is_told_at_once() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        await refused(server.sockets[0].getsockname()[1], None, "does not speak gRPC: is it the right port?")


async def refused(port: int, tls: TlsFiles | None, words: str) -> None:
    """Checks that a client learns, long before its deadline, from whom it gets no connection, and what to do."""
    began = time.monotonic()
    async with connected(port, tls=tls) as connection:
        with pytest.raises(UnavailableError, match=rf"tried 127.0.0.1:{port}: .+{words}"):
            await listed(connection)
    assert time.monotonic() - began < WAIT_S / 3


async def test_server_that_was_reached_once_is_waited_for(certificates: Path) -> None:
    """It may be restarting, and something else may have its port meanwhile."""
    own = {"certificate": certificates / "server.pem", "key": certificates / "server.key"}
    async with contextlib.AsyncExitStack() as stack:
        address = f"127.0.0.1:{free_ports(1)[0]}"
        port = await stack.enter_async_context(serving(Server(), tls=TlsFiles(**own), address=address))
        async with connected(port, tls=TlsFiles(ca=certificates / "ca.pem")) as connection:
            await listed(connection)
            await stack.aclose()
            async with serving(Server(), address=address):
                waiting = asyncio.ensure_future(listed(connection))
                await asyncio.wait([waiting], timeout=3 * LOOK_S)
                assert not waiting.done()
            async with serving(Server(), address=address, tls=TlsFiles(**own)):
                assert await waiting == ["orders"]


async def test_server_with_tls_needs_a_certificate(certificates: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="a server with TLS needs a certificate"):
        await ServerCertificate.of(TlsFiles(ca=certificates / "ca.pem"))
    missing = TlsFiles(certificate=certificates / "no.pem", key=certificates / "server.key")
    with pytest.raises(InvalidArgumentError, match=r"no\.pem' cannot be read"):
        await ServerCertificate.of(missing)
