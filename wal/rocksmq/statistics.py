"""What a RocksMQ says about itself: frozen structs, of one moment."""

from __future__ import annotations

import msgspec

__all__ = ["ChannelInfo", "GroupInfo", "RocksMQStatistics"]


class GroupInfo(msgspec.Struct, frozen=True):
    """`current_id`: the last id that the group has consumed for good, -1 for nothing. `waiting`: calls of `consume` that wait."""

    name: str
    channel: str
    current_id: int
    waiting: int


class ChannelInfo(msgspec.Struct, frozen=True):
    """`begin_id`: the first message that is there; `end_id`: behind the last one (equal: it is empty). `bytes`: payloads, 16 a message."""

    name: str
    begin_id: int
    end_id: int
    bytes: int
    groups: tuple[GroupInfo, ...]


class RocksMQStatistics(msgspec.Struct, frozen=True):
    """`writes`: synced write batches; `produced`, `consumed`: messages since it was opened; `in_flight_bytes`: payloads that wait."""

    channels: int
    groups: int
    writes: int
    produced: int
    consumed: int
    in_flight_bytes: int
    pages_dropped: int
