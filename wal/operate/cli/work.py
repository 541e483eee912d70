"""`wal work LOCATION package.module:function`: workers as a command, each a consumer whose handler is a function of the current directory.

One process runs one consumer until SIGTERM or SIGINT, which drain it; a second signal releases what its handlers still have. With
`--processes N` this process has no consumer: it starts N workers, each with a socket over which the worker reports its state, and whose end
makes the worker drain if this process is killed. A worker that a signal or its handler ends is started again after a pause; a worker that
ends with a status of `EXIT_STATUS` stops the others, and that status is the result.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, TypeVar

from wal.errors import HandlerFailedError, InvalidArgumentError, shortened
from wal.location import parse_location
from wal.message.matching import Matching
from wal.operate.cli.commands import EXIT_ERROR, EXIT_FINDING, EXIT_STATUS
from wal.operate.cli.output import add_log, seconds, settings_of, stopped_by_signals, whole
from wal.runtime.backoff import Backoff
from wal.runtime.tasks import unless
from wal.timestamp.checks import whole_number

DRAIN_S: Final = 30.0
PROCESSES_MAX: Final = 256
LOOK_S: Final = 0.05
"""The pause between two looks for running handlers at the end."""
REPORT_S: Final = 0.2
"""The pause between two reports of a worker to the process that started it."""
PAUSES_S: Final = (0.5, 30.0)
"""The first pause before a worker is started again, and the longest."""
_DESCRIPTION: Final = """\
Handles the messages of vchannels with a function until SIGTERM or SIGINT, then
lets running handlers finish. The function takes a wal.Delivery, and is found
from the current directory: `wal work wal://HOST jobs.images:resize` calls
that function of jobs/images.py. A second signal releases what handlers still have."""
_EPILOG: Final = f"""\
{EXIT_STATUS}
Here 0 is the end by a signal, and 1 a message that is out of attempts without
--dead-letter.

examples:
  wal work data/ tasks:handle --cursor worker --vchannels jobs
  wal work wal://log:8810 tasks:handle --cursor worker --vchannels jobs \\
      --shared --processes 4 --dead-letter failed --health 127.0.0.1:8080"""
_KEPT: Final = frozenset(("help", "location", "target", "processes", "health", "link"))
"""The arguments that a worker of several does not get as they are."""
_T = TypeVar("_T")
_log: Final = logging.getLogger("wal.work")


def fill(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal work`."""
    add_log(parser, _DESCRIPTION, json=False)
    parser.epilog = _EPILOG
    parser.add_argument("target", metavar="MODULE:FUNCTION", help="the handler, such as package.module:function")
    parser.add_argument("--cursor", metavar="NAME", required=True, help="the cursor, which has the position and the attempts")
    parser.add_argument("--vchannels", metavar="NAMES", required=True, help="names with commas between them, or a pattern such as 'job-*'")
    parser.add_argument("--shared", action="store_true", help="shares the cursor with other workers, in any number of processes")
    parser.add_argument("--concurrency", metavar="N", type=whole(1, 1024), default=1, help="handlers at once in each process (default 1)")
    parser.add_argument("--processes", metavar="N", type=whole(1, PROCESSES_MAX), default=1, help="worker processes; needs --shared")
    order = "what keeps its order (default: key with --key; none with --shared or several handlers; else vchannel)"
    parser.add_argument("--order", choices=("vchannel", "key", "none"), help=order)
    parser.add_argument("--key", metavar="PROPERTY", help="the property that is the key of a message")
    parser.add_argument("--attempts", metavar="N", type=whole(1, 1000), default=5, help="attempts at a message (default 5)")
    parser.add_argument(
        "--dead-letter", metavar="VCHANNEL", help="where messages go that are out of attempts; without it, they end the worker"
    )
    parser.add_argument(
        "--on-failure", choices=("block", "park"), default="block", help="whether later messages wait for a retry (default block)"
    )
    parser.add_argument(
        "--trip-after", metavar="N", type=whole(0, 1_000_000), help="dead letters in a row that pause the worker (default 20)"
    )
    parser.add_argument("--batch", metavar="N", type=whole(1, 1_000_000), help="the handler takes a list of up to N deliveries")
    parser.add_argument("--timeout", metavar="TIME", type=seconds(), help="the longest time of an attempt, such as 30s")
    parser.add_argument(
        "--lease", metavar="TIME", type=seconds(), help="with --shared: when a silent worker loses its messages (default 10s)"
    )
    parser.add_argument("--type", metavar="MODULE:CLASS", help="the type of the values in the payloads")
    parser.add_argument(
        "--drain", metavar="TIME", type=seconds(), default=DRAIN_S, help="how long handlers may run after a signal (default 30s)"
    )
    parser.add_argument(
        "--wait", metavar="TIME", type=seconds(), default=0.0, help="how long to wait for the lock of a directory, or a server"
    )
    parser.add_argument("--health", metavar="HOST:PORT", help="serves /healthz and /readyz there, for probes")
    parser.add_argument("--link", metavar="FD", type=whole(0, 1 << 20), help=argparse.SUPPRESS)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from wal.operate.cli.standalone import loop_factory

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s [%(process)d]: %(message)s")
    location = parse_location(arguments.location)
    if arguments.processes > 1 and not arguments.shared:
        raise InvalidArgumentError(f"--processes {arguments.processes} without --shared: one would work and the others wait; add --shared")
    if arguments.processes > 1 and location.servers is None:
        raise InvalidArgumentError(
            f"--processes {arguments.processes} at {location}: one process writes such a log; serve it with `wal standalone`, and name "
            "wal://HOST:PORT here, or use --concurrency"
        )
    host, port = _address(arguments.health) if arguments.health else ("", 0)
    handler, kind = _loaded(arguments.target), None if arguments.type is None else _loaded(arguments.type)
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        if arguments.processes > 1:
            return runner.run(_Workers(arguments).run(host, port))
        return runner.run(_Worker(arguments, handler, kind).run(host, port))


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise InvalidArgumentError(f"--health {shortened(text)} is not an address: write HOST:PORT, for example 127.0.0.1:8080")
    return host.strip("[]"), whole_number("--health HOST:PORT: port", port, 0, 65_535)


