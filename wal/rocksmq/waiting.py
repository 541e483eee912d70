"""Waiting: the calls of `consume` for which there was nothing, in their order. Pure.

Owns: who waits, by channel, up to WAITING_MAX in all. A channel for which nobody waits takes no room.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from wal.errors import WouldBlockError
from wal.rocksmq.requests import Consume

__all__ = ["WAITING_MAX", "Waiting"]

WAITING_MAX: Final = 65_536
"""Calls of `consume` that may wait for messages, over all channels."""


class Waiting:
    """Nobody waits at first."""

    def __init__(self) -> None:
        self._by_channel: dict[str, deque[Consume]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, consume: Consume) -> None:
        """It waits from now on, behind the others of its channel; WouldBlockError when too many do."""
        if self._count >= WAITING_MAX:
            raise WouldBlockError(f"{WAITING_MAX} calls of consume wait for messages: end some of them first")
        self._by_channel.setdefault(consume.channel, deque()).append(consume)
        self._count += 1

    def remove(self, consume: Consume) -> None:
        """It does not wait any more, if it did."""
        waiting = self._by_channel.get(consume.channel)
        if waiting is not None and consume in waiting:
            waiting.remove(consume)
            self._count -= 1
            if not waiting:
                del self._by_channel[consume.channel]

    def of(self, channel: str, group: str | None = None) -> list[Consume]:
        """Who waits for this channel, as this group unless None."""
        return [each for each in self._by_channel.get(channel, ()) if group is None or each.group == group]

    def take(self, channel: str) -> list[Consume]:
        """Those who wait for this channel; they do not any more."""
        waiting = list(self._by_channel.pop(channel, ()))
        self._count -= len(waiting)
        return waiting

    def take_all(self) -> list[Consume]:
        """All who wait; nobody does any more."""
        return [consume for channel in list(self._by_channel) for consume in self.take(channel)]
