"""The handlers of a node for requests about the content of its logs (`wal.requests.reads`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, TypeVar

from wal.channels.slices import checked_names
from wal.errors import InvalidArgumentError
from wal.message import LogPosition
from wal.node.node import StreamingNode
from wal.requests.reads import CountBytes, FindEventBelow, FindTick, GetMoment, NewestTick, WeighFrames
from wal.requests.request import Request
from wal.storage import search
from wal.storage.base import LogSnapshot, ReadableLog
from wal.write.pchannel import PChannel

_T = TypeVar("_T")


def check_extent(pchannel: PChannel, start: int, end: int) -> None:
    """Raises InvalidArgumentError unless the extent lies within the durable log. The read itself finds a truncated start."""
    durable = pchannel.tail.durable_end
    if not start <= end <= durable:
        raise InvalidArgumentError(
            f"the extent from {start} to {end} is not in the log of pchannel {pchannel.channel}, which ends at {durable}: start at or "
            "below the end, and end at or below that"
        )


def snapshot_of(pchannel: PChannel) -> LogSnapshot:
    """Returns the log of a pchannel at this moment."""
    log, tail = pchannel.log, pchannel.tail
    return LogSnapshot(
        pchannel.origin(),
        log.lineage,
        log.term,
        tail.durable_end,
        log.earliest,
        tail.promised_tick,
        False,
        tail.newest,
        log.last_truncated,
        log.truncated_tick,
    )


async def names_of(names: Collection[str] | None) -> frozenset[str] | None:
    """Returns the names of vchannels in a request, None for all. Raises InvalidArgumentError for a bad name, or too many."""
    return None if names is None else frozenset(await checked_names(names, instead="read all of them, without names"))


async def _run(log: ReadableLog, question: search.Search[_T]) -> _T:
    return await search.run_async(question, lambda page: log.read(page.start, names=page.names, bytes_max=page.bytes_max, end=page.end))


async def _moment(_node: StreamingNode, _request: GetMoment, pchannel: PChannel) -> LogSnapshot:
    return snapshot_of(pchannel)


async def _newest_tick(_node: StreamingNode, _request: NewestTick, pchannel: PChannel) -> int:
    return await _run(pchannel.log, search.newest_tick(pchannel.tail.newest, pchannel.log.earliest))


async def _weigh(_node: StreamingNode, request: WeighFrames, pchannel: PChannel) -> search.Weighed:
    start, end, log, rows_max, bytes_max = request.start, request.end, pchannel.log, request.rows_max, request.bytes_max
    check_extent(pchannel, start, end)
    names = await names_of(request.names)
    if rows_max is None and bytes_max is None:
        return search.Weighed(search.weigh_pieces(start, end, log.bytes_between), end)
    return await _run(log, search.weigh(start, end, names, rows_max=rows_max, bytes_max=bytes_max))


async def _find_tick(_node: StreamingNode, request: FindTick, pchannel: PChannel) -> LogPosition:
    log, tick, start, end = pchannel.log, request.time_tick, request.start, request.end
    check_extent(pchannel, start, end)
    for extent in log.extents():  # a sealed extent knows its newest tick without a read
        if extent.sealed and extent.newest_tick <= tick:
            start = max(start, min(extent.end, end))
    return await _run(log, search.position_after(tick, start, end, log.bytes_between))


async def _find_event_below(_node: StreamingNode, request: FindEventBelow, pchannel: PChannel) -> LogPosition | None:
    log = pchannel.log
    check_extent(pchannel, request.since[0], request.below[0])
    return await _run(log, search.event_below(request.since, request.below, log.earliest, log.bytes_between))


async def _count_bytes(_node: StreamingNode, request: CountBytes, pchannel: PChannel) -> int:
    check_extent(pchannel, request.start, request.end)
    return pchannel.log.bytes_between(request.start, request.end)


HANDLERS: Final[Mapping[type[Request[Any]], Callable[[StreamingNode, Any, Any], Awaitable[Any]]]] = {
    GetMoment: _moment,
    NewestTick: _newest_tick,
    WeighFrames: _weigh,
    FindTick: _find_tick,
    FindEventBelow: _find_event_below,
    CountBytes: _count_bytes,
}
