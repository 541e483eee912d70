"""PathChoice: which of two write paths the frames of a log take under `write_path="auto"`, by the measured rate of each.

Why. On an idle machine the event loop writes small frames faster than a thread. Beside busy processes its completions come late: the disk
has finished, and the loop waits for its turn on a processor; then the thread is several times as fast.

How it works. For each path the events and the time in which any frame was outstanding are summed, the last second of them. The rate of a
path is their quotient, so a frame that waited long for a processor counts with its whole time. Beside busy processes a path runs freely for
some ten milliseconds, then pauses for as long, and a short look sees only one of the two. The other path is tried for `TRIAL_S` now and
then, since only a trial shows its rate. It is tried at once when frames of the loop complete late, that is, take `LATE` times as long as
before, for `WINDOWS` windows in a row and `LATE_FOR_S`. The frames change over if the other path is `CLEARLY` times as fast as the chosen
one, or `BETTER` times in two trials in a row: the rate of a disk drifts by as much within a trial. After each trial comes a pause of at
least `COSTS` times the trial, so all of them together take a twentieth of the time at most; while the answer stays the same the pauses
grow.

The two paths differ. A loop that is slow is very slow, so a trial of the loop ends as soon as it is clearly worse, and it has to win by
more. The thread may pause at the beginning of its trial just as the loop did before it: it gets the whole time.

Pure: calls report the events and their times. A frame that only the thread can write is not measured, and ends a window.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

PathName = Literal["loop", "thread"]

WINDOW_FRAMES: Final = 16
WINDOW_S: Final = 0.02
"""The length of a window, unless enough frames end it earlier."""
WARM_UP_FRAMES: Final = 2
"""The first frames after a change are not counted: they wait for those of the other path."""
LATE: Final = 3.0
WINDOWS: Final = 3
"""A single window is weak evidence beside busy processes: a processor is given away for milliseconds."""
LATE_FOR_S: Final = 0.15
"""A disk that is busy for a moment makes the current path look slow."""
LATE_S: Final = 0.0005
"""Frames that take less are never late."""
FORGETS: Final = 1.02
"""The factor by which the usual time of a frame grows per window, so that old times are forgotten."""
MEMORY_S: Final = 1.0
"""The time for which a path's events are summed. An earlier trial of a path weighs less the longer ago it was."""
BEGIN_S: Final = 0.05
"""The least measured time of the chosen path before the other one is tried."""
BETTER: Final[dict[PathName, float]] = {"thread": 1.05, "loop": 1.1}
CLEARLY: Final = 1.5
TRIAL_S: Final = 0.1
FRAMES_MIN: Final = 4
"""The least number of frames in a window or a trial."""
COSTS: Final = 20.0
TRIAL_FIRST_S: Final = 0.5
"""The least pause before a trial, while frames are late or after the frames changed over, …"""
TRIAL_MAX_S: Final = 8.0
"""… and the largest pause."""
GIVEN_UP: Final = 3.0
GIVEN_UP_S: Final = 0.02
"""The time after which a trial of the loop ends if the thread would have written this many times as much."""
FORGOTTEN_S: Final = 1.0
"""After a pause of this length, earlier measurements do not count."""
_OTHER: Final[dict[PathName, PathName]] = {"loop": "thread", "thread": "loop"}


class Achieved(msgspec.Struct):
    """The events of a path, and the time in which frames of it were outstanding."""

    events: float = 0.0
    busy_s: float = 0.0

    @property
    def rate(self) -> float:
        return self.events / max(self.busy_s, 1e-9)

    def add(self, events: float, busy_s: float) -> None:
        self.events += events
        self.busy_s += busy_s
        self.keep(MEMORY_S)

    def keep(self, seconds: float) -> None:
        """Scales both numbers down to at most this many seconds; the rate stays the same."""
        if self.busy_s > seconds:
            self.events *= seconds / self.busy_s
            self.busy_s = seconds


