"""Processes that fork, and processes that exit with streams open or closed: they exit with their own status and print nothing."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.conftest import SOAK
from tests.storage.pulsar.conftest import token_of
from tests.storage.pulsar.processes import run_each
from tests.streams.msgstream.pulsar.conftest import kept_namespace
from wal.storage.pulsar.address import PulsarAddress

TOGETHER: Final = 3 if SOAK else 1
STATUS: Final = 3
"""The exit status of the processes."""

COMMON: Final = """
import asyncio, json, os, sys
from wal import Secret
from wal.errors import InvalidArgumentError
from wal.streams.msgstream import InsertMsg, MsgPack, TimeTickMsg
from wal.streams.msgstream.media.pulsar import PulsarMsgStream, PulsarTtMsgStream
from wal.storage.pulsar.address import PulsarAddress

given = json.load(sys.stdin)
address = PulsarAddress(**{**given, "token": given["token"] and Secret(given["token"])})

def pack(tick):
    return MsgPack([InsertMsg([tick], [tick], [b"x" * 100], hash_keys=[0])] * 100)

async def opened():
    writer, plain, ticked = PulsarMsgStream(address), PulsarMsgStream(address), PulsarTtMsgStream(address)
    await writer.as_producer(["a"])
    await plain.as_consumer(["a"], "plain")
    await ticked.as_consumer(["a"], "ticked")
    await writer.produce(pack(1))
    await writer.broadcast(MsgPack([TimeTickMsg(1)]))
    assert len((await ticked.consume()).msgs) == 100
    assert await plain.consume() is not None
    return writer, plain, ticked
"""
CLOSED: Final = f"""{COMMON}
async def main():
    for stream in await opened():
        await stream.close()

asyncio.run(main())
sys.exit({STATUS})
"""
LEFT_OPEN: Final = f"""{COMMON}
loop = asyncio.new_event_loop()
kept = []

async def endless(stream, call):
    while True:
        await call(stream)

async def main():
    writer, plain, ticked = await opened()
    kept.append([loop.create_task(endless(writer, lambda stream: stream.produce(pack(2)))) for _ in range(20)])
    kept.append([loop.create_task(endless(stream, lambda stream: stream.consume())) for stream in (plain, ticked)])
    await asyncio.sleep(0.05)  # the loop stands still from here on, and much is on its way

loop.run_until_complete(main())
sys.exit({STATUS})
"""
FORKED: Final = f"""{COMMON}
loop = asyncio.new_event_loop()
streams = loop.run_until_complete(opened())
child = os.fork()
if child == 0:
    for stream in streams:  # a call of the parent's client would wait for ever for threads that are not in this process
        connection = stream._medium._connection
        try:
            connection.client
        except InvalidArgumentError as error:
            assert "forked" in str(error), error
        else:
            raise AssertionError("the parent's client can be used")
        connection.abandon()

    async def anew():
        for stream in (writer := PulsarMsgStream(address), reader := PulsarMsgStream(address)):
            await (stream.as_producer(["b"]) if stream is writer else stream.as_consumer(["b"], "child"))
        await writer.produce(pack(2))
        read = 0
        while read < 100:
            read += len((await reader.consume()).msgs)
        await reader.close()
        await writer.close()

    asyncio.run(anew())
    sys.exit({STATUS})
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == {STATUS}
for stream in streams:
    loop.run_until_complete(stream.close())
sys.exit({STATUS})
"""


def run_together(script: str, server: PulsarAddress, *, processes: int) -> list[tuple[int, str, str]]:
    """Runs the processes; returns the status, stdout and stderr of each."""
    inputs = []
    for _ in range(processes):
        address = kept_namespace(server)
        given: dict[str, Any] = {
            "service_url": address.service_url,
            "namespace": address.namespace,
            "admin_url": address.admin,
            "token": token_of(address),
        }
        inputs.append(given)
    return run_each(script, inputs)


@pytest.mark.one_loop
def test_process_exits_after_closing_its_streams(pulsar_server: PulsarAddress) -> None:
    assert run_together(CLOSED, pulsar_server, processes=TOGETHER) == [(STATUS, "", "")] * TOGETHER


@pytest.mark.one_loop
def test_process_can_exit_with_its_streams_open(pulsar_server: PulsarAddress) -> None:
    assert run_together(LEFT_OPEN, pulsar_server, processes=TOGETHER) == [(STATUS, "", "")] * TOGETHER


@pytest.mark.one_loop
def test_forked_child_cannot_use_its_parents_streams(pulsar_server: PulsarAddress) -> None:
    assert run_together(FORKED, pulsar_server, processes=1) == [(STATUS, "", "")]