def _loaded(text: str) -> Any:
    """Returns what `package.module:name` names, imported from the current directory or an installed package."""
    module_name, colon, path = text.partition(":")
    if not colon or not module_name or not path:
        raise InvalidArgumentError(f"{shortened(text)} names no function: write package.module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        target: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise InvalidArgumentError(f"{module_name} cannot be imported: {error}") from error
        raise InvalidArgumentError(f"module {module_name!r} is missing in {os.getcwd()} and among the installed packages") from None
    except Exception as error:
        _log.error("the import of %s failed", module_name, exc_info=error)
        raise InvalidArgumentError(f"{module_name} cannot be imported: {type(error).__name__}: {error}") from error
    for name in path.split("."):
        if not hasattr(target, name):
            raise InvalidArgumentError(f"module {module_name!r} has no {path!r}")
        target = getattr(target, name)
    return target


class _Worker:
    """One consumer in this process."""

    def __init__(self, arguments: argparse.Namespace, handler: Any, kind: Any) -> None:
        self._arguments = arguments
        self._handler = handler
        self._kind = kind
        self._consumer: Any = None

    def state(self) -> str:
        """Returns the state of the consumer, "opening" before there is one."""
        return "opening" if self._consumer is None else self._consumer.statistics().state

    async def run(self, host: str, port: int) -> int:
        """Works until a signal, or until the consumer ends with an error; returns the exit status."""
        from wal.api.opening import open_wal

        arguments = self._arguments
        settings, _ = settings_of(arguments)
        is_local = parse_location(arguments.location).path is not None
        with stopped_by_signals() as (stopped, _):
            async with _health(host, port, self._probe), _linked(arguments.link, self.state, stopped):
                opening = open_wal(arguments.location, settings=settings, create=not is_local, wait_s=arguments.wait)
                if (log := await unless(stopped, _awaited(opening))) is None:
                    return 0
                try:
                    self._consumer = consumer = log.consume(self._names(), self._handler, **self._options())
                    _log.info("handling %s with cursor %r: %s", arguments.vchannels, arguments.cursor, arguments.target)
                    return await self._until_end(consumer, stopped)
                finally:
                    await log.close()

    async def _until_end(self, consumer: Any, stopped: asyncio.Event) -> int:
        running = asyncio.ensure_future(consumer.run())
        try:
            if not await _before(running, stopped):
                stopped.clear()
                await self._drain(consumer, stopped)
                await consumer.close(drain_s=0.0)
            await running
        except HandlerFailedError:  # the consumer has logged it
            return EXIT_FINDING
        counts = consumer.statistics()
        _log.info("ended: %d messages handled, %d failed attempts, %d dead letters", counts.handled, counts.failed, counts.dead_lettered)
        return 0

    async def _drain(self, consumer: Any, stopped: asyncio.Event) -> None:
        """Starts no more handlers, and returns when the running ones have returned, after `--drain`, or at a second signal."""
        drain_s = self._arguments.drain
        _log.info("draining for at most %g s: %d messages are with handlers", drain_s, consumer.statistics().in_hand)
        consumer.pause()
        until_s = asyncio.get_running_loop().time() + drain_s
        while consumer.statistics().in_hand and asyncio.get_running_loop().time() < until_s:
            if stopped.is_set():
                _log.warning("a second signal came: what handlers have is released")
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stopped.wait(), LOOK_S)

    def _names(self) -> Any:
        text = self._arguments.vchannels
        if "*" in text or "?" in text:
            return Matching(text)
        names = [name.strip() for name in text.split(",")]
        return names[0] if len(names) == 1 else names

    def _options(self) -> dict[str, Any]:
        arguments = self._arguments
        is_wide = arguments.shared or arguments.concurrency > 1
        order = arguments.order or ("key" if arguments.key is not None else "none" if is_wide else "vchannel")
        return {
            **({} if arguments.lease is None else {"lease_s": arguments.lease}),
            "cursor": arguments.cursor,
            "concurrency": arguments.concurrency,
            "order": order,
            "key": arguments.key,
            "attempts": arguments.attempts,
            "dead_letter": arguments.dead_letter,
            "batch": arguments.batch,
            "on_failure": arguments.on_failure,
            "timeout_s": arguments.timeout,
            "trip_after": arguments.trip_after,
            "type": self._kind,
            "shared": arguments.shared,
        }

    def _probe(self) -> tuple[bool, dict[str, Any]]:
        if self._consumer is None:
            return False, {"state": "opening"}
        counts = self._consumer.statistics()
        return counts.state == "running", {
            "state": counts.state,
            "cursor": counts.cursor,
            "handled": counts.handled,
            "failed": counts.failed,
            "dead_lettered": counts.dead_lettered,
            "in_hand": counts.in_hand,
        }


