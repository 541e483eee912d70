"""Link: a TCP proxy to one server of a cluster. It identifies the process of each connection, and cuts single processes off."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.outages.proxy import READ_BYTES


class Link:
    """Forwards connections to a port of this machine. Use it with `async with`; `address` is its own address.

    `processes` returns the processes that may be cut off. Connections of others always continue.
    """

    def __init__(self, port: int, processes: Callable[[], Iterable[int]]) -> None:
        self.address: str = ""
        self.port = port
        """The port to which it forwards; it may be set before the first connection."""
        self._processes = processes
        self._flowing: defaultdict[int, asyncio.Event] = defaultdict(_set_event)
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Link:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self, process: int) -> None:
        """Stops forwarding from and to this process, also on new connections; the connections stay open."""
        self._flowing[process].clear()

    def mend(self) -> None:
        """Resumes forwarding, starting with the data that was held back."""
        for flowing in self._flowing.values():
            flowing.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        writers = [writer]
        try:
            port = writer.get_extra_info("peername")[1]
            process = await asyncio.to_thread(_owner_of, port, list(self._processes()))
            flowing = self._flowing[process]
            await flowing.wait()
            onward_reader, onward = await asyncio.open_connection("127.0.0.1", self.port)
            writers.append(onward)
            ways = ((reader, onward), (onward_reader, writer))
            forwarding = [asyncio.ensure_future(_forward(source, target, flowing)) for source, target in ways]
            try:
                await asyncio.wait(forwarding, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in forwarding:
                    one.cancel()
                await asyncio.gather(*forwarding, return_exceptions=True)
        except OSError:
            pass
        finally:
            for each in writers:
                each.close()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flowing: asyncio.Event) -> None:
    while data := await reader.read(READ_BYTES):
        await flowing.wait()
        writer.write(data)
        await writer.drain()


def _owner_of(port: int, processes: Iterable[int]) -> int:
    """Returns which of these processes has a TCP socket of this machine with this local port, or 0."""
    end = f":{port:04X}"
    rows = map(str.split, Path("/proc/net/tcp").read_text().splitlines()[1:])
    sockets = {f"socket:[{row[9]}]" for row in rows if row[1].endswith(end)}
    for process in processes:
        with contextlib.suppress(OSError), os.scandir(f"/proc/{process}/fd") as descriptors:
            for descriptor in descriptors:
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor.path) in sockets:
                        return process
    return 0


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event
