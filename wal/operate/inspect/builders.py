"""Builds the rows of an open log from its public calls.

The log is a `WALAccesser`, opened for writing or with read_only=True, at any location. A `Details` of the caller adds values that its calls
do not return: counts of messages, for example, require a pass over frames. Without it these fields are None. Only the log's own calls are
awaited here; nothing is changed, and no cursor is moved.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from wal._version import __version__
from wal.channels.vchannels import VChannelInfo
from wal.engine import LogStatistics
from wal.errors import WALError
from wal.message import MessageID, ScheduledMessage
from wal.operate.inspect.rows import (
    BroadcastRow,
    ConsumerRow,
    CursorRow,
    HealthRow,
    HolderRow,
    LogRow,
    MemberRow,
    PChannelRow,
    RetentionRow,
    Row,
    ScheduledRow,
    SettingRow,
    VChannelRow,
    row_of,
)
from wal.read.cursors.cursor import CursorInfo
from wal.requests.pchannels import PChannelRetention
from wal.settings import MEANINGS, Settings
from wal.timestamp.oracle import AHEAD_MAX_S
from wal.timestamp.timestamp import to_datetime

if TYPE_CHECKING:
    from broadcaster.message import BroadcastTask
    from wal.api.accesser import WALAccesser
    from wal.consumers.consumer import ConsumerInfo
    from wal.requests.work import CursorMember


SCHEDULES: Final = 64
"""The number of vchannels whose schedules are requested at once."""


class InspectedLog(Protocol):
    """The calls of an open log that are used here; `WALAccesser` has them."""

    @property
    def wal_name(self) -> str: ...
    async def vchannels(self) -> list[VChannelInfo]: ...
    async def cursors(self) -> list[CursorInfo]: ...
    async def retention(self) -> list[PChannelRetention]: ...
    async def last(self, vchannel: str) -> MessageID | None: ...
    async def scheduled(self, vchannel: str) -> Sequence[ScheduledMessage]: ...
    def statistics(self) -> LogStatistics: ...


class WriterDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The known details of the writer of a log: see `LogRow`."""

    state: str = "unknown"
    pid: int | None = None
    status_address: str | None = None


class PChannelDetails(msgspec.Struct, frozen=True, kw_only=True):
    """The known details of one pchannel beyond the calls of the log; see `PChannelRow` and `LogRow`."""

    end: int | None = None
    promised_tick: int = 0
    segments: int | None = None
    checkpoint: int | None = None
    checkpoint_age_s: float | None = None
    replay_bytes: int | None = None
    scheduled: int | None = None
    messages_per_s: float | None = None
    bytes_per_s: float | None = None


class VChannelCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The messages of a vchannel, and their bytes in the log; the tick and the id of its last event, 0 and None without events."""

    messages: int = 0
    bytes: int = 0
    last_tick: int = 0
    last_id: str | None = None


class Lag(msgspec.Struct, frozen=True, kw_only=True):
    """The unread part of a cursor's log: the number of messages, the first of them appended at `oldest` (None without any)."""

    messages: int | None
    oldest: datetime | None


class Counting(Protocol):
    """A caller's counts of vchannels, which the log's calls do not return. It may omit names."""

    async def counts(self, vchannels: Sequence[VChannelInfo]) -> Mapping[str, VChannelCounts]: ...


class Details(Counting, Protocol):
    """A caller's details that the log's calls do not return. Every method may return None, or omit names."""

    async def writer(self) -> WriterDetails: ...
    async def pchannel(self, name: str) -> PChannelDetails | None: ...
    async def lag(self, cursor: CursorInfo) -> Lag | None: ...


async def log_rows(log: InspectedLog, location: str, details: Details | None = None) -> list[LogRow | PChannelRow]:
    """Returns the row of the log, then one for each pchannel."""
    vchannels = await log.vchannels()
    reports = {report.pchannel: report for report in await log.retention()}
    rows = []
    details_of_pchannels: list[PChannelDetails] = []
    statistics = log.statistics()
    writes = statistics.role == "writer"
    for counts in statistics.pchannels:
        report = reports.get(counts.name)
        own = None if details is None else await details.pchannel(counts.name)
        own = own or PChannelDetails()
        details_of_pchannels.append(own)
        end = max(counts.durable_end, own.end or 0)  # a client counts only the pchannels of other writers that it has read
        promised_tick = max(counts.promise, own.promised_tick)
        rows.append(
            row_of(
                PChannelRow,
                own,
                pchannel=counts.name,
                term=counts.term,
                earliest=None if report is None or report.earliest is None else str(report.earliest),
                end=end if end or statistics.role != "client" else own.end,
                bytes=0 if report is None else report.bytes,
                oldest=None if report is None else report.oldest_time,
                promised=to_datetime(promised_tick) if promised_tick else None,
                scheduled=counts.scheduled if writes else own.scheduled,
            )
        )
    writer = WriterDetails() if details is None else await details.writer()
    return [
        LogRow(
            release=__version__,
            location=location,
            backend=log.wal_name,
            writer=writer.state,
            writer_pid=writer.pid,
            status_address=writer.status_address,
            pchannels=len(rows),
            vchannels=len(vchannels),
            bytes=sum(row.bytes for row in rows),
            oldest=min((row.oldest for row in rows if row.oldest is not None), default=None),
            messages_per_s=_total(each.messages_per_s for each in details_of_pchannels),
            bytes_per_s=_total(each.bytes_per_s for each in details_of_pchannels),
        ),
        *rows,
    ]


