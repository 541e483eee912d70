"""Variables of the environment for other programs change nothing: no call of ours goes through a proxy."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.serve.servers import connected, serving
from tests.servers.process import free_ports
from wal import Secret, open_wal
from wal.errors import UnavailableError
from wal.network import endpoints
from wal.rpc.api.component_pb2 import GetComponentStatesRequest
from wal.rpc.methods import NODE_STATES
from wal.storage.archive.store import open_store
from wal.storage.kv.etcd import EtcdKV
from wal.storage.pulsar.address import PulsarAddress
from wal.storage.pulsar.admin import Admin


async def test_no_call_goes_through_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    proxies = (
        "http_proxy",
        "HTTP_PROXY",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
        "grpc_proxy",
        "no_proxy",
        "NO_PROXY",
        "no_grpc_proxy",
    )

    @contextlib.contextmanager
    def answering(status: int) -> Iterator[tuple[str, list[str]]]:
        """Runs a server of HTTP that answers every request with this status; yields its address, and the requests that it got."""
        requests: list[str] = []

        class Handler(http.server.BaseHTTPRequestHandler):
            def answer(self) -> None:
                requests.append(f"{self.command} {self.path} {self.headers.get('Authorization')}")
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.send_header("ETag", '"1"')
                self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
                self.end_headers()
                self.wfile.write(b"{}")

            do_GET = do_CONNECT = do_PUT = answer

            def log_message(self, format: str, *args: object) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            server.server_close()
            serving.join()

    with answering(404) as (proxy, seen), answering(200) as (target, direct):
        for name in proxies:
            monkeypatch.delenv(name, raising=False) if "no_" in name.lower() else monkeypatch.setenv(name, proxy)
        with pytest.raises(OSError, match="404"):
            await asyncio.to_thread(urllib.request.build_opener().open, target)  # urlopen keeps the opener of its first call
        assert seen.pop()  # a client that follows the environment

        admin = Admin(PulsarAddress("pulsar://127.0.0.1:1", admin_url=target, token=Secret("secret")))
        await asyncio.to_thread(admin.message_bytes_max)
        assert direct.pop().endswith("Bearer secret")

        for name, value in {
            "ENDPOINT": target,
            "ALLOW_HTTP": "true",
            "ACCESS_KEY_ID": "a",
            "SECRET_ACCESS_KEY": "b",
            "REGION": "r",
        }.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        store = await asyncio.to_thread(open_store, "s3://bucket/backups")
        assert await asyncio.to_thread(store.get, "1", 10) == b"{}"
        assert "AWS4-HMAC" in direct.pop()

        async with serving() as node, open_wal(f"wal://{node.address}") as log, connected(node.address) as connection:
            await log.append("v", b"1")
            await connection.call(NODE_STATES, GetComponentStatesRequest(), "asking")
        with pytest.raises(UnavailableError):
            async with await EtcdKV.open([f"127.0.0.1:{free_ports(1)[0]}"], root_path="r", timeout_s=0.1) as kv:
                await kv.load("a")
        assert not seen

        monkeypatch.setenv("AWS_PROXY_URL", proxy)  # a proxy for the store itself
        store = await asyncio.to_thread(open_store, "s3://bucket/backups")
        with pytest.raises(FileNotFoundError):
            await asyncio.to_thread(store.get, "1", 10)
        assert seen


async def test_names_are_resolved_anew_within_half_a_second() -> None:
    """A server that was restarted may have another address. gRPC holds a resolution for 30 s by default."""
    options: list[dict[str, Any]] = []

    class Channels(endpoints.Endpoints):
        def _channel(self, address: str) -> Any:
            options.append(dict(self._options))
            return None

    Channels(["a:1", "b:2"], credentials=None, probe=(NODE_STATES, None)).add("c:3")
    assert [each["grpc.dns_min_time_between_resolutions_ms"] for each in options] == [500] * 3
    assert [each["grpc.enable_http_proxy"] for each in options] == [0] * 3
