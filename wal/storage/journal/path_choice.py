"""PathChoice: which of two write paths the frames of a log take under `write_path="auto"`, by what each of them achieves here and now.

Why. On an idle machine the event loop writes small frames faster than a thread. Beside busy processes its completions come late: the
disk is through, and the loop waits for its turn on a processor; then the thread is several times as fast.

How it works. While frames are outstanding, events are counted in windows of `WINDOW_FRAMES` frames, and the rate of a window is its events
by the time in which any frame was outstanding. The other path is tried for `WINDOWS` windows when frames complete late, that is, take
`LATE` times as long as they did on this path in `WINDOWS` windows in a row; and now and then in any case, since only a trial tells that the
machine is idle again. The frames change over if the median of the trial is `BETTER` times that of the windows before; if not, the next
trial comes after twice the time. A trial that goes badly ends early, so all trials together cost a few percent at most.

Pure: it is told what happened and when. Frames that only the thread can write tell nothing, and end a window.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final, Literal

PathName = Literal["loop", "thread"]

WINDOW_FRAMES: Final = 16
WARM_UP_FRAMES: Final = 2
"""The first frames after a change are not counted: they wait for those of the other path."""
LATE: Final = 3.0
WINDOWS: Final = 3
"""A single window says little beside busy processes: a processor is given away for milliseconds."""
LATE_S: Final = 0.0005
"""Frames that take less are never late."""
FORGETS: Final = 1.02
"""By this factor a window the time that frames usually take is forgotten."""
BETTER: Final = 1.1
TRIAL_FIRST_S: Final = 0.5
"""The pause before a trial, while frames are late or after the frames changed over, …"""
TRIAL_MAX_S: Final = 8.0
"""… and the longest one."""
GIVEN_UP: Final = 3.0
"""A trial ends when it has taken this many times as long as the path before would have."""
GIVEN_UP_FRAMES: Final = 4
FORGOTTEN_S: Final = 1.0
"""After a pause of this length, what was measured before it says nothing about now."""
_OTHER: Final[dict[PathName, PathName]] = {"loop": "thread", "thread": "loop"}


class PathChoice:
    """See the top of the file. `path` is the one that the next frame takes, and `reason` says why in a sentence."""

    def __init__(self) -> None:
        self.path: PathName = "loop"
        self.reason: str = "it is the faster one on an idle machine, and nothing was measured yet"
        self.changes: int = 0
        """How often the frames have changed over for good."""
        self._chosen: PathName = "loop"
        self._rates: deque[float] = deque(maxlen=WINDOWS)
        """Of the last windows on the chosen path; `_tried` are those of the trial."""
        self._tried: list[float] = []
        self._usual_s: dict[PathName, float] = {}
        self._late = 0
        self._trial_at_s: float | None = None
        self._pause_s = TRIAL_FIRST_S
        self._outstanding = 0
        self._since_s = 0.0
        self._frames = -WARM_UP_FRAMES
        self._events = 0
        self._busy_s = 0.0

    def begun(self, now_s: float) -> None:
        """Notes a frame that is handed over."""
        if not self._outstanding:
            if now_s - self._since_s > FORGOTTEN_S:
                self._rates.clear()
                self._tried.clear()
                self.skipped()
            self._since_s = now_s
        self._outstanding += 1

    def skipped(self) -> None:
        """Notes that a frame cannot take the loop: the window begins anew."""
        self._frames, self._events, self._busy_s = min(self._frames, 0), 0, 0.0

    def ended(self, events: int, now_s: float) -> None:
        """Notes that a frame with so many events was answered."""
        self._outstanding -= 1
        self._frames += 1
        busy_s = max(now_s - self._since_s, 0.0)
        self._since_s = now_s
        if self._frames <= 0:
            return
        self._events += max(events, 1)
        self._busy_s += busy_s
        if self.path is not self._chosen:
            is_bad = self._goes_badly()
            if is_bad or self._frames >= WINDOW_FRAMES:
                self._tried.append(self._rate())
                self._begin_window()
                if is_bad or len(self._tried) == WINDOWS:
                    self._end_trial(now_s)
        elif self._frames >= WINDOW_FRAMES:
            self._end_window(now_s)

    def _goes_badly(self) -> bool:
        return self._frames >= GIVEN_UP_FRAMES and bool(self._rates) and self._rate() * GIVEN_UP < median(self._rates)

    def _rate(self) -> float:
        return self._events / max(self._busy_s, 1e-9)

    def _end_window(self, now_s: float) -> None:
        frame_s = self._busy_s / self._frames
        self._rates.append(self._rate())
        usual_s = self._usual_s[self.path] = min(self._usual_s.get(self.path, frame_s) * FORGETS, frame_s)
        self._late = self._late + 1 if frame_s > max(LATE * usual_s, LATE_S) else 0
        if self._trial_at_s is None:
            self._trial_at_s = now_s
        if self._late == WINDOWS:
            self._pause_s = TRIAL_FIRST_S
            self._trial_at_s = now_s
        self._begin_window()
        if now_s >= self._trial_at_s and len(self._rates) == self._rates.maxlen:
            self._take(_OTHER[self._chosen])

    def _end_trial(self, now_s: float) -> None:
        here, there = median(self._rates) if self._rates else 0.0, median(self._tried)
        tried, before = self.path, self._chosen
        text = f"{there:,.0f} events a second by the {tried}, {here:,.0f} by the {before}"
        if here and there > BETTER * here:
            self._chosen = tried
            self._rates.clear()
            self._usual_s.pop(tried, None)
            self._pause_s = TRIAL_FIRST_S
            self.changes += 1
        else:
            self._pause_s = min(2 * self._pause_s, TRIAL_MAX_S)
            self._usual_s.pop(before, None)  # it is as fast as it can be now, however late that is
        self.reason = text
        self._late = 0
        self._tried.clear()
        self._trial_at_s = now_s + self._pause_s
        self._take(self._chosen)

    def _take(self, path: PathName) -> None:
        if path is not self.path:
            self.path = path
            self._begin_window(warm_up=WARM_UP_FRAMES)
        else:
            self._begin_window()

    def _begin_window(self, *, warm_up: int = 0) -> None:
        self._frames, self._events, self._busy_s = -warm_up, 0, 0.0
