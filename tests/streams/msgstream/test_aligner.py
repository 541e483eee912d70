"""TickAligner beside a naive model: random ticks, spans, late messages, repeats, pages, and a restart at every pack."""

from __future__ import annotations

import random
from collections import Counter
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.msgstream.packs import number, numbers, row, tick
from tests.streams.msgstream.tick_model import LOGS, Event, messages, model
from wal.streams.msgstream import MsgPack, MsgPosition, TsMsg
from wal.streams.msgstream.aligner import Aligned, TickAligner
from wal.streams.msgstream.page import Page

SUB: Final = "subscription"


def channel_of(index: int, events: list[Event]) -> list[TsMsg]:
    """Returns the messages of a channel with their positions."""
    msgs = messages(index, events)
    for at, msg in enumerate(msgs):
        msg.set_position(MsgPosition(f"channel {index}", at.to_bytes(4, "big"), SUB, msg.begin_ts))
    return msgs


def page_of(msgs: list[TsMsg]) -> Page:
    ids = [msg.position.msg_id for msg in msgs if msg.position is not None]
    return Page("channel", SUB, msgs, [msg.end_ts for msg in msgs], [10] * len(msgs), ids, [])


class Feeder:
    """Feeds an aligner with pages of random sizes, only of the channels that it needs."""

    def __init__(self, logs: list[list[TsMsg]], seed: int) -> None:
        self.logs: Final = logs
        self.random: Final = random.Random(seed)
        self.late: list[int] = []

    def packs(self, start: list[MsgPosition] | None = None) -> list[Aligned]:
        """Returns all packs, from these positions on."""
        names = [f"channel {index}" for index in range(len(self.logs))]
        aligner = TickAligner([(name, SUB) for name in names])
        left = {name: list(log) for name, log in zip(names, self.logs, strict=True)}
        if start is not None:
            aligner.seek(start)
            for position in start:
                log = left[position.channel_name]
                while log[0].position is not None and log[0].position.msg_id != position.msg_id:
                    log.pop(0)
        pages: dict[str, tuple[Page, int]] = {}
        packs: list[Aligned] = []
        while True:
            if (aligned := aligner.take()) is not None:
                packs.append(aligned)
                continue
            ready = [name for name in aligner.channels_to_read() if name in pages or left[name]]
            if not ready:
                return packs
            name = self.random.choice(ready)
            if name not in pages:
                count = self.random.randint(1, 4)
                pages[name] = page_of(left[name][:count]), 0
                del left[name][:count]
            page, at = pages[name]
            at, late = aligner.channels[name].add(page, at)
            self.late.extend(map(number, late))
            if at == len(page.msgs):
                del pages[name]
            else:
                pages[name] = page, at


def seen(packs: list[Aligned]) -> list[tuple[int, int, list[int]]]:
    return [(pack.begin_ts, pack.end_ts, [number(msg) for msg in pack.msgs]) for pack in packs]


@given(LOGS, st.integers(0, 1 << 16))
def test_packs_are_those_of_the_model(logs: list[list[Event]], seed: int) -> None:
    feeder = Feeder([channel_of(index, log) for index, log in enumerate(logs)], seed)
    expected, late = model(logs)
    assert seen(feeder.packs()) == expected
    assert set(feeder.late) <= late
    assert len(feeder.late) == len(set(feeder.late))


@given(LOGS, st.integers(0, 1 << 16))
def test_restart_at_any_pack_continues_exactly_after_it(logs: list[list[Event]], seed: int) -> None:
    feeder = Feeder([channel_of(index, log) for index, log in enumerate(logs)], seed)
    packs = feeder.packs()
    for at, pack in enumerate(packs):
        again = feeder.packs(pack.end_positions)
        assert seen(again) == seen(packs[at + 1 :])
        assert [one.end_positions for one in again] == [one.end_positions for one in packs[at + 1 :]]
        assert seen(feeder.packs(pack.start_positions)) == seen(packs[at:])


@given(LOGS, st.integers(0, 1 << 16))
def test_id_is_handled_once_while_needed(logs: list[list[Event]], seed: int) -> None:
    """Every message acknowledged with a pack is before its end positions, or was delivered in it or an earlier one."""
    feeder = Feeder([channel_of(index, log) for index, log in enumerate(logs)], seed)
    handled: Counter[tuple[str, bytes]] = Counter()
    undelivered = {
        (msg.position.channel_name, msg.position.msg_id): number(msg)
        for pack in feeder.packs()
        for msg in pack.msgs
        if msg.position is not None
    }
    for pack in feeder.packs():
        for msg in pack.msgs:
            assert msg.position is not None
            del undelivered[msg.position.channel_name, msg.position.msg_id]
        handled.update((name, msg_id) for name, ids in pack.handled.items() for msg_id in ids)
        assert handled.keys() & undelivered.keys() == set()
        assert handled.keys() & {(one.channel_name, one.msg_id) for one in pack.end_positions} == set()
    assert set(handled.values()) <= {1}


