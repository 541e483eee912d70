"""UnmarshalDispatcher: the type in the base chooses the decoder of a message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.streams.msgstream.messages import TYPES, plain
from wal.errors import InvalidArgumentError
from wal.streams import msgstream
from wal.streams.msgstream import msg_pb2 as wire

FACTORIES: list[msgstream.UnmarshalDispatcherFactory] = [msgstream.ProtoUDFactory(), msgstream.MemUDFactory()]
factories = pytest.mark.parametrize("factory", FACTORIES, ids=["proto", "mem"])


def raw(msg_type: int, body: bytes = b"", **base: Any) -> bytes:
    """Returns a message that this version may be unable to write."""
    encoded = wire.MsgBase(msg_type=msg_type, **base).SerializeToString()
    return bytes((10, len(encoded))) + encoded + body


@factories
def test_every_type_has_a_template(factory: msgstream.UnmarshalDispatcherFactory, subtests: pytest.Subtests) -> None:
    for msg_type in TYPES:
        with subtests.test(msg_type.name):
            message = plain(msg_type)
            assert factory.new_unmarshal_dispatcher().unmarshal(message.marshal()) == message
            assert factory.new_unmarshal_dispatcher().unmarshal(message.marshal(), msg_type) == message


@factories
@pytest.mark.parametrize(("number", "remedy"), [(0, "above 0"), (-1, "above 0"), (5000, "add_msg_template")])
def test_other_types_are_refused(factory: msgstream.UnmarshalDispatcherFactory, number: int, remedy: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"{number}\b.*{remedy}"):
        factory.new_unmarshal_dispatcher().unmarshal(raw(number))


@factories
def test_another_type_than_asked_for_is_refused(factory: msgstream.UnmarshalDispatcherFactory) -> None:
    with pytest.raises(InvalidArgumentError, match=r"1200.*400"):
        factory.new_unmarshal_dispatcher().unmarshal(msgstream.TimeTickMsg(1).marshal(), msgstream.MsgType.INSERT)


@factories
def test_template_replaces_the_one_before(factory: msgstream.UnmarshalDispatcherFactory) -> None:
    dispatcher, other = factory.new_unmarshal_dispatcher(), factory.new_unmarshal_dispatcher()
    insert = msgstream.InsertMsg([1], [2], [b"x"])
    dispatcher.add_msg_template(msgstream.MsgType.INSERT, msgstream.OpaqueMsg.unmarshal)
    read = dispatcher.unmarshal(insert.marshal())
    assert isinstance(read, msgstream.OpaqueMsg)
    assert read.marshal() == insert.marshal()
    dispatcher.add_msg_template(msgstream.MsgType.INSERT, msgstream.InsertMsg.unmarshal)
    assert dispatcher.unmarshal(insert.marshal()) == insert
    assert other.unmarshal(insert.marshal()) == insert


@factories
def test_type_of_the_users_own(factory: msgstream.UnmarshalDispatcherFactory) -> None:
    class Order(msgstream.TsMsg):
        text: str

        @property
        def msg_type(self) -> int:
            return 5000

        def marshal_body(self) -> bytes:
            return self.text.encode()

        @classmethod
        def unmarshal_body(cls, msg_type: int, body: bytes) -> Order:
            return cls(body.decode())

    dispatcher = factory.new_unmarshal_dispatcher()
    dispatcher.add_msg_template(5000, Order.unmarshal)
    order = Order("three apples", id=1, timestamp=2, hash_keys=[3])
    assert dispatcher.unmarshal(order.marshal()) == order
    with pytest.raises(InvalidArgumentError, match="utf-8"):
        dispatcher.unmarshal(raw(5000, b"\xff"))


@pytest.mark.parametrize(
    ("result", "expected"), [(None, "None"), (b"bytes", "bytes"), (KeyError("x"), "KeyError"), (OSError("y"), "OSError")]
)
def test_failing_template_makes_an_undecodable_message(result: object, expected: str) -> None:
    def read(data: bytes) -> msgstream.TsMsg:
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[return-value]

    dispatcher = msgstream.UnmarshalDispatcher()
    dispatcher.add_msg_template(msgstream.MsgType.FLUSH, read)
    with pytest.raises(InvalidArgumentError, match=rf"402.*{expected}"):
        dispatcher.unmarshal(plain(msgstream.MsgType.FLUSH).marshal())


@pytest.mark.parametrize(
    ("earlier", "current"),
    [
        (msgstream.EarlierMsgType.INSERT, msgstream.MsgType.INSERT),
        (msgstream.EarlierMsgType.DELETE, msgstream.MsgType.DELETE),
        (msgstream.EarlierMsgType.SEARCH, msgstream.MsgType.SEARCH),
        (msgstream.EarlierMsgType.SEARCH_RESULT, msgstream.MsgType.SEARCH_RESULT),
        (msgstream.EarlierMsgType.SEG_STATISTICS, msgstream.MsgType.SEGMENT_STATISTICS),
        (msgstream.EarlierMsgType.TIME_TICK, msgstream.MsgType.TIME_TICK),
        (msgstream.EarlierMsgType.TIME_SYNC, msgstream.MsgType.TIME_TICK),
    ],
)
def test_old_streams_are_read_with_their_numbers(earlier: msgstream.EarlierMsgType, current: msgstream.MsgType) -> None:
    assert earlier.current is current
    message = plain(current)
    old = raw(earlier, message.marshal_body(), timestamp=message.timestamp)
    dispatcher = msgstream.UnmarshalDispatcher(numbers=msgstream.EarlierMsgType)
    assert dispatcher.unmarshal(old) == message
    assert dispatcher.unmarshal(old, earlier) == message
    calls: list[bytes] = []
    dispatcher.add_msg_template(earlier, lambda data: calls.append(data) or msgstream.OpaqueMsg.unmarshal(data))  # type: ignore[func-returns-value]
    assert dispatcher.unmarshal(old).msg_type is current
    assert calls == [message.marshal()]


def test_every_earlier_type_was_tried() -> None:
    assert len(msgstream.EarlierMsgType) == 7


def test_numbers_are_never_mixed() -> None:
    with pytest.raises(InvalidArgumentError, match="501"):
        msgstream.UnmarshalDispatcher(numbers=msgstream.EarlierMsgType).unmarshal(plain(msgstream.MsgType.SEARCH_RESULT).marshal())
    with pytest.raises(InvalidArgumentError, match="1000"):
        msgstream.UnmarshalDispatcher().unmarshal(raw(msgstream.EarlierMsgType.SEARCH_RESULT))
    assert msgstream.UnmarshalDispatcher().unmarshal(raw(msgstream.EarlierMsgType.TIME_SYNC)).msg_type is msgstream.MsgType.QUERY_NODE_STATS


@pytest.mark.parametrize("wrong", [None, int, 3, "MsgType"])
def test_numbers_are_one_of_two(wrong: Any) -> None:
    with pytest.raises(TypeError, match="EarlierMsgType"):
        msgstream.UnmarshalDispatcher(numbers=wrong)


def test_wrong_template_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, Any, type[Exception]]] = [
        (0, msgstream.OpaqueMsg.unmarshal, InvalidArgumentError),
        (-3, msgstream.OpaqueMsg.unmarshal, InvalidArgumentError),
        (1 << 31, msgstream.OpaqueMsg.unmarshal, InvalidArgumentError),
        ("400", msgstream.OpaqueMsg.unmarshal, TypeError),
        (True, msgstream.OpaqueMsg.unmarshal, TypeError),
        (400, None, TypeError),
    ]
    for msg_type, function, error in cases:
        with subtests.test(repr(msg_type)):
            dispatcher = msgstream.UnmarshalDispatcher()
            with pytest.raises(error):
                dispatcher.add_msg_template(msg_type, function)
            assert dispatcher.unmarshal(msgstream.InsertMsg([1], [2], [b""]).marshal()) == msgstream.InsertMsg([1], [2], [b""])


def test_names_of_the_seeds_are_one_class() -> None:
    assert isinstance(msgstream.ProtoUDFactory().new_unmarshal_dispatcher(), msgstream.ProtoUnmarshalDispatcher)
    assert isinstance(msgstream.MemUDFactory().new_unmarshal_dispatcher(), msgstream.UnmarshalDispatcher)
