"""The commands that change a log: `wal append`, `wal cursor`, `wal truncate` and `wal broadcast abort`; `queues.py` has the others.

A log that another process has open for writing is changed through that process's status service; without one, the command fails with the
process's pid. Cursors that do not move with transactions are saved beside the writer. Commands that take messages from a reader ask for
confirmation on a terminal, or need `--yes`. `--dry-run` changes nothing, prints the same rows, and ends with 1 if anything would change.
Every command prints a row for each change, even if a later one failed. Only `wal append --create` creates a log.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from wal.errors import BulkAppendError, ChannelExistError, InvalidArgumentError
from wal.location import parse_location
from wal.message import Message, MessageID, ScheduledResult
from wal.operate.cli.commands import EXIT_FINDING, EXIT_STATUS
from wal.operate.cli.look import unfinished_broadcasts
from wal.operate.cli.output import (
    add_log,
    check_free,
    check_vchannels,
    confirmed,
    details_of,
    no_cursor,
    note,
    opened,
    pairs,
    settings_of,
    show,
    whole,
)
from wal.operate.cli.status_service import StatusService
from wal.operate.inspect.points import Point, parse_delivery, parse_point, tick_of
from wal.operate.inspect.rows import Row, ScheduledRow
from wal.read.cursors.cursor import CursorKey
from wal.read.options import All, DeliverPolicy, Latest, StartFrom, TimeTickGTE
from wal.runtime.threads import in_thread
from wal.timestamp.checks import TICK_MAX
from wal.timestamp.timestamp import compose

if TYPE_CHECKING:
    from io import BufferedReader

    from wal.api.accesser import WALAccesser
    from wal.message import AppendResult

_CHUNK_BYTES: Final = 1 << 16
"""The maximum number of bytes of lines that are appended at once."""
_WINDOWS_MS: Final = (60_000, 3_600_000, 86_400_000)
"""The ranges before a time in which its last event is searched, in milliseconds, before everything is read."""


class AppendedRow(Row, frozen=True, kw_only=True, tag="appended"):
    """The messages that a command appended or scheduled, and the number of those whose key existed already. The ids are None without an
    appended message.
    """

    vchannel: str
    messages: int
    bytes: int
    duplicates: int
    first_id: str | None
    last_id: str | None


class CursorChangeRow(Row, frozen=True, kw_only=True, tag="cursor_change"):
    """A cursor that is moved or removed: its position before, and `to`, the new beginning of its reader, None if it is removed."""

    cursor: str
    vchannels: tuple[str, ...]
    position: str | None
    to: str | None


class TruncationRow(Row, frozen=True, kw_only=True, tag="truncation"):
    """A pchannel that is truncated up to an event, inclusive, and the holders that need a message at or before it, which prevents the
    truncation.
    """

    pchannel: str
    up_to: str
    holders: tuple[str, ...]


def fill_append(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal append`."""
    add_log(parser, "Appends the standard input to a vchannel: the whole of it as one message, or each line as one.")
    parser.add_argument("vchannel", metavar="VCHANNEL", help="the name of a vchannel")
    parser.add_argument("--lines", action="store_true", help="each line is a message, without its end")
    parser.add_argument("--key", metavar="KEY", help="the idempotency key; with --lines KEY:1 is that of the first line, and so on")
    parser.add_argument("-p", "--property", metavar="NAME=VALUE", action="append", default=[], help="a property; may be repeated")
    parser.add_argument("--deliver-at", metavar="TIME", help="delivers later: after a time from now (+10m), or at a time")
    parser.add_argument("--create", action="store_true", help="creates the log and the vchannel if they are missing")
    parser.set_defaults(run=_append)


