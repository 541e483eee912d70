"""StallWatch: records where the event loop was blocked inside Pulsar's client.

Owns a thread that checks, while the loop does not turn, which code the loop's thread runs. A machine that is short of processors delays any
loop; only waits of the product count. So the time in which a thread of this process was ready to run but did not (Linux's schedstat) is
not a stall: it may be the loop's, or one of the client's that holds a lock. Neither is a delay before the loop entered the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Final

STALL_S: Final = 0.05
BEAT_S: Final = 0.005


class StallWatch:
    """Use it with `async with`. `stalls`: each call into Pulsar's client in which the loop was blocked for longer than STALL_S."""

    def __init__(self) -> None:
        self.stalls: list[str] = []
        self.beats = 0
        self._end = threading.Event()

    async def __aenter__(self) -> StallWatch:
        self._loop_thread = threading.get_ident()
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
            self.beats += 1
            await asyncio.sleep(BEAT_S)

    def _watch(self) -> None:
        place: str | None = None
        beats, stalled_s, at, waits = 0, 0.0, 0.0, _without_processor()
        while not self._end.wait(BEAT_S):
            where = _in_client(sys._current_frames().get(self._loop_thread))
            if where is None and place is None:
                continue
            at, before_at, waits, before = time.monotonic(), at, _without_processor(), waits
            passed_s = at - before_at - max(waits[thread] - before.get(thread, waits[thread]) for thread in waits)
            if place is not None and (where is None or beats != self.beats):
                # The kernel adds a thread's wait when the thread runs again, so a stall is judged when it is over.
                if stalled_s + min(passed_s, 0.0) >= STALL_S:
                    self.stalls.append(place)
                place = None
            if where is not None:
                if place is None:
                    beats, stalled_s = self.beats, 0.0
                else:
                    stalled_s += passed_s
                place = where


def _without_processor() -> dict[str, float]:
    """Returns the seconds in which each thread of this process was ready to run but did not (proc(5), schedstat)."""
    waits: dict[str, float] = {}
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            waits[thread.name] = int((thread / "schedstat").read_text().split()[1]) / 1e9
    return waits


def _in_client(frame: FrameType | None) -> str | None:
    """Returns the innermost line of the product, if the product is in a call into Pulsar's client; else None."""
    inside = False
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        inside = inside or module.split(".")[0] in ("pulsar", "_pulsar")
        if inside and module.startswith("wal."):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None
