"""A Pulsar that was killed starts again with its bookie, as the tests that kill it need."""

from __future__ import annotations

from tests.servers.pulsar import PulsarServer


def test_killed_server_finds_no_registration_of_its_bookie(pulsar_process: PulsarServer) -> None:
    size = pulsar_process.log.stat().st_size
    pulsar_process.restart()
    with pulsar_process.log.open("rb") as log:
        log.seek(size)
        assert b"Deleted path: /ledgers/available" not in log.read()
