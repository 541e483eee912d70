"""The statistics of a stream: frozen structs, created on request."""

from __future__ import annotations

import msgspec

__all__ = ["ChannelStatistics", "MsgStreamStatistics"]


class ChannelStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a channel that a stream consumes, in messages since the stream was made."""

    channel_name: str
    sub_name: str
    received: int
    """Including those that wait to be consumed, and time ticks."""
    delivered: int
    """Those in the packs that were consumed."""
    undecodable: int
    late: int
    """Those at or below a tick that their channel had before them; only streams with time ticks refuse them."""
    repeated: int
    """Those that were sent twice, and delivered once; only streams with time ticks recognise them."""
    acked: int
    """Those whose acknowledgement is recorded."""
    packs_waiting: int
    """What was received together and not consumed yet."""
    tick: int
    """The newest tick of the channel; 0 before the first one, and in a stream without time ticks."""


class MsgStreamStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a stream."""

    packs: int
    """The packs that were consumed."""
    channels: tuple[ChannelStatistics, ...]
    """The channels that the stream consumes, in the order of their subscriptions."""
    waits_for: tuple[str, ...]
    """The channels without which there is no next pack, and from which nothing has arrived: in a stream with time ticks those that have
    sent no newer tick, else all, and none if a pack waits."""
