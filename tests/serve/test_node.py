"""A node from its start to its end: its states, who may reach it, and how it stops."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2

from tests.serve.servers import Child, Serving, connected, serving
from wal import errors
from wal.network import Method, TlsFiles
from wal.rpc.api.component_pb2 import GetComponentStatesRequest, Healthy
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.auth import Token
from wal.rpc.connection import Connection
from wal.rpc.draining import Draining
from wal.rpc.methods import COORDINATOR_STATES, NODE_STATES
from wal.runtime.secret import Secret
from wal.serve.access import Access
from wal.serve.hosted import Hosted

HEALTH: Any = Method("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse)
ASK = GetComponentStatesRequest()


async def test_both_states_and_the_health_are_well(connection: Connection) -> None:
    for method, role in ((COORDINATOR_STATES, "streamingcoord"), (NODE_STATES, "streamingnode")):
        states = await connection.call(method, ASK, "asking")
        assert (states.state.state_code, states.state.role, states.state.nodeID) == (Healthy, role, 1)
        assert states.status.error_code == 0
    for service in ("", "milvus.proto.streaming.StreamingNodeStateService"):
        answer = await connection.call(HEALTH, health_pb2.HealthCheckRequest(service=service), "asking")
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


async def test_wrong_pchannel_or_term_has_an_error_of_its_own(served: Serving) -> None:
    hosted = Hosted(served.log.node.pchannels)
    (info,) = hosted.infos()
    assert hosted.find(info) is hosted.find(PChannelInfo(name=info.name)) is served.log.node.pchannels[info.name]
    with pytest.raises(errors.ChannelNotExistError, match="'other' is not on this node, which has"):
        hosted.find(PChannelInfo(name="other", term=info.term))
    with pytest.raises(errors.UnmatchedChannelTermError, match=rf"in term {info.term}, not {info.term + 1}: ask"):
        hosted.find(PChannelInfo(name=info.name, term=info.term + 1))


async def test_token_is_asked_of_everybody_but_probes() -> None:
    async with serving(access=Access(listen="127.0.0.1:0", tokens=[Token(Secret("open"))])) as one:
        async with connected(one.address, token=Secret("open")) as connection:
            assert (await connection.call(NODE_STATES, ASK, "asking")).state.state_code == Healthy
        async with connected(one.address) as stranger:
            with pytest.raises(errors.AuthenticationError, match="with a token only"):
                await stranger.call(NODE_STATES, ASK, "asking")
            assert (await stranger.call(HEALTH, health_pb2.HealthCheckRequest(), "asking")).status


async def test_port_with_tls_takes_no_plaintext(certificates: Path) -> None:
    tls = TlsFiles(certificate=certificates / "server.pem", key=certificates / "server.key")
    async with serving(access=Access(listen="127.0.0.1:0", tls=tls)) as one:
        async with connected(one.address, tls=TlsFiles(ca=certificates / "ca.pem")) as connection:
            assert (await connection.call(NODE_STATES, ASK, "asking")).state.state_code == Healthy
        async with connected(one.address, timeout_s=1.0) as plain:
            with pytest.raises(errors.UnavailableError, match="no server is reachable"):
                await plain.call(NODE_STATES, ASK, "asking")


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.1:70000", ":1", "a b/c:1", "::1:80"])
def test_address_is_checked(listen: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match="is not an address: write HOST:PORT"):
        Access(listen=listen, insecure=True)


def test_beyond_loopback_tls_and_a_token_are_needed() -> None:
    tls, token = TlsFiles(certificate="a", key="b"), Token(Secret("open"))
    for listen in ("127.0.0.1:0", "127.3.2.1:1", "localhost:2", "[::1]:3"):
        Access(listen=listen)
    for listen in ("0.0.0.0:0", "[::]:0", "log.example:8810", "10.0.0.1:1"):
        for given, missing in (({}, "TLS or token"), ({"tls": tls}, "token"), ({"tokens": [token]}, "TLS")):
            with pytest.raises(errors.InvalidArgumentError, match=f"without {missing}:"):
                Access(listen=listen, advertise="log.example:8810", **given)
        Access(listen=listen, tls=tls, tokens=[token], advertise="log.example:8810")
        Access(listen=listen, insecure=True, advertise="log.example:8810")


def test_clients_are_told_an_address_that_they_can_reach() -> None:
    for listen in ("0.0.0.0:8810", "[::]:8810"):
        with pytest.raises(errors.InvalidArgumentError, match=r"is every interface.*give it with --advertise"):
            Access(listen=listen, insecure=True)
        for wrong in ("0.0.0.0:8810", "[::]:1", "log.example:0"):
            with pytest.raises(errors.InvalidArgumentError, match="cannot be connected to"):
                Access(listen=listen, insecure=True, advertise=wrong)
        with pytest.raises(errors.InvalidArgumentError, match=r"advertise='log\.example' is not an address"):
            Access(listen=listen, insecure=True, advertise="log.example")
    told = Access(listen="0.0.0.0:0", insecure=True, advertise="log.example:7")
    assert (told.address(5), told.advertised(5)) == ("0.0.0.0:5", "log.example:7")
    assert Access(listen="127.0.0.1:0").advertised(5) == "127.0.0.1:5"


async def test_port_in_use_is_an_error_and_leaves_nothing_open(served: Serving) -> None:
    with pytest.raises(errors.StorageError, match="nothing can listen at"):
        async with serving(access=Access(listen=served.address)):
            pass


async def test_stopping_node_refuses_calls_and_says_that_it_is_stopping() -> None:
    draining = Draining()
    ended: list[str] = []
    forget = draining.on_begin(lambda: ended.append("forgotten"))
    forget()
    draining.on_begin(lambda: ended.append("told"))
    draining.begin()
    draining.begin()
    draining.on_begin(lambda: ended.append("late"))
    assert (ended, draining.begun) == (["told", "late"], True)
    assert isinstance(draining.error(), errors.ClosedError)
    assert await draining.wait(1.0)


async def test_node_whose_end_is_cancelled_has_stopped(served: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its server would still run when it is garbage-collected, and the port would stay open."""
    draining = asyncio.Event()

    async def wait(_self: Draining, _timeout_s: float) -> bool:
        draining.set()
        return await asyncio.Event().wait()

    monkeypatch.setattr(Draining, "wait", wait)
    closing = asyncio.ensure_future(served.node.close())
    await draining.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    async with connected(served.address, timeout_s=1.0) as late:
        with pytest.raises(errors.UnavailableError, match="no server is reachable"):
            await late.call(NODE_STATES, ASK, "asking")
    monkeypatch.undo()


