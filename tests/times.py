"""Measures the processor time of each test, with that of every process it started, and prints where a run spent it by room.

Processor time depends on the machine, so the report also gives it as a multiple of PIECE, a fixed piece of work, beside the multiples that
`tests/times.json` records: growth shows in each run. `WAL_TEST_TIMES=FILE` also writes a line of JSON for each test: its id, its seconds of
processor time, and its seconds.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

RECORD: Final = Path(__file__).with_suffix(".json")
PIECES: Final = 5
_TICKS_S: Final = 1 / os.sysconf("SC_CLK_TCK")


class Times:
    """The processor seconds of each room in this process; xdist sends them to the first process, which adds them up."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._file = os.environ.get("WAL_TEST_TIMES")
        self.rooms: defaultdict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before, began = _processor_s(), time.monotonic()
        outcome = yield
        processor_s = _processor_s() - before
        self.rooms[room_of(item)] += processor_s
        if self._file:
            with open(self._file, "a") as file:
                file.write(json.dumps([item.nodeid, round(processor_s, 3), round(time.monotonic() - began, 3)]) + "\n")
        return outcome

    def pytest_sessionfinish(self) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["processor_s"] = dict(self.rooms)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        for room, seconds in getattr(node, "workeroutput", {}).get("processor_s", {}).items():
            self.rooms[room] += seconds

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not os.environ.get("CI") or not self.rooms:
            return
        piece_s = _piece_s()
        recorded = json.loads(RECORD.read_text()) if RECORD.exists() else {}
        whole = sum(self.rooms.values())
        terminalreporter.section("processor time by room")
        terminalreporter.write_line(f"a piece of work takes {piece_s:.3f} s here; in brackets the recorded number of pieces")
        for room, seconds in [("all", whole), *sorted(self.rooms.items(), key=lambda pair: -pair[1])]:
            terminalreporter.write_line(f"{room:14} {seconds:7.1f} s {seconds / piece_s:8.0f} pieces ({recorded.get(room, 'none')})")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Times(config), "times")


def room_of(item: pytest.Item) -> str:
    """Returns the folder below tests/ that a test is in."""
    return item.path.relative_to(Path(__file__).parent).parts[0]


def _processor_s() -> float:
    """Returns the processor time of this process and of all its descendants, also the ended ones."""
    total = sum(os.times()[:4])
    pids = children_of(os.getpid())
    while pids:
        pid = pids.pop()
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        total += sum(map(int, fields[11:15])) * _TICKS_S
        pids += children_of(pid)
    return total


def children_of(pid: int) -> list[int]:
    """Returns the processes whose parent is this one."""
    children: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (task / "children").read_text().split())
    except OSError:
        pass  # the process has ended meanwhile, or this is not Linux
    return children


def _piece_s() -> float:
    """Returns the processor seconds of one piece of work: the fastest of PIECES."""
    return min(_work() for _ in range(PIECES))


def _work() -> float:
    began = time.process_time()
    data = bytes(range(256)) * 4096
    value = 0
    for number in range(20):
        value = zlib.crc32(data, value)
        value ^= hash(json.dumps({str(key): key for key in range(2000)})) & number
    return time.process_time() - began
