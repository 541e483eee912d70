"""Serving: W11, a log on the network beside the log in the caller's process, bare gRPC, and JetStream.

A server is a process of its own, and so is each client; they communicate over loopback. One client is the cell's process. More clients are
started by it, begin together, and are added up. Processor time is that of all processes, server included. The embedded log and JetStream
have the same writers: each message is awaited until it is synced to disk, JetStream with `sync_interval: always`.

`one message` is a client of Milvus' form of Produce, a request for each message. `echo` sends the same bytes through a bare bidirectional
stream of grpc.aio, which sends them back. The difference between the two is the log.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks import engines, reading
from benchmarks.cell import Cell, Measured, payload
from benchmarks.process_tree import tree_cpu_s
from benchmarks.stores import log_path, vchannel_name
from benchmarks.writing import Load, closed_loops
from wal import Message, open_wal

_ROOT: Final = Path(__file__).parents[1]
_READY: Final = b"ready\n"


async def measure(cell: Cell) -> Measured:
    """Runs the cell in this loop, beside the server that its engine needs."""
    row = cell.row
    if cell.engine == "prepare":
        await reading.write_log(log_path(cell.directory), row, row.frame_messages, row.messages, row.vchannels)
        return Measured()
    if (reason := why_not(cell.engine)) is not None:
        return Measured(skipped=reason)
    with server(cell) as address:
        if row.clients > 1:
            return await _many_clients(cell, address)
        if row.readers:
            async with open_wal(_location(cell, address)) as log:
                return await reading.timed(cell, lambda: reading.pages(log), cpu=tree_cpu_s)
        async with _load(cell, address) as load:
            return await closed_loops(cell, load)


def why_not(engine: str) -> str | None:
    """Returns the reason why this engine cannot be measured here; None when it can."""
    if importlib.util.find_spec("grpc") is None:
        return "there is no grpcio: install the extra cluster"
    if engine == engines.JETSTREAM:
        if importlib.util.find_spec("nats") is None:
            return "there is no nats-py: install the dependency group bench"
        from tests.servers.cache import MissingServerError
        from tests.servers.nats import find_nats

        try:
            find_nats()
        except MissingServerError as error:
            return str(error).splitlines()[0]
    return None


# -- servers


@contextlib.contextmanager
def server(cell: Cell) -> Iterator[str]:
    """Runs the server of an engine; yields its address, or nothing for the embedded log."""
    if cell.engine == "wal":
        yield ""
    elif cell.engine == engines.JETSTREAM:
        from tests.servers.nats import NatsServer

        with NatsServer(folder=Path(cell.directory) / "nats") as server:
            yield server.address
    elif cell.engine == engines.ECHO:
        with child("benchmarks.grpc_echo") as address:
            yield address
    else:
        with child("wal", "standalone", str(log_path(cell.directory)), "--listen", "127.0.0.1:0") as address:
            yield address


@contextlib.contextmanager
def child(*command: str) -> Iterator[str]:
    """Runs a module that prints `listening on HOST:PORT`; yields that address."""
    with subprocess.Popen([sys.executable, "-m", *command], cwd=_ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        try:
            line = child.stdout.readline().decode()
            if not line.startswith("listening on "):
                raise RuntimeError(f"{' '.join(command)} ended with {child.wait()} before it listened")
            yield line.removeprefix("listening on ").strip()
        finally:
            child.terminate()


# -- clients


def _location(cell: Cell, address: str) -> str:
    return f"wal://{address}" if address else str(log_path(cell.directory))


@contextlib.asynccontextmanager
async def _load(cell: Cell, address: str) -> AsyncIterator[Load]:
    """Yields the repeated call of each writer."""
    data, name = payload(cell.row), vchannel_name(0)
    if cell.engine == engines.JETSTREAM:
        async with open_jetstream(address) as stream:
            yield Load(lambda writer: stream.publish(name, data), 1, None, cpu=tree_cpu_s)
    elif cell.engine in (engines.ONE_MESSAGE, engines.ECHO):
        from benchmarks.one_message import open_stream

        async with open_stream(address, name, data, echo=cell.engine == engines.ECHO) as send:
            yield Load(lambda writer: send(), 1, None, cpu=tree_cpu_s)
    else:
        async with open_wal(_location(cell, address)) as log:
            yield Load(lambda writer: log.raw_append(Message(name, data)), 1, None, cpu=tree_cpu_s)


@contextlib.asynccontextmanager
async def open_jetstream(address: str) -> AsyncIterator[Any]:
    """Yields JetStream with a stream for the subject of the messages; its acks come after the sync."""
    import nats

    client = await nats.connect(f"nats://{address}")
    try:
        stream = client.jetstream()
        await stream.add_stream(name="orders", subjects=[vchannel_name(0)], storage="file")
        yield stream
    finally:
        await client.close()


async def _many_clients(cell: Cell, address: str) -> Measured:
    """Runs the clients as processes, each with all writers of the row; their rates over the same seconds are added up."""
    order = msgspec.json.encode(cell).decode()
    clients = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "benchmarks.serving", address, order, cwd=_ROOT,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(cell.row.clients)
    ]  # fmt: skip
    try:
        for client in clients:
            if await _pipe(client.stdout).readline() != _READY:
                raise RuntimeError(f"a client ended with {await client.wait()} before it was ready")
        cpu, began = tree_cpu_s(), time.perf_counter()
        for client in clients:
            _pipe(client.stdin).write(b"go\n")
        results = [msgspec.json.decode(await _pipe(client.stdout).readline(), type=Measured) for client in clients]
        seconds, cpu = time.perf_counter() - began, tree_cpu_s() - cpu
        for client in clients:
            await client.wait()
    finally:
        for client in clients:
            if client.returncode is None:
                client.kill()
    messages = sum(one.messages for one in results)
    rate = sum(one.rate or 0.0 for one in results)
    waits = [one.p99_s for one in results if one.p99_s is not None]
    return Measured(
        messages=messages,
        seconds=seconds,
        rate=rate,
        p99_s=max(waits, default=None),
        cpu_s=cpu,
        payload_bytes=messages * cell.row.payload_bytes,
    )


def _pipe(stream: Any) -> Any:
    assert stream is not None
    return stream


async def _client(address: str, cell: Cell) -> None:
    """Runs one of several clients: it reports that it is ready, waits for the start, writes, and prints its measurement."""
    async with open_wal(f"wal://{address}") as log:
        data, name = payload(cell.row), vchannel_name(0)
        await log.append_bulk([Message(name, data)] * cell.row.writers)
        sys.stdout.buffer.write(_READY)
        sys.stdout.buffer.flush()
        await asyncio.to_thread(sys.stdin.buffer.readline)
        result = await closed_loops(cell, Load(lambda writer: log.raw_append(Message(name, data)), 1, None))
    sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    import uvloop

    uvloop.run(_client(sys.argv[1], msgspec.json.decode(sys.argv[2], type=Cell)))


if __name__ == "__main__":
    main()
