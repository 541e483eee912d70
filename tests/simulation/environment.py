"""What the product imports, replaced for a run: clocks, chance, threads, gRPC, and the storage of a cluster's log.

Only what leaves the process is replaced. `install` changes modules for good, so a run has a (forked) process to itself.
"""

from __future__ import annotations

import concurrent.futures
import os
import random
import secrets
import time
import uuid
from typing import Any

import grpc.aio

import wal.network.endpoints
import wal.node.session
import wal.operate.processes.opening
import wal.rpc.serving
import wal.serve.server
from actors import SystemClock
from tests.simulation.broker import Broker, SharedLogBackend
from tests.simulation.grpc_channel import Channel
from tests.simulation.grpc_server import Server
from tests.simulation.loop import SimulatedLoop, SimulatedThread, WorkerFuture, running
from tests.simulation.network import Network
from wal.channels.metadata import open_metadata
from wal.location import Location
from wal.node.local.storage import Storage, Undo, _limits
from wal.settings import Settings


class _QuietWatch:
    """In place of the watch of descriptors and memory: a simulated process has none of its own."""

    def __init__(self, _most: int, **_: object) -> None: ...

    async def start(self) -> None: ...

    async def close(self) -> None: ...


def install(loop: SimulatedLoop, network: Network, broker: Broker) -> None:
    """Replaces everything that is outside of the simulated processes."""
    running(loop)
    chance = random.Random(loop.random.random())
    clock: Any = time
    clock.monotonic = loop.time
    clock.time = loop.wall
    clock.clock_gettime = lambda _which: loop.time()
    system: Any = SystemClock
    system.monotonic = staticmethod(loop.time)
    system.wall = staticmethod(loop.wall)
    for module, name, made in (
        (uuid, "uuid4", lambda: uuid.UUID(int=chance.getrandbits(128), version=4)),
        (secrets, "token_hex", lambda size=32: chance.randbytes(size).hex()),
        (secrets, "token_bytes", lambda size=32: chance.randbytes(size)),
        (secrets, "randbits", chance.getrandbits),
        (os, "urandom", chance.randbytes),
    ):
        setattr(module, name, made)
    futures: Any = concurrent.futures
    futures.Future = WorkerFuture
    product: Any = wal
    product.node.session.LoopThread = SimulatedThread
    product.serve.server.ProcessWatch = _QuietWatch
    product.network.endpoints._keep_poller = lambda: None
    product.rpc.serving.check_free = _is_free
    library: Any = grpc.aio
    library.insecure_channel = lambda address, options=(): Channel(address, options)
    library.server = lambda interceptors=(), options=(): Server(interceptors=interceptors, options=options)
    Channel.network = Server.network = network

    async def open_storage(_location: Location, settings: Settings, undo: Undo, *, create: bool) -> Storage:
        assert settings.kv is not None, "a cluster has a root"
        kv = await open_metadata(settings.kv)
        undo.add(kv.close)
        backend = SharedLogBackend(broker)
        undo.add(backend.close)
        await backend.start()
        return Storage(backend, kv, limits=_limits(settings, backend), held=None)

    product.operate.processes.opening.open_storage = open_storage


async def _is_free(_address: str) -> None:
    """Every simulated process has an address of its own."""
