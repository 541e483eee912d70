"""Proxy: a TCP proxy between a client and a server, which cuts, delays and stalls their connections."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from typing import Final

READ_BYTES: Final = 1 << 16
HEAD_BYTES: Final = 9
"""The size of the head of a frame of HTTP/2: the length of what follows it in three bytes, the type in one, and more (RFC 9113, 4.1)."""
HEADERS: Final = 1
RST_STREAM: Final = 3
GOAWAY: Final = 7
"""Types of frames (RFC 9113, 6)."""
_RESET: Final = struct.pack("ii", 1, 0)
"""The value of SO_LINGER with which closing a socket sends a reset."""


class Proxy:
    """Forwards TCP connections to a port of this machine. Use it with `async with`; `address` is where it listens."""

    def __init__(self, port: int, *, rng: random.Random | None = None) -> None:
        self.address: str = ""
        self.delay_s: float = 0.0
        """The maximum delay of each piece; the order of the pieces stays."""
        self.refusing: bool = False
        """Whether new connections are reset at once."""
        self.ends = asyncio.Event()
        """Set while the end of a connection is forwarded too; while it is cleared, only bytes are."""
        self.ends.set()
        self.accepted = 0
        """How many connections were accepted so far."""
        self._port = port
        self._rng = rng or random.Random(random.getrandbits(32))
        self._links: set[_Link] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*(link.task for link in self._links), return_exceptions=True)

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._links)

    def cut(self) -> None:
        """Resets all connections on both sides; bytes on their way are lost."""
        for link in self._links:
            link.task.cancel()

    def cut_after(self, bytes_max: int, *, up: bool) -> None:
        """Resets each connection after a random number of further bytes, to the server (`up`) or from it; this may be within a frame."""
        for link in self._links:
            link.left[up] = self._rng.randrange(bytes_max)

    def stall(self) -> None:
        """Forwards nothing any more on the connections that are open now, without ending them. New connections are not affected."""
        for link in self._links:
            link.flowing[True].clear()
            link.flowing[False].clear()

    def stall_one_way(self, *, up: bool) -> None:
        """Forwards nothing any more to the server (`up`), or from it."""
        for link in self._links:
            link.flowing[up].clear()

    def flow(self, *, up: bool | None = None) -> None:
        """Forwards the bytes that a stall has held back, in both directions or in one."""
        for link in self._links:
            for way in (True, False) if up is None else (up,):
                link.flowing[way].set()

    def deliver_late(self) -> None:
        """Delivers to the server what a stall holds back, but loses everything from the first frame on that gives up a call in it.

        A network does that when it delays a connection, and the client's machine is cut off before the rest is sent again.
        """
        for link in self._links:
            if not link.flowing[True].is_set():
                link.late = True
                link.flowing[True].set()

    def end_one_way(self, *, up: bool) -> None:
        """Half-closes each connection towards the server (`up`), or the client. The other direction stays open."""
        for link in self._links:
            link.end(up=up)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.refusing:
            _reset(writer)
            return
        try:
            onward = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            _reset(writer)
            return
        link = _Link(self, {True: (reader, onward[1]), False: (onward[0], writer)})
        self._links.add(link)
        link.task.add_done_callback(lambda _: self._links.discard(link))

    async def held_up(self) -> None:
        """Waits as long as a piece is held up."""
        if self.delay_s:
            await asyncio.sleep(self._rng.random() * self.delay_s)


class _Link:
    """A connection, with both of its directions by `up`."""

    def __init__(self, proxy: Proxy, ways: dict[bool, tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
        self.flowing = {True: asyncio.Event(), False: asyncio.Event()}
        self.left: dict[bool, int | None] = {True: None, False: None}
        self.late = False
        self._proxy = proxy
        self._ways = ways
        for flowing in self.flowing.values():
            flowing.set()
        self.task = asyncio.create_task(self._run())

    def end(self, *, up: bool) -> None:
        writer = self._ways[up][1]
        if not writer.is_closing() and writer.can_write_eof():
            writer.write_eof()

    async def _run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for up in self._ways:
                    group.create_task(self._forward(up))
        except* OSError:
            pass
        finally:
            for _, writer in self._ways.values():
                _reset(writer)

    async def _forward(self, up: bool) -> None:
        reader, writer = self._ways[up]
        while data := await reader.read(READ_BYTES):
            await self._proxy.held_up()
            await self.flowing[up].wait()
            if up and self.late:
                await self._deliver(data, reader, writer)
            left = self.left[up]
            if left is not None:
                self.left[up] = left - len(data)
                data = data[:left]
            if writer.transport.is_closing():
                raise ConnectionResetError
            writer.write(data)
            await writer.drain()
            if left is not None and len(data) == left:
                raise ConnectionResetError
        await self._proxy.ends.wait()
        self.end(up=up)

    async def _deliver(self, data: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forwards frames of HTTP/2, from these bytes on, up to the one with which the client gives up the connection, or a call that it
        began in them; then nothing until the connection is cut. The end of an older call, such as a read, is forwarded."""
        begun = set[bytes]()
        while True:
            while len(data) >= HEAD_BYTES and len(data) >= (end := HEAD_BYTES + int.from_bytes(data[:3], "big")):
                kind, call = data[3], data[5:9]
                if kind == HEADERS:
                    begun.add(call)
                elif kind == GOAWAY or (kind == RST_STREAM and call in begun):
                    await asyncio.Event().wait()
                writer.write(data[:end])
                data = data[end:]
            await writer.drain()
            more = await reader.read(READ_BYTES)
            if not more:
                await asyncio.Event().wait()
            data += more


def _reset(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket | None = writer.get_extra_info("socket")
    if sock is not None and not writer.transport.is_closing():
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
