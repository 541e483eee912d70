"""Processes that exit while threads of Pulsar's client still end: whether they closed their logs or not, they exit with their own status
and print nothing. A thread of the client that entered Python then would abort the process."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.conftest import SOAK
from tests.storage.pulsar.conftest import location_of, new_namespace, token_of
from tests.storage.pulsar.processes import run_each
from wal.storage.pulsar.address import PulsarAddress

TOGETHER: Final = 3 if SOAK else 1
CONNECTIONS: Final = 32
"""Connections in addition to the log's, closed all at once, so that many client threads end at about the same time as the process."""
STATUS: Final = 3
"""The exit status of the processes."""

COMMON: Final = """
import asyncio, json, logging, sys, threading
from wal import Message, Secret, open_wal
from wal.storage.pulsar.address import PulsarAddress
from wal.storage.pulsar.connection import PulsarConnection
from wal.settings import Settings

given = json.load(sys.stdin)
opening = open_wal(given["location"], settings=Settings().replace(**given["settings"]))
address, topic = given["address"], given["topic"]
address = PulsarAddress(**{**address, "token": address["token"] and Secret(address["token"])})

async def load(log):
    await asyncio.gather(*(log.raw_append(Message(f"v-{n % 4}", b"x" * 100)) for n in range(100)))
"""
CLOSED: Final = f"""{COMMON}
together = threading.Barrier({CONNECTIONS} + 1)

def use(connection):
    connection.start()
    connection.producer(topic, fencing=False).send(b"x")
    together.wait()
    connection.abandon()

async def main():
    async with opening as log:
        await load(log)

threads = [threading.Thread(target=use, args=(PulsarConnection(address),)) for _ in range({CONNECTIONS})]
for thread in threads:
    thread.start()
asyncio.run(main())
together.wait()
for thread in threads:
    thread.join()
sys.exit({STATUS})
"""
LEFT_OPEN: Final = f"""{COMMON}
loop = asyncio.new_event_loop()
kept = []

async def endless(log):
    while True:
        await load(log)

async def main():
    log = await opening
    await log.raw_append(Message("v-0", b"first"))
    kept.append((log, loop.create_task(endless(log))))
    await log.raw_append(Message("v-0", b"last"))  # the loop stands still from here on, and much is on its way

loop.run_until_complete(main())
sys.exit({STATUS})
"""
LOGGING: Final = f"""{COMMON}
async def main():
    async with opening as log:
        await load(log)

logging.basicConfig(stream=sys.stdout, level=logging.DEBUG, format="%(name)s %(levelname)s %(threadName)s %(message)s")
asyncio.run(main())
sys.exit({STATUS})
"""


def run_together(script: str, server: PulsarAddress, tmp_path: Path, *, processes: int) -> list[tuple[int, str, str]]:
    """Runs the processes; returns the status, stdout and stderr of each."""
    inputs = []
    for number in range(processes):
        address = new_namespace(server)
        location, settings = location_of(address, tmp_path / f"kv-{number}")
        given: dict[str, Any] = {
            "location": location,
            "settings": settings,
            "address": {"service_url": address.service_url, "admin_url": address.admin, "token": token_of(address)},
            "topic": address.topic("more"),
        }
        inputs.append(given)
    return run_each(script, inputs)


@pytest.mark.one_loop
def test_process_exits_right_after_its_close(pulsar_server: PulsarAddress, tmp_path: Path) -> None:
    ended = run_together(CLOSED, pulsar_server, tmp_path, processes=TOGETHER)
    assert ended == [(STATUS, "", "")] * TOGETHER


@pytest.mark.one_loop
def test_process_can_exit_with_its_logs_open(pulsar_server: PulsarAddress, tmp_path: Path) -> None:
    ended = run_together(LEFT_OPEN, pulsar_server, tmp_path, processes=TOGETHER)
    assert ended == [(STATUS, "", "")] * TOGETHER


@pytest.mark.one_loop
def test_client_logs_through_a_thread_of_python(pulsar_server: PulsarAddress, tmp_path: Path) -> None:
    [(status, said, errors)] = run_together(LOGGING, pulsar_server, tmp_path, processes=1)
    assert (status, errors) == (STATUS, "")
    lines = [line for line in said.splitlines() if line.startswith("wal.pulsar ")]
    assert any("Connected to broker" in line for line in lines), said
    assert {line.split()[1:3] == ["DEBUG", "wal-pulsar-log"] for line in lines} == {True}, said
