"""The search for the beginning of a read of the last n messages (`Last`). Pure.

It finds the first log position of the read and nothing else: whether the policy decides at all, and not a cursor or a position to resume
from, is known to its caller, `begin` in `wal.read.beginning`. The search for a time is that for a tick, `position_after` in
`wal.storage.search`.
"""

from __future__ import annotations

from wal.message import LogPosition, Origin
from wal.read.assembly import assemble
from wal.read.options import Last, ReadOptions, Selection
from wal.storage.base import StoredFrame
from wal.storage.search import BACK_BYTES, PAGE_BYTES, BytesBetween, PageRequest, Search, position_before


def first_of_last(
    options: ReadOptions, selection: Selection, earliest: LogPosition, end: int, bytes_between: BytesBetween
) -> Search[LogPosition]:
    """Finds where the last messages before `end` begin that `Last` asks for; `earliest` if the log has fewer of them.

    It looks back from the end, ever further, and assembles the messages of each frame to count them; it keeps their numbers only.
    """
    assert isinstance(options.policy, Last)
    existing = _existing(selection)
    if existing.names is not None and not existing.names:
        return earliest
    missing = options.policy.count
    start, upper, back = earliest[0], end, BACK_BYTES
    while start < upper:
        lower = at = position_before(bytes_between, start, upper, back)
        counts: list[tuple[int, int]] = []
        while at < upper:
            page = yield PageRequest(at, upper, existing.names, PAGE_BYTES, whole=True)
            counts += [
                (frame.position, len(_indices(options, existing, earliest, frame))) for frame in page.frames if frame.position < upper
            ]
            at = page.next_position
        for position, count in reversed(counts):
            if count >= missing:
                frame = (yield PageRequest(position, end, existing.names, whole=True)).frames[0]
                return position, _indices(options, existing, earliest, frame)[-missing]
            missing -= count
        upper, back = lower, 4 * back
    return earliest


def _indices(options: ReadOptions, selection: Selection, earliest: LogPosition, frame: StoredFrame) -> list[int]:
    """Returns the indices of the messages of this frame that the read would deliver."""
    messages = assemble(frame, Origin("", 0, frame.position), selection, options.event_filter)
    until = options.until_time_tick
    return [
        message._index
        for message in messages
        if (frame.position, message._index) >= earliest and (until is None or message.time_tick <= until)
    ]


def _existing(selection: Selection) -> Selection:
    """Returns a selection of the vchannels that exist, which a search does not bind to anything; all of the pchannel if that is read."""
    if selection.names is None:
        return selection
    return Selection({name: life for name in selection.names if (life := selection.incarnation(name)) is not None}, floor=0)
