"""The locations on which the same tests run: memory, a journal, a journal over the network (`wal`), and Pulsar.

A test has the fixture `location` (or `log`), and opens it with the `open_wal`, `open_virtual`, `init` and `blocking` of this module: they
are those of the product for any other location. Markers say what holds where:

* `@pytest.mark.inside`: looks inside of the process that writes the log (`tests.probes.local`), or changes what happens there.
  Over the network the server is on the test's own loop then; the client still comes over the socket.
* `@pytest.mark.not_on("wal", "why")`: does not hold there; docs/howto/network.md and docs/howto/pulsar.md state each difference.
* `pytestmark = pytest.mark.on_pulsar`: the tests of this file run on Pulsar as well; `on_pulsar(soak=True)`: in a soak only.

**Over the network** each opening of a log is a client of a real server, over a real socket. A process of its own, one for a whole session
of pytest, serves the logs of the tests one after the other. An opening starts the server with the settings of the opening, and connects a
client to it. A server lives until the last of its clients is closed and the log is opened once more, or the test ends: then the log is
closed, and opened anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import traceback
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, cast

import pytest
import uvloop

import wal
from actors import Clock, VirtualClock
from tests.node.servers import close_after_clients
from tests.probes import clients, served
from tests.processes import Line, Other
from wal import Settings, WALAccesser, bridge
from wal.api.factory import with_absolute_paths
from wal.api.opening import LogOpening
from wal.client.log import RemoteLog
from wal.errors import InnerError, WALError
from wal.local.log import LocalLog
from wal.local.server import LogServer
from wal.location import parse_location
from wal.node.access import Access
from wal.rpc.api import error_pb2
from wal.rpc.codes import error_from_proto, error_to_proto

HANG_S: Final = 60.0
"""A test that takes longer hangs."""
OWN_SETTINGS: Final = ("in_flight_bytes_max",)
"""The settings that a client chooses for itself; it gets them, and the server as well."""
_under_test: dict[str, ServedLocation | PulsarLocation] = {}
"""The location of the test that runs, if it is not one that the product opens without help."""


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "inside: looks inside of the process that writes the log",
        "not_on(location, reason): the test does not hold on this kind of location",
        "on_pulsar(soak=False): the tests of the file run on Pulsar as well, or in a soak only",
    ):
        config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each test that has the fixture `location` on every kind of location that it is for."""
    if "kind_of_location" in metafunc.fixturenames:
        kinds = ["memory", "journal", "wal"]
        marker = metafunc.definition.get_closest_marker("on_pulsar")
        if marker is not None and (not marker.kwargs.get("soak") or os.environ.get("SOAK", "0") not in ("", "0")):
            kinds.append("pulsar")
        metafunc.parametrize("kind_of_location", kinds)


@pytest.fixture
async def location(kind_of_location: str, request: pytest.FixtureRequest, tmp_path: Path, far_server: FarServer) -> AsyncIterator[str]:
    """Yields a location where the test may open a log."""
    for marker in request.node.iter_markers("not_on"):
        if marker.args[0] == kind_of_location:
            pytest.skip(marker.args[1])
    match kind_of_location:
        case "memory":
            yield "memory:"
        case "journal":
            yield f"journal:{tmp_path / 'data'}"
        case "wal":
            inside = request.node.get_closest_marker("inside") is not None
            place = ServedLocation(tmp_path / "data", NearServer() if inside else far_server)
            with _tested(place):
                yield place.location
                await place.close()
        case _:
            signal.setitimer(signal.ITIMER_REAL, 0)  # a test has its whole time from when its server runs
            with _tested(PulsarLocation(request, tmp_path / "meta.sqlite3")) as location:
                signal.setitimer(signal.ITIMER_REAL, HANG_S)
                yield location


@contextlib.contextmanager
def _tested(place: ServedLocation | PulsarLocation) -> Iterator[str]:
    _under_test[place.location] = place
    try:
        yield place.location
    finally:
        del _under_test[place.location]


def open_wal(location: Any, **options: Any) -> LogOpening:
    """Opens the location under test, or any other one as `wal.open_wal` does."""
    place = _under_test.get(str(location))
    return wal.open_wal(location, **options) if place is None else place.open_wal(**options)


async def open_virtual(location: str, clock: VirtualClock, **overrides: Any) -> WALAccesser:
    """Opens a log as `open_wal` does, but with this clock instead of the system's, for tests of leases, timers and promised ticks."""
    place = _under_test.get(location)
    if isinstance(place, ServedLocation):
        assert isinstance(place.server, NearServer)
        place.server.clock = clock
        return await place.open_wal(**overrides)
    settings = Settings().replace(**overrides)

    async def make() -> LocalLog:
        return LocalLog(parse_location(location), settings, clock=clock)

    log = WALAccesser(location, make)
    await log.vchannels()
    return log


def elsewhere(location: str) -> str:
    """Returns the location as a program in another process has to name it."""
    place = _under_test.get(location)
    return place.address_now() if isinstance(place, ServedLocation) else location


def init(location: Any, **options: Any) -> None:
    wal.init(elsewhere(location), **options)


def blocking(location: Any, **options: Any) -> bridge.BlockingOpening:
    return bridge.blocking(elsewhere(location), **options)


class PulsarLocation:
    """A namespace of its own on the session's Pulsar, and the settings that a log there needs."""

    def __init__(self, request: pytest.FixtureRequest, kv: Path) -> None:
        from tests.pulsar.conftest import location_of, new_namespace, server_at

        server = server_at(*(request.getfixturevalue(name) for name in ("pulsar_host", "pulsar_admin_host", "pulsar_token")))
        self.location, self._settings = location_of(new_namespace(server), kv)

    def open_wal(self, **options: Any) -> LogOpening:
        return wal.open_wal(self.location, **{**self._settings, **options})