async def vchannel_rows(log: InspectedLog, details: Counting | None = None) -> list[VChannelRow]:
    """Returns a row for each vchannel, by name."""
    infos = await log.vchannels()
    counts = {} if details is None else await details.counts(infos)
    rows = []
    for info in infos:
        count = counts.get(info.name)
        last_id = None if count is None else count.last_id
        if count is None and (last := await log.last(info.name)) is not None:
            last_id = str(last)
        rows.append(
            row_of(
                VChannelRow,
                info,
                vchannel=info.name,
                messages=None if count is None else count.messages,
                bytes=None if count is None else count.bytes,
                last_append=None if count is None or not count.last_tick else to_datetime(count.last_tick),
                last_id=last_id,
            )
        )
    return rows


async def scheduled_rows(log: InspectedLog, vchannels: Iterable[str] = ()) -> list[ScheduledRow]:
    """Returns a row for each message of these vchannels, of all without names, that waits for its time: the earliest first."""
    names = list(vchannels)
    if not names:
        counts = log.statistics()
        idle = {each.name for each in counts.pchannels if not each.scheduled} if counts.role == "writer" else set()
        names = [info.name for info in await log.vchannels() if info.pchannel not in idle]
    rows: list[ScheduledRow] = []
    for at in range(0, len(names), SCHEDULES):
        some = names[at : at + SCHEDULES]
        for name, schedule in zip(some, await asyncio.gather(*map(log.scheduled, some)), strict=True):
            rows += [ScheduledRow(vchannel=name, key=each.key, deliver_at=each.deliver_at, bytes=each.size) for each in schedule]
    return sorted(rows, key=lambda row: row.deliver_at)


def consumer_rows(consumers: Iterable[ConsumerInfo]) -> list[ConsumerRow]:
    """Returns a row for each consumer."""
    return [
        row_of(
            ConsumerRow,
            one,
            message_id=None if one.message_id is None else str(one.message_id),
            members=tuple([_member_row(one.cursor, member) for member in one.members]),
        )
        for one in consumers
    ]


def _member_row(cursor: str, member: CursorMember) -> MemberRow:
    return row_of(MemberRow, member, cursor=cursor, member=member.name, since=member.joined_at, messages_per_s=round(member.rate, 1))


async def visible_consumers(log: WALAccesser) -> list[ConsumerInfo]:
    """Returns the consumers of this process, and the shared cursors whose members are all in other processes.

    Servers that do not answer leave their shared cursors out.
    """
    consumers = log.consumers()
    own = {(one.cursor, one.vchannels, one.pattern) for one in consumers}
    with contextlib.suppress(WALError):
        consumers += [one for one in await log.shared_consumers() if (one.cursor, one.vchannels, one.pattern) not in own]
    return consumers


async def cursor_rows(log: InspectedLog, details: Details | None = None, *, now_s: float | None = None) -> list[CursorRow]:
    """Returns a row for each cursor, by name and vchannels. `now_s` is the wall time, None: that of this machine."""
    now_s = time.time() if now_s is None else now_s
    rows = []
    for info in await log.cursors():
        lag = None if details is None or info.stale else await details.lag(info)
        messages, lag_s = (0, 0.0) if not info.lag_bytes and not info.stale else (None, None)
        if lag is not None:
            messages = lag.messages
            lag_s = 0.0 if lag.oldest is None else max(0.0, now_s - lag.oldest.timestamp())
        rows.append(
            row_of(
                CursorRow,
                info,
                cursor=info.name,
                position=None if info.position is None else str(info.position),
                lag_messages=messages,
                lag_s=lag_s,
                idle_s=None if info.saved_at is None else max(0.0, now_s - info.saved_at),
            )
        )
    return rows


