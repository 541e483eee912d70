"""`wal tail`, `wal cat` and `wal peek`: messages of vchannels, printed as lines, as JSON, as hexadecimal, or written into a file.

They read beside the writer and save no cursor. Without -f a read ends at the end of the log as it was at the start. A read of the last
messages, or of messages since a time, begins there and not at the beginning of the log. Streams of several pchannels are merged by their
ticks, message by message. A payload in a line never carries control characters. Lines and files are written in threads, because a pipe may
be full and a disk slow.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import csv
import heapq
import json
import re
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wal.errors import InvalidArgumentError
from wal.location import parse_location
from wal.message import ImmutableMessage, MessageID, MessageType
from wal.message.matching import Matching
from wal.operate.cli.output import (
    add_log,
    add_progress,
    check_vchannels,
    no_cursor,
    opened,
    progress_noted,
    settings_of,
    shows_progress,
    size_text,
    whole,
)
from wal.operate.cli.parquet import COLUMNS, ParquetFile
from wal.operate.inspect.points import parse_point, tick_of
from wal.operate.inspect.rows import Row, as_json, printable
from wal.read.options import All, DeliverFilter, DeliverPolicy, Last, Latest, MessageTypes, StartAt, StartFrom, TimeTickGTE
from wal.runtime.descriptors import open_file
from wal.runtime.threads import in_thread
from wal.timestamp.timestamp import to_datetime

if TYPE_CHECKING:
    import pyarrow as pa

    from wal.api.accesser import WALAccesser

_BATCH: Final = 1024
_DEFAULT_FORMAT: Final = "%T %v %i %p"
_FORMATS: Final = """\
%T time, %t tick, %i id, %v vchannel, %y type, %p payload, %P properties as JSON, %l bytes of the payload, %n new line, %% percent"""


class MessageRow(Row, frozen=True, kw_only=True, tag="message"):
    """A message: its payload as text if it is UTF-8, else in base64; the other field is None."""

    vchannel: str
    message_id: str
    time_tick: int
    append_time: str
    type: str
    payload: str | None
    payload_base64: str | None
    properties: dict[str, str]


def fill_tail(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal tail`."""
    add_log(parser, "Prints the last messages of vchannels, and with -f what follows.")
    _add_reading(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="waits for what follows, until it is interrupted")
    parser.add_argument("-n", "--lines", metavar="N", type=whole(0), help="how many of the last messages (default 20; all with --since)")
    parser.add_argument("--since", metavar="POINT", help="from a time ago (10m), a time, a tick or an id on")
    parser.set_defaults(run=_tail, to_parquet=None, to_csv=None, to_jsonl=None)