@pytest.fixture(scope="session")
def far_server() -> Iterator[FarServer]:
    """The process that serves the logs of one test after the other. It has begun before the time of the first test runs."""
    server = FarServer()
    server.close_now()
    yield server
    server.kill()


class FarServer:
    """A server in a process of its own."""

    def __init__(self) -> None:
        self._process = Other(_serve, fresh=True)

    async def open(self, location: str, settings: Settings, *, create: bool) -> str:
        """Opens a log and serves it; returns the address."""
        return await asyncio.to_thread(self.open_now, location, settings, create=create)

    def open_now(self, location: str, settings: Settings, *, create: bool) -> str:
        self._process.tell(("open", location, settings, create))
        return str(self._answer(self._process.hear_now()))

    async def close(self) -> None:
        self.close_now()

    def close_now(self) -> None:
        self._process.tell(("close",))
        self._answer(self._process.hear_now())

    def kill(self) -> None:
        self._process.kill_now()

    @staticmethod
    def _answer(word: tuple[str, Any]) -> Any:
        kind, value = word
        if kind == "error":
            raise error_from_proto(error_pb2.StreamingError.FromString(value))
        return value


class NearServer:
    """A server on the loop of the test; `log` is what it serves. The next log that it opens has the `clock`, if there is one."""

    def __init__(self) -> None:
        self.log: LocalLog | None = None
        self.clock: Clock | None = None
        self._node: LogServer | None = None

    async def open(self, location: str, settings: Settings, *, create: bool) -> str:
        log = LocalLog(parse_location(location), with_absolute_paths(settings), clock=self.clock, create=create)
        await log.open()
        self.log, self._node = log, await LogServer.start(log, Access(listen="127.0.0.1:0"))
        served[self._node.address] = log
        return self._node.address

    async def close(self) -> None:
        if self._node is not None and self.log is not None:
            node, log, self._node, self.log = self._node, self.log, None, None
            del served[node.address]
            clients.clear()
            await close_after_clients(node)
            if not log.released:
                await log.close()


class ServedLocation:
    """A journal at `path` on `server`. Only the functions of this module know the location."""

    def __init__(self, path: Path, server: FarServer | NearServer) -> None:
        self.location = f"served:{path}"
        self.server = server
        self.clients: list[LogOpening] = []
        self._journal = f"journal:{path}"
        self._address = ""

    def open_wal(self, *, settings: Settings | None = None, create: bool = True, **options: Any) -> LogOpening:
        """Opens the log as a client."""
        own: dict[str, Any] = {name: options.pop(name) for name in ("read_only", "wait_s") if name in options}
        served = (settings or Settings()).replace(**options)
        chosen = {name: getattr(served, name) for name in OWN_SETTINGS}
        return cast(LogOpening, _Opening(self, served, create, {**own, **chosen}))

    async def address(self, settings: Settings, *, create: bool) -> str:
        """Returns the address of the server, which is started unless a client uses it."""
        if not self._address or all(client._log._lifecycle._closed for client in self.clients):
            await self.close()
            opening = asyncio.ensure_future(self.server.open(self._journal, settings, create=create))
            try:
                self._address = await asyncio.shield(opening)
            except asyncio.CancelledError:
                self._address = await opening  # the server opens the log all the same
                raise
        return self._address

    async def close(self) -> None:
        if self._address:
            self._address = ""
            self.clients.clear()
            await self.server.close()

    def address_now(self) -> str:
        assert isinstance(self.server, FarServer)
        if not self._address:
            self._address = self.server.open_now(self._journal, Settings(), create=True)
        return f"wal://{self._address}"


class _Opening:
    """What `open_wal` returns: it is awaited, or used in `async with`."""

    def __init__(self, place: ServedLocation, settings: Settings, create: bool, options: dict[str, Any]) -> None:
        self._place = place
        self._settings = settings
        self._create = create
        self._options = options
        self._client: LogOpening | None = None

    def again(self) -> _Opening:
        return _Opening(self._place, self._settings, self._create, self._options)

    def __await__(self) -> Generator[Any, None, WALAccesser]:
        return self._opened().__await__()

    async def __aenter__(self) -> WALAccesser:
        return await self._opened()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        assert self._client is not None
        await self._client.__aexit__(kind, error, traceback)

    async def _opened(self) -> WALAccesser:
        address = await self._place.address(self._settings, create=self._create)
        self._client = wal.open_wal(f"wal://{address}", **self._options)
        self._place.clients.append(self._client)
        log = await self._client
        if isinstance(self._place.server, NearServer):
            engine = log._lifecycle.engine
            assert isinstance(engine, RemoteLog)
            clients.append(engine)
        return log


def _serve(line: Line) -> None:
    """Serves logs as the test asks, until the test is gone."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_answer_all(line))


async def _answer_all(line: Line) -> None:
    server = NearServer()
    while True:
        word, *arguments = await line.hear()
        answer: str | None
        try:
            if word == "open":
                location, settings, create = arguments
                answer = await server.open(location, settings, create=create)
            else:
                await server.close()
                answer = None
        except WALError as error:
            line.tell(("error", error_to_proto(error).SerializeToString()))
        except Exception:
            line.tell(("error", error_to_proto(InnerError(traceback.format_exc())).SerializeToString()))
        else:
            line.tell(("answer", answer))
