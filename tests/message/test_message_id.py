"""MessageID: its order, its text, its bytes, and the refused inputs."""

import operator
import re
import struct
from collections.abc import Callable
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.errors import InvalidArgumentError
from wal.message import FORM_JOURNAL, FORM_PULSAR, MessageID

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
u32, u64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
small = st.integers(0, 3)


def ids(
    pchannel: st.SearchStrategy[str] = names, incarnation: st.SearchStrategy[int] = u64, index: st.SearchStrategy[int] = u32
) -> st.SearchStrategy[MessageID]:
    return st.one_of(
        st.builds(MessageID, pchannel, incarnation, u64 | small, index),
        st.builds(MessageID, pchannel, incarnation, st.integers(0, 2**128 - 1) | small, index, st.just(FORM_PULSAR)),
    )


@st.composite
def of_one_log(draw: st.DrawFn) -> tuple[MessageID, MessageID]:
    form = draw(st.sampled_from([FORM_JOURNAL, FORM_PULSAR]))
    position = st.integers(0, 2 ** (64 if form == FORM_JOURNAL else 128) - 1) | small
    make = st.builds(MessageID, st.just(draw(names)), st.just(draw(u64)), position, u32 | small, st.just(form))
    return draw(make), draw(make)


@given(of_one_log())
def test_order_follows_position_index_and_bytes(pair: tuple[MessageID, MessageID]) -> None:
    one, other = pair
    for compare in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
        expected = compare((one.position, one.index), (other.position, other.index))
        assert compare(one, other) == compare(bytes(one), bytes(other)) == expected
    assert (hash(one) == hash(other)) or one != other


@given(ids())
def test_key_is_a_plain_text_that_parses(message_id: MessageID) -> None:
    assert re.fullmatch("[a-z0-9-]+", message_id.key)
    assert MessageID.parse(message_id.key) == message_id


@given(of_one_log())
def test_keys_sort_as_ids_do(pair: tuple[MessageID, MessageID]) -> None:
    one, other = pair
    assert (one < other, one == other) == (one.key < other.key, one.key == other.key)


@given(
    ids(names | st.text("x-0aAX", min_size=1, max_size=5), small, small),
    ids(names | st.text("x-0aAX", min_size=1, max_size=5), small, small),
)
def test_different_ids_have_different_keys(one: MessageID, other: MessageID) -> None:
    assert (one == other) == (one.key.lower() == other.key.lower()), "also where names of files know no case"


def test_key_is_that_of_the_reference() -> None:
    assert MessageID("p0", 0x139A55D4C3B4E3E5, 81920, 3).key == "p0-139a55d4c3b4e3e5-0000000000014000-00000003"
    assert MessageID("a-X:x", 1, 12 << 64 | 34, 5, FORM_PULSAR).key == (
        "ax2dx58x3ax78-0000000000000001-000000000000000c0000000000000022-00000005"
    )
    mail = EmailMessage()
    for message_id in (MessageID("p0", 1, 0, 0), MessageID("p<0>@[x]", 1, 0, 0)):
        del mail["Message-ID"]
        mail["Message-ID"] = f"<{message_id.key}@orders.example>"
        parsed = message_from_bytes(bytes(mail), policy=default)
        assert parsed["Message-ID"] == f"<{message_id.key}@orders.example>"


def test_other_keys_are_refused(subtests: pytest.Subtests) -> None:
    cases = [
        "p0-1-0-0",
        "P0-0000000000000001-0000000000000000-00000000",
        "x70-0000000000000001-0000000000000000-00000000",
        "xff-0000000000000001-0000000000000000-00000000",
        "-0000000000000001-0000000000000000-00000000",
        "p0-000000000000000A-0000000000000000-00000000",
        "p0-0000000000000001-0000000000000000-0000000",
        "p0-0000000000000001-0000000000000000",
        "p0-0000000000000001-0000000000000000-00000000-0",
        "p0-" + "f" * 5_000 + "-0000000000000000-00000000",
    ]
    for key in cases:
        with subtests.test(repr(key)), pytest.raises(InvalidArgumentError, match="not the text of a MessageID"):
            MessageID.parse(key)


@given(ids())
def test_text_and_bytes_are_inverse(message_id: MessageID) -> None:
    assert MessageID.parse(str(message_id)) == message_id
    assert MessageID.from_bytes(bytes(message_id)) == message_id


