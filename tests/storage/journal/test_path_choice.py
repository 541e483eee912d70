"""The choice of the write path under `auto`: a table of decisions, driven by machines on which one path or the other is faster."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.locations import open_wal
from tests.probes import local
from tests.storage.journal.recorded_paths import ONE, SIXTEEN
from wal import Message
from wal.storage.journal.path_choice import TRIAL_FIRST_S, TRIAL_MAX_S, WARM_UP_FRAMES, WINDOW_FRAMES, WINDOWS, PathChoice
from wal.storage.journal.writer import JournalWriter

Times = Callable[[str, int], float]
"""Returns the seconds that frame `number` takes on a path."""


class Machine:
    """Writes frames of `events` each, one after the other, and counts the events on each path."""

    def __init__(self, times: Times, *, events: int = 16, outstanding: int = 1) -> None:
        self.choice = PathChoice()
        self.now_s = 100.0
        self.frames = {"loop": 0, "thread": 0}
        self._times, self._events, self._outstanding = times, events, outstanding
        self._number = 0
        for _ in range(outstanding):
            self.choice.begun(self.now_s)

    def run(self, seconds: float, *, times: Times | None = None) -> float:
        """Writes for this time; returns the rate as a part of that of the better path."""
        self._times = times or self._times
        began_s, before = self.now_s, self._number
        whole_s = {"loop": 0.0, "thread": 0.0}
        while self.now_s < began_s + seconds:
            path = self.choice.path
            self.now_s += self._times(path, self._number)
            for one in whole_s:
                whole_s[one] += self._times(one, self._number)
            self.frames[path] += 1
            self._number += 1
            self.choice.ended(self._events, self.now_s)
            self.choice.begun(self.now_s)
        assert self._number > before
        return min(whole_s.values()) / (self.now_s - began_s)

    def written_in(self, seconds: float) -> int:
        """Writes for this time; returns the number of events."""
        until_s, events = self.now_s + seconds, 0
        while self.now_s < until_s:
            self.now_s += self._times(self.choice.path, self._number)
            self._number += 1
            events += self._events
            self.choice.ended(self._events, self.now_s)
            self.choice.begun(self.now_s)
        return events


def idle(path: str, _number: int) -> float:
    return {"loop": 0.00035, "thread": 0.00045}[path]


def busy(path: str, number: int) -> float:
    return {"loop": 0.004 if number % 3 else 0.0004, "thread": 0.0007}[path]


@pytest.mark.parametrize("outstanding", [1, 2])
def test_idle_machine_keeps_the_loop(outstanding: int) -> None:
    machine = Machine(idle, outstanding=outstanding)
    machine.run(2.0)
    assert machine.run(30.0) > 0.98
    assert (machine.choice.path, machine.choice.changes) == ("loop", 0)
    assert "by the thread" in machine.choice.reason


def test_busy_machine_changes_over_and_back() -> None:
    machine = Machine(idle)
    machine.run(5.0)
    machine.run(1.0, times=busy)
    assert (machine.choice.path, machine.choice.changes) == ("thread", 1)
    assert machine.run(30.0) > 0.95
    assert machine.choice.changes == 1
    machine.run(2 * TRIAL_MAX_S, times=idle)
    assert (machine.choice.path, machine.choice.changes) == ("loop", 2)
    assert machine.run(30.0) > 0.98


@pytest.mark.parametrize(("recorded", "events"), [(SIXTEEN, 16), (ONE, 1)], ids=["16 writers", "1 writer"])
def test_bursts_are_judged_by_their_whole_time(recorded: dict[str, list[float]], events: int) -> None:
    """As beside busy processes, where a few frames show a path that runs freely, or a path that waits for a processor."""

    def rate(begin: int) -> float:
        following = {path: itertools.cycle(frames[begin:] + frames[:begin]) for path, frames in recorded.items()}
        return Machine(lambda path, _: next(following[path]), events=events).written_in(12.0) / 12.0

    best = max(events * len(frames) / sum(frames) for frames in recorded.values())
    assert statistics.mean(map(rate, range(0, 200, 20))) > 0.9 * best


def test_late_frames_are_noticed_at_once() -> None:
    machine = Machine(idle)
    machine.run(60.0)
    before_s = machine.now_s
    while machine.choice.changes == 0:
        machine.run(0.01, times=busy)
        assert machine.now_s < before_s + 0.5, "trials are seconds apart by now"


def test_larger_frames_do_not_cause_constant_trials() -> None:
    machine = Machine(idle)
    machine.run(20.0)
    before = machine.frames["thread"]
    assert machine.run(60.0, times=lambda path, _: 5 * idle(path, 0)) > 0.97
    assert machine.choice.changes == 0
    trials = 60.0 / TRIAL_MAX_S + 5
    assert machine.frames["thread"] - before < trials * (WINDOWS * WINDOW_FRAMES + WARM_UP_FRAMES)


def test_equal_paths_are_kept() -> None:
    machine = Machine(lambda path, number: 0.0005 + 0.0004 * (number * 7919 % 13) / 13)
    assert machine.run(60.0) > 0.98
    assert machine.choice.changes == 0


@pytest.mark.parametrize("begin", range(0, 4000, 500))
def test_trial_on_a_drifting_disk_is_confirmed(begin: int) -> None:
    """As an idle machine, where the rate of a disk doubles and halves within a second."""
    machine = Machine(lambda path, number: idle(path, number) * (1.0 + 0.4 * math.sin((begin + number) / 200)))
    assert machine.run(6.0) > 0.98
    assert machine.choice.changes == 0


@pytest.mark.parametrize("begin", range(0, 200, 20))
def test_short_slowness_of_the_disk_changes_nothing(begin: int) -> None:
    """As while zeros are written ahead: for a tenth of a second every two seconds both paths take five times as long."""
    machine = Machine(idle)
    machine.run(1.5)

    def times(path: str, number: int) -> float:
        return idle(path, number) * (5.0 if (machine.now_s + begin / 100) % 2.0 < 0.1 else 1.0)

    assert machine.run(30.0, times=times) > 0.97
    assert machine.choice.changes == 0


def test_rare_frames_are_not_judged_by_old_ones() -> None:
    choice = PathChoice()
    for number in range(1_000):
        choice.begun(number * 2.0)
        choice.ended(1, number * 2.0 + (0.001 if number % 2 else 0.1))
    assert (choice.path, choice.changes) == ("loop", 0)


def test_frames_for_the_thread_restart_the_window() -> None:
    choice = PathChoice()
    for number in range(1_000):
        choice.begun(number * 0.001)
        if number % 10 == 0:
            choice.skipped()
        choice.ended(1, number * 0.001 + 0.0005)
    assert "nothing was measured" in choice.reason


@pytest.mark.parametrize("setting", ["auto", "loop", "thread"])
async def test_statistics_say_which_path_and_why(data_dir: Path, setting: str) -> None:
    async with open_wal(f"journal:{data_dir}", pchannels=1, write_path=setting) as log:
        await log.raw_append(Message("orders", b"x"))
        (pchannel,) = log.statistics().pchannels
        assert pchannel.write_path == ("thread" if setting == "thread" else "loop")
        assert ("measured" if setting == "auto" else "setting") in pchannel.write_path_reason


async def test_frames_follow_the_choice_in_order(data_dir: Path) -> None:
    async with open_wal(f"journal:{data_dir}", pchannels=1) as log:
        writer: JournalWriter = local(log).node.pchannels["p0"].log._writer  # type: ignore[attr-defined]
        choice = writer._choice
        assert choice is not None
        results = []
        for number in range(120):
            if number % 20 == 0:
                choice._take("thread" if choice.path == "loop" else "loop")
            loop_frames, path = writer.loop_frames, choice.path
            futures = [log.append_nowait(Message("orders", b"%d" % number)) for _ in range(3)]
            results += [await future for future in futures]
            if path == choice.path == "thread" and number % 20 > 1:
                assert writer.loop_frames == loop_frames
        ids = [result.message_id for result in results]
        assert ids == sorted(ids)
        assert writer.loop_frames > 0
        assert not writer._counts
        assert choice._outstanding == 0


def test_first_trial_comes_soon() -> None:
    machine = Machine(busy)
    machine.run(2 * TRIAL_FIRST_S)
    assert machine.choice.changes == 1