class PathChoice:
    """See the top of the file. `path` is the choice for the next frame, and `reason` explains it in a sentence."""

    def __init__(self) -> None:
        self.path: PathName = "loop"
        self.reason: str = "it is the faster one on an idle machine, and nothing was measured yet"
        self.changes: int = 0
        """The number of times that the frames have changed over for good."""
        self._chosen: PathName = "loop"
        self._achieved: dict[PathName, Achieved] = {"loop": Achieved(), "thread": Achieved()}
        self._usual_s: dict[PathName, float] = {}
        self._late = 0
        self._late_s = 0.0
        self._trial_at_s: float | None = None
        self._trial_began_s = 0.0
        self._pause_s = TRIAL_FIRST_S
        self._was_better = False
        """Whether the other path was better at its last trial, which the next one has to confirm."""
        self._outstanding = 0
        self._since_s = 0.0
        # The frames of the current window, or of the whole trial.
        self._frames = -WARM_UP_FRAMES
        self._events = 0
        self._busy_s = 0.0

    def begun(self, now_s: float) -> None:
        """Records a frame that is passed to a path."""
        if not self._outstanding:
            if now_s - self._since_s > FORGOTTEN_S:
                self._forget()
                self._take(self._chosen)
                self.skipped()
            self._since_s = now_s
        self._outstanding += 1

    def skipped(self) -> None:
        """Records that a frame cannot take the loop: the window begins again."""
        self._frames, self._events, self._busy_s = min(self._frames, 0), 0, 0.0

    def ended(self, events: int, now_s: float) -> None:
        """Records the outcome of a frame with this many events."""
        self._outstanding -= 1
        self._frames += 1
        busy_s = max(now_s - self._since_s, 0.0)
        self._since_s = now_s
        if self._frames <= 0:
            return
        self._events += max(events, 1)
        self._busy_s += busy_s
        if self.path is not self._chosen:
            if self._frames >= FRAMES_MIN and (self._busy_s >= TRIAL_S or self._goes_badly()):
                self._end_trial(now_s)
        elif self._frames >= WINDOW_FRAMES or (self._frames >= FRAMES_MIN and self._busy_s >= WINDOW_S):
            self._end_window(now_s)

    def _goes_badly(self) -> bool:
        if self.path == "thread" or self._busy_s < GIVEN_UP_S:
            return False
        return self._events * GIVEN_UP < self._achieved[self._chosen].rate * self._busy_s

    def _end_window(self, now_s: float) -> None:
        frame_s, path, achieved = self._busy_s / self._frames, self.path, self._achieved[self.path]
        usual_s = self._usual_s[path] = min(self._usual_s.get(path, frame_s) * FORGETS, frame_s)
        # Late frames of the thread do not start a trial of the loop, whose frames wait for a processor more often.
        is_late = path == "loop" and frame_s > max(LATE * usual_s, LATE_S)
        self._late, self._late_s = (self._late + 1, self._late_s + self._busy_s) if is_late else (0, 0.0)
        if self._trial_at_s is None:
            self._trial_at_s = now_s
        if self._late >= WINDOWS and self._late_s >= LATE_FOR_S:
            self._late, self._late_s = 0, 0.0
            self._pause_s = TRIAL_FIRST_S
            self._trial_at_s = now_s
            self._forget()
        achieved.add(self._events, self._busy_s)
        self._begin_window()
        if now_s >= self._trial_at_s and achieved.busy_s >= BEGIN_S:
            self._trial_began_s = now_s
            self._take(_OTHER[self._chosen])

    def _end_trial(self, now_s: float) -> None:
        tried, before = self.path, self._chosen
        achieved = self._achieved[tried]
        achieved.keep(TRIAL_S * TRIAL_FIRST_S / self._pause_s)
        achieved.add(self._events, self._busy_s)
        here, there = self._achieved[before].rate, achieved.rate
        is_better = here > 0 and there > BETTER[tried] * here
        if is_better and not self._was_better and there < CLEARLY * here:
            self._was_better = True
            self._pause_s = TRIAL_FIRST_S
        elif is_better:
            self._chosen = tried
            self._was_better = False
            self._usual_s.pop(tried, None)
            self._pause_s = TRIAL_FIRST_S
            self.changes += 1
        else:
            self._was_better = False
            self._pause_s = min(2 * self._pause_s, TRIAL_MAX_S)
            self._usual_s.pop(before, None)  # its present speed is the best possible, however late the frames are
        self.reason = f"{there:,.0f} events a second by the {tried}, {here:,.0f} by the {before}"
        self._late, self._late_s = 0, 0.0
        self._trial_at_s = now_s + max(self._pause_s, COSTS * (now_s - self._trial_began_s))
        self._take(self._chosen)

    def _forget(self) -> None:
        self._was_better = False
        for achieved in self._achieved.values():
            achieved.keep(0.0)

    def _take(self, path: PathName) -> None:
        if path is not self.path:
            self.path = path
            self._begin_window(warm_up=WARM_UP_FRAMES)
        else:
            self._begin_window()

    def _begin_window(self, *, warm_up: int = 0) -> None:
        self._frames, self._events, self._busy_s = -warm_up, 0, 0.0
