"""The locations on which the same tests run: memory, a journal, a journal over the network (`wal`), Pulsar, and a cluster.

A test has the fixture `location` (or `log`), and opens it with the `open_wal`, `open_virtual`, `init` and `blocking` of this module: they
are the product's own for any other location. A soak runs it in memory, on a journal and over the network; by default it runs on a journal
and over the network, since a log in memory differs from a journal in its storage alone. Markers describe the tests that hold at some
locations only:

* `@pytest.mark.everywhere`: the test runs in memory by default too. One file of each subject has this mark.
* `@pytest.mark.one_location("why")`: the subject of the test is independent of the location (checks of arguments, handlers, the ends of a
  block), so that it runs in memory alone by default.
* `@pytest.mark.inside`: looks inside of the process that writes the log (`tests.probes.local`), or changes what happens there.
  Over the network the server is on the test's own loop then; the client still comes over the socket. Only a soak does that.
* `@pytest.mark.not_on("wal", "why")`: does not hold there; docs/howto/network.md and docs/howto/pulsar.md state each difference.
* `pytestmark = pytest.mark.on_pulsar`: a soak runs the tests of this file on Pulsar and over a cluster as well. By default it does so for
  a test with a mark of its own: `@pytest.mark.on_pulsar`, or `on_pulsar(cluster=True)` for the cluster too. What does not hold on Pulsar
  or over the network does not hold there either.
* `@pytest.mark.on_archive`: the test also runs over an archive. The log is a journal; each read goes to its archive, to which a backup is
  made before the read begins, and then every few milliseconds.

**Over the network** each opening of a log is a client of a real server, over a real socket. A process of its own, one for a whole session
of pytest, serves the logs of the tests one after the other. An opening starts the server with the settings of the opening, and connects a
client to it. A server lives until the last of its clients is closed and the log is opened once more, or the test ends: then the log is
closed, and opened again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import traceback
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, cast

import msgspec
import pytest
import uvloop

import wal
from actors import Clock, VirtualClock
from tests.probes import clients, served
from tests.processes import Line, Other, eventually
from tests.serve.servers import close_after_clients
from wal import Settings, WALAccesser, bridge
from wal.api.factory import with_absolute_paths
from wal.api.opening import LogOpening
from wal.channels.cluster import LOG_KEY, encode, load_cluster
from wal.client.log import RemoteLog
from wal.coordinator.assignments import PREFIX as ASSIGNMENTS
from wal.coordinator.assignments import AssignmentState, decode
from wal.errors import InnerError, WALError
from wal.location import parse_location
from wal.node.local.log import LocalLog
from wal.node.local.read_only_log import ReadOnlyLog
from wal.operate.backup import backup
from wal.operate.processes.coordinator import ClusterCoordinator
from wal.operate.processes.node import ClusterNode
from wal.operate.processes.opening import open_root, saved_settings
from wal.operate.processes.standalone import LogServer
from wal.rpc.api import error_pb2
from wal.rpc.codes import error_from_proto, error_to_proto
from wal.serve.access import Access
from wal.storage.kv import KVBase

SOAK: Final = os.environ.get("SOAK", "0") not in ("", "0")
HANG_S: Final = 60.0
"""A test that takes longer hangs."""
ARCHIVE_POLL_S: Final = 0.02
OWN_SETTINGS: Final = ("in_flight_bytes_max",)
"""The settings that a client chooses for itself; it gets them, and the server as well."""
_under_test: dict[str, ServedLocation | PulsarLocation | ArchivedLocation] = {}
"""The location of the test that runs, if it is not one that the product opens without help."""


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "everywhere: by default in memory too",
        "one_location(reason): by default on one location; the reason names what decides before any location",
        "inside: looks inside of the process that writes the log",
        "not_on(location, reason): the test does not hold on this kind of location",
        "on_archive: over an archive too",
        "on_pulsar(cluster=False): on a file, in a soak: on Pulsar and over a cluster too; on a test also by default",
    ):
        config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Runs each test that has the fixture `location` on every kind of location that it is for."""
    if "kind_of_location" in metafunc.fixturenames:
        get, own_markers = metafunc.definition.get_closest_marker, metafunc.definition.own_markers
        if get("one_location"):
            chosen = ["memory"]
        else:
            chosen = [*(["memory"] if get("everywhere") else []), "journal", *([] if get("inside") else ["wal"])]
        unfit = {marker.args[0] for marker in metafunc.definition.iter_markers("not_on")}
        chosen = [kind for kind in chosen if kind not in unfit] or ["journal"]
        shown = pytest.mark.soak(f"the test runs by default on: {', '.join(chosen)}")
        kinds: list[Any] = [kind if kind in chosen else pytest.param(kind, marks=shown) for kind in ("memory", "journal", "wal")]
        own_unfit = {own.args[0] for own in own_markers if own.name == "not_on"}  # what a reader elsewhere cannot see
        if get("on_archive") and not get("one_location") and not get("inside") and not own_unfit & {"wal", "archive"}:
            kinds.append("archive")
        marker = get("on_pulsar")
        own = marker is not None and marker in own_markers
        if marker is not None and (SOAK or own):
            kinds.append("pulsar")
            if not get("inside") and (SOAK or marker.kwargs.get("cluster")):
                kinds.append("cluster")
        metafunc.parametrize("kind_of_location", kinds)


