"""Frames over the network: what a client reads, weighs and finds is what the log holds."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from itertools import pairwise, product
from typing import Any

import pytest

from tests.serve.servers import Serving, connected, serving
from wal.errors import ChannelNotExistError, InvalidArgumentError, TruncatedError, UnmatchedChannelTermError
from wal.frame import RunKind
from wal.message import AppendResult, LogPosition, Message
from wal.requests.pchannels import Truncate
from wal.requests.reads import CountBytes, FindEventBelow, FindTick, GetMoment, NewestTick, WeighFrames
from wal.requests.request import Answer, Request
from wal.rpc.api import frames_pb2
from wal.rpc.api import frames_pb2 as proto
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.connection import Connection
from wal.rpc.converters import position_from_proto, position_to_proto
from wal.rpc.frame_pages import EncodedPage
from wal.rpc.methods import READ_FRAMES
from wal.storage import search
from wal.storage.base import FramePage, FrameWeight, StoredFrame
from wal.storage.search import Weighed
from wal.write.pchannel import PChannel

NAMES = ("a", "b", "c")
ROUNDS = 40
P0 = "p0"


@pytest.fixture(params=["memory", "journal"])
async def filled(request: pytest.FixtureRequest, data_dir: Any) -> AsyncIterator[tuple[Serving, list[AppendResult]]]:
    """A log of many frames in one pchannel: small and large ones, of one vchannel and of several, and a broadcast."""
    async with serving("memory:" if request.param == "memory" else data_dir, segment_bytes=1 << 20) as served:
        results: list[AppendResult] = []
        for number in range(ROUNDS):
            size = (10, 3_000, 90_000)[number % 3]
            together = [Message(NAMES[(number + k) % 3], bytes([number]) * size) for k in range(number % 4 + 1)]
            results += await asyncio.gather(*(served.log.appends.append_waiting(one) for one in together))
        yield served, results


async def ask(served: Serving, request: Request[Answer]) -> Answer:
    async with connected(served.address) as connection:
        return await connection.submit(request, P0)


def only(served: Serving) -> PChannel:
    (pchannel,) = served.log.node.pchannels.values()
    return pchannel


def info(served: Serving) -> PChannelInfo:
    return PChannelInfo(name=only(served).channel, term=only(served).log.term)


async def stored(served: Serving, names: frozenset[str] | None = None) -> list[StoredFrame]:
    """Returns all frames of the log, read in this process."""
    log, at, found = only(served).log, 0, list[StoredFrame]()
    while at < log.durable_end:
        page = await log.read(at, names=names, bytes_max=1 << 20)
        found, at = found + page.frames, page.next_position
    return found


async def read(connection: Connection, served: Serving, **options: Any) -> tuple[list[frames_pb2.FramePage], list[FramePage]]:
    request = proto.ReadFramesRequest(**{"pchannel": info(served), **options})
    messages = [page async for page in connection.responses(READ_FRAMES, request, "reading")]
    return messages, [EncodedPage.FromString(message.SerializeToString()).page() for message in messages]


def columns(frames: Sequence[StoredFrame], names: frozenset[str] | None) -> list[Any]:
    found: list[Any] = []
    for frame in frames:
        view = frame.view
        for run in list(view.runs) if names is None else view.runs.find(names):
            source = view.runs[run.shared] if run.kind == RunKind.COPY else run
            found.append((frame.position, frame.next_position, run.name, view.columns(source)))
    return found


async def test_pages_hold_what_the_log_holds(filled: tuple[Serving, list[AppendResult]]) -> None:
    """Of all vchannels, of some and of none, in pages of any size."""
    served, _ = filled
    async with connected(served.address) as connection:
        for names, page_bytes in product((None, frozenset({"a"}), frozenset({"a", "c"}), frozenset({"absent"})), (1, 100_000, 0)):
            options: dict[str, Any] = {} if names is None else {"names": {"names": names}}
            messages, pages = await read(connection, served, page_bytes=page_bytes, **options)
            case = f"{names} in pages of {page_bytes}"
            assert columns([frame for page in pages for frame in page.frames], names) == columns(await stored(served, names), names), case
            for frame in (frame for page in pages for frame in page.frames if names is None):
                frame.view.check_body()
            starts = [position_from_proto(message.start) for message in messages]
            assert starts == [0, *(page.next_position for page in pages[:-1])], case
            assert pages[-1].next_position == only(served).tail.durable_end, case
            assert max(page.last_event for page in pages if page.last_event is not None) == only(served).tail.newest, case


async def test_read_ends_where_it_is_told(filled: tuple[Serving, list[AppendResult]]) -> None:
    served, _ = filled
    positions = [frame.position for frame in await stored(served)]
    start, end = positions[7], positions[31]
    async with connected(served.address) as connection:
        for one_end in (end, end - 1, start):
            _, pages = await read(connection, served, start=position_to_proto(start), end=position_to_proto(one_end), page_bytes=1)
            found = [frame.position for page in pages for frame in page.frames]
            assert found == [position for position in positions if start <= position < one_end]
        _, pages = await read(connection, served, page_bytes=1, pages_max=3)
        assert len(pages) == 3
        async with aclosing(
            connection.responses(READ_FRAMES, proto.ReadFramesRequest(pchannel=info(served), page_bytes=1), "reading")
        ) as some:
            await anext(some)  # and goes away


async def test_read_of_what_is_truncated_or_of_another_log_is_refused(filled: tuple[Serving, list[AppendResult]]) -> None:
    served, results = filled
    at = results[40].message_id
    await served.log.submit(Truncate(at))
    async with connected(served.address) as connection:
        with pytest.raises(TruncatedError) as truncated:
            await read(connection, served)
        assert truncated.value.earliest is not None
        _, pages = await read(connection, served, start=position_to_proto(at.position))
        assert pages[0].frames[0].position == at.position
        incarnation = only(served).log.incarnation
        await read(connection, served, incarnation=incarnation, start=position_to_proto(at.position))
        durable = only(served).tail.durable_end
        for options, words in (
            ({"incarnation": incarnation + 1}, "the positions are of another log"),
            ({"page_bytes": 1 << 30}, f"page_bytes={1 << 30} is above {4 << 20}"),
            ({"start": position_to_proto(durable + 1)}, f"which ends at {durable}"),
            ({"end": position_to_proto(durable + 1)}, f"which ends at {durable}"),
            ({"start": position_to_proto(9), "end": position_to_proto(8)}, "the extent from 9 to 8"),
            ({"start": position_to_proto(1 << 127)}, "is not in the log"),
            ({"names": {"names": [""]}}, "vchannel is empty"),
            ({"names": {"names": map(str, range(65_537))}}, "names 65537 vchannels, and one request may name 65536"),
        ):
            with pytest.raises(InvalidArgumentError, match=words):
                await read(connection, served, **options)
        with pytest.raises(ChannelNotExistError):
            await read(connection, served, pchannel=PChannelInfo(name="other"))
        with pytest.raises(UnmatchedChannelTermError):
            await read(connection, served, pchannel=PChannelInfo(name=only(served).channel, term=99))


async def test_moment_names_the_log_and_its_end(filled: tuple[Serving, list[AppendResult]]) -> None:
    served, results = filled
    pchannel = only(served)
    for _ in range(2):
        moment = await ask(served, GetMoment(P0))
        assert (moment.origin, moment.lineage, moment.term) == (pchannel.origin(), pchannel.log.lineage, pchannel.log.term)
        assert (moment.durable_end, moment.newest) == (pchannel.tail.durable_end, pchannel.tail.newest)
        assert (moment.earliest, moment.last_truncated) == (pchannel.log.earliest, pchannel.log.last_truncated)
        assert moment.truncated_tick == pchannel.log.truncated_tick
        newest = max(results, key=lambda result: result.time_tick)
        assert await ask(served, NewestTick(P0)) == newest.time_tick <= moment.promised_tick <= pchannel.promised.tick
    await served.log.submit(Truncate(newest.message_id))
    assert await ask(served, NewestTick(P0)) == 0


async def test_empty_log_has_a_moment_too(served: Serving, connection: Connection) -> None:
    assert await connection.submit(NewestTick(P0), P0) == 0
    end = only(served).tail.durable_end
    assert (await connection.submit(GetMoment(P0), P0)).durable_end == end
    assert not (await connection.submit(WeighFrames(P0, end, end), P0)).weights
    assert await connection.submit(FindTick(P0, 5, 0, end), P0) == (end, 0)


async def test_tick_is_found(filled: tuple[Serving, list[AppendResult]]) -> None:
    """The answer is that of a search through all events, for every tick and many extents."""
    served, results = filled
    rng = random.Random(5)
    end = only(served).tail.durable_end
    events = sorted((one.time_tick, (one.message_id.position, one.message_id.index)) for one in results)
    positions = [0, *(frame.position for frame in await stored(served)), end]
    ticks = [0, *(tick + offset for tick, _ in events for offset in (-1, 0, 1)), 1 << 62]
    async with connected(served.address) as connection:
        for tick in ticks:
            start, stop = sorted((rng.choice(positions), rng.choice(positions))) if tick % 3 else (0, end)
            found = await connection.submit(FindTick(P0, tick, start, stop), P0)
            above = [at for other, at in events if other > tick and start <= at[0] < stop]
            assert found == (min(above) if above else (stop, 0))


async def test_newest_event_below_a_position_is_found(filled: tuple[Serving, list[AppendResult]]) -> None:
    served, results = filled
    rng = random.Random(6)
    end = only(served).tail.durable_end
    events = sorted((one.message_id.position, one.message_id.index) for one in results)
    places: list[LogPosition] = [(0, 0), (end, 0), *events, *((position, index + 1) for position, index in events)]
    async with connected(served.address) as connection:
        for _ in range(200):
            since, below = sorted((rng.choice(places), rng.choice(places)))
            expected = max((at for at in events if since <= at < below), default=None)
            assert await connection.submit(FindEventBelow(P0, since, below), P0) == expected


async def test_frames_are_weighed_up_to_a_limit(filled: tuple[Serving, list[AppendResult]], monkeypatch: pytest.MonkeyPatch) -> None:
    served, results = filled
    end = only(served).tail.durable_end
    everything = await weigh(served, 0, end, rows_max=1 << 40)
    assert sum(weight.rows for weight in everything.weights) == len(results)
    assert [weight.position for weight in everything.weights] == sorted({one.message_id.position for one in results})
    for names in (["a"], ["b", "c"]):
        some = await weigh(served, 0, end, rows_max=1 << 40, names=frozenset(names))
        frames = await stored(served, frozenset(names))
        assert sum(weight.rows for weight in some.weights) == sum(len(run[3].payloads) for run in columns(frames, frozenset(names)))
    limited = await weigh(served, 0, end, rows_max=10)
    assert sum(weight.rows for weight in limited.weights[:-1]) <= 10 < sum(weight.rows for weight in limited.weights)
    assert limited.upto == limited.weights[-1].next_position
    limited = await weigh(served, 0, end, bytes_max=200_000)
    assert sum(weight.size for weight in limited.weights[:-1]) <= 200_000 < sum(weight.size for weight in limited.weights)
    # A call that has read enough answers with what it has, and the next one goes on.
    monkeypatch.setattr(search, "PAGES_MAX", 1)
    found: list[FrameWeight] = []
    start = 0
    while start < end:
        part = await weigh(served, start, end, rows_max=1 << 40)
        found += part.weights
        assert part.upto > start
        start = part.upto
    assert found == list(everything.weights)


async def test_pieces_of_about_equal_bytes_tile_an_extent(filled: tuple[Serving, list[AppendResult]]) -> None:
    served, _ = filled
    frames = await stored(served)
    for start, end in ((0, only(served).tail.durable_end), (frames[3].position, frames[30].position)):
        weights = (await weigh(served, start, end)).weights
        edges = [weight.position for weight in weights]
        ends = [weight.next_position for weight in weights]
        assert (edges[0], ends[-1], edges[1:]) == (start, end, ends[:-1])
        assert all(one < other for one, other in pairwise(edges))
        total = only(served).log.bytes_between(start, end)
        assert sum(weight.size for weight in weights) == total
        assert len(weights) <= 64
        assert max(weight.size for weight in weights) <= total // 32
        assert await ask(served, CountBytes(P0, start, end)) == total


async def weigh(served: Serving, start: int, end: int, **options: Any) -> Weighed:
    return await ask(served, WeighFrames(P0, start, end, **options))
