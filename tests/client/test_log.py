"""A log over the network: appends, reads, and what is refused, against a real server."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from tests.outages.proxy import Proxy
from tests.probes import turns
from tests.serve.servers import Serving, serving
from wal import All, Delivery, Latest, Message, ProducerKey, StartAfter, WALAccesser, open_wal
from wal.channels.vchannels import place
from wal.errors import AuthenticationError, ChannelNotExistError, InvalidArgumentError, UnavailableError, WouldBlockError
from wal.requests.rights import Right
from wal.requests.vchannels import DropVChannel
from wal.rpc.auth import Token
from wal.runtime.secret import Secret
from wal.serve.access import Access


async def payloads(log: WALAccesser, vchannel: str) -> list[bytes]:
    async with log.read(vchannel, follow=False) as scanner:
        return [body.payload async for message in scanner for body in message.bodies()]


async def test_messages_arrive_in_the_order_of_the_calls(log: WALAccesser, served: Serving) -> None:
    futures = [log.append_nowait(Message("orders", b"%d" % number)) for number in range(1000)]
    results = await asyncio.gather(*futures)
    assert [result.message_id for result in results] == sorted(result.message_id for result in results)
    assert await payloads(log, "orders") == [b"%d" % number for number in range(1000)]
    assert served.log.statistics().pchannels[2].frames < 200  # many messages in one request


async def test_append_after_another_has_a_larger_tick_on_any_pchannel(log: WALAccesser) -> None:
    tick = 0
    for number in range(30):
        result = await log.raw_append(Message(f"v{number}", b"x"))
        assert result.time_tick > tick
        tick = result.time_tick


async def test_properties_types_and_keys_travel(log: WALAccesser) -> None:
    first = await log.raw_append(Message("orders", b"1", properties={"ü": "☃"}), idempotency_key="k")
    again = await log.raw_append(Message("orders", b"2"), idempotency_key="k")
    assert again.duplicate
    assert again.message_id == first.message_id
    for sequence in (0, 1):
        await log.raw_append(Message("orders", b"s"), idempotency_key=ProducerKey("p", sequence))
    forgotten = await log.raw_append(Message("orders", b"s"), idempotency_key=ProducerKey("p", 0))
    assert forgotten.duplicate
    async with log.read("orders", follow=False) as scanner:
        messages = [message async for message in scanner]
    assert messages[0].properties == {"ü": "☃"}
    assert messages[0].message_id == first.message_id
    assert [message.payload for message in messages] == [b"1", b"s", b"s"]


async def test_two_clients_of_one_log(log: WALAccesser, served: Serving) -> None:
    async with open_wal(f"wal://{served.address}") as other, log.read("orders") as scanner:
        for number in range(20):
            await other.raw_append(Message("orders", b"%d" % number))
            async with asyncio.timeout(60):
                assert (await anext(scanner)).payload == b"%d" % number
        position = scanner.position
        assert position is not None
        await log.raw_append(Message("orders", b"more"))
        async with other.read("orders", resume=position, follow=False) as resumed:
            assert [message.payload async for message in resumed] == [b"more"]
        async with other.read("orders", deliver_policy=StartAfter(position.message_id), follow=False) as after:
            assert [message.payload async for message in after] == [b"more"]


async def test_reader_waits_for_a_tick(log: WALAccesser) -> None:
    async with log.read("orders") as scanner:
        result = await log.raw_append(Message("orders", b"1"))
        reading = asyncio.ensure_future(anext(scanner))
        assert (await reading).payload == b"1"
        nothing = asyncio.ensure_future(anext(scanner))
        async with asyncio.timeout(60):
            await scanner.wait_for(result.time_tick)
            await scanner.wait_for(await log.get_latest_mvcc_timestamp_if_local("orders"))
        nothing.cancel()


async def test_dropped_vchannel_ends_its_readers(log: WALAccesser, served: Serving) -> None:
    await log.raw_append(Message("orders", b"1"))
    async with open_wal(f"wal://{served.address}") as other, other.read("orders") as scanner:
        assert (await anext(scanner)).payload == b"1"
        await log.drop_vchannel("orders")
        with pytest.raises(ChannelNotExistError):
            async with asyncio.timeout(60):
                await anext(scanner)


async def test_vchannel_that_is_dropped_while_appends_to_it_are_on_their_way(served: Serving) -> None:
    """The appends are right, and an append after them creates the vchannel again, where it is placed by its name."""
    here = place("orders", list(served.log.node.pchannels))
    there = next(name for name in served.log.node.pchannels if name != here)
    async with Proxy(int(served.address.rpartition(":")[2])) as proxy, open_wal(f"wal://{proxy.address}") as log:
        await log.create_vchannel("orders", pchannel=there)
        await log.raw_append(Message("orders", b"1"))
        proxy.stall_one_way(up=True)
        late: list[asyncio.Future[Any]] = [
            log.append_nowait(Message("orders", b"2")),
            log.append_nowait(Message("orders", b"3"), idempotency_key="k"),
            asyncio.ensure_future(log.append_txn("orders", [b"4"])),
        ]
        await turns()
        await served.log.submit(DropVChannel("orders"))
        proxy.flow(up=True)
        for error in await asyncio.gather(*late, return_exceptions=True):
            assert isinstance(error, ChannelNotExistError)
            assert "append to it again" in str(error)
        async with asyncio.timeout(60):
            while True:  # until the client, too, has heard of the drop
                with contextlib.suppress(ChannelNotExistError):
                    await log.raw_append(Message("orders", b"5"))
                    break
        assert await payloads(log, "orders") == [b"5"]
        assert [info.pchannel for info in await log.vchannels()] == [here]


async def test_reader_of_an_unknown_vchannel_moves_to_where_it_is_created(log: WALAccesser, served: Serving) -> None:
    for pchannel in ("p0", "p1", "p2"):
        async with open_wal(f"wal://{served.address}") as other, other.read(f"on {pchannel}") as scanner:
            await log.create_vchannel(f"on {pchannel}", pchannel=pchannel)
            await log.raw_append(Message(f"on {pchannel}", b"1"))
            async with asyncio.timeout(60):
                assert (await anext(scanner)).payload == b"1"


async def test_room_in_flight_is_bounded(served: Serving) -> None:
    async with open_wal(f"wal://{served.address}", in_flight_bytes_max=10_000) as log:
        futures = []
        with pytest.raises(WouldBlockError, match="in_flight_bytes_max=10000"):
            while True:
                futures.append(log.append_nowait(Message("orders", b"x" * 1000)))
        assert len(futures) == 9
        await asyncio.gather(*futures, *(log.raw_append(Message("orders", b"y" * 1000)) for _ in range(100)))
        assert log.statistics().bytes_in_flight == 0


async def test_settings_of_a_log_are_its_servers(served: Serving) -> None:
    with pytest.raises(InvalidArgumentError, match=r"txn_keepalive=3.* contradicts .* txn_keepalive=10"):
        await open_wal(f"wal://{served.address}", txn_keepalive=3)


async def test_client_without_the_token_is_refused() -> None:
    async with serving(access=Access(listen="127.0.0.1:0", tokens=[Token(Secret("t0ken"))])) as one:
        with pytest.raises(InvalidArgumentError, match="token"):
            await open_wal(f"wal://{one.address}")
        async with open_wal(f"wal://{one.address}", token="t0ken") as log:
            await log.raw_append(Message("orders", b"1"))
            assert await payloads(log, "orders") == [b"1"]


async def test_reader_moves_no_cursor_of_a_consumer() -> None:
    tokens = [Token(Secret("w"), "shop", frozenset({Right.READ, Right.WRITE})), Token(Secret("r"), "report", frozenset({Right.READ}))]

    async def handle(delivery: Delivery) -> None: ...

    async with (
        serving(access=Access(listen="127.0.0.1:0", tokens=tokens)) as one,
        open_wal(f"wal://{one.address}", token="w") as shop,
        open_wal(f"wal://{one.address}", token="r") as report,
    ):
        await shop.append_txn("orders", [b"1", b"2"])
        async with shop.consume("orders", handle, cursor="billing") as consumer:
            await consumer.caught_up()
        before = await shop.cursors()
        with pytest.raises(AuthenticationError, match=r"no right to move .*billing.*, which needs 'write'"):
            await report.seek("billing", to=All())
        async with report.read("orders", cursor="billing", deliver_policy=All(), follow=False) as scanner:
            with pytest.raises(AuthenticationError):
                await scanner.save()
        for refused in (
            report.consume("orders", handle, cursor="billing").run(),
            report.seek("billing", to=All(), reset=True),
            report.delete_cursor("billing"),
        ):
            with pytest.raises(AuthenticationError):
                await refused
        assert [info.position for info in await shop.cursors()] == [info.position for info in before]
        await report.seek("own", to=All(), vchannels="orders")
        await report.seek("own", to=Latest())
        await shop.seek("billing", to=All())


async def test_without_a_server_the_opening_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal.client.log.TIMEOUT_S", 0.5)
    with pytest.raises(UnavailableError, match="is it running"):
        async with asyncio.timeout(60):
            await open_wal("wal://127.0.0.1:1")


async def test_log_that_is_only_read(log: WALAccesser, served: Serving) -> None:
    await log.raw_append(Message("orders", b"1"))
    async with open_wal(f"wal://{served.address}", read_only=True) as reader:
        assert await payloads(reader, "orders") == [b"1"]
        with pytest.raises(InvalidArgumentError, match="read_only"):
            await reader.raw_append(Message("orders", b"2"))
