"""PChannelService: ticks, truncation, retention, statistics, producers and cursors of a pchannel, asked over the network."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.serve.servers import Serving, connected, serving
from wal.channels.vchannels import place
from wal.errors import ChannelNotExistError, InvalidArgumentError, TruncatedError, UnmatchedChannelTermError
from wal.message import AppendResult, Message, MessageID
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.requests.appends import WriteOptions
from wal.requests.cursors import DeleteCursors, ListCursors, LoadCursor, SaveCursor
from wal.requests.pchannels import ForgetProducer, LastEvent, LatestTick, ListProducers, Retention, Statistics, Truncate
from wal.requests.reads import GetMoment
from wal.requests.request import Request
from wal.requests.vchannels import CreateVChannel
from wal.rpc.connection import Connection
from wal.write.idempotency.keys import ProducerInfo, ProducerKey
from wal.write.pchannel import PChannel

KEY = CursorKey("reader", ("a",))


async def append(served: Serving, name: str = "a", payload: bytes = b"x" * 1_000) -> AppendResult:
    result: AppendResult = await served.log.appends.append_waiting(Message(name, payload))
    return result


def only(served: Serving) -> PChannel:
    """Returns the only pchannel of a log."""
    (pchannel,) = served.log.node.pchannels.values()
    return pchannel


@pytest.mark.parametrize(
    "request_", [LatestTick("a"), LastEvent("a"), Truncate(MessageID("p-1", 1, 1, 1)), Retention(), ListProducers(), GetMoment("p0")]
)
async def test_request_for_an_absent_pchannel_is_refused(served: Serving, connection: Connection, request_: Request[Any]) -> None:
    term = only(served).log.term
    with pytest.raises(ChannelNotExistError, match="'elsewhere' is not on this node"):
        await connection.submit(request_, "elsewhere", term=term)
    with pytest.raises(ChannelNotExistError, match="'' is not on this node"):
        await connection.submit(request_)
    with pytest.raises(UnmatchedChannelTermError, match=f"in term {term}, not {term + 1}"):
        await connection.submit(request_, only(served).channel, term=term + 1)


async def test_latest_tick_covers_what_was_written() -> None:
    async with serving(pchannels=2) as served, connected(served.address) as connection:
        pchannels = list(served.log.node.pchannels)
        here = place("a", pchannels)
        other = next(name for name in pchannels if name != here)
        assert await connection.submit(LatestTick("a"), here) == served.log.node.pchannels[here].promised.tick
        written = await append(served, "a")
        tick = await connection.submit(LatestTick("a"), here)
        assert written.time_tick <= tick == served.log.node.pchannels[here].promised.tick
        with pytest.raises(ChannelNotExistError, match=f"'a' is on pchannel {here}, not on {other}"):
            await connection.submit(LatestTick("a"), other)
    async with serving(create_vchannels=False) as served, connected(served.address) as connection:
        with pytest.raises(ChannelNotExistError, match="'a' does not exist"):
            await connection.submit(LatestTick("a"), only(served).channel)


async def test_log_is_truncated_up_to_an_id(served: Serving, connection: Connection) -> None:
    results = [await append(served) for _ in range(5)]
    channel = only(served).channel
    for _ in range(2):
        await connection.submit(Truncate(results[2].message_id), channel)
    assert only(served).log.earliest == (results[2].message_id.position, results[2].message_id.index + 1)
    (retention,) = await connection.submit(Retention(), channel)
    assert (retention,) == await served.log.submit(Retention())
    assert retention.earliest == results[3].message_id


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"position": 1 << 40}, "above the durable end"),
        ({"pchannel": "p-2"}, "is of pchannel p-2, and the request is for"),
        ({"incarnation": 5}, "another incarnation"),
    ],
)
async def test_id_that_cannot_be_truncated_to_is_refused(
    served: Serving, connection: Connection, changes: dict[str, Any], words: str
) -> None:
    at = (await append(served)).message_id
    fields = {name: getattr(at, name) for name in ("pchannel", "incarnation", "position", "index", "form")}
    with pytest.raises(InvalidArgumentError, match=words):
        await connection.submit(Truncate(MessageID(**{**fields, **changes})), only(served).channel)
    assert only(served).log.earliest == (0, 0)


async def test_pchannel_reports_what_it_did() -> None:
    async with serving(pchannels=2, retention_s=500.0) as served, connected(served.address) as connection:
        await append(served, "a")
        await append(served, "b")
        for name, pchannel in served.log.node.pchannels.items():
            (counts,) = await connection.submit(Statistics(), name)
            now = pchannel.statistics()
            aged = ("promise", "checkpoint_age_s")
            assert all(getattr(counts, field) <= getattr(now, field) for field in aged)
            assert counts == msgspec.structs.replace(now, **{field: getattr(counts, field) for field in aged})
            (retention,) = await connection.submit(Retention(), name)
            assert (retention.pchannel, retention.age_max_s) == (name, 500.0)


async def test_producers_are_listed_and_forgotten(served: Serving, connection: Connection) -> None:
    channel = only(served).channel
    for sequence in range(3):
        await served.log.appends.append_waiting(Message("a", b"x"), WriteOptions(key=ProducerKey("loader", sequence)))
    assert await connection.submit(ListProducers(), channel) == (ProducerInfo("loader", ("a",), 2),)
    await connection.submit(ForgetProducer("loader"), channel)
    assert await served.log.submit(ListProducers()) == ()
    with pytest.raises(InvalidArgumentError, match="producer 'loader' is unknown"):
        await connection.submit(ForgetProducer("loader"), channel)


async def test_producer_is_forgotten_on_the_pchannel_that_is_named() -> None:
    async with serving(pchannels=2) as served, connected(served.address) as connection:
        one, other = served.log.node.pchannels
        for name, pchannel in (("a", one), ("b", other)):
            await served.log.submit(CreateVChannel(name, pchannel))
            await served.log.appends.append_waiting(Message(name, b"x"), WriteOptions(key=ProducerKey("loader", 0)))
        await connection.submit(ForgetProducer("loader"), one)
        assert [info.vchannels for info in await served.log.submit(ListProducers())] == [("b",)]


# -- cursors


def cursor(served: Serving, at: AppendResult, **changes: Any) -> Cursor:
    """Returns the cursor of a reader that has read up to here."""
    incarnation = served.log.node.routes.incarnation("a")
    position, index = at.message_id.position, at.message_id.index
    made = Cursor(
        KEY,
        (incarnation,),
        only(served).channel,
        only(served).log.incarnation,
        (position, index + 1),
        (position, index),
        at.time_tick,
        0.0,
        only(served).form,
    )
    return msgspec.structs.replace(made, **changes)


async def save(served: Serving, connection: Connection, given: Cursor, **options: Any) -> bool:
    return await connection.submit(SaveCursor(given, **options), only(served).channel)


async def load(served: Serving, connection: Connection) -> Cursor | None:
    channel = only(served).channel
    return await connection.submit(LoadCursor(KEY, channel), channel)


@pytest.mark.parametrize("where", ["memory", "journal"])
async def test_cursor_from_its_first_save_to_its_end(where: str, data_dir: Any) -> None:
    async with serving("memory:" if where == "memory" else data_dir) as served, connected(served.address) as connection:
        results = [await append(served) for _ in range(3)]
        assert await load(served, connection) is None
        assert await save(served, connection, cursor(served, results[1], stale="a client does not decide that"))
        saved = await load(served, connection)
        assert saved is not None
        assert saved.saved_at > 1e9
        assert msgspec.structs.replace(saved, saved_at=0.0, moved_at=0.0, moving=False) == cursor(served, results[1])
        kept = await served.log.cursors.load(KEY, pchannel=only(served).channel)
        assert saved == kept

        assert not await save(served, connection, cursor(served, results[0]), forward_only=True)
        assert await save(served, connection, cursor(served, results[2]), forward_only=True)
        channel = only(served).channel
        listed = await connection.submit(ListCursors(), channel)
        assert list(listed) == await served.log.cursors.infos()
        assert listed[0].position is not None
        assert listed[0].position.message_id == results[2].message_id

        await connection.submit(DeleteCursors(KEY.name, ("b",)), channel)
        assert await load(served, connection) is not None
        await connection.submit(DeleteCursors(KEY.name, ("a",)), channel)
        assert await load(served, connection) is None
        await save(served, connection, cursor(served, results[2]))
        await connection.submit(DeleteCursors(KEY.name), channel)
        assert await load(served, connection) is None


async def test_cursor_belongs_to_the_list_of_its_pchannel() -> None:
    async with serving(pchannels=2) as served, connected(served.address) as connection:
        one, other = served.log.node.pchannels.values()
        await served.log.submit(CreateVChannel("a", one.channel))
        at = await append(served)
        incarnation = served.log.node.routes.incarnation("a")
        position = (at.message_id.position, at.message_id.index)
        made = Cursor(KEY, (incarnation,), one.channel, one.log.incarnation, position, None, 0, 0.0)
        await connection.submit(SaveCursor(made), one.channel)
        (listed,) = await connection.submit(ListCursors(), one.channel)
        assert listed.name == made.key.name
        assert await connection.submit(ListCursors(), other.channel) == ()
        with pytest.raises(InvalidArgumentError, match=f"is of pchannel {one.channel}, and the request is for {other.channel}"):
            await connection.submit(SaveCursor(made), other.channel)


async def test_truncated_or_stale_cursor_is_told_as_such(served: Serving, connection: Connection) -> None:
    results = [await append(served) for _ in range(3)]
    await served.log.submit(Truncate(results[1].message_id))
    with pytest.raises(TruncatedError, match="cannot be saved at"):
        await save(served, connection, cursor(served, results[0]))
    assert await load(served, connection) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"incarnation": 5}, "save a position that was read from this log"),
        ({"pchannel": "p-2"}, "is of pchannel p-2, and the request is for"),
        ({"form": 2}, "save a position that was read from this log"),
        ({"start": (1 << 40, 0)}, "above its durable end"),
        ({"event": (1 << 100, 0)}, "above its durable end"),
        ({"incarnations": (77,)}, "an incarnation of a vchannel that does not exist yet"),
        ({"incarnations": (1, 2)}, "has 2 incarnations: one for each of its 1"),
        ({"key": CursorKey("", ("a",))}, "cursor is empty"),
        ({"key": CursorKey("_own", ("a",))}, "begins with '_'"),
        ({"key": CursorKey("x" * 256, ("a",))}, "256 bytes long: at most 255"),
        ({"key": CursorKey("reader", ("\0",))}, "control characters"),
    ],
)
async def test_bad_cursor_is_refused(served: Serving, connection: Connection, changes: dict[str, Any], words: str) -> None:
    at = await append(served)
    with pytest.raises(InvalidArgumentError, match=words):
        await save(served, connection, cursor(served, at, **changes))
    assert await served.log.cursors.infos() == []


def test_cursor_without_vchannels_or_name_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="cursor is empty"):
        DeleteCursors("")
    for make in (lambda: LoadCursor(CursorKey("x", ()), "p0"), lambda: DeleteCursors("x", ())):
        with pytest.raises(InvalidArgumentError, match="has no vchannels"):
            make()
    with pytest.raises(InvalidArgumentError, match="name them sorted, each once"):
        LoadCursor(CursorKey("x", ("b", "a")), "p0")
