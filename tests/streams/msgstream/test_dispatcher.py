"""UnmarshalDispatcher: the type in the base chooses what reads a message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.streams.msgstream.messages import TYPES, plain
from wal.errors import InvalidArgumentError
from wal.streams.msgstream import (
    EarlierMsgType,
    InsertMsg,
    MemUDFactory,
    MsgType,
    OpaqueMsg,
    ProtoUDFactory,
    ProtoUnmarshalDispatcher,
    TimeTickMsg,
    TsMsg,
    UnmarshalDispatcher,
    UnmarshalDispatcherFactory,
)
from wal.streams.msgstream import msg_pb2 as wire

FACTORIES: list[UnmarshalDispatcherFactory] = [ProtoUDFactory(), MemUDFactory()]
factories = pytest.mark.parametrize("factory", FACTORIES, ids=["proto", "mem"])


def raw(msg_type: int, body: bytes = b"", **base: Any) -> bytes:
    """Returns a message that this version may be unable to write."""
    encoded = wire.MsgBase(msg_type=msg_type, **base).SerializeToString()
    return bytes((10, len(encoded))) + encoded + body


@factories
def test_every_type_has_a_template(factory: UnmarshalDispatcherFactory, subtests: pytest.Subtests) -> None:
    for msg_type in TYPES:
        with subtests.test(msg_type.name):
            message = plain(msg_type)
            assert factory.new_unmarshal_dispatcher().unmarshal(message.marshal()) == message
            assert factory.new_unmarshal_dispatcher().unmarshal(message.marshal(), msg_type) == message


@factories
@pytest.mark.parametrize(("number", "remedy"), [(0, "above 0"), (-1, "above 0"), (5000, "add_msg_template")])
def test_other_types_are_refused(factory: UnmarshalDispatcherFactory, number: int, remedy: str) -> None:
    with pytest.raises(InvalidArgumentError, match=rf"{number}\b.*{remedy}"):
        factory.new_unmarshal_dispatcher().unmarshal(raw(number))


@factories
def test_another_type_than_asked_for_is_refused(factory: UnmarshalDispatcherFactory) -> None:
    with pytest.raises(InvalidArgumentError, match=r"1200.*400"):
        factory.new_unmarshal_dispatcher().unmarshal(TimeTickMsg(1).marshal(), MsgType.INSERT)


@factories
def test_template_replaces_the_one_before(factory: UnmarshalDispatcherFactory) -> None:
    dispatcher, other = factory.new_unmarshal_dispatcher(), factory.new_unmarshal_dispatcher()
    insert = InsertMsg([1], [2], [b"x"])
    dispatcher.add_msg_template(MsgType.INSERT, OpaqueMsg.unmarshal)
    read = dispatcher.unmarshal(insert.marshal())
    assert isinstance(read, OpaqueMsg)
    assert read.marshal() == insert.marshal()
    dispatcher.add_msg_template(MsgType.INSERT, InsertMsg.unmarshal)
    assert dispatcher.unmarshal(insert.marshal()) == insert
    assert other.unmarshal(insert.marshal()) == insert


@factories
def test_type_of_the_users_own(factory: UnmarshalDispatcherFactory) -> None:
    class Order(TsMsg):
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
def test_template_of_the_user_that_fails_is_an_undecodable_message(result: object, expected: str) -> None:
    def read(data: bytes) -> TsMsg:
        if isinstance(result, Exception):
            raise result
        return result  # type: ignore[return-value]

    dispatcher = UnmarshalDispatcher()
    dispatcher.add_msg_template(MsgType.FLUSH, read)
    with pytest.raises(InvalidArgumentError, match=rf"402.*{expected}"):
        dispatcher.unmarshal(plain(MsgType.FLUSH).marshal())


@pytest.mark.parametrize(
    ("earlier", "current"),
    [
        (EarlierMsgType.INSERT, MsgType.INSERT),
        (EarlierMsgType.DELETE, MsgType.DELETE),
        (EarlierMsgType.SEARCH, MsgType.SEARCH),
        (EarlierMsgType.SEARCH_RESULT, MsgType.SEARCH_RESULT),
        (EarlierMsgType.SEG_STATISTICS, MsgType.SEGMENT_STATISTICS),
        (EarlierMsgType.TIME_TICK, MsgType.TIME_TICK),
        (EarlierMsgType.TIME_SYNC, MsgType.TIME_TICK),
    ],
)
def test_old_streams_are_read_with_their_numbers(earlier: EarlierMsgType, current: MsgType) -> None:
    assert earlier.current is current
    message = plain(current)
    old = raw(earlier, message.marshal_body(), timestamp=message.timestamp)
    dispatcher = UnmarshalDispatcher(numbers=EarlierMsgType)
    assert dispatcher.unmarshal(old) == message
    assert dispatcher.unmarshal(old, earlier) == message
    calls: list[bytes] = []
    dispatcher.add_msg_template(earlier, lambda data: calls.append(data) or OpaqueMsg.unmarshal(data))  # type: ignore[func-returns-value]
    assert dispatcher.unmarshal(old).msg_type is current
    assert calls == [message.marshal()]


def test_every_earlier_type_was_tried() -> None:
    assert len(EarlierMsgType) == 7


def test_numbers_are_never_mixed() -> None:
    with pytest.raises(InvalidArgumentError, match="501"):
        UnmarshalDispatcher(numbers=EarlierMsgType).unmarshal(plain(MsgType.SEARCH_RESULT).marshal())
    with pytest.raises(InvalidArgumentError, match="1000"):
        UnmarshalDispatcher().unmarshal(raw(EarlierMsgType.SEARCH_RESULT))
    assert UnmarshalDispatcher().unmarshal(raw(EarlierMsgType.TIME_SYNC)).msg_type is MsgType.QUERY_NODE_STATS


@pytest.mark.parametrize("wrong", [None, int, 3, "MsgType"])
def test_numbers_are_one_of_two(wrong: Any) -> None:
    with pytest.raises(TypeError, match="EarlierMsgType"):
        UnmarshalDispatcher(numbers=wrong)


def test_wrong_template_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, Any, type[Exception]]] = [
        (0, OpaqueMsg.unmarshal, InvalidArgumentError),
        (-3, OpaqueMsg.unmarshal, InvalidArgumentError),
        (1 << 31, OpaqueMsg.unmarshal, InvalidArgumentError),
        ("400", OpaqueMsg.unmarshal, TypeError),
        (True, OpaqueMsg.unmarshal, TypeError),
        (400, None, TypeError),
    ]
    for msg_type, function, error in cases:
        with subtests.test(repr(msg_type)):
            dispatcher = UnmarshalDispatcher()
            with pytest.raises(error):
                dispatcher.add_msg_template(msg_type, function)
            assert dispatcher.unmarshal(InsertMsg([1], [2], [b""]).marshal()) == InsertMsg([1], [2], [b""])


def test_names_of_the_seeds_are_one_class() -> None:
    assert isinstance(ProtoUDFactory().new_unmarshal_dispatcher(), ProtoUnmarshalDispatcher)
    assert isinstance(MemUDFactory().new_unmarshal_dispatcher(), UnmarshalDispatcher)
