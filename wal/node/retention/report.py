"""The answer of `log.retention()`: the state of each pchannel's log, and the pins that hold it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from wal.errors import TruncatedError
from wal.message import MessageID
from wal.node.retention.policy import LogPin, RetentionBounds
from wal.read.pchannel import ReadablePChannel
from wal.requests.pchannels import PChannelRetention, RetentionHolder
from wal.storage.base import Extent
from wal.timestamp.timestamp import to_datetime


async def report_of(
    pchannel: ReadablePChannel,
    pins: Iterable[LogPin],
    bounds: RetentionBounds,
    *,
    extents: Sequence[Extent] = (),
    checkpointed: int | None = None,
    clock_drift_s: float | None = None,
) -> PChannelRetention:
    """Returns the state of this pchannel's log. `extents` and `checkpointed` come from its writer."""
    end, tail = pchannel.log.durable_end, pchannel.tail.durable_end
    start = extents[0].start if extents else pchannel.log.local_earliest[0]
    positioned_pins = [(pin.position, pin) for pin in pins]
    if checkpointed is not None and extents and extents[0].sealed and extents[0].end <= pchannel.log.local_earliest[0]:
        positioned_pins.append(((checkpointed, 0), LogPin("checkpoint", "recovery", (checkpointed, 0))))
    positioned_pins.sort(key=lambda each: each[0])
    earliest = await pchannel.first_local_event()
    return PChannelRetention(
        pchannel.channel,
        earliest,
        None if earliest is None else await _time_of(pchannel, earliest),
        pchannel.log.bytes_between(start, end),
        bounds.bytes_max,
        bounds.age_max_s,
        tuple(
            RetentionHolder(
                pin.kind, pin.name, pin.vchannels, position[0], pchannel.log.bytes_between(position[0], end) if position[0] < tail else 0
            )
            for position, pin in positioned_pins
        ),
        clock_drift_s,
    )


async def _time_of(pchannel: ReadablePChannel, message_id: MessageID) -> datetime | None:
    """Returns the time at which this event was appended; None when it was truncated meanwhile."""
    try:
        page = await pchannel.log.read(message_id.position, names=None, bytes_max=1)
    except TruncatedError:
        return None
    if not page.frames:
        return None
    return to_datetime(page.frames[0].view.header.first_tick + message_id.index)
