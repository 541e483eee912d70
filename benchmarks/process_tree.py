"""Process tree: the processor time of this process and all its descendants."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["tree_cpu_s"]


def tree_cpu_s() -> float:
    """Returns the seconds so far, kernel included, of this process and its descendants, also those that ended and were waited for."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended meanwhile
            fields = stat.rpartition(")")[2].split()
            parents[int(entry)] = int(fields[1])
            ticks[int(entry)] = sum(map(int, fields[11:15]))
    ours = os.getpid()
    return sum(ticks[pid] for pid in ticks if _descends(pid, ours, parents)) / os.sysconf("SC_CLK_TCK")


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        pid = parents.get(pid, 0)
    return False
