"""TickRounds: tells the idle Consume streams of a pchannel that its promised tick has moved, a few of them at a time.

One task waits for ticks on behalf of all of them, which themselves wait for data only. However many there are, at most `STREAMS_A_TURN` are
woken every `TURN_S` seconds: up to 400 streams hear of the tick every 0.2 s, as it moves by default, and 8,000 every 4 s. If each waited by
itself, 8,000 would keep most of a core busy.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from typing import Final

from wal.pchannel import PChannel

__all__ = ["TickRounds"]

STREAMS_A_TURN: Final = 100
TURN_S: Final = 0.05
"""2,000 streams a second take about a third of a core."""


class TickRounds:
    """The rounds of one pchannel."""

    def __init__(self, pchannel: PChannel) -> None:
        self.pchannel: PChannel = pchannel
        self._wakes: dict[Callable[[], object], None] = {}
        self._task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def calling(self, wake: Callable[[], object]) -> Iterator[None]:
        """A block in which `wake` is called in each round."""
        self._wakes[wake] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"ticks of {self.pchannel.channel}")
        try:
            yield
        finally:
            del self._wakes[wake]
            if not self._wakes:
                self._task.cancel()
                self._task = None

    async def _run(self) -> None:
        while True:
            waiter = self.pchannel.tail.waiter(ticks=True)
            try:
                await waiter
            finally:
                waiter.cancel()
            wakes = list(self._wakes)
            for first in range(0, len(wakes), STREAMS_A_TURN):
                for wake in wakes[first : first + STREAMS_A_TURN]:
                    wake()
                await asyncio.sleep(TURN_S)
