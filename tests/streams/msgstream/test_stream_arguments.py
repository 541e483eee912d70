"""Wrong arguments of streams, and calls in the wrong order: each is refused before anything is sent or opened."""

from __future__ import annotations

from typing import Any

import pytest

from tests.streams.msgstream.packs import consume, numbers, produce, row
from wal.errors import InvalidArgumentError
from wal.streams.msgstream import MsgPack, MsgStream, TtMsgStream, UnmarshalDispatcher
from wal.streams.msgstream.media.memory import MemoryMedium


@pytest.mark.parametrize("settings", [{"buffer_size": 0}, {"buffer_size": 1.5}, {"tick_bytes_max": 0}])
def test_settings_out_of_range(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(settings))):
        TtMsgStream(MemoryMedium(), **settings)


@pytest.mark.parametrize("settings", [{"on_refused": "a queue"}, {"dispatcher": UnmarshalDispatcher.unmarshal}, {"auto_ack": "no"}])
def test_settings_of_a_wrong_type(settings: dict[str, Any]) -> None:
    for kind in (MsgStream, TtMsgStream):
        with pytest.raises(TypeError, match=next(iter(settings))):
            kind(MemoryMedium(), **settings)


def test_invalid_medium_is_refused() -> None:
    with pytest.raises(TypeError, match="needs a medium, such as MemoryMedium"):
        MsgStream("memory")  # type: ignore[arg-type]


async def test_channels_that_are_no_names(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, type[Exception]]] = [
        ([], InvalidArgumentError),
        ([""], InvalidArgumentError),
        (["a", ""], InvalidArgumentError),
        ("a", TypeError),
        ([1], TypeError),
        (None, TypeError),
    ]
    for channels, error in cases:
        with subtests.test(repr(channels)):
            async with MemoryMedium() as medium, MsgStream(medium) as stream:
                with pytest.raises(error):
                    await stream.as_producer(channels)
                with pytest.raises(error):
                    await stream.as_consumer(channels, "subscription")
                with pytest.raises(InvalidArgumentError, match="no producers"):
                    await produce(stream, row(1))


@pytest.mark.parametrize(("sub_name", "error"), [("", InvalidArgumentError), (None, TypeError)])
async def test_subscription_that_is_no_name(sub_name: Any, error: type[Exception]) -> None:
    async with MemoryMedium() as medium, MsgStream(medium) as stream:
        with pytest.raises(error, match="sub_name"):
            await stream.as_consumer(["a"], sub_name)


async def test_repack_function_that_is_none() -> None:
    async with MemoryMedium() as medium, MsgStream(medium) as stream:
        with pytest.raises(TypeError, match="repack_func"):
            stream.set_repack_func({})  # type: ignore[arg-type]


async def test_packs_that_are_none() -> None:
    async with MemoryMedium() as medium, MsgStream(medium) as stream:
        await stream.as_producer(["a", "b"])
        pack = MsgPack([row(1)])
        pack.msgs = [*pack.msgs, b"payload"]  # type: ignore[list-item]
        wrong: list[Any] = [None, [row(1)], row(1), pack]
        for what in wrong:
            with pytest.raises(TypeError):
                await stream.produce(what)
            with pytest.raises(TypeError):
                await stream.broadcast(what)


async def test_message_without_wire_form_sends_nothing() -> None:
    async with MemoryMedium() as medium, MsgStream(medium) as stream:
        await stream.as_producer(["a", "b"])
        await stream.as_consumer(["a", "b"], "subscription")
        bad = row(2, key=1)
        bad.row_ids = [1 << 70]
        for call in (stream.produce, stream.broadcast):
            with pytest.raises(InvalidArgumentError):
                await call(MsgPack([row(1), bad]))
        await produce(stream, row(3))
        assert numbers([await consume(stream)]) == [3]


async def test_calls_that_come_too_early_or_too_late() -> None:
    async with MemoryMedium() as medium, MsgStream(medium) as stream:
        with pytest.raises(InvalidArgumentError, match="as_producer"):
            await produce(stream, row(1))
        with pytest.raises(InvalidArgumentError, match="as_consumer"):
            await stream.consume()
    async with MemoryMedium() as medium, MsgStream(medium) as stream:
        await stream.as_consumer(["a"], "subscription")
        await stream.start()
        await stream.start()
        with pytest.raises(InvalidArgumentError, match="before start"):
            await stream.as_consumer(["b"], "subscription")


def test_stream_is_entered_by_an_event_loop() -> None:
    for kind in (MsgStream, TtMsgStream):
        with pytest.raises(TypeError, match="async with"), kind(MemoryMedium()):  # type: ignore[attr-defined]
            pass