def fill_cat(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal cat`."""
    add_log(parser, "Prints all messages of vchannels, or writes them into a file.")
    _add_reading(parser)
    parser.add_argument("--since", metavar="POINT", help="from a time ago (10m), a time, a tick or an id on")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--to-jsonl", metavar="FILE", help="writes JSON lines")
    target.add_argument("--to-csv", metavar="FILE", help="writes CSV, the payloads in base64")
    target.add_argument("--to-parquet", metavar="FILE", help="writes Parquet (needs pyarrow, the extra arrow)")
    add_progress(parser)
    parser.set_defaults(run=_tail, follow=False, lines=None, whole=True)


def fill_peek(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal peek`."""
    add_log(parser, "Prints the next messages of a cursor, without moving it.")
    parser.add_argument("cursor", metavar="CURSOR", help="the name of the cursor")
    parser.add_argument("-n", "--lines", metavar="N", type=whole(0), default=20, help="how many messages (default 20)")
    _add_form(parser)
    parser.set_defaults(run=_peek)


def _add_reading(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("vchannels", metavar="VCHANNEL", nargs="+", help="the name of a vchannel")
    parser.add_argument("--match", action="store_true", help="the name is a pattern of names: * is any characters, ? is one")
    parser.add_argument("--until", metavar="POINT", default="end", help="up to a time, a tick or an id, or end (the default)")
    parser.add_argument(
        "--type", metavar="TYPE", action="append", default=[], help="messages of this type only, such as INSERT; repeatable"
    )
    parser.add_argument("--grep", metavar="PATTERN", help="messages whose payload has a match of this regular expression only")
    _add_form(parser)


def _add_form(parser: argparse.ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--format", metavar="FORMAT", default=_DEFAULT_FORMAT, help=_FORMATS.replace("%", "%%"))
    form.add_argument("--hex", action="store_true", help="prints payloads in hexadecimal")


class _Choice:
    """The selection of messages, and the beginning and the end of the read."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.until_id: MessageID | None = None
        self.until_tick: int | None = None
        self.policy: DeliverPolicy = All()
        self.filters: list[DeliverFilter] = []
        self.pattern: re.Pattern[bytes] | None = None
        if arguments.since is not None:
            point = parse_point("--since", arguments.since)
            if isinstance(point, MessageID):
                self.policy = StartFrom(point)
            else:
                tick = tick_of(point)
                self.policy = StartAt(to_datetime(tick))  # the beginning of the read, to the millisecond
                self.filters.append(TimeTickGTE(tick))
        if arguments.until != "end":
            point = parse_point("--until", arguments.until)
            if isinstance(point, MessageID):
                self.until_id = point
            else:
                self.until_tick = tick_of(point)
        if arguments.type:
            self.filters.append(MessageTypes(*map(_type, arguments.type)))
        if arguments.grep is not None:
            try:
                self.pattern = re.compile(arguments.grep.encode(errors="surrogateescape"))
            except re.error as error:
                raise InvalidArgumentError(f"--grep {arguments.grep!r} is not a regular expression: {error}") from None

    @property
    def is_of_columns(self) -> bool:
        """Whether a read by columns can make this selection: it inspects no payload, and does not end at an id."""
        return self.pattern is None and self.until_id is None

    def policy_for(self, count: int | None) -> DeliverPolicy:
        """Returns the policy of a read that needs only the last `count` messages, None: all of them."""
        if count is None or self.pattern is not None or self.until_id is not None or isinstance(self.policy, StartFrom):
            return self.policy
        return Last(count) if count else Latest()

    def takes(self, body: ImmutableMessage) -> bool:
        return self.pattern is None or self.pattern.search(body.payload) is not None

    def ends_before(self, body: ImmutableMessage) -> bool:
        if self.until_tick is not None and body.time_tick > self.until_tick:
            return True
        last = self.until_id
        return last is not None and body.message_id.pchannel == last.pchannel and body.message_id > last


def _tail(arguments: argparse.Namespace) -> int:
    choice = _Choice(arguments)
    count = None if getattr(arguments, "whole", False) or arguments.since is not None else 20
    count = count if arguments.lines is None else arguments.lines
    progress = _CatProgress()
    is_printed = not (arguments.to_jsonl or arguments.to_csv or arguments.to_parquet) and sys.stdout.isatty()
    is_shown = hasattr(arguments, "progress") and (arguments.progress or (shows_progress(arguments) and not is_printed))
    with contextlib.ExitStack() as stack:
        write = _writer(arguments, stack)
        with progress_noted(progress.text, shown=is_shown):
            asyncio.run(_print(arguments, choice, count, write, progress))
    return 0


class _CatProgress:
    """The messages that were written so far: their number, the bytes of their payloads, and the tick of the last one."""

    def __init__(self) -> None:
        self.messages = self.bytes = self.tick = 0

    def add(self, bodies: Sequence[ImmutableMessage]) -> None:
        if bodies:
            self.messages += len(bodies)
            self.bytes += sum(len(body.payload) for body in bodies)
            self.tick = bodies[-1].time_tick

    def counted(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields these batches of `COLUMNS`; each counts once it was written."""
        for batch in batches:
            yield batch
            if batch.num_rows:
                self.messages += batch.num_rows
                self.bytes += batch.column("payload").nbytes
                self.tick = batch.column("time_tick")[-1].as_py()

    def text(self) -> str:
        if not self.messages:
            return ""
        return f"{self.messages} messages, {size_text(self.bytes)}, up to {to_datetime(self.tick).isoformat(timespec='seconds')}"


async def _print(
    arguments: argparse.Namespace, choice: _Choice, count: int | None, write: Callable[[ImmutableMessage], None], progress: _CatProgress
) -> None:
    async with opened(arguments) as log:
        subjects = await _subjects(log, arguments)
        names = subjects[0]
        if (
            isinstance(write, ParquetFile)
            and len(subjects) == 1
            and not isinstance(names, Matching)
            and choice.is_of_columns
            and parse_location(arguments.location).path is not None
        ):
            await in_thread(_copy_columns, arguments, choice, names, write, progress)
            return
        resumes = await _past(log, subjects, choice, count, write, progress)
        if not arguments.follow:
            return
        following: asyncio.Queue[ImmutableMessage] = asyncio.Queue(1000)
        readers = [asyncio.ensure_future(_follow(log, names, resume, choice, following)) for names, resume in resumes]
        try:
            while not (following.empty() and all(reader.done() for reader in readers)):
                getting = asyncio.ensure_future(following.get())
                running = [reader for reader in readers if not reader.done()]
                await asyncio.wait([getting, *running], return_when=asyncio.FIRST_COMPLETED)
                if getting.done():
                    await in_thread(_write_all, [getting.result()], write)
                    await in_thread(sys.stdout.flush)
                else:
                    getting.cancel()
                for reader in readers:
                    if reader.done():
                        reader.result()  # raises the error of the read unchanged
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)


async def _subjects(log: WALAccesser, arguments: argparse.Namespace) -> list[list[str] | Matching]:
    """Returns the subjects of the read: the vchannels of each pchannel, or a pattern."""
    if arguments.match:
        if len(arguments.vchannels) > 1:
            raise InvalidArgumentError(
                f"--match takes one pattern, not {len(arguments.vchannels)}: quote it, so that the shell does not put names of files there"
            )
        return [Matching(arguments.vchannels[0])]
    pchannels = {info.name: info.pchannel for info in await log.vchannels()}
    check_vchannels(arguments.vchannels, pchannels)
    groups: dict[str, list[str]] = {}
    for name in dict.fromkeys(arguments.vchannels):
        groups.setdefault(pchannels[name], []).append(name)
    return list(groups.values())


def _copy_columns(arguments: argparse.Namespace, choice: _Choice, names: list[str], file: ParquetFile, progress: _CatProgress) -> None:
    """Writes the present content of a journal, without an object for each message. Blocks."""
    from wal.api.blocking_reads import record_batches

    settings, _ = settings_of(arguments)
    with record_batches(
        arguments.location,
        names,
        settings=settings,
        columns=COLUMNS,
        deliver_policy=choice.policy,
        filters=choice.filters,
        follow=False,
        until_time_tick=choice.until_tick,
    ) as batches:
        file.copy(progress.counted(batches))


async def _past(
    log: WALAccesser,
    subjects: list[list[str] | Matching],
    choice: _Choice,
    count: int | None,
    write: Callable[[ImmutableMessage], None],
    progress: _CatProgress,
) -> list[tuple[list[str] | Matching, Any]]:
    """Writes the present content of the log, in the order of the ticks if it is on several pchannels; returns where each read ended."""
    async with contextlib.AsyncExitStack() as stack:
        scanners = []
        for names in subjects:
            policy = choice.policy_for(None if count and isinstance(names, Matching) else count)  # the last ones are kept below
            read = log.read(names, deliver_policy=policy, filters=choice.filters, follow=False, until_time_tick=choice.until_tick)
            scanners.append((names, await stack.enter_async_context(read)))
        batch: deque[ImmutableMessage] = deque(maxlen=count)
        async for body in _merged([_bodies(scanner, choice) for _, scanner in scanners]):
            batch.append(body)
            if count is None and len(batch) == _BATCH:
                await in_thread(_write_all, list(batch), write)
                progress.add(batch)
                batch.clear()
        await in_thread(_write_all, list(batch), write)
        return [(names, scanner.position) for names, scanner in scanners]


async def _merged(streams: list[AsyncIterator[ImmutableMessage]]) -> AsyncIterator[ImmutableMessage]:
    """Yields the messages of these streams in the order of their ticks. It holds one message of each stream."""
    heads: list[tuple[int, int, ImmutableMessage]] = []
    for number, stream in enumerate(streams):
        if (body := await anext(stream, None)) is not None:
            heads.append((body.time_tick, number, body))
    heapq.heapify(heads)
    while heads:
        _, number, body = heads[0]
        yield body
        if (following := await anext(streams[number], None)) is not None:
            heapq.heapreplace(heads, (following.time_tick, number, following))
        else:
            heapq.heappop(heads)


def _write_all(bodies: list[ImmutableMessage], write: Callable[[ImmutableMessage], None]) -> None:
    for body in bodies:
        write(body)


async def _bodies(scanner: Any, choice: _Choice) -> AsyncIterator[ImmutableMessage]:
    async for _, body in scanner.bodies():
        if choice.ends_before(body):
            return
        if choice.takes(body):
            yield body


async def _follow(
    log: WALAccesser, names: list[str] | Matching, resume: Any, choice: _Choice, into: asyncio.Queue[ImmutableMessage]
) -> None:
    options: dict[str, Any] = {"resume": resume} if resume is not None else {"deliver_policy": All()}
    async with log.read(names, filters=choice.filters, **options) as scanner:
        async for body in _bodies(scanner, choice):
            await into.put(body)


def _peek(arguments: argparse.Namespace) -> int:
    asyncio.run(_peeked(arguments))
    return 0


async def _peeked(arguments: argparse.Namespace) -> None:
    async with opened(arguments) as log:
        infos = [info for info in await log.cursors() if info.name == arguments.cursor]
        if not infos:
            raise no_cursor(repr(arguments.cursor))
        write = _line_writer(arguments)
        for info in infos:
            remaining = arguments.lines
            subject = Matching(info.pattern) if info.pattern else info.vchannels
            async with log.read(subject, follow=False, cursor=info.name) as scanner:  # nothing is saved
                async for _, body in scanner.bodies():
                    if not remaining:
                        break
                    await in_thread(write, body)
                    remaining -= 1


def _writer(arguments: argparse.Namespace, stack: contextlib.ExitStack) -> Callable[[ImmutableMessage], None]:
    if arguments.to_jsonl:
        path = stack.enter_context(_whole_file(arguments.to_jsonl))
        lines = stack.enter_context(open(path, "w", encoding="utf-8", opener=open_file))  # noqa: SIM115
        return lambda body: print(as_json(_row(body)).decode(), file=lines)
    if arguments.to_csv:
        path = stack.enter_context(_whole_file(arguments.to_csv))
        table = csv.writer(stack.enter_context(open(path, "w", encoding="utf-8", newline="", opener=open_file)))  # noqa: SIM115
        table.writerow(("vchannel", "message_id", "time_tick", "append_time", "type", "payload_base64", "properties"))
        return lambda body: table.writerow(
            (
                body.vchannel,
                str(body.message_id),
                body.time_tick,
                _time(body),
                body.message_type.name,
                base64.b64encode(body.payload).decode(),
                json.dumps(dict(body.properties)),
            )
        )
    if arguments.to_parquet:
        return ParquetFile(str(stack.enter_context(_whole_file(arguments.to_parquet))), stack)
    return _line_writer(arguments)


@contextlib.contextmanager
def _whole_file(text: str) -> Iterator[Path]:
    """Yields the path at which to write a file that appears at its own path once it is whole. A device or a pipe is written directly."""
    path = Path(text)
    part = path if path.exists() and not path.is_file() else path.with_name(f"{path.name}.part")
    try:
        yield part
        if part != path:
            part.replace(path)
    except BaseException as error:
        if part != path:
            part.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = text
        raise


def _line_writer(arguments: argparse.Namespace) -> Callable[[ImmutableMessage], None]:
    if arguments.json:
        return lambda body: print(as_json(_row(body)).decode())
    if arguments.hex:
        return lambda body: print(f"{_time(body)} {printable(body.vchannel)} {body.message_id} {body.payload.hex(' ')}")
    form = arguments.format
    letters = set("TtivypPln%")
    for letter in re.findall(r"%(.?)", form):
        if letter not in letters:
            raise InvalidArgumentError(f"--format has %{letter}: the letters are {_FORMATS}")
    return lambda body: print(re.sub("%(.)", lambda matched: _value(body, matched[1]), form))


def _value(body: ImmutableMessage, letter: str) -> str:
    match letter:
        case "T":
            return _time(body)
        case "t":
            return str(body.time_tick)
        case "i":
            return str(body.message_id)
        case "v":
            return printable(body.vchannel)
        case "y":
            return body.message_type.name
        case "p":
            return printable(body.payload.decode(errors="backslashreplace"))
        case "P":
            return printable(json.dumps(dict(body.properties), ensure_ascii=False))
        case "l":
            return str(len(body.payload))
        case "n":
            return "\n"
        case _:
            return "%"


def _row(body: ImmutableMessage) -> MessageRow:
    payload: str | None
    try:
        payload, encoded = body.payload.decode(), None
    except UnicodeDecodeError:
        payload, encoded = None, base64.b64encode(body.payload).decode()
    return MessageRow(
        vchannel=body.vchannel,
        message_id=str(body.message_id),
        time_tick=body.time_tick,
        append_time=_time(body),
        type=body.message_type.name,
        payload=payload,
        payload_base64=encoded,
        properties=dict(body.properties),
    )


def _time(body: ImmutableMessage) -> str:
    return body.append_time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _type(name: str) -> MessageType:
    try:
        return MessageType[name.upper()]
    except KeyError:
        raise InvalidArgumentError(
            f"--type {name!r} is not a type of a message: use one of {', '.join(each.name for each in MessageType)}"
        ) from None
