"""The application of the status service: the page at `/`, `/metrics`, `/healthz`, `/readyz`, and `/api/…` with the rows of the command
line.

How it works. Every handler runs on the loop of the log and only calls the log. Sorting, filtering and encoding of long lists happen in a
thread, so that a page never holds the loop. Lists are cut at `LIMIT_MAX` rows.

`status_app` returns a Starlette application, to be served or mounted in another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wal._version import __version__
from wal.channels.vchannels import VChannelInfo
from wal.engine import LogStatistics
from wal.errors import AuthenticationError, InvalidArgumentError, WALError, shortened
from wal.operate.inspect.builders import (
    VChannelCounts,
    archive_rows,
    broadcast_rows,
    consumer_rows,
    cursor_rows,
    health_rows,
    log_rows,
    retention_rows,
    scheduled_rows,
    setting_rows,
    vchannel_rows,
    visible_consumers,
)
from wal.operate.inspect.rows import ConsumerRow, Row, ScheduledRow, as_dict, json_of
from wal.operate.metrics.collector import Collector
from wal.operate.metrics.snapshot import Snapshots
from wal.operate.status.access import StatusAccess
from wal.operate.status.actions import perform
from wal.operate.status.counting import JournalCounts
from wal.read.figures import PChannelStatistics, page_fields
from wal.runtime.secret import Secret
from wal.runtime.threads import in_thread
from wal.settings import Settings
from wal.storage.files.free_space import free_bytes
from wal.timestamp.checks import whole_number

LIMIT_MAX: Final = 500
"""The maximum number of rows in an answer."""
OFFSET_MAX: Final = 1 << 53
TASKS_MAX: Final = 2_000
"""The number of unfinished broadcasts above which only their counts are returned: listing them would hold the loop."""
ROOM_BYTES_MIN: Final = 256 << 20
"""The free space below which a log on a disk is not ready: four segments of the default size."""
LISTINGS_MAX: Final = 4
LISTING_S: Final = 60.0
"""The time for which the pages of a listing can be read."""
READY_S: Final = 5.0
"""The time after which a pchannel without an answer makes the log not ready."""
ACTION_BYTES_MAX: Final = 2 << 20
"""The longest body of an action."""
REST_BYTES_MAX: Final = 64 << 20
"""The bytes of a too long body that are read, and dropped, before the answer."""
REST_S: Final = 30.0
"""The time limit for that."""
_HEADERS: Final = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}
_ASSETS: Final = {
    "": ("page.html", "text/html"),
    "page.js": ("page.js", "text/javascript"),
    "page.css": ("page.css", "text/css"),
    "favicon.svg": ("favicon.svg", "image/svg+xml"),
    "favicon.ico": ("favicon.svg", "image/svg+xml"),
}


def status_app(log: Any, *, token: str | Secret | None = None, readiness_needs_consumers: bool = True) -> Starlette:
    """Returns the status service of an open log as an application, to mount in Starlette or FastAPI on the loop of the log.

    With a token every request must carry it, as `Authorization: Bearer TOKEN`, except for `/healthz`, `/readyz` and the empty page. Without
    a token, any client that reaches the application may read, and actions are refused. `/readyz` is 503 while a consumer has ended with an
    error, unless `readiness_needs_consumers=False`.
    """
    secret = None if token is None else Secret.of(token)
    access = StatusAccess(secret, open_reads=secret is None, loopback=False)
    return StatusHandlers(log, access, readiness_needs_consumers=readiness_needs_consumers).app


class StatusHandlers:
    """The handlers for one log. `directory` has a journal's files; `settings` are those of the opening, if known."""

    def __init__(
        self,
        log: Any,
        access: StatusAccess,
        *,
        directory: Path | None = None,
        settings: Settings | None = None,
        readiness_needs_consumers: bool = True,
    ) -> None:
        self._log = log
        self._readiness_needs_consumers = readiness_needs_consumers
        self._access = access
        self._directory = directory
        self._settings = settings
        self._snapshots = Snapshots(log.statistics, log.cursors, log.retention, log.consumers)
        self._collector: Collector | None = None
        self._counts = None if directory is None else JournalCounts(directory)
        self._began_s = time.monotonic()
        self._listings: dict[str, list[ScheduledRow]] = {}
        """The rows of the last listings of scheduled messages that have several pages."""
        read: Callable[[Callable[[Request], Awaitable[Response]]], Callable[[Request], Awaitable[Response]]] = self._reading
        self.app: Starlette = Starlette(
            routes=[
                *(Route(f"/{path}", self._asset(*asset)) for path, asset in _ASSETS.items()),
                Route("/healthz", self._answering(self._healthz)),
                Route("/readyz", self._answering(self._readyz)),
                Route("/metrics", read(self._metrics)),
                Route("/api/live", read(self._live)),
                Route("/api/info", read(self._rows(lambda: log_rows(log, log.location)))),
                Route("/api/ls", read(self._vchannels)),
                Route("/api/cursors", read(self._rows(lambda: cursor_rows(log)))),
                Route("/api/consumers", read(self._rows(self._consumers))),
                Route("/api/scheduled", read(self._scheduled)),
                Route("/api/broadcasts", read(self._rows(self._broadcasts))),
                Route("/api/retention", read(self._rows(lambda: retention_rows(log)))),
                Route("/api/settings", read(self._rows(self._setting_rows))),
                Route("/api/health", read(self._rows(self._health))),
                Route("/api/actions/{name}", self._answering(self._action), methods=["POST"]),
            ],
            middleware=[Middleware(_WholeRequests)],
        )

    def close(self) -> None:
        """Stops measuring the loop, and counting."""
        if self._collector is not None:
            self._collector.close()
        if self._counts is not None:
            self._counts.close()

    # -- access, and errors

    def _answering(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                return await handler(request)
            except AuthenticationError as error:
                return _json({"error": type(error).__name__, "text": str(error)}, status=401)
            except InvalidArgumentError as error:
                status = 413 if isinstance(error, _TooLargeError) else 400
                return _json({"error": "InvalidArgumentError", "text": str(error)}, status=status)
            except WALError as error:
                return _json({"error": type(error).__name__, "text": str(error)}, status=503 if error.retryable else 500)

        return answer

    def _reading(self, handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def read(request: Request) -> Response:
            self._access.check_read(request.headers)
            return await handler(request)

        return self._answering(read)

    def _asset(self, name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
        text: bytes | None = None

        async def asset(_request: Request) -> Response:
            nonlocal text
            if text is None:
                text = await in_thread((files("wal.operate.status") / "assets" / name).read_bytes)
            return Response(text, media_type=kind, headers=_HEADERS)

        return asset

    # -- reads

    async def _healthz(self, _request: Request) -> Response:
        counts: LogStatistics = self._log.statistics()
        failed = [pchannel.name for pchannel in counts.pchannels if pchannel.failure]
        return _json({"ok": not failed, "failed": failed}, status=503 if failed else 200)

    async def _readyz(self, _request: Request) -> Response:
        checks: dict[str, bool] = {}
        counts: LogStatistics = self._log.statistics()
        checks["open"] = True
        checks["takes appends"] = not any(pchannel.failure for pchannel in counts.pchannels)
        checks["pchannels answer"] = bool(counts.pchannels)
        if counts.role == "client":  # its pchannels are elsewhere; a request here must not make the log read its cursors
            try:
                async with asyncio.timeout(READY_S):
                    checks["pchannels answer"] = bool(await self._snapshots.retention())
            except (TimeoutError, WALError):
                checks["pchannels answer"] = False
        if self._directory is not None:
            free = await in_thread(free_bytes, self._directory)
            checks["disk has room"] = free is None or free >= ROOM_BYTES_MIN
        if self._readiness_needs_consumers:
            checks["consumers run"] = not any(one.state == "ended" and one.error for one in self._log.consumers())
        ok = all(checks.values())
        return _json({"ok": ok, "checks": checks}, status=200 if ok else 503)

    async def _metrics(self, _request: Request) -> Response:
        if self._collector is None:
            self._collector = Collector.of(self._snapshots)
        text, kind = await self._collector.text()
        return Response(text, media_type=kind, headers=_HEADERS)

    async def _live(self, _request: Request) -> Response:
        snapshot = await self._snapshots.take()
        log = snapshot.log
        assert log is not None, "the snapshot of a log"
        answer = {
            "at_s": snapshot.at_s,
            "release": __version__,
            "pid": os.getpid(),
            "uptime_s": await in_thread(_uptime_s, self._began_s),
            "actions": self._access.takes_actions,
            "role": log.role,
            "backend": log.wal_name,
            "location": self._log.location,
            "vchannels": log.vchannels,
            "in_flight": log.bytes_in_flight,
            "waiting": log.appends_waiting,
            "refused": log.appends_refused,
            "stopped_consumers": {one.cursor: one.state for one in self._log.consumers() if one.error},
            "pchannels": [{name: getattr(each, name) for name in page_fields(PChannelStatistics)} for each in log.pchannels],
        }
        return _json(answer)

    def _rows(self, build: Callable[[], Awaitable[Iterable[Row]]]) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            rows = list(await build())
            offset, limit, text = _page(request)
            return await in_thread(_listed, rows, offset, limit, text)

        return answer

    async def _scheduled(self, request: Request) -> Response:
        """Lists scheduled messages. The schedules of all vchannels are read once for all pages of a listing, which the first page names."""
        offset, limit, text = _page(request)
        name = request.query_params.get("listing")
        if name is None:
            name, rows = secrets.token_hex(8), list(await scheduled_rows(self._log))
            if len(rows) > limit:
                while len(self._listings) >= LISTINGS_MAX:
                    del self._listings[next(iter(self._listings))]
                self._listings[name] = rows
                asyncio.get_running_loop().call_later(LISTING_S, self._listings.pop, name, None)
        elif (rows := self._listings.get(name, [])) == []:
            raise InvalidArgumentError(
                f"listing {shortened(name)} has ended, after {LISTING_S:g} s or others since: begin again without it"
            )
        return await in_thread(_listed, rows, offset, limit, text, name)

    async def _consumers(self) -> list[ConsumerRow]:
        return consumer_rows(await visible_consumers(self._log))

    async def _vchannels(self, request: Request) -> Response:
        """Lists vchannels. A thread filters and cuts the list, and only the last events of listed vchannels are read."""
        offset, limit, text = _page(request)
        infos = await self._log.vchannels()

        def cut() -> tuple[list[Any], int]:
            matches = sorted((info for info in infos if text in info.name), key=lambda info: info.name)
            return matches[offset : offset + limit], len(matches)

        page, total = await in_thread(cut)
        counts = None if self._counts is None else _Counted(await self._counts.counts(infos))
        rows = await vchannel_rows(_SomeVChannels(self._log, page), counts)
        return _json({"total": total, "offset": offset, "rows": [as_dict(row) for row in rows]})

    async def _broadcasts(self) -> list[Row]:
        counts: LogStatistics = self._log.statistics()
        if counts.role == "reader" or (counts.broadcasts is not None and counts.broadcasts.tasks > TASKS_MAX):
            return []
        return list(broadcast_rows(await self._log.broadcast().tasks()))

    async def _setting_rows(self) -> list[Row]:
        return [] if self._settings is None else list(setting_rows(self._settings))

    async def _health(self) -> list[Row]:
        rows = health_rows([*await log_rows(self._log, self._log.location), *await self._consumers()])
        return [*rows, *archive_rows(self._log.statistics())]

    # -- actions

    async def _action(self, request: Request) -> Response:
        self._access.check_action(request.headers)
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise InvalidArgumentError("an action takes its arguments as application/json")
        body, declared = bytearray(), int(request.headers.get("content-length", "0"))  # the server has checked that it is a number
        if declared <= ACTION_BYTES_MAX:
            async for chunk in request.stream():
                body += chunk
                if len(body) > ACTION_BYTES_MAX:
                    break
        if max(declared, len(body)) > ACTION_BYTES_MAX:
            length = f"{declared} bytes" if declared else f"more than {ACTION_BYTES_MAX} bytes"
            raise _TooLargeError(f"the arguments are {length} long, of at most {ACTION_BYTES_MAX}: append large messages with a client")
        return _json(await perform(self._log, request.path_params["name"], bytes(body)))


class _TooLargeError(InvalidArgumentError):
    """The body of a request is above the limit."""


class _WholeRequests:
    """Reads the rest of a request's body before its answer begins, whatever the answer is.

    A connection that is closed with unread data is reset, and then the client loses an unread answer. A client that waits for permission to
    continue sends no body, so nothing has to be read.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        names = {name for name, _ in scope["headers"]}
        ended = not names & {b"content-length", b"transfer-encoding"} or b"expect" in names

        async def receive_part() -> Message:
            nonlocal ended
            part = await receive()
            ended = not part.get("more_body", False)  # the end of the connection counts too
            return part

        async def send_after(message: Message) -> None:
            nonlocal ended
            if not ended:
                remaining = REST_BYTES_MAX
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(REST_S):
                        while not ended and remaining > 0:
                            remaining -= len((await receive_part()).get("body", b""))
                ended = True
            await send(message)

        await self._app(scope, receive_part, send_after)


class _Counted:
    """Counts that were computed before."""

    def __init__(self, counts: Mapping[str, VChannelCounts]) -> None:
        self._counts = counts

    async def counts(self, vchannels: Sequence[VChannelInfo]) -> Mapping[str, VChannelCounts]:
        return self._counts


class _SomeVChannels:
    """A log with some of its vchannels only, for `vchannel_rows`."""

    def __init__(self, log: Any, vchannels: list[Any]) -> None:
        self._shown = vchannels
        self.last = log.last
        self.scheduled = log.scheduled
        self.wal_name: str = log.wal_name
        self.cursors = log.cursors
        self.retention = log.retention
        self.statistics = log.statistics

    async def vchannels(self) -> list[Any]:
        return self._shown


def _uptime_s(began_s: float) -> float:
    """Returns the uptime of this process; if the system does not provide it, the uptime of the page."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return float(Path("/proc/uptime").read_text().split()[0]) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.monotonic() - began_s


def _page(request: Request) -> tuple[int, int, str]:
    """Returns the offset, the limit and the filter of a request. Raises InvalidArgumentError for a wrong one."""
    texts = {"offset": "0", "limit": "100", "filter": ""}
    for name in texts:
        match request.query_params.getlist(name):
            case []:
                continue
            case [text]:
                texts[name] = text
            case several:
                raise InvalidArgumentError(f"{name} is in the query {len(several)} times: write it once")
    offset = whole_number("offset", texts["offset"], 0, OFFSET_MAX)
    return offset, whole_number("limit", texts["limit"], 1, LIMIT_MAX), texts["filter"]


def _listed(rows: Sequence[Row], offset: int, limit: int, text: str, listing: str | None = None) -> Response:
    if text:
        rows = [row for row in rows if any(text in str(value) for value in as_dict(row).values())]
    page = {"total": len(rows), "offset": offset, "rows": [as_dict(row) for row in rows[offset : offset + limit]]}
    return _json(page if listing is None else {**page, "listing": listing})


def _json(answer: Any, *, status: int = 200) -> Response:
    return Response(json_of(answer), status_code=status, media_type="application/json", headers=_HEADERS)
