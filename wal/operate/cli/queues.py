"""The commands on vchannels and on waiting messages: `wal create`, `wal drop`, `wal redrive` and `wal scheduled`.

They follow the rules of `change.py`. The schedule of a journal is in the memory of its writer: without one, `wal scheduled` opens the log
for writing, and messages that are due are delivered meanwhile.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Final, cast
from urllib.parse import quote

import msgspec

from wal.channels.vchannels import VChannelInfo
from wal.errors import InvalidArgumentError
from wal.operate.cli.change import add_asking, changed, service_of
from wal.operate.cli.output import add_log, check_vchannels, note, opened, show
from wal.operate.cli.status_service import StatusService
from wal.operate.inspect import builders
from wal.operate.inspect.rows import Row, ScheduledRow
from wal.read.cursors.cursor import REDRIVE
from wal.runtime.threads import in_thread

_STEP_S: Final = 5.0
"""The time of one step of a redrive through the status service, whose calls have a deadline."""
_PAGE: Final = 500
"""The rows of one answer of the status service."""


class VChannelChangeRow(Row, frozen=True, kw_only=True, tag="vchannel_change"):
    """A vchannel that is created or dropped; `change` is "created" or "dropped"."""

    vchannel: str
    pchannel: str
    incarnation: int
    change: str


class RedriveRow(Row, frozen=True, kw_only=True, tag="redriven"):
    """A vchannel of dead letters, and the number of `messages` that are appended again to their original vchannels."""

    dead_letter: str
    messages: int


def fill_create(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal create`."""
    add_log(parser, "Creates vchannels. An append creates them too, unless the setting create_vchannels is off.")
    parser.add_argument("vchannels", metavar="VCHANNEL", nargs="+", help="the name of a vchannel")
    parser.add_argument("--pchannel", metavar="NAME", help="the pchannel of the vchannels (default: the one with the fewest)")
    parser.set_defaults(run=_create)


