"""Process tree: the processor time of this process and all its descendants."""

from __future__ import annotations

import os
import time
from pathlib import Path


def tree_cpu_s() -> float:
    """Returns the seconds so far, kernel included, of this process and its descendants, including ended ones that were waited for.

    Those of this process are exact; the kernel reports those of other processes in hundredths of a second.
    """
    ours = os.getpid()
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
            own = 0 if int(entry) == ours else sum(map(int, fields[11:13]))
            ticks[int(entry)] = own + sum(map(int, fields[13:15]))
    others = sum(ticks[pid] for pid in ticks if _descends(pid, ours, parents))
    return time.process_time() + others / os.sysconf("SC_CLK_TCK")


def _descends(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        pid = parents.get(pid, 0)
    return False
