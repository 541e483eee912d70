"""Catalog: all channels and the next id, in their stored form and as users get them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from wal.errors import ChannelExistError, ChannelNotExistError, CorruptionError
from wal.streams.rocksmq.channel import Channel, ChannelPage, ConsumerGroup
from wal.streams.rocksmq.keys import NEXT_ID_KEY, TurnWrites, number, numbers, parse_meta

FIRST_ID: Final = 1


class GroupInfo(msgspec.Struct, frozen=True):
    """A consumer group. `current_id` is the last id that the group has finally consumed, or -1. `waiting` counts its waiting calls of
    `consume`.
    """

    name: str
    channel: str
    current_id: int
    waiting: int


class ChannelInfo(msgspec.Struct, frozen=True):
    """A channel. `begin_id` is its first message, and `end_id` the id after its last one (equal: the channel is empty). `bytes` counts the
    payloads, and 16 bytes for each message.
    """

    name: str
    begin_id: int
    end_id: int
    bytes: int
    groups: tuple[GroupInfo, ...]


class Catalog:
    """All channels by name, and `next_id`, the lowest id that was never allocated."""

    def __init__(self) -> None:
        self.channels: dict[str, Channel] = {}
        self.next_id: int = FIRST_ID

    @classmethod
    def load(cls, stored: Iterable[tuple[bytes, bytes]]) -> Catalog:
        """Returns the catalog stored in these keys (in order) and values. Raises CorruptionError for anything else."""
        catalog = cls()
        for key, value in stored:
            try:
                catalog._load(parse_meta(key), value)
            except (ValueError, KeyError) as error:
                raise CorruptionError(f"{key!r} = {value!r} is not what a RocksMQ stores: {error}") from error
        return catalog

    def infos(self, waiting: Callable[[str, str], int]) -> list[ChannelInfo]:
        """Returns all channels with their groups, by name. `waiting(channel, group)` returns the number of waiting calls of `consume`."""
        return [
            ChannelInfo(
                name,
                channel.begin_id,
                channel.end_id,
                channel.size,
                tuple(
                    GroupInfo(group.name, name, group.current_id, waiting(name, group.name)) for _, group in sorted(channel.groups.items())
                ),
            )
            for name, channel in sorted(self.channels.items())
        ]

    def channel(self, name: str) -> Channel:
        """Returns the channel, or raises ChannelNotExistError."""
        channel = self.channels.get(name)
        if channel is None:
            raise ChannelNotExistError(f"channel {name!r} does not exist: create_channel() makes it")
        return channel

    def group(self, name: str, channel: str) -> tuple[Channel, ConsumerGroup]:
        """Returns the channel and its group, or raises ChannelNotExistError."""
        channel_entry = self.channel(channel)
        group = channel_entry.groups.get(name)
        if group is None:
            raise ChannelNotExistError(f"consumer group {name!r} does not exist on channel {channel!r}: create_consumer_group() makes it")
        return channel_entry, group

    def create_channel(self, name: str, changes: TurnWrites) -> None:
        """Adds an empty channel, or raises ChannelExistError."""
        if name in self.channels:
            raise ChannelExistError(f"channel {name!r} already exists")
        channel = self.channels[name] = Channel(name)
        channel.create(changes)

    def create_group(self, name: str, channel: str, changes: TurnWrites, *, latest: bool) -> None:
        """Adds a group to a channel, or raises ChannelExistError."""
        channel_entry = self.channel(channel)
        if name in channel_entry.groups:
            raise ChannelExistError(f"consumer group {name!r} already exists on channel {channel!r}")
        channel_entry.add_group(name, changes, latest=latest)

    def take_ids(self, count: int, changes: TurnWrites) -> int:
        """Allocates `count` consecutive ids, and returns the first of them."""
        first, self.next_id = self.next_id, self.next_id + count
        changes.put(NEXT_ID_KEY, number(self.next_id))
        return first

    def _load(self, parsed: tuple[str, ...], value: bytes) -> None:
        match parsed:
            case ("format",):
                pass
            case ("next_id",):
                (self.next_id,) = numbers(value)
            case ("channel", name, what):
                channel = self.channels.setdefault(name, Channel(name))
                if what == "begin_id":
                    (channel.begin_id,) = numbers(value)
                elif what == "end_id":
                    (channel.end_id,) = numbers(value)
                else:
                    channel.first_id, channel.open_bytes, channel.dropped_id = numbers(value)
            case ("page", name, last_id):
                first_id, size, filled_us = numbers(value)
                self.channels[name].pages.append(ChannelPage(first_id, int(last_id), size, filled_us))
            case ("group", name, group):
                (current_id,) = numbers(value)
                self.channels[name].groups[group] = ConsumerGroup(group, current_id, current_id, current_id)
            case _:
                raise ValueError(f"{parsed} means nothing")
