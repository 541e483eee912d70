"""Clients: the client processes of the kill tests, as their parent sees them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from tests.outages.client import WRITTEN
from tests.outages.report import Load, Report
from tests.processes import Child

WAIT_S: Final = 40.0


class Client:
    """A process of `tests.outages.client`."""

    def __init__(self, load: Load) -> None:
        self.calls = 0
        """How many calls of it have an outcome."""
        self.written = False
        """Whether its writers have ended."""
        self.report: Report | None = None
        self.process = Child("-m", "tests.outages.client", msgspec.json.encode(load).decode())
        self.reading = asyncio.ensure_future(self._read())

    def stop(self) -> None:
        """Makes its writers end."""
        self.process.tell("stop")

    async def _read(self) -> None:
        async for line in self.process.lines():
            told = msgspec.json.decode(line, type=int | str | Report)
            if told == WRITTEN:
                self.written = True
            elif isinstance(told, int):
                self.calls = told
            elif isinstance(told, Report):
                self.report = told
        await self.process.end()


class Clients:
    """Some clients at once. Use it with `async with`, so that none outlives it."""

    def __init__(self, address: str, sides: list[list[str]], *, seed: int, count: int = 3) -> None:
        self._loads = [Load(address=address, client=number, seed=seed, sides=sides, uvloop=number % 2 == 0) for number in range(count)]
        self._clients: list[Client] = []

    async def __aenter__(self) -> Clients:
        self._clients = list(map(Client, self._loads))
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients:
            client.process.send_signal(signal.SIGKILL)
            await asyncio.wait([client.reading])
            await client.process.__aexit__()

    @property
    def calls(self) -> int:
        """How many calls have an outcome."""
        return sum(client.calls for client in self._clients)

    @contextlib.asynccontextmanager
    async def in_time(self, what: str) -> AsyncIterator[None]:
        """A block that ends in time; otherwise every client shows what it waits for."""
        try:
            async with asyncio.timeout(WAIT_S):
                yield
        except TimeoutError:
            for client in self._clients:
                client.process.send_signal(signal.SIGUSR1)
            await asyncio.sleep(1.0)  # the clients need it to write what they wait for
            raise AssertionError(f"waited {WAIT_S} s for {what}") from None

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        """Waits until this is true, while all clients run."""
        async with self.in_time(what):
            while not condition():
                for client in self._clients:
                    if client.reading.done():
                        client.reading.result()
                        raise AssertionError(f"a client ended before {what}")
                await asyncio.sleep(0.005)

    async def each_makes(self, calls: int) -> None:
        """Waits until every client has made `count` more calls."""
        goals = [client.calls + calls for client in self._clients]
        await self.until(
            lambda: all(client.calls >= goal for client, goal in zip(self._clients, goals, strict=True)), f"{calls} more calls"
        )

    async def stop_writers(self) -> None:
        """Ends all writers. The readers end when they have read END on every vchannel."""
        for client in self._clients:
            client.stop()
        await self.until(lambda: all(client.written for client in self._clients), "its writers had ended")

    async def ended(self) -> dict[int, Report]:
        """Waits for the end of all clients, and returns their reports."""
        async with self.in_time("the end of the clients"):
            await asyncio.gather(*(client.reading for client in self._clients))
        reports = {number: client.report for number, client in enumerate(self._clients)}
        return {number: report for number, report in reports.items() if report is not None}