def fill_cursor(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal cursor`."""
    parser.description, parser.epilog = (
        "Moves or removes a cursor, beside the writer of the log or without one. A cursor that moves with transactions is changed by that "
        "writer, through its status service.",
        EXIT_STATUS,
    )
    changes = parser.add_subparsers(required=True, metavar="set|reset|rm")
    for name, run, description in (
        ("set", _set_cursor, "Moves a cursor to a point, or creates it there. Its reader continues there when it is started again."),
        ("reset", _reset_cursor, "Starts a cursor again, also a stale one: deletes it, and saves it at a point."),
        ("rm", _remove_cursor, "Removes a cursor, also a stale one, so that it holds nothing back any more."),
    ):
        own = changes.add_parser(name, allow_abbrev=False, formatter_class=parser.formatter_class, help=description.split(". ")[0])
        add_log(own, description)
        own.add_argument("cursor", metavar="NAME", help="the name of the cursor")
        if name != "rm":
            what = "the first message to read: earliest, latest, an id, a tick, a time, or a time ago (10m)"
            default = " (default earliest)" if name == "reset" else ""
            own.add_argument("--to", metavar="POINT", required=name == "set", default="earliest", help=what + default)
        own.add_argument("--vchannel", metavar="VCHANNEL", action="append", help="the vchannels of the cursor; repeatable (default: all)")
        add_asking(own)
        own.set_defaults(run=run, parser=own)


def fill_truncate(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal truncate`."""
    add_log(parser, "Drops the oldest messages of a log. What a cursor or an unfinished broadcast still needs is never dropped.")
    what = "the last event to drop: an id, on its pchannel; or a tick, a time or a time ago (7d), on every pchannel"
    parser.add_argument("--up-to", metavar="POINT", required=True, help=what)
    add_asking(parser)
    parser.set_defaults(run=_truncate)


def fill_broadcast(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal broadcast`."""
    parser.description, parser.epilog = "Ends a broadcast that cannot finish. `wal broadcasts` lists them.", EXIT_STATUS
    changes = parser.add_subparsers(required=True, metavar="abort")
    own = changes.add_parser("abort", allow_abbrev=False, formatter_class=parser.formatter_class, help="aborts a broadcast")
    add_log(own, "Aborts a broadcast: each vchannel that has a copy gets an ABORT_BROADCAST, and the resource keys are free.")
    own.add_argument("broadcast", metavar="ID", type=whole(0, TICK_MAX), help="the id of the broadcast")
    own.add_argument("--reason", metavar="TEXT", required=True, help="the reason, which readers find in the payload")
    add_asking(own)
    own.set_defaults(run=_abort, parser=own)


def add_asking(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="changes nothing, prints the plan, and ends with 1 if anything would change")
    parser.add_argument("-y", "--yes", action="store_true", help="does not ask")


def changed(
    arguments: argparse.Namespace,
    question: str,
    rows: Callable[[], Coroutine[Any, Any, list[Row]]],
    change: Callable[[Sequence[Row]], AsyncIterator[Row]],
) -> int:
    """Makes the changes in `rows` if the operator agrees, and prints the rows that `change` yields for finished changes.

    Returns the exit status.
    """
    changes = asyncio.run(rows())
    if not changes:
        return 0
    if arguments.dry_run:
        show(changes, arguments)
        return EXIT_FINDING
    if not confirmed(arguments, question):
        return EXIT_FINDING
    finished: list[Row] = []

    async def carry_out() -> None:
        async for row in change(changes):
            finished.append(row)  # noqa: PERF401 - after a failure the list has the earlier ones

    try:
        asyncio.run(carry_out())
    finally:
        show(finished, arguments)
    return 0 if len(finished) == len(changes) else EXIT_FINDING


def service_of(arguments: argparse.Namespace) -> StatusService | None:
    """Returns the status service for a log that another process writes; None for a log that this process may write.

    Raises LockedError if a process writes the log and serves none; a dry run works beside it.
    """
    location, (settings, _) = parse_location(arguments.location), settings_of(arguments)
    service = StatusService.of(location, settings)
    if service is None and not getattr(arguments, "dry_run", False):
        check_free(location, settings, create=getattr(arguments, "create", False))
    return service


# -- append


def _append(arguments: argparse.Namespace) -> int:
    asyncio.run(_Appends(arguments).run())
    return 0


class _Appends:
    """The messages that one command appends or schedules, and their results so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._properties = pairs("-p", arguments.property)
        self._deliver_at = None if arguments.deliver_at is None else parse_delivery("--deliver-at", arguments.deliver_at)
        self._counts: dict[str, int] = {"messages": 0, "bytes": 0, "duplicates": 0}
        self._ids: list[MessageID] = []
        self._waiting: list[ScheduledRow] = []

    async def run(self) -> None:
        """Appends the standard input, and prints the rows, also after a failure in the middle: the counted messages are durable."""
        arguments = self._arguments
        service = await in_thread(service_of, arguments)
        try:
            async with contextlib.nullcontext() if service is not None else opened(arguments, write=True, create=arguments.create) as log:
                if log is not None and arguments.create:
                    with contextlib.suppress(ChannelExistError):
                        await log.create_vchannel(arguments.vchannel)
                async for payloads in _payloads(lines=arguments.lines):
                    await self._append_all(log or cast("StatusService", service), payloads)
        finally:
            if self._counts["messages"] or sys.exc_info()[0] is None:
                first, last = (str(self._ids[0]), str(self._ids[-1])) if self._ids else (None, None)
                appended = AppendedRow(vchannel=arguments.vchannel, **self._counts, first_id=first, last_id=last)
                show([appended, *self._waiting], arguments)

    async def _append_all(self, log: WALAccesser | StatusService, payloads: Sequence[bytes]) -> None:
        messages = [Message(self._arguments.vchannel, payload, properties=self._properties) for payload in payloads]
        keys = [self._key(self._counts["messages"] + at) for at in range(1, len(messages) + 1)]
        if isinstance(log, StatusService):
            for message, key in zip(messages, keys, strict=True):
                self._count([message], [await in_thread(self._appended_by, log, message, key)])
        elif self._arguments.key is None and self._deliver_at is None:
            try:
                self._count(messages, await log.append_bulk(messages))
            except BulkAppendError as error:
                self._count(messages, error.results)
                raise
        else:
            outcomes = await asyncio.gather(*map(partial(self._appended, log), messages, keys), return_exceptions=True)
            failed = next((at for at, outcome in enumerate(outcomes) if isinstance(outcome, BaseException)), len(outcomes))
            self._count(messages, [outcome for outcome in outcomes[:failed] if not isinstance(outcome, BaseException)])
            for outcome in outcomes[failed:]:
                if isinstance(outcome, BaseException):
                    raise outcome

    def _key(self, number: int) -> str | None:
        key: str | None = self._arguments.key
        return f"{key}:{number}" if key and self._arguments.lines else key

    async def _appended(self, log: WALAccesser, message: Message, key: str | None) -> AppendResult | ScheduledResult:
        if self._deliver_at is None:
            return await log.raw_append(message, idempotency_key=key)
        deliver_at, properties = self._deliver_at, message.properties
        return await log.append(message.vchannel, message.payload, properties=properties, idempotency_key=key, deliver_at=deliver_at)

    def _appended_by(self, service: StatusService, message: Message, key: str | None) -> _Appended | ScheduledResult:
        payload = base64.b64encode(message.payload).decode()
        time = {} if self._deliver_at is None else {"deliver_at": self._deliver_at.isoformat()}
        create = {"create": True} if self._arguments.create else {}
        properties = dict(message.properties)
        answer = service.act("append", vchannel=message.vchannel, payload_base64=payload, properties=properties, key=key, **time, **create)
        if answer["message_id"] is None:
            return ScheduledResult(answer["key"], datetime.fromisoformat(answer["deliver_at"]), duplicate=answer["duplicate"])
        return _Appended(MessageID.parse(answer["message_id"]), answer["duplicate"])

    def _count(self, messages: Sequence[Message], results: Sequence[AppendResult | ScheduledResult | _Appended]) -> None:
        for message, result in zip(messages, results, strict=False):
            self._counts["messages"] += 1
            self._counts["bytes"] += len(message.payload)
            self._counts["duplicates"] += result.duplicate
            appended = result.appended if isinstance(result, ScheduledResult) else result
            if appended is not None:
                self._ids[1:] = [appended.message_id]
                if len(self._ids) == 1:
                    self._ids.append(appended.message_id)
            elif isinstance(result, ScheduledResult):
                self._waiting.append(ScheduledRow(vchannel=message.vchannel, key=result.key, deliver_at=result.deliver_at))


class _Appended(msgspec.Struct, frozen=True):
    """The result of an append by the status service."""

    message_id: MessageID
    duplicate: bool


async def _payloads(*, lines: bool) -> AsyncIterator[list[bytes]]:
    """Yields the payloads of the standard input: all of it as one, or its lines, grouped as they arrive."""
    if sys.stdin is None:
        raise InvalidArgumentError("the standard input is closed: give the messages there, such as `wal append LOCATION VCHANNEL < FILE`")
    source = cast("BufferedReader", sys.stdin.buffer)
    if not lines:
        yield [await in_thread(source.read)]
        return
    begun = b""
    while chunk := await in_thread(source.read1, _CHUNK_BYTES):
        *whole, begun = (begun + chunk).split(b"\n")
        if whole:
            yield [line.removesuffix(b"\r") for line in whole]
    if begun:
        yield [begun]


# -- cursors


def _set_cursor(arguments: argparse.Namespace) -> int:
    question = f"Move cursor {arguments.cursor} to {arguments.to}?"
    return changed(arguments, question, _rows_of_cursor(arguments, create=True), _moved_cursors(arguments, reset=False))


def _reset_cursor(arguments: argparse.Namespace) -> int:
    question = f"Start cursor {arguments.cursor} again at {arguments.to}?"
    return changed(arguments, question, _rows_of_cursor(arguments), _moved_cursors(arguments, reset=True))


def _moved_cursors(arguments: argparse.Namespace, *, reset: bool) -> Callable[[Sequence[Row]], AsyncIterator[Row]]:
    point = parse_point("--to", arguments.to, words=("earliest", "latest"))

    async def change(rows: Sequence[Row]) -> AsyncIterator[Row]:
        async with _cursor_log(arguments, rows) as (log, service):
            for row in cast("Sequence[CursorChangeRow]", rows):
                policy = await _policy(log, row.vchannels, point)
                if service is None:
                    await log.seek(row.cursor, to=policy, vchannels=row.vchannels or None, reset=reset)
                else:
                    to = str(policy.message_id) if isinstance(policy, StartFrom) else "latest" if isinstance(policy, Latest) else "earliest"
                    names = list(row.vchannels)
                    await in_thread(service.act, "cursor-set", cursor=row.cursor, vchannels=names, to=to, confirm=row.cursor, reset=reset)
                yield row

    return change


def _remove_cursor(arguments: argparse.Namespace) -> int:
    arguments.to = None

    async def change(rows: Sequence[Row]) -> AsyncIterator[Row]:
        async with _cursor_log(arguments, rows) as (log, service):
            for row in cast("Sequence[CursorChangeRow]", rows):
                if service is None:
                    await log.delete_cursor(row.cursor, vchannels=row.vchannels or None)
                else:
                    names = list(row.vchannels)
                    await in_thread(service.act, "cursor-rm", cursor=row.cursor, vchannels=names, confirm=row.cursor)
                yield row

    return changed(arguments, f"Remove cursor {arguments.cursor}?", _rows_of_cursor(arguments), change)


def _rows_of_cursor(arguments: argparse.Namespace, *, create: bool = False) -> Callable[[], Coroutine[Any, Any, list[Row]]]:
    async def rows() -> list[Row]:
        async with opened(arguments) as log:
            return [*await _cursor_rows(arguments, log, arguments.to, create=create)]

    return rows


async def _cursor_rows(arguments: argparse.Namespace, log: WALAccesser, to: str | None, *, create: bool = False) -> list[CursorChangeRow]:
    """Returns a row for each matching cursor. Raises InvalidArgumentError if there is none, unless it is to be created."""
    vchannels = None if arguments.vchannel is None else tuple(sorted(set(arguments.vchannel)))
    rows = [
        CursorChangeRow(cursor=info.name, vchannels=info.vchannels, position=None if info.position is None else str(info.position), to=to)
        for info in await log.cursors()
        if info.name == arguments.cursor and vchannels in (None, info.vchannels)
    ]
    if rows:
        return rows
    if vchannels is None:
        remedy = "; to create it, name its vchannels with --vchannel" if create else ""
        raise no_cursor(repr(arguments.cursor), remedy)
    if not create:
        raise no_cursor(f"{arguments.cursor!r} of {', '.join(vchannels)}")
    check_vchannels(vchannels, {info.name for info in await log.vchannels()})
    return [CursorChangeRow(cursor=arguments.cursor, vchannels=vchannels, position=None, to=to)]


@contextlib.asynccontextmanager
async def _cursor_log(arguments: argparse.Namespace, rows: Sequence[Row]) -> AsyncIterator[tuple[WALAccesser, StatusService | None]]:
    """Opens the log so that these cursors can be changed, and yields it, with the status service if the change needs it.

    Raises LockedError if one moves with transactions, and a process writes the log without a status service.
    """
    with_writer = await in_thread(_moves_with_transactions, arguments, cast("Sequence[CursorChangeRow]", rows))
    service = await in_thread(service_of, arguments) if with_writer else None
    async with opened(arguments, write=with_writer and service is None) as log:
        yield log, service


def _moves_with_transactions(arguments: argparse.Namespace, rows: Sequence[CursorChangeRow]) -> bool:
    if parse_location(arguments.location).servers is not None:
        return False  # the server changes it
    with details_of(arguments) as details:
        saved = [details.core.source.cursors.load(CursorKey(row.cursor, row.vchannels)) for row in rows]
        return any(cursor is not None and cursor.moving for cursor in saved)


async def _policy(log: WALAccesser, vchannels: tuple[str, ...], point: Point) -> DeliverPolicy:
    """Returns the policy of a read from this point on; for a tick or a time, from the first message at or after it."""
    if isinstance(point, str):
        return All() if point == "earliest" else Latest()
    if isinstance(point, MessageID):
        return StartFrom(point)
    async with log.read(vchannels, filters=TimeTickGTE(tick_of(point)), follow=False) as scanner:
        async for message in scanner:
            return StartFrom(message.message_id)
    return Latest()


# -- truncation


def _truncate(arguments: argparse.Namespace) -> int:
    point = parse_point("--up-to", arguments.up_to)
    assert not isinstance(point, str)
    service = service_of(arguments)

    async def rows() -> list[Row]:
        async with opened(arguments) as log:
            events = [point] if isinstance(point, MessageID) else await _last_events(log, tick_of(point))
            reports = {report.pchannel: report for report in await log.retention()}
            changes: list[Row] = []
            for event in events:
                if (report := reports.get(event.pchannel)) is None:
                    raise InvalidArgumentError(f"--up-to {event}: the log has no pchannel {event.pchannel}, only {', '.join(reports)}")
                if report.earliest is None or (event.incarnation == report.earliest.incarnation and event < report.earliest):
                    continue  # it is truncated up to there already
                holders = tuple(f"{holder.kind} {holder.name}" for holder in report.holders if holder.position <= event.position)
                changes.append(TruncationRow(pchannel=report.pchannel, up_to=str(event), holders=holders))
            return changes

    async def change(rows: Sequence[Row]) -> AsyncIterator[Row]:
        async with contextlib.AsyncExitStack() as stack:
            log = None if service is not None else await stack.enter_async_context(opened(arguments, write=True))
            for row in cast("Sequence[TruncationRow]", rows):
                try:
                    if log is not None:
                        await log.truncate(up_to=MessageID.parse(row.up_to))
                    else:
                        await in_thread(cast("StatusService", service).act, "truncate", up_to=row.up_to, confirm=row.up_to)
                except InvalidArgumentError as refusal:  # a holder needs it: the other pchannels are truncated anyway
                    note(str(refusal))
                else:
                    yield row

    return changed(arguments, f"Drop everything up to {arguments.up_to}?", rows, change)


async def _last_events(log: WALAccesser, tick: int) -> list[MessageID]:
    """Returns, for each pchannel, the last event of its vchannels at or below this tick."""
    groups: dict[str, list[str]] = {}
    for info in await log.vchannels():
        groups.setdefault(info.pchannel, []).append(info.name)
    events = [await _last_event(log, names, tick) for names in groups.values()]
    return [event for event in events if event is not None]


async def _last_event(log: WALAccesser, vchannels: list[str], tick: int) -> MessageID | None:
    for earliest in (*(max(0, tick - compose(window_ms, 0)) for window_ms in _WINDOWS_MS), 0):
        last = None
        async with log.read(vchannels, filters=TimeTickGTE(earliest), follow=False) as scanner:
            async for message in scanner:
                if message.time_tick > tick:
                    break
                last = message.message_id
        if last is not None:
            return last
    return None


# -- broadcasts


def _abort(arguments: argparse.Namespace) -> int:
    service = service_of(arguments)

    async def rows() -> list[Row]:
        unfinished = await unfinished_broadcasts(arguments)
        own: list[Row] = [row for row in unfinished if row.broadcast_id == arguments.broadcast]
        if not own:
            raise InvalidArgumentError(f"no unfinished broadcast {arguments.broadcast}: `wal broadcasts` lists them")
        return own

    async def change(rows: Sequence[Row]) -> AsyncIterator[Row]:
        if service is not None:
            broadcast_id = str(arguments.broadcast)
            await in_thread(service.act, "broadcast-abort", broadcast_id=broadcast_id, reason=arguments.reason, confirm=broadcast_id)
        else:
            async with opened(arguments, write=True) as log:
                await log.broadcast().abort(arguments.broadcast, arguments.reason)
        for row in rows:
            yield row

    return changed(arguments, f"Abort broadcast {arguments.broadcast}?", rows, change)
