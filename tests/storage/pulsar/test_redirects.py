"""A broker that does not own the namespace redirects requests to its admin REST: they are repeated with method, body and token."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.storage.pulsar.conftest import location_of
from wal import Message, open_wal
from wal.errors import StorageError
from wal.storage.pulsar.address import PulsarAddress
from wal.storage.pulsar.admin import REDIRECTS_MAX, Admin


@contextlib.contextmanager
def redirecting(target: str | None, *, status: int = 307) -> Iterator[tuple[str, list[str]]]:
    """Runs a server that redirects every request to `target`, or to itself; yields its address and the requests it saw."""
    seen: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen.append(f"{self.command} {self.path}")
            self.send_response(status)
            self.send_header("Location", (target or address) + self.path + ("" if target else "x"))
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_PUT = do_POST = answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield address, seen
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("status", [307, 308])
async def test_log_opens_through_brokers_that_redirect(address: PulsarAddress, tmp_path: Path, status: int) -> None:
    with redirecting(address.admin, status=status) as (second, _), redirecting(second) as (first, seen):
        location, settings = location_of(msgspec.structs.replace(address, admin_url=first), tmp_path / "kv")
        async with open_wal(location, **settings) as log:
            await log.raw_append(Message("v", b"1"))
            async with log.read("v", follow=False) as scanner:
                assert [message.payload async for message in scanner] == [b"1"]
    assert {line.partition(" ")[0] for line in seen} >= {"GET", "PUT"}


def test_body_is_sent_again(address: PulsarAddress) -> None:
    topic = address.topic("p")
    Admin(address).make_topic(topic)
    with redirecting(address.admin) as (first, seen):
        Admin(msgspec.structs.replace(address, admin_url=first)).disable_deduplication(topic)
    assert [line.partition(" ")[0] for line in seen] == ["POST"]


def test_redirects_in_a_circle_end(address: PulsarAddress) -> None:
    with redirecting(None) as (first, seen):
        admin = Admin(msgspec.structs.replace(address, admin_url=first))
        with pytest.raises(StorageError, match="307"):
            admin.make_topic(address.topic("p"))
    assert len(seen) == REDIRECTS_MAX + 1


def test_token_is_not_sent_without_tls() -> None:
    import urllib.request

    from wal.storage.pulsar.admin import _Redirects

    secret = urllib.request.Request("https://one/admin", headers={"Authorization": "Bearer t"}, method="PUT")
    rule = _Redirects()
    with pytest.raises(StorageError, match="not sent without TLS"):
        rule.redirect_request(secret, None, 307, "", {}, "http://two/admin")
    found = rule.redirect_request(secret, None, 307, "", {}, "https://two/admin")
    assert found is not None
    assert (found.get_method(), found.get_header("Authorization")) == ("PUT", "Bearer t")