def test_bytes_are_those_of_the_public_contract() -> None:
    message_id = MessageID("orders", 0xA1, 4096, 7)
    assert bytes(message_id) == b"\x01\x06orders" + struct.pack(">QQI", 0xA1, 4096, 7)
    assert str(message_id) == "orders:a1:4096:7"
    pulsar = MessageID("a:b", 1, 12 << 64 | 34, 5, FORM_PULSAR)
    assert bytes(pulsar) == b"\x02\x03a:b" + struct.pack(">QQQI", 1, 12, 34, 5)
    assert str(pulsar) == "a:b:1:12.34:5"


@pytest.mark.parametrize("compare", [operator.lt, operator.le, operator.gt, operator.ge])
@pytest.mark.parametrize(
    "other",
    [MessageID("q", 1, 5, 0), MessageID("p", 2, 5, 0), MessageID("p", 1, 5, 0, FORM_PULSAR)],
    ids=["pchannel", "incarnation", "form"],
)
def test_ids_of_different_logs_have_no_order(compare: Callable[[Any, Any], bool], other: MessageID) -> None:
    message_id = MessageID("p", 1, 5, 0)
    with pytest.raises(InvalidArgumentError, match="compare time ticks") as caught:
        compare(message_id, other)
    assert str(message_id) in str(caught.value)
    assert str(other) in str(caught.value)
    assert message_id != other
    assert not message_id.same_log(other)
    with pytest.raises(TypeError, match="not with int"):
        compare(message_id, 5)


def test_id_is_immutable_and_hashable() -> None:
    message_id = MessageID("p", 1, 5, 0)
    with pytest.raises(AttributeError):
        message_id.index = 1  # type: ignore[misc]
    assert {message_id: "x"}[MessageID("p", 1, 5, 0)] == "x"


def test_text_that_is_no_id_is_refused(subtests: pytest.Subtests) -> None:
    cases = [
        "",
        "p",
        ":1:2:3",
        "p:1:2",
        "p:1:2:x",
        "p:g:2:3",
        "p:01:2:3",
        "p:A:2:3",
        "p:1:02:3",
        "p:1:+2:3",
        "p:1:-2:3",
        "p:-1:2:3",
        "p:1:2:3 ",
        "p:1:1_0:3",
        "p:1:٣:3",
        "p:1:2:4294967296",
        "p:1:18446744073709551616:3",
        "p:10000000000000000:2:3",
        "p:1:2.3.4:5",
        "p:1:1.18446744073709551616:5",
        "p:1:18446744073709551616.1:5",
        "p" * 256 + ":1:2:3",
        "\ud800:1:2:3",
        "p:1:" + "9" * 5000 + ":3",
    ]
    for text in cases:
        with subtests.test(repr(text)), pytest.raises(InvalidArgumentError, match="pchannel:incarnation:position:index"):
            MessageID.parse(text)


@given(st.binary(max_size=60))
def test_bytes_are_an_id_or_refused(data: bytes) -> None:
    try:
        message_id = MessageID.from_bytes(data)
    except InvalidArgumentError:
        return
    assert bytes(message_id) == data


@given(ids(), st.data())
def test_cut_or_lengthened_bytes_are_refused(message_id: MessageID, data: st.DataObject) -> None:
    stored = bytes(message_id)
    with pytest.raises(InvalidArgumentError, match="expected what bytes"):
        MessageID.from_bytes(stored[: data.draw(st.integers(0, len(stored) - 1))])
    with pytest.raises(InvalidArgumentError):
        MessageID.from_bytes(stored + data.draw(st.binary(min_size=1, max_size=9)))


@pytest.mark.parametrize("wrong", [7, None, b"p:1:2:3"])
def test_parse_of_a_wrong_type(wrong: object) -> None:
    with pytest.raises(TypeError, match=type(wrong).__name__):
        MessageID.parse(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [7, None, "p:1:2:3"])
def test_from_bytes_of_a_wrong_type(wrong: object) -> None:
    with pytest.raises(TypeError, match=type(wrong).__name__):
        MessageID.from_bytes(wrong)  # type: ignore[arg-type]


def test_id_that_no_bytes_can_hold(subtests: pytest.Subtests) -> None:
    cases: list[tuple[MessageID, str]] = [
        (MessageID("", 1, 2, 3), "0 bytes"),
        (MessageID("é" * 128, 1, 2, 3), "256 bytes"),
        (MessageID("p", -1, 2, 3), "incarnation=-1"),
        (MessageID("p", 1, 1 << 64, 3), "position=18446744073709551616"),
        (MessageID("p", 1, 2, 1 << 32), "index=4294967296"),
        (MessageID("p", 1, 2, 3, 9), "form=9"),
    ]
    for message_id, shown in cases:
        with subtests.test(repr(message_id)), pytest.raises(InvalidArgumentError, match=shown):
            bytes(message_id)
