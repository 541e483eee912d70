"""Withdrawals: the appends of a Produce stream that a client may withdraw, because they may wait at the server for long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from actors import ActorError, InboxFullError
from wal.pchannel import PChannel

__all__ = ["Withdrawals"]


class Withdrawals:
    """The requests of one stream that have a barrier or a key, with the futures of their outcomes, until these are known."""

    def __init__(self, pchannel: PChannel) -> None:
        self._pchannel = pchannel
        self._futures: dict[int, asyncio.Future[Any]] = {}

    def add(self, number: int, future: asyncio.Future[Any]) -> None:
        """Notes that this request may be withdrawn."""
        self._futures[number] = future

    def settled(self, number: int) -> None:
        """Forgets a request, since its outcome is known."""
        self._futures.pop(number, None)

    async def withdraw(self, numbers: Iterable[int]) -> None:
        """Has the pchannel withdraw these requests, after everything that it was told before; their futures get the outcomes.

        Nothing becomes of a number that no such request has, or whose outcome is known.
        """
        pchannel = self._pchannel
        for number in numbers:
            if (future := self._futures.get(number)) is None:
                continue
            while True:
                try:
                    pchannel.actor_group.tell(pchannel, future)
                    break
                except InboxFullError:
                    await asyncio.sleep(0)  # the group takes its turn
                except ActorError:
                    return  # the pchannel has failed or is being closed, which ends what waits
