"""StallWatch: where the loop stood still, and in whose code.

Owns a thread that looks, while the loop does not turn, at what the loop's thread is in. A machine that is short of processors makes any
loop late; what counts is whether the product waits there.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from types import FrameType
from typing import Final

__all__ = ["StallWatch"]

STALL_S: Final = 0.05
BEAT_S: Final = 0.005


class StallWatch:
    """`async with` it. `stalls`: for each time that the loop stood still for longer than STALL_S inside a call into Pulsar's client,
    the call."""

    def __init__(self) -> None:
        self.stalls: list[str] = []
        self.beats = 0
        self._last = 0.0
        self._end = threading.Event()

    async def __aenter__(self) -> StallWatch:
        self._loop_thread = threading.get_ident()
        self._last = time.monotonic()
        self._beating = asyncio.create_task(self._beat())
        self._thread = threading.Thread(target=self._watch, name="stalls", daemon=True)
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end.set()
        self._beating.cancel()
        await asyncio.wait([self._beating])
        await asyncio.to_thread(self._thread.join)

    async def _beat(self) -> None:
        while True:
            self._last = time.monotonic()
            self.beats += 1
            await asyncio.sleep(BEAT_S)

    def _watch(self) -> None:
        seen = -1
        while not self._end.wait(BEAT_S):
            beats = self.beats
            if beats == seen or time.monotonic() - self._last < STALL_S:
                continue
            frame = sys._current_frames().get(self._loop_thread)
            where = _in_client(frame)
            if where is not None and beats == self.beats:
                self.stalls.append(where)
                seen = beats


def _in_client(frame: FrameType | None) -> str | None:
    """The innermost line of the product, if the thread is in a call of it into Pulsar's client."""
    inside = False
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        inside = inside or module.split(".")[0] in ("pulsar", "_pulsar")
        if inside and module.startswith("wal."):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None