def test_late_messages_are_below_their_tick() -> None:
    feeder = Feeder([channel_of(0, [(1, 1), 5, (5, 5), (2, 6), (3, 4), 7])], 0)
    assert seen(feeder.packs()) == [(0, 5, [1]), (5, 7, [4])]
    assert feeder.late == [3, 5]


def test_spanning_message_comes_with_its_last_pack() -> None:
    feeder = Feeder([channel_of(0, [(1, 9), (2, 2), 5, 10])], 0)
    assert seen(feeder.packs()) == [(0, 5, [2]), (5, 10, [1])]


def test_message_that_was_sent_twice_is_delivered_once() -> None:
    log = [row(1, 1, id=7), row(2, 2, id=7, source_id=1), row(3, 2), row(3, 2), row(1, 1, id=7), tick(5), row(4, 6, id=7), tick(9)]
    for at, msg in enumerate(log):
        msg.set_position(MsgPosition("channel 0", at.to_bytes(4, "big"), SUB, msg.begin_ts))
    packs = Feeder([log], 0).packs()
    assert [[number(msg) for msg in pack.msgs] for pack in packs] == [[1, 2, 3, 3], [4]]


def test_same_id_in_two_channels_is_two_messages() -> None:
    """A broadcast gives each channel its copy, and rows of one message may go to several channels."""
    logs = [[row(1, 1, id=7), tick(5)], [row(1, 1, id=7), tick(5)]]
    for index, log in enumerate(logs):
        for at, msg in enumerate(log):
            msg.set_position(MsgPosition(f"channel {index}", at.to_bytes(4, "big"), SUB, msg.begin_ts))
    packs = Feeder([list(log) for log in logs], 0).packs()
    assert [[number(msg) for msg in pack.msgs] for pack in packs] == [[1, 1]]


def test_channels_ahead_of_the_others_are_not_read() -> None:
    aligner = TickAligner([("fast", SUB), ("slow", SUB)])
    log = channel_of(0, [5, (6, 6), 9, 12])
    at, _ = aligner.channels["fast"].add(page_of(log), 0)
    assert at == 1
    assert aligner.channels_to_read() == ["slow"]
    assert aligner.take() is None
    aligner.channels["slow"].add(page_of(channel_of(1, [7])), 0)
    first = aligner.take()
    assert first is not None
    assert (first.begin_ts, first.end_ts) == (0, 5)
    assert aligner.channels_to_read() == ["fast"]


def test_bytes_are_those_of_the_messages_that_wait() -> None:
    aligner = TickAligner([("channel 0", SUB)])
    log = channel_of(0, [(1, 9), (2, 2), 5, 10])
    page = page_of(log)
    at, _ = aligner.channels["channel 0"].add(page, 0)
    assert aligner.bytes == 20
    assert aligner.take() is not None
    assert aligner.bytes == 10
    aligner.channels["channel 0"].add(page, at)
    assert aligner.take() is not None
    assert aligner.bytes == 0


@pytest.mark.parametrize("timestamps", [(5, 9), (9, 5)])
def test_positions_continue_each_channel_separately(timestamps: tuple[int, int]) -> None:
    logs: list[list[Event]] = [[(3, 3), 5, (6, 6), 7, (8, 8), 9, (10, 10), 12], [(3, 3), 5, (6, 6), 7, (8, 8), 9, (10, 10), 12]]
    feeder = Feeder([channel_of(index, log) for index, log in enumerate(logs)], 0)
    starts = [MsgPosition(f"channel {index}", bytes(4), SUB, ts) for index, ts in enumerate(timestamps)]
    delivered = [number(msg) for pack in feeder.packs(starts) for msg in pack.msgs]
    expected = {index * 1_000 + at + 1 for index, ts in enumerate(timestamps) for at, end in ((2, 6), (4, 8), (6, 10)) if end > ts}
    assert sorted(delivered) == sorted(expected)


def test_numbers_are_read_from_packs() -> None:
    assert numbers([MsgPack([row(3), row(4)]), MsgPack([])]) == [3, 4]
