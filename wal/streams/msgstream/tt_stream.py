"""TtMsgStream: one pack for each time tick, with the messages of all channels up to that tick.

Owns a TickAligner, and feeds it the received pages of the channels that it needs. It guarantees that `seek(*pack.end_positions)` continues
exactly after the pack: no message is lost, repeated, or delivered before its tick.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import ClassVar, Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.streams.msgstream.aligner import TickAligner
from wal.streams.msgstream.medium import Medium
from wal.streams.msgstream.page import Decoder, OnRefused, Refused
from wal.streams.msgstream.stream import BUFFER_SIZE, ChannelStatistics, MsgStream
from wal.streams.msgstream.subscription import DeliveredPack, Subscription
from wal.streams.msgstream.ts_msg import MsgPosition, TsMsg

_log: Final = logging.getLogger("wal.msgstream")

TICK_BYTES_MAX: Final = 64 << 20
"""The default of `tick_bytes_max`."""


class TtMsgStream(MsgStream):
    """A stream whose packs end at the time ticks of its channels; otherwise as MsgStream.

    A pack has the messages whose `end_ts` is above its `begin_ts`, the previous tick, and at or below its `end_ts`, the smallest of the
    channels' newest ticks. A pack can be empty: time has passed. The stream is the only consumer of its subscription. Every channel must be
    sent ticks, though not the same ones; a channel without ticks holds the stream back (`statistics().waits_for`).

    A message after a tick at or above its own is late and skipped. Two messages of one channel and pack with the same `source_id` and `id`
    (not 0) are one message that was sent twice; the stream delivers it once. `tick_bytes_max` bounds the bytes of the messages that wait
    for their tick, in all channels; more end the stream.
    """

    _with_form = "async with TtMsgStream(medium) as stream: …"
    _exclusive: ClassVar[bool] = True

    def __init__(
        self,
        medium: Medium,
        *,
        buffer_size: int = BUFFER_SIZE,
        dispatcher: Decoder | None = None,
        on_refused: OnRefused | None = None,
        auto_ack: bool = True,
        owns_medium: bool = False,
        tick_bytes_max: int = TICK_BYTES_MAX,
    ) -> None:
        super().__init__(
            medium, buffer_size=buffer_size, dispatcher=dispatcher, on_refused=on_refused, auto_ack=auto_ack, owns_medium=owns_medium
        )
        if not isinstance(tick_bytes_max, int) or tick_bytes_max < 1:
            raise InvalidArgumentError(f"tick_bytes_max={tick_bytes_max!r} is out of range: give at least 1 byte")
        self._tick_bytes_max = tick_bytes_max
        self._aligner = TickAligner([])
        self._positions: dict[str, MsgPosition] = {}
        self._broken = False
        self._read_to: dict[str, int] = {}
        """The index up to which the first page of a channel was read."""

    async def seek(self, *positions: MsgPosition, inclusive: bool = False) -> None:
        """Continues exactly after the pack with these `end_positions`; `inclusive` is for streams without time ticks.

        Messages at or below a position's `timestamp` are not delivered again. Otherwise as `MsgStream.seek`.
        """
        if inclusive:
            raise InvalidArgumentError("inclusive=True is for streams without time ticks: to get a pack again, seek to its start_positions")
        await self._seek(positions, inclusive=True)  # the message at a position is the first remaining one

    def _sought(self, positions: Sequence[MsgPosition]) -> None:
        self._positions |= {position.channel_name: position for position in positions}

    def _begin(self) -> None:
        self._aligner = TickAligner([(one.channel, one.sub_name) for one in self._subscriptions])
        if self._positions:
            self._aligner.seek([*self._positions.values()])

    def _page_arrived(self, subscription: Subscription) -> None:
        self._news.set()

    def _take(self) -> DeliveredPack | None:
        aligner = self._aligner
        while not self._broken:
            if (aligned := aligner.take()) is not None:
                return DeliveredPack(
                    aligned.msgs,
                    aligned.begin_ts,
                    aligned.end_ts,
                    aligned.start_positions,
                    aligned.end_positions,
                    to_ack={self._subscriptions[name]: msg_ids for name, msg_ids in aligned.handled.items()},
                )
            if not [name for name in aligner.channels_to_read() if self._feed(self._subscriptions[name])]:
                break
        return None

    def _feed(self, subscription: Subscription) -> bool:
        """Feeds the aligner from a channel's first page; returns False without a page."""
        if not subscription.pages:
            return False
        name, page = subscription.channel, subscription.pages[0]
        channel = self._aligner.channels[name]
        at = self._read_to.get(name, 0)
        if at == 0 and page.refused:
            channel.skip([refused.msg_id for refused in page.refused])
        at, late = channel.add(page, at)
        if at == len(page.msgs):
            subscription.take_page()
            at = 0
        self._read_to[name] = at
        try:
            self._refuse(name, channel.tick, late)
            self._check_bytes()
        except BaseException as error:  # on_refused never waits, so no caller was cancelled
            self._broken = True
            self._fail(error)
        return True

    def _refuse(self, channel: str, tick: int, late: Sequence[TsMsg]) -> None:
        if not late:
            return
        _log.warning("skipped %d messages of channel %r: they came after a tick at or above them", len(late), channel)
        if (on_refused := self._subscriptions.on_refused) is not None:
            for msg in late:
                assert msg.position is not None
                reason = f"it is late: its end_ts {msg.end_ts} is at or below a tick before it, at most {tick}"
                on_refused(Refused(channel, msg.position.msg_id, reason, msg=msg))

    def _check_bytes(self) -> None:
        if (waiting := self._aligner.bytes) > self._tick_bytes_max:
            largest = max(self._aligner.channels.values(), key=lambda channel: channel.bytes)
            raise InvalidArgumentError(
                f"{waiting} bytes, {largest.bytes} of them in channel {largest.name!r}, wait for a tick above {self._aligner.emitted}: "
                f"that exceeds tick_bytes_max={self._tick_bytes_max}. Produce ticks more often, or raise tick_bytes_max"
            )

    def _waits_for(self) -> tuple[str, ...]:
        return tuple(name for name in self._aligner.channels_to_read() if not self._subscriptions[name].pages)

    def _channel_statistics(self, one: Subscription) -> ChannelStatistics:
        counts = super()._channel_statistics(one)
        if (channel := self._aligner.channels.get(one.channel)) is None:
            return counts
        return msgspec.structs.replace(counts, delivered=channel.delivered, late=channel.late, repeated=channel.repeated, tick=channel.tick)