async def test_server_of_the_command_line_stops_with_0(server: Child) -> None:
    async with connected(server.address) as connection:
        assert (await connection.call(NODE_STATES, ASK, "asking")).state.state_code == Healthy
    assert await server.stop() == 0


async def test_certificate_and_tokens_are_renewed(certificates: Path) -> None:
    server, elsewhere = (
        TlsFiles(certificate=certificates / f"{name}.pem", key=certificates / f"{name}.key") for name in ("server", "elsewhere")
    )
    old, new = Token(Secret("old")), Token(Secret("new"))

    def access(tls: TlsFiles | None, *tokens: Token) -> Access:
        return Access(listen="127.0.0.1:0", tls=tls, tokens=tokens)

    mutual = TlsFiles(ca=certificates / "ca.pem", certificate=server.certificate, key=server.key)
    async with serving(access=access(server, old)) as one:
        port = int(one.address.rpartition(":")[2])
        for refused in (access(None, old), access(server), access(mutual, old)):
            with pytest.raises(errors.InvalidArgumentError, match="start it again"):
                await one.node.renew(refused)
        await one.node.renew(access(elsewhere, new))
        shown = await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", port))
        assert shown.strip() == (certificates / "elsewhere.pem").read_text().strip()
        await one.node.renew(access(server, new))
        tls = TlsFiles(ca=certificates / "ca.pem")
        async with connected(one.address, tls=tls, token=Secret("old")) as connection:
            with pytest.raises(errors.AuthenticationError):
                await connection.call(NODE_STATES, ASK, "asking")
        async with connected(one.address, tls=tls, token=Secret("new")) as connection:
            assert (await connection.call(NODE_STATES, ASK, "asking")).state.state_code == Healthy
