"""Fixtures for streams on Pulsar: a namespace that keeps acknowledged messages, and a medium there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest

from tests.servers.pulsar_fixtures import keeping_namespace
from tests.storage.pulsar.conftest import pulsar_server, token_of  # noqa: F401 - a fixture
from wal.storage.pulsar.address import PulsarAddress
from wal.streams.msgstream import MediumConsumer, Outgoing, Received
from wal.streams.msgstream.media.pulsar import PulsarMedium

WAIT_S = 60


def kept_namespace(server: PulsarAddress) -> PulsarAddress:
    """Creates an empty namespace that keeps all messages, for seeks and for subscriptions that come later."""
    namespace = keeping_namespace(server.admin, token_of(server)).partition("/")[2]
    return msgspec.structs.replace(server, namespace=namespace)


@pytest.fixture
def kept(pulsar_server: PulsarAddress) -> PulsarAddress:  # noqa: F811
    return kept_namespace(pulsar_server)


@pytest.fixture
async def medium(kept: PulsarAddress) -> AsyncIterator[PulsarMedium]:
    found = PulsarMedium(kept)
    yield found
    await found.close()


def outgoing(payloads: Sequence[bytes]) -> list[Outgoing]:
    return [Outgoing(payload, 400) for payload in payloads]


async def received(consumer: MediumConsumer, count: int, *, at_once: int = 1_024) -> list[Received]:
    """Returns the next messages, at least this many."""
    found: list[Received] = []
    async with asyncio.timeout(WAIT_S):
        while len(found) < count:
            found += await consumer.receive(at_once)
    return found
