"""A naive model of the packs of a stream with time ticks, and random channels for it."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from hypothesis import strategies as st

from tests.streams.msgstream.packs import row, tick
from wal.streams.msgstream import TsMsg

TIMES: Final = st.integers(1, 12)

Event = tuple[int, int] | int
"""A message with its begin and its end, or a tick."""
EVENTS: Final = st.lists(TIMES | st.tuples(TIMES, TIMES).map(lambda pair: (min(pair), max(pair))), max_size=12)
LOGS: Final = st.lists(EVENTS, min_size=1, max_size=4)


def messages(index: int, events: list[Event]) -> list[TsMsg]:
    """Returns the messages of a channel; each has a unique number over all channels, which is also its id."""
    msgs: list[TsMsg] = []
    for at, event in enumerate(events):
        unique = index * 1_000 + at + 1
        msgs.append(tick(event) if isinstance(event, int) else row(unique, *event, id=unique))
    return msgs


def model(logs: list[list[Event]]) -> tuple[list[tuple[int, int, list[int]]], set[int]]:
    """Returns (begin_ts, end_ts, numbers) of each pack, and the numbers of late messages that are read.

    The packs end at every tick of any channel up to which all channels have ticks.
    """
    ticks = [[event for event in log if isinstance(event, int)] for log in logs]
    promises = {tick for log in ticks for at, tick in enumerate(log) if tick > max(log[:at], default=0)}
    newest = [max(log, default=0) for log in ticks]
    ends = sorted(tick for tick in promises if tick <= min(newest))
    packs: list[tuple[int, int, list[int]]] = [(begin, end, []) for begin, end in pairwise([0, *ends])]
    late = set()
    for index, log in enumerate(logs):
        promised = 0
        for at, event in enumerate(log):
            if isinstance(event, int):
                promised = max(promised, event)
            elif event[1] <= promised:
                late.add(index * 1_000 + at + 1)
            else:
                pack = next((pack for pack in packs if event[1] <= pack[1]), None)
                if pack is not None:
                    pack[2].append(index * 1_000 + at + 1)
    return packs, late