@pytest.fixture
async def location(kind_of_location: str, request: pytest.FixtureRequest, tmp_path: Path, far_server: FarServer) -> AsyncIterator[str]:
    """Yields a location where the test may open a log."""
    # A cluster is on the network, and on Pulsar.
    kinds = ("wal", "pulsar", "cluster") if kind_of_location == "cluster" else (kind_of_location,)
    for marker in request.node.iter_markers("not_on"):
        if marker.args[0] in kinds:
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
        case "archive":
            with _tested(ArchivedLocation(tmp_path)) as location:
                yield location
        case "cluster":
            signal.setitimer(signal.ITIMER_REAL, 0)  # a test has its whole time from when its servers run
            place = cluster_of(request, request.getfixturevalue("far_cluster"))
            with _tested(place):
                begin_time()
                yield place.location
                await place.close()
        case _:
            signal.setitimer(signal.ITIMER_REAL, 0)  # a test has its whole time from when its server runs
            with _tested(PulsarLocation(request, tmp_path / "meta.sqlite3")) as location:
                begin_time()
                yield location


def begin_time() -> None:
    """Gives the test its whole time from now, if it has a watchdog: without one the signal would end this process, in a later test."""
    if callable(signal.getsignal(signal.SIGALRM)):
        signal.setitimer(signal.ITIMER_REAL, HANG_S)


@contextlib.contextmanager
def _tested(place: ServedLocation | PulsarLocation | ArchivedLocation) -> Iterator[str]:
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
        from tests.storage.pulsar.conftest import location_of, new_namespace, server_at

        server = server_at(*(request.getfixturevalue(name) for name in ("pulsar_host", "pulsar_admin_host", "pulsar_token")))
        self.location, self._settings = location_of(new_namespace(server), kv)

    def open_wal(self, **options: Any) -> LogOpening:
        return wal.open_wal(self.location, **{**self._settings, **options})


class ArchivedLocation:
    """A journal whose reads go to its archive."""

    def __init__(self, folder: Path) -> None:
        self.location = f"archived:{folder}"
        self._data = folder / "data"
        self._target = folder / "archive"

    def open_wal(
        self, *, settings: Settings | None = None, read_only: bool = False, create: bool = True, wait_s: float = 0.0, **options: Any
    ) -> LogOpening:
        """Opens the journal for writing, with the reads of the archive; or (`read_only`) the archive, after one more backup."""
        chosen = (settings or Settings()).replace(archive_poll_s=ARCHIVE_POLL_S, **options)

        async def make() -> Any:
            if read_only:
                await backup(str(self._data), str(self._target))
                return ReadOnlyLog(parse_location(f"archive:{self._target}"), chosen)
            return ArchivedLog(self._data, self._target, chosen, create=create)

        return LogOpening(lambda: WALAccesser(self.location, make, read_only=read_only))


class ArchivedLog(LocalLog):
    """A journal whose reads go to its archive."""

    def __init__(self, data: Path, target: Path, settings: Settings, *, create: bool) -> None:
        super().__init__(parse_location(f"journal:{data}"), settings, create=create)
        self._names = str(data), str(target)
        self._reader = ReadOnlyLog(parse_location(f"archive:{target}"), settings)
        self._opening = asyncio.Lock()
        self._following: asyncio.Task[None] | None = None

    async def attach(self, names: tuple[str, ...]) -> Any:
        await self._archived()
        return await self._reader.attach(names)

    async def attach_matching(self, pattern: Any) -> Any:
        await self._archived()
        return await self._reader.attach_matching(pattern)

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait((self._following,))
            await self._reader.close()
        await super().close()

    async def _archived(self) -> None:
        """Makes backups until one has all that is durable, and then from time to time."""
        async with self._opening:
            durable = {name: hosted.tail.durable_end for name, hosted in self.node.pchannels.items()}
            while True:
                manifest = await backup(*self._names)
                if all(name in manifest.pchannels and manifest.pchannels[name].end >= end for name, end in durable.items()):
                    break
                await asyncio.sleep(0.001)
            if self._following is None:
                await self._reader.open()
                self._following = asyncio.get_running_loop().create_task(self._follow())
            await asyncio.sleep(ARCHIVE_POLL_S)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(ARCHIVE_POLL_S)
            async with self._opening:
                await backup(*self._names)