def broadcast_rows(tasks: Iterable[BroadcastTask]) -> list[BroadcastRow]:
    """Returns a row for each of these broadcasts, from `log.broadcast().tasks()`, the oldest first."""
    rows = [
        row_of(
            BroadcastRow,
            task,
            state=task.state.name.lower(),
            resource_keys=tuple(f"{key.domain}/{key.key}{' (shared)' if key.shared else ''}" for key in task.resource_keys),
        )
        for task in tasks
    ]
    return sorted(rows, key=lambda row: row.broadcast_id)


async def retention_rows(log: InspectedLog) -> list[RetentionRow | HolderRow]:
    """Returns a row for each pchannel, each followed by those of its holders, lowest position first."""
    rows: list[RetentionRow | HolderRow] = []
    for report in await log.retention():
        earliest = None if report.earliest is None else str(report.earliest)
        rows.append(row_of(RetentionRow, report, earliest=earliest, oldest=report.oldest_time))
        rows += [row_of(HolderRow, holder, pchannel=report.pchannel) for holder in report.holders]
    return rows


def setting_rows(settings: Settings, sources: Mapping[str, str] | None = None) -> list[SettingRow]:
    """Returns a row for each setting. `sources` maps settings to the sources of their values. Without it, a value that is neither the
    default nor that of the environment of this process is "unknown".
    """
    defaults, environment = Settings(), Settings() if sources is not None else Settings.load()
    rows = []
    for name in Settings.__struct_fields__:
        value = getattr(settings, name)
        source = "default" if value == getattr(defaults, name) else "environment" if value == getattr(environment, name) else "unknown"
        rows.append(
            SettingRow(
                setting=name,
                value=None if value is None else _setting_text(value),
                source=source if sources is None else sources.get(name, source),
                meaning=MEANINGS[name],
            )
        )
    return rows


def health_rows(log: Sequence[Row], *, now_s: float | None = None) -> list[HealthRow]:
    """Returns the health of a log by the rows of `log_rows`, and of `consumer_rows` if they are included.

    `now_s` is the wall time, None: that of this machine.
    """
    rows = []
    promised = max((row.promised for row in log if isinstance(row, PChannelRow) and row.promised is not None), default=None)
    ahead_s = 0.0 if promised is None else promised.timestamp() - (time.time() if now_s is None else now_s)
    for row in log:
        if isinstance(row, LogRow):
            rows.append(
                HealthRow(
                    check="writer",
                    ok=row.writer != "killed",
                    detail={
                        "open": f"a process has the log open for writing{'' if row.writer_pid is None else f' (pid {row.writer_pid})'}",
                        "closed": "no process has the log open, and the last writer closed it",
                        "killed": "the last writer did not close the log, and no process has it open: the next opening recovers it",
                    }.get(row.writer, "it cannot be seen from here whether a process writes the log"),
                )
            )
        elif isinstance(row, PChannelRow):
            end = "" if row.end is None else f" up to {row.end}"
            rows.append(HealthRow(check=f"pchannel {row.pchannel}", ok=True, detail=f"readable{end} in term {row.term}"))
        elif isinstance(row, ConsumerRow) and row.error:
            rows.append(HealthRow(check=f"consumer {row.cursor}", ok=False, detail=row.error))
    if ahead_s > AHEAD_MAX_S:  # no call fails because of it, and a restart would not help
        rows.append(
            HealthRow(
                check="clock",
                ok=True,
                detail=f"the time ticks are {ahead_s:.0f} s ahead of the clock: it was ahead when they were given, or was set back since; "
                "until it has caught up, ticks do not tell the time",
            )
        )
    return rows


def archive_rows(statistics: LogStatistics) -> list[HealthRow]:
    """Returns the health of the archive of a log that archives itself; no row for another log."""
    if (archive := statistics.archive) is None:
        return []
    lag = f"{archive.lag_bytes} bytes of the log are not at {archive.place} yet, since {archive.lag_s:.0f} s"
    return [HealthRow(check="archive", ok=not archive.failing, detail=f"{lag}: {archive.failure}" if archive.failing else lag)]


def quantile(bounds: Sequence[float], counts: Sequence[int], share: float) -> float | None:
    """Returns the bound of a histogram below which this share of the values lies; None without values, or above its last bound."""
    remaining = share * sum(counts)
    for bound, count in zip(bounds, counts, strict=False):
        remaining -= count
        if remaining <= 0 < sum(counts):
            return bound
    return None


def _total(rates: Iterable[float | None]) -> float | None:
    rates = list(rates)
    return sum(rate for rate in rates if rate is not None) if any(rate is not None for rate in rates) else None


def _setting_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
