"""A Pulsar that renews the registration of its bookie without end is started again, as the tests that kill it need."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.pulsar import PulsarServer

pytestmark = pytest.mark.usefixtures("pulsar_host")


def server_that_renews(tmp_path: Path, times: int) -> PulsarServer:
    """Returns a server whose first `times` processes remove registrations for as long as they live."""
    server = PulsarServer(folder=tmp_path)
    started = tmp_path / "started"
    renew = "echo Deleted path: /ledgers/available/127.0.0.1:1"
    server.command = [
        "sh",
        "-c",
        f"echo x >> {started}; if [ $(wc -l < {started}) -le {times} ]; then for i in $(seq 100); do {renew}; done; fi; "
        f"touch {tmp_path}/ready; exec sleep 60",
    ]
    ready = tmp_path / "ready"
    server._is_ready = lambda: ready.exists() and ready.unlink() is None
    return server


def test_it_is_started_until_it_keeps_its_bookie(tmp_path: Path) -> None:
    server = server_that_renews(tmp_path, 2)
    with server:
        assert server.running
        assert (tmp_path / "started").read_text() == "x\n" * 3


def test_one_that_never_keeps_it_is_an_error(tmp_path: Path) -> None:
    server = server_that_renews(tmp_path, 100)
    with pytest.raises(RuntimeError, match="registration of its bookie without end, 5 times"):
        server.start()
    assert not server.running