@pytest.fixture(scope="session")
def far_server() -> Iterator[FarServer]:
    """The process that serves the logs of one test after the other. It has begun before the time of the first test runs."""
    server = FarServer()
    server.close_now()
    yield server
    server.kill()


@pytest.fixture(scope="session")
def far_cluster() -> Iterator[FarServer]:
    """The process that serves the logs of one test after the other, each with a coordinator and two nodes."""
    server = FarServer(NearCluster)
    server.close_now()
    yield server
    server.kill()


def cluster_of(request: pytest.FixtureRequest, server: FarServer) -> ServedLocation:
    """A namespace and a root of their own on the session's Pulsar and etcd."""
    from tests.storage.pulsar.conftest import location_of, new_namespace, server_at

    pulsar = server_at(*(request.getfixturevalue(name) for name in ("pulsar_host", "pulsar_admin_host", "pulsar_token")))
    root = f"etcd://{request.getfixturevalue('etcd_address')}/test-{secrets.token_hex(6)}"
    location, settings = location_of(new_namespace(pulsar), Path())
    return ServedLocation(location, server, {**settings, "kv": root})


class FarServer:
    """A server in a process of its own."""

    def __init__(self, kind: Callable[[], NearServer | NearCluster] | None = None) -> None:
        self._process = Other(_serve, kind or NearServer, fresh=True)

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


class NearCluster:
    """A coordinator and two nodes on one loop. The settings of a later opening are those of the cluster from then on."""

    def __init__(self) -> None:
        self._open = contextlib.AsyncExitStack()

    async def open(self, location: str, settings: Settings, *, create: bool) -> str:
        root, access = settings.kv, Access(listen="127.0.0.1:0")
        assert root is not None
        async with await open_root(root) as kv:
            if (record := await load_cluster(kv)) is not None:
                await kv.save(LOG_KEY, encode(msgspec.structs.replace(record, settings=saved_settings(settings))))
        coordinator = ClusterCoordinator(root, settings, access, log=location, expected_nodes=2, ttl_s=5.0)
        await coordinator.open()
        self._open.push_async_callback(coordinator.close)
        nodes: list[ClusterNode] = []
        for _ in range(2):
            node = ClusterNode(root, settings, access, ttl_s=5.0)
            await node.open()
            self._open.push_async_callback(node.close)
            nodes.append(node)
        async with await open_root(root) as kv:
            await eventually(lambda: _is_assigned(kv, {node.server_id for node in nodes}))
        return coordinator.server.address

    async def close(self) -> None:
        await self._open.aclose()


async def _is_assigned(kv: KVBase, nodes: set[int]) -> bool:
    """Returns whether every pchannel of a cluster is on one of these nodes."""
    records = list(map(decode, *await kv.load_with_prefix(ASSIGNMENTS)))
    on = {record.owner.node.server_id for record in records if record.state is AssignmentState.ASSIGNED and record.owner is not None}
    return bool(records) and all(record.state is AssignmentState.ASSIGNED for record in records) and on <= nodes


class ServedLocation:
    """A log at `place` on `server`, which needs these settings. Only the functions of this module know the location."""

    def __init__(self, place: Path | str, server: FarServer | NearServer, needs: Mapping[str, Any] | None = None) -> None:
        self.location = f"served:{place}"
        self.server = server
        self.clients: list[LogOpening] = []
        self.place = f"journal:{place}" if isinstance(place, Path) else place
        self.needs: dict[str, Any] = dict(needs or {})
        self._address = ""

    def open_wal(self, *, settings: Settings | None = None, create: bool = True, **options: Any) -> LogOpening:
        """Opens the log as a client."""
        own: dict[str, Any] = {name: options.pop(name) for name in ("read_only", "wait_s") if name in options}
        served = (settings or Settings()).replace(**{**self.needs, **options})
        chosen = {name: getattr(served, name) for name in OWN_SETTINGS}
        return cast(LogOpening, _Opening(self, served, create, {**own, **chosen}))

    async def address(self, settings: Settings, *, create: bool) -> str:
        """Returns the address of the server, which is started unless a client uses it."""
        if not self._address or all(client._log._lifecycle._closed for client in self.clients):
            await self.close()
            opening = asyncio.ensure_future(self.server.open(self.place, settings, create=create))
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
            self._address = self.server.open_now(self.place, Settings().replace(**self.needs), create=True)
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


def _serve(line: Line, kind: Callable[[], NearServer | NearCluster]) -> None:
    """Serves logs as the test asks, until the test is gone."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_answer_all(line, kind()))


async def _answer_all(line: Line, server: NearServer | NearCluster) -> None:
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