def fill_drop(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal drop`."""
    add_log(parser, "Drops vchannels with their messages and cursors: their readers and transactions end with an error.")
    parser.add_argument("vchannels", metavar="VCHANNEL", nargs="+", help="the name of a vchannel")
    add_asking(parser)
    parser.set_defaults(run=_drop)


def fill_redrive(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal redrive`."""
    add_log(parser, "Appends dead letters to their original vchannels again, each once; only the consumer that had them handles them.")
    parser.add_argument("dead_letter", metavar="VCHANNEL", help="the vchannel that a consumer names as its dead letter")
    add_asking(parser)
    parser.set_defaults(run=_redrive)


def fill_scheduled(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `wal scheduled`."""
    add_log(parser, "Shows the messages that wait for their time, or cancels one of them.")
    parser.add_argument("vchannels", metavar="VCHANNEL", nargs="*", help="the name of a vchannel (default: all)")
    parser.add_argument("--cancel", metavar="KEY", help="cancels the message with this key")
    add_asking(parser)
    parser.set_defaults(run=_scheduled)


def _create(arguments: argparse.Namespace) -> int:
    created: list[Row] = []

    async def create() -> None:
        service = await in_thread(service_of, arguments)
        async with contextlib.nullcontext() if service is not None else opened(arguments, write=True) as log:
            for name in arguments.vchannels:
                if service is not None:
                    made = await in_thread(service.act, "create", vchannel=name, pchannel=arguments.pchannel)
                    pchannel, incarnation = made["pchannel"], int(made["incarnation"])
                else:
                    assert log is not None
                    info = await log.create_vchannel(name, pchannel=arguments.pchannel)
                    pchannel, incarnation = info.pchannel, info.incarnation
                created.append(VChannelChangeRow(vchannel=name, pchannel=pchannel, incarnation=incarnation, change="created"))

    try:
        asyncio.run(create())
    finally:
        show(created, arguments)
    return 0


def _drop(arguments: argparse.Namespace) -> int:
    service = service_of(arguments)
    names = list(dict.fromkeys(arguments.vchannels))

    async def rows() -> list[Row]:
        infos = await _infos(arguments, service, names)
        return [
            VChannelChangeRow(vchannel=name, pchannel=infos[name].pchannel, incarnation=infos[name].incarnation, change="dropped")
            for name in names
        ]

    async def change(rows: Sequence[Row]) -> AsyncIterator[Row]:
        async with contextlib.nullcontext() if service is not None else opened(arguments, write=True) as log:
            for row in cast("Sequence[VChannelChangeRow]", rows):
                if service is not None:
                    await in_thread(service.act, "drop", vchannel=row.vchannel, confirm=row.vchannel)
                else:
                    assert log is not None
                    await log.drop_vchannel(row.vchannel)
                yield row

    return changed(arguments, f"Drop {', '.join(names)} with all messages?", rows, change)


async def _infos(arguments: argparse.Namespace, service: StatusService | None, names: Sequence[str]) -> dict[str, VChannelInfo]:
    """Returns these vchannels. Raises InvalidArgumentError for a missing one.

    A view from outside may lag by a moment, so the writer's service is asked too.
    """
    async with opened(arguments) as log:
        infos = {info.name: info for info in await log.vchannels()}
    if service is None:
        check_vchannels(names, infos)
        return infos
    for name in names:
        for row in (await in_thread(service.get, f"/api/ls?limit={_PAGE}&filter={quote(name)}"))["rows"]:
            infos[row["vchannel"]] = VChannelInfo(row["vchannel"], row["pchannel"], int(row["incarnation"]))
    check_vchannels(names, infos)
    return infos


def _redrive(arguments: argparse.Namespace) -> int:
    service, name = service_of(arguments), arguments.dead_letter

    async def rows() -> list[Row]:
        await _infos(arguments, service, [name])
        async with opened(arguments) as log:
            count = 0
            async with log.read(name, cursor=REDRIVE, follow=False) as scanner:  # nothing is saved
                async for _ in scanner.bodies():
                    count += 1
        return [RedriveRow(dead_letter=name, messages=count)] if count else []

    async def change(_rows: Sequence[Row]) -> AsyncIterator[Row]:
        if service is not None:
            count = 0
            while some := (await in_thread(service.act, "redrive", dead_letter=name, confirm=name, limit_s=_STEP_S))["redriven"]:
                count += some
                note(f"{count} messages are appended again")
            yield RedriveRow(dead_letter=name, messages=count)
            return
        async with opened(arguments, write=True) as log:
            yield RedriveRow(dead_letter=name, messages=await log.redrive(name))

    return changed(arguments, f"Append the dead letters of {name} again?", rows, change)


def _scheduled(arguments: argparse.Namespace) -> int:
    service = service_of(arguments)

    async def rows() -> list[Row]:
        if service is not None:
            path = f"/api/scheduled?limit={_PAGE}"
            answer = await in_thread(service.get, path)
            listed = [msgspec.convert(row, ScheduledRow) for row in answer["rows"]]
            while len(listed) < answer["total"]:
                answer = await in_thread(service.get, f"{path}&listing={answer['listing']}&offset={len(listed)}")
                listed += [msgspec.convert(row, ScheduledRow) for row in answer["rows"]]
            names = set(arguments.vchannels)
            return [row for row in listed if not names or row.vchannel in names]
        async with opened(arguments, write=True) as log:
            check_vchannels(arguments.vchannels, {info.name for info in await log.vchannels()})
            return [*await builders.scheduled_rows(log, arguments.vchannels)]

    async def cancelled() -> list[Row]:
        own = [row for row in cast("list[ScheduledRow]", await rows()) if row.key == arguments.cancel]
        if not own:
            raise InvalidArgumentError(f"no message with the key {arguments.cancel!r} waits: `wal scheduled` lists the waiting ones")
        if len(own) > 1:
            names = ", ".join(row.vchannel for row in own)
            raise InvalidArgumentError(f"messages with the key {arguments.cancel!r} wait on {names}: name one of these vchannels")
        return [*own]

    async def change(rows: Sequence[Row]) -> AsyncIterator[Row]:
        async with contextlib.nullcontext() if service is not None else opened(arguments, write=True) as log:
            for row in cast("Sequence[ScheduledRow]", rows):
                if service is not None:
                    answer = await in_thread(service.act, "scheduled-cancel", vchannel=row.vchannel, key=row.key, confirm=row.key)
                    was_waiting = answer["cancelled"]
                else:
                    assert log is not None
                    was_waiting = await (await log.scheduled(row.vchannel)).cancel(row.key)
                if was_waiting:
                    yield row
                else:
                    note(f"the message with the key {row.key!r} was delivered before it could be cancelled")

    if arguments.cancel is None:
        show(asyncio.run(rows()), arguments, ScheduledRow)
        return 0
    return changed(arguments, f"Cancel the message with the key {arguments.cancel}?", cancelled, change)
