"""`wal://` as one more location of the acceptance tests: each opening of a log is a client of a real server, over a real socket.

A process of its own, one for a whole session of pytest, serves the logs of the tests one after the other. A test that looks inside of the
process that writes the log (`tests.accesser.probes.local`) has its server on its own loop, and its client still comes over the socket.

An opening starts the server with the settings of the opening, and connects a client to it. A server lives until the last of its clients is
closed and the log is opened once more, or the test ends: then the log is closed, and opened anew.
"""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, Final

import pytest
import uvloop

import wal
from actors import Clock, SystemClock, VirtualClock
from tests.accesser.probes import broadcasts, clients, local, served, written
from tests.accesser.virtual import open_virtual
from tests.contract.other import Line, Other
from tests.node.servers import close_after_clients
from wal import Settings, WALAccesser, bridge
from wal.api.factory import with_absolute_paths
from wal.api.opening import LogOpening
from wal.client.log import RemoteLog
from wal.errors import InnerError, WALError
from wal.local.access import Access
from wal.local.log import LocalLog
from wal.local.server import LogServer
from wal.location import parse_location
from wal.rpc.api import error_pb2
from wal.rpc.codes import error_from_proto, error_to_proto
from wal.write import pipeline


@pytest.fixture(scope="session")
def far_server() -> Iterator[FarServer]:
    """The process that serves the logs of one test after the other. It has begun before the time of the first test runs."""
    server = FarServer()
    server.close_now()
    yield server
    server.kill()


_open_wal, _init, _blocking, _open_virtual = wal.open_wal, wal.init, bridge.blocking, open_virtual
OWN_SETTINGS: Final = ("in_flight_bytes_max",)
"""The settings that a client chooses for itself; it gets them, and the server as well."""


_INBOX: Final = "looks for the error of a full inbox at the call, but the inbox is the writer's: it delays what a client has sent"
_REFUSED: Final = "has the pchannel fail: a client waits for another server that takes what this one refuses"
_ONE_TURN: Final = "has a call of the client and one of the writer's own broadcaster in one turn, and the client's comes later"
TESTS: Final[dict[str, str]] = {
    "test_channels.test_full_inbox_delays_the_end_of_a_channel_and_does_not_refuse_it": _INBOX,
    **dict.fromkeys(
        (
            "test_failures.test_frames_in_flight_when_the_oracle_is_fenced_have_an_unknown_outcome",
            "test_failures.test_calls_that_need_a_tick_of_an_oracle_that_was_taken_over_fail",
            "test_failures.test_group_that_is_cut_off_settles_every_call",
        ),
        _REFUSED,
    ),
    **dict.fromkeys(
        (
            "test_copies_operator.test_copies_keep_the_order_of_the_calls",
            "test_copies_operator.test_vchannel_dropped_in_the_same_turn_takes_no_copy_and_the_others_do",
        ),
        _ONE_TURN,
    ),
    "test_read.test_waiting_reader_takes_its_turn_before_the_callers_of_a_frame": "a result and a message come in two streams",
    "test_many_scanners.test_scanners_with_one_selection_share_their_messages": (
        "compares the message objects of two readers: they share what is transferred, and each builds its messages"
    ),
    "test_read.test_without_create_vchannels_an_append_that_cannot_wait_is_refused_at_once": (
        "looks for an error at the call that only the server knows: another client may have created the vchannel; the future has it"
    ),
}
"""Tests, by file and name, that do not hold over the network, with the reason; docs/howto/network.md states each difference."""
INSIDE: Final = (broadcasts, local, open_virtual, written, pipeline, SystemClock)
"""What a test uses to look inside of the process that writes the log, or to change what happens there."""


def not_over_the_network(test: Callable[..., Any]) -> str | None:
    """Returns why a test does not hold over the network, or None."""
    return TESTS.get(f"{test.__module__.rpartition('.')[2]}.{test.__name__}")


def is_inside(test: Callable[..., Any]) -> bool:
    """Returns whether a test, or what it uses of its module, needs the process that writes the log to be its own."""
    used = _used(test)
    return any(probe in used for probe in INSIDE)


def _used(test: Callable[..., Any]) -> list[object]:
    """Returns what a test uses of its module, by the names in its code, also in what it uses; its arguments may be fixtures."""
    module, seen = vars(sys.modules[test.__module__]), set[str]()
    left: list[Any] = [test]
    used: list[object] = []
    while left:
        code = getattr(left.pop(), "__code__", None)
        for name in _names(code) - seen if code is not None else ():
            seen.add(name)
            found = module.get(name)
            found = getattr(found, "_fixture_function", found)
            used.append(found)
            if getattr(found, "__module__", None) == test.__module__:
                left += vars(found).values() if isinstance(found, type) else [found]
    return used


def _names(code: CodeType) -> set[str]:
    nested = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {*code.co_names, *code.co_varnames}.union(*map(_names, nested))


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
    """A location of a test: a journal at `path` on `server`. Only the functions that `stand_in` replaces know it."""

    def __init__(self, path: Path, server: FarServer | NearServer) -> None:
        self.location = f"served:{path}"
        self.server = server
        self.clients: list[LogOpening] = []
        self._journal = f"journal:{path}"
        self._address = ""

    def stand_in(self, monkeypatch: pytest.MonkeyPatch, *modules: ModuleType) -> None:
        """Has `open_wal`, `init`, `bridge.blocking`, `open_virtual` and `elsewhere` of these modules take the location."""
        mine = {"open_wal": self.open_wal, "init": self.init, "open_virtual": self.open_virtual, "elsewhere": self.elsewhere}
        for module in (*modules, wal):
            for name, function in mine.items():
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, function)
        monkeypatch.setattr(wal.bridge, "blocking", self.blocking)

    def open_wal(self, location: Any, *, settings: Settings | None = None, create: bool = True, **options: Any) -> LogOpening | _Opening:
        """Opens the log of this location as a client; any other location as `wal.open_wal` does."""
        if location != self.location:
            return _open_wal(location, settings=settings, create=create, **options)
        own: dict[str, Any] = {name: options.pop(name) for name in ("read_only", "wait_s") if name in options}
        served = (settings or Settings()).replace(**options)
        chosen = {name: getattr(served, name) for name in OWN_SETTINGS}
        return _Opening(self, served, create, {**own, **chosen})

    async def open_virtual(self, location: str, clock: VirtualClock, **overrides: Any) -> WALAccesser:
        """Opens the log of this location as a client of a server that has this clock; any other location as `open_virtual` does."""
        if location != self.location:
            return await _open_virtual(location, clock, **overrides)
        assert isinstance(self.server, NearServer)
        self.server.clock = clock
        return await self.open_wal(location, **overrides)

    def init(self, location: Any, **options: Any) -> None:
        _init(self._address_now() if location == self.location else location, **options)

    def elsewhere(self, location: str) -> str:
        return self._address_now() if location == self.location else location

    def blocking(self, location: Any, **options: Any) -> bridge.BlockingOpening:
        return _blocking(self._address_now() if location == self.location else location, **options)

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

    def _address_now(self) -> str:
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
        self._client = _open_wal(f"wal://{address}", **self._options)
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
