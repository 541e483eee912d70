"""TickAligner: cuts the messages of several channels into packs, one for each time tick. Pure.

A tick T in a channel promises that its messages at or below T came before. The aligner emits the smallest of the channels' newest ticks: up
to it every channel is complete. Only the channels that hold this tick back are read, so the buffer is bounded by the messages between two
ticks. The packs depend on the contents of the channels alone, never on the times of arrival. So a restart at the end positions of a pack
returns the packs that followed it.

A message belongs to the first pack whose `end_ts` is at or above its own `end_ts`. Within a pack, messages are in the order of the
channels, and of arrival in each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from wal.streams.msgstream.page import Page
from wal.streams.msgstream.ts_msg import MsgPosition, TsMsg
from wal.streams.msgstream.types import MsgType


class Aligned(msgspec.Struct):
    """The messages of one tick."""

    begin_ts: int
    """The previous tick."""
    end_ts: int
    msgs: list[TsMsg]
    start_positions: list[MsgPosition]
    end_positions: list[MsgPosition]
    handled: dict[str, list[bytes]]
    """The ids that need no redelivery, by channel: ids of the messages, of skipped messages, and of earlier ticks."""


class AlignedChannel:
    """The state of one channel in the aligner."""

    def __init__(self, name: str, sub_name: str) -> None:
        self.name: Final = name
        self.sub_name: Final = sub_name
        self.tick: int = 0
        """The newest tick."""
        self.bytes: int = 0
        """The bytes of the messages that wait for their tick."""
        self.delivered: int = 0
        self.late: int = 0
        self.repeated: int = 0
        self.position: MsgPosition | None = None
        """The position where the next pack begins; None before the first message."""
        self._sought_ts = 0
        self._replaying = False
        self._tick_id = b""
        self._waiting: list[tuple[int, int, TsMsg]] = []
        """For each waiting message its `end_ts`, its size and the message itself."""
        self._handled: list[bytes] = []

    def seek(self, position: MsgPosition) -> None:
        """Begins at a position: messages at or below its timestamp were emitted before."""
        self.position = position
        self.tick = self._sought_ts = position.timestamp
        self._replaying = True

    def add(self, page: Page, at: int) -> tuple[int, list[TsMsg]]:
        """Adds messages of a page, from index `at` on, until a newer tick. Returns the index after them, and the late ones."""
        late: list[TsMsg] = []
        tick, waiting, msgs, ends, sizes = self.tick, self._waiting, page.msgs, page.ends, page.sizes
        if self.position is None:
            self.position = MsgPosition(self.name, page.start.msg_id, self.sub_name, 0)
        for index in range(at, len(msgs)):
            msg = msgs[index]
            end_ts = ends[index]
            if msg.msg_type != MsgType.TIME_TICK:
                if end_ts > tick:
                    waiting.append((end_ts, sizes[index], msg))
                    self.bytes += sizes[index]
                    continue
                if not self._replaying:
                    late.append(msg)
            elif end_ts >= tick:
                self._replaying = False
                if end_ts > tick:
                    if self._tick_id:
                        self._handled.append(self._tick_id)  # not earlier: until now a position can refer to it
                    self.tick, self._tick_id = end_ts, _id_of(msg)
                    self.late += len(late)
                    return index + 1, late
            self._handled.append(_id_of(msg))
        self.late += len(late)
        return len(msgs), late

    def skip(self, msg_ids: Sequence[bytes]) -> None:
        """Marks these ids as handled without a message to deliver."""
        self._handled.extend(msg_ids)

    def take(self, tick: int, msgs: list[TsMsg]) -> tuple[MsgPosition, MsgPosition, list[bytes]]:
        """Adds the channel's messages up to this tick to `msgs`, each once. Returns the begin and the end of the pack, and the handled
        ids.
        """
        if all(end_ts <= tick for end_ts, _, _ in self._waiting):
            complete, self._waiting, self.bytes = self._waiting, [], 0
        else:
            complete = [entry for entry in self._waiting if entry[0] <= tick]
            self._waiting = [entry for entry in self._waiting if entry[0] > tick]
            self.bytes = sum(size for _, size, _ in self._waiting)
        handled, self._handled = self._handled, []
        delivered_ids: set[tuple[int, int]] = set()
        for _, _, msg in complete:
            handled.append(_id_of(msg))
            if msg.id:
                key = (msg.source_id, msg.id)
                if key in delivered_ids:
                    self.repeated += 1
                    continue
                delivered_ids.add(key)
            msgs.append(msg)
            self.delivered += 1
        start = self.position
        assert start is not None  # a channel without a message has no tick, and a pack needs the tick of each channel
        end_id = _id_of(self._waiting[0][2]) if self._waiting else self._tick_id or start.msg_id
        self.position = MsgPosition(self.name, end_id, self.sub_name, max(tick, self._sought_ts))
        return start, self.position, handled


class TickAligner:
    """The state of the channels, and the tick that was emitted last. Channels are read page by page."""

    def __init__(self, channels: Sequence[tuple[str, str]]) -> None:
        """Takes each channel with its subscription."""
        self.channels: Final = {name: AlignedChannel(name, sub_name) for name, sub_name in channels}
        self.emitted: int = 0
        """The tick of the last pack; 0 before the first one."""

    @property
    def bytes(self) -> int:
        """The bytes of the messages that wait for their tick, in all channels."""
        return sum(channel.bytes for channel in self.channels.values())

    def seek(self, positions: Sequence[MsgPosition]) -> None:
        """Begins at these positions, to which the channels were moved. Must be called before the first `add`."""
        for position in positions:
            self.channels[position.channel_name].seek(position)
        self.emitted = min(channel.tick for channel in self.channels.values())

    def channels_to_read(self) -> list[str]:
        """Returns the channels that hold the next pack back, which are the only ones to read from."""
        return [name for name, channel in self.channels.items() if channel.tick <= self.emitted]

    def take(self) -> Aligned | None:
        """Returns the next pack, or None if `channels_to_read` has any. The pack may have no messages."""
        tick = min(channel.tick for channel in self.channels.values())
        if tick <= self.emitted:
            return None
        aligned = Aligned(self.emitted, tick, [], [], [], {})
        for name, channel in self.channels.items():
            start, end, handled = channel.take(tick, aligned.msgs)
            aligned.start_positions.append(start)
            aligned.end_positions.append(end)
            if handled:
                aligned.handled[name] = handled
        self.emitted = tick
        return aligned


def _id_of(msg: TsMsg) -> bytes:
    position = msg.position
    assert position is not None
    return position.msg_id
