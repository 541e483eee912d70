"""TickGrid and the ids of a log's messages: properties over random ticks and bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.errors import InvalidArgumentError
from wal.message import FORM_JOURNAL, FORM_PULSAR, MessageID
from wal.streams.msgstream.media.wal_consumer import TickGrid
from wal.streams.msgstream.media.wal_ids import INDEX, WalId, message_prefix

STEP = 1 << 18
"""The ticks of a millisecond."""

ticks = st.lists(st.integers(1, 40 * STEP), min_size=1, max_size=30, unique=True).map(sorted)


def cut(messages: list[int], promises: list[int], grid: TickGrid) -> list[int]:
    """Returns a reader's input: unchanged messages, announced ticks negative. A promise is made when all up to it was written."""
    got: list[int] = []
    events = sorted([(tick, 0) for tick in messages] + [(tick, 1) for tick in promises])
    for tick, kind in events:
        announced = grid.promised(tick) if kind else grid.before(tick)
        got += [-one for one in announced]
        if kind == 0:
            got.append(tick)
    return got


@given(ticks, st.lists(st.integers(1, 60 * STEP)), st.lists(st.integers(1, 60 * STEP)), st.integers(1, 7))
def test_messages_are_cut_alike_however_the_promises_fall(
    messages: list[int], promises: list[int], others: list[int], interval_ms: int
) -> None:
    def cells(got: list[int]) -> dict[int, tuple[int, int]]:
        """Returns the interval between the ticks around each message."""
        found = {}
        begin, inside = 0, []
        for one in got:
            if one > 0:
                inside.append(one)
            else:
                found.update(dict.fromkeys(inside, (begin, -one)))
                begin, inside = -one, []
        return found

    last = [max(messages) + 10 * STEP]
    first = cut(messages, promises + last, TickGrid(interval_ms / 1000))
    second = cut(messages, others + last, TickGrid(interval_ms / 1000))
    assert cells(first) == cells(second)
    assert set(cells(first)) == set(messages)
    step = interval_ms * STEP
    for tick, (begin, end) in cells(first).items():
        assert begin < tick <= end
        assert end - begin == step or begin == 0
        assert end % step == 0
    for got in (first, second):
        announced = [-one for one in got if one < 0]
        assert announced == sorted(set(announced))


@given(ticks, st.data())
def test_resumed_grid_announces_what_an_unbroken_one_does(messages: list[int], data: st.DataObject) -> None:
    whole = cut(messages, [max(messages) + 10 * STEP], TickGrid(0.003))
    announced = [-one for one in whole if one < 0]
    tick = data.draw(st.sampled_from(announced))
    grid = TickGrid(0.003)
    grid.resume(tick)
    rest = cut([one for one in messages if one > tick], [max(messages) + 10 * STEP], grid)
    assert rest == whole[whole.index(-tick) + 1 :]


@pytest.mark.parametrize("interval_s", [0, -1, 0.0005, 86_401, float("nan"), float("inf")])
def test_wrong_interval_is_refused(interval_s: float) -> None:
    with pytest.raises(InvalidArgumentError, match="a millisecond"):
        TickGrid(interval_s)


@pytest.mark.parametrize("interval_s", ["1", None, True])
def test_interval_is_a_number(interval_s: object) -> None:
    with pytest.raises(TypeError, match="number of seconds"):
        TickGrid(interval_s)  # type: ignore[arg-type]


names = st.text(min_size=1, max_size=20)
message_ids = st.builds(
    MessageID,
    names,
    st.integers(0, (1 << 64) - 1),
    st.integers(0, (1 << 64) - 1),
    st.integers(0, (1 << 32) - 1),
    st.sampled_from([FORM_JOURNAL, FORM_PULSAR]),
)
tick_numbers = st.integers(0, (1 << 64) - 1)
wal_ids = st.one_of(
    st.builds(WalId, names, message_ids),
    st.builds(WalId, names, st.none() | message_ids, tick_numbers),
    st.builds(WalId, names, message_ids, tick_numbers, st.just(True)),
)


@given(wal_ids)
def test_id_is_what_its_bytes_say(found: WalId) -> None:
    assert WalId.parse(bytes(found), found.vchannel) == found
    with pytest.raises(InvalidArgumentError, match="use a position of the same channel"):
        WalId.parse(bytes(found), found.vchannel + "2")


@given(names, message_ids)
def test_prefix_and_an_index_make_an_id(vchannel: str, message_id: MessageID) -> None:
    prefix = message_prefix(vchannel, message_id)
    assert prefix + INDEX.pack(message_id.index) == bytes(WalId(vchannel, message_id))


@given(st.binary(max_size=60) | wal_ids.map(bytes).flatmap(lambda data: st.integers(0, len(data)).map(lambda at: data[:at])))
def test_other_bytes_are_refused(data: bytes) -> None:
    try:
        found = WalId.parse(data, "orders")
    except InvalidArgumentError:
        return
    assert bytes(found) == data
