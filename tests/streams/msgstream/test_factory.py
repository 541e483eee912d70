"""The factories of streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.streams.msgstream.packs import consume, numbers, produce, row, tick
from wal import open_wal
from wal.errors import InvalidArgumentError
from wal.streams import msgstream
from wal.streams.msgstream.media.memory import MemoryMedium

FACTORIES = pytest.mark.parametrize(
    ("kind", "parameter"),
    [
        (msgstream.MemoryMsgStreamFactory, "medium"),
        (msgstream.PulsarMsgStreamFactory, "address"),
        (msgstream.RmqMsgStreamFactory, "path"),
        (msgstream.WalMsgStreamFactory, "log"),
    ],
)


async def test_streams_of_a_medium_share_channels(tmp_path: Path) -> None:
    class Counting:
        """A factory of dispatchers that counts them."""

        def __init__(self) -> None:
            self.made = 0

        def new_unmarshal_dispatcher(self) -> msgstream.UnmarshalDispatcher:
            self.made += 1
            return msgstream.UnmarshalDispatcher()

    async def check(factory: msgstream.MsgStreamFactory, ticks: list[msgstream.TsMsg]) -> None:
        """Two streams of the factory, one of each kind, share their channels."""
        async with await factory.new_msg_stream() as plain, await factory.new_tt_msg_stream() as ticked:
            assert isinstance(ticked, msgstream.TtMsgStream)
            await plain.as_producer(["a"])
            await plain.as_consumer(["a"], "plain")
            await ticked.as_consumer(["a"], "ticked")
            await produce(plain, row(1, 1), *ticks)
            assert numbers([await consume(ticked)]) == [1]
            assert (await consume(plain)).msgs[0].id == 0

    async with MemoryMedium() as medium:
        places: list[tuple[Any, dict[str, Any]]] = [
            (msgstream.MemoryMsgStreamFactory(), {"medium": medium}),
            (msgstream.RmqMsgStreamFactory(), {"path": tmp_path / "mq"}),
        ]
        for factory, place in places:
            dispatchers = Counting()
            factory.set_params({**place, "buffer_size": 1})
            factory.set_params({"dispatcher_factory": dispatchers, "tick_bytes_max": 1_000})
            await check(factory, [tick(1)])
            assert dispatchers.made == 2


async def test_streams_on_a_log() -> None:
    async with open_wal("memory:") as log:
        factory = msgstream.WalMsgStreamFactory()
        factory.set_params({"log": log, "tick_interval_s": 0.01})
        async with await factory.new_msg_stream() as plain, await factory.new_tt_msg_stream() as ticked:
            await plain.as_producer(["a"])
            await produce(plain, row(1))
            await ticked.as_consumer(["a"], "ticked")
            while not (pack := await consume(ticked)).msgs:
                pass
            assert numbers([pack]) == [1]


async def test_stream_on_pulsar_is_created_before_it_connects() -> None:
    factory = msgstream.PulsarMsgStreamFactory()
    factory.set_params({"address": "pulsar://localhost:1/public/default", "auto_ack": False})
    for stream in (await factory.new_msg_stream(), await factory.new_tt_msg_stream()):
        await stream.close()


@FACTORIES
async def test_without_its_place_there_is_no_stream(kind: type[Any], parameter: str) -> None:
    factory = kind()
    for new in (factory.new_msg_stream, factory.new_tt_msg_stream):
        with pytest.raises(InvalidArgumentError, match=f"'{parameter}' is missing"):
            await new()


@FACTORIES
async def test_unknown_parameters_set_nothing(kind: type[Any], parameter: str) -> None:
    factory = kind()
    with pytest.raises(InvalidArgumentError, match=f"'bufsize': use .*{parameter}"):
        factory.set_params({parameter: "there", "bufsize": 3})
    with pytest.raises(TypeError, match="mapping"):
        factory.set_params([(parameter, "there")])
    with pytest.raises(InvalidArgumentError, match=f"'{parameter}' is missing"):
        await factory.new_msg_stream()


async def test_values_out_of_range_name_the_stream() -> None:
    factory = msgstream.MemoryMsgStreamFactory()
    factory.set_params({"medium": MemoryMedium(), "buffer_size": 0})
    with pytest.raises(InvalidArgumentError, match="buffer_size=0"):
        await factory.new_msg_stream()