class _Workers:
    """Several workers, each in a process of its own."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._command = [sys.executable, "-m", "wal", "work", arguments.location, arguments.target, *_flags(arguments)]
        self._ready: dict[int, bool] = dict.fromkeys(range(arguments.processes), False)
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        self._stopping = asyncio.Event()

    async def run(self, host: str, port: int) -> int:
        """Works until a signal, or until a worker ends with an error; returns the exit status."""
        with stopped_by_signals() as (stopped, _):
            async with _health(host, port, self._probe):
                keepers = [asyncio.create_task(self._keep(number, stopped)) for number in self._ready]
                every = asyncio.ensure_future(asyncio.wait(keepers))
                while not await _before(every, stopped):
                    stopped.clear()
                    self._stopping.set()
                    _log.info("draining %d workers", len(self._processes))
                    for process in self._processes.values():
                        with contextlib.suppress(ProcessLookupError):
                            process.send_signal(signal.SIGTERM)
        return max(keeper.result() for keeper in keepers)

    async def _keep(self, number: int, stopped: asyncio.Event) -> int:
        """Starts a worker again and again until the end; returns its last status, 0 for the end by a signal."""
        pauses = Backoff(*PAUSES_S)
        while not self._stopping.is_set():
            began_s = asyncio.get_running_loop().time()
            status = await self._once(number)
            if self._stopping.is_set() and status in (0, -signal.SIGTERM):
                return 0
            if EXIT_FINDING <= status <= EXIT_ERROR:
                _log.error("worker %d has ended with status %d, and the others stop", number, status)
                if not self._stopping.is_set():
                    stopped.set()
                return status
            if self._stopping.is_set():
                return 0
            if asyncio.get_running_loop().time() - began_s > PAUSES_S[1]:
                pauses.reset()
            pause_s = pauses.next()
            _log.warning("worker %d has ended with status %d, and is started again in %g s", number, status, pause_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
        return 0

    async def _once(self, number: int) -> int:
        ours, theirs = socket.socketpair()
        with theirs:
            link = str(theirs.fileno())
            process = await asyncio.create_subprocess_exec(
                *self._command, "--link", link, pass_fds=(theirs.fileno(),), start_new_session=True
            )
        self._processes[number] = process
        if self._stopping.is_set():
            process.send_signal(signal.SIGTERM)
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            while report := await reader.read(64):
                self._ready[number] = report.endswith(b"1")
        finally:
            self._ready[number] = False
            writer.close()
        status = await process.wait()
        del self._processes[number]
        return status

    def _probe(self) -> tuple[bool, dict[str, Any]]:
        ready = sum(self._ready.values())
        return ready == len(self._ready), {"workers": len(self._ready), "ready": ready}


def _flags(arguments: argparse.Namespace) -> list[str]:
    """Returns the flags of the command line for one worker."""
    flags: list[str] = []
    for action in arguments.parser._actions:
        value = getattr(arguments, action.dest, None)
        if action.dest in _KEPT or not action.option_strings or value == action.default:
            continue
        flag = action.option_strings[-1]
        if value is True:
            flags.append(flag)
        else:
            for each in value if isinstance(value, list) else [value]:
                flags += [flag, str(each)]
    return flags


async def _awaited(awaitable: Awaitable[_T]) -> _T:
    return await awaitable


async def _before(work: asyncio.Future[Any], stopped: asyncio.Event) -> bool:
    """Returns whether the work has ended before a signal."""
    waiter = asyncio.ensure_future(stopped.wait())
    try:
        await asyncio.wait((work, waiter), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiter.cancel()
    return work.done()


@contextlib.asynccontextmanager
async def _linked(link: int | None, state: Callable[[], str], stopped: asyncio.Event) -> AsyncIterator[None]:
    """Reports to the process that started this one whether the worker is ready; the end of that process is a signal to stop."""
    if link is None:
        yield
        return
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=link))

    async def report() -> None:
        while True:
            writer.write(b"1" if state() == "running" else b"0")
            await writer.drain()
            await asyncio.sleep(REPORT_S)

    async def watch() -> None:
        with contextlib.suppress(OSError):
            await reader.read()
        stopped.set()

    tasks = [asyncio.create_task(report()), asyncio.create_task(watch())]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        writer.close()


@contextlib.asynccontextmanager
async def _health(host: str, port: int, probe: Callable[[], tuple[bool, dict[str, Any]]]) -> AsyncIterator[None]:
    """Answers /healthz with 200, and /readyz with 200 or 503 and the reason, in JSON."""
    if not host:
        yield
        return

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5):
                line = await reader.readline()
                while (await reader.readline()).strip():
                    pass
            path = line.split(b" ")[1] if line.count(b" ") >= 2 else b""
            is_ready, facts = probe()
            status = {b"/healthz": "200 OK", b"/readyz": "200 OK" if is_ready else "503 Service Unavailable"}.get(path, "404 Not Found")
            body = json.dumps(facts).encode() + b"\n"
            head = f"HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        except (OSError, TimeoutError, ValueError):
            pass  # the client has left, or sent no request
        finally:
            writer.close()

    server = await asyncio.start_server(answer, host, port)
    async with server:
        for each in server.sockets:
            _log.info("probes are answered at http://%s:%d", *each.getsockname()[:2])
        yield
