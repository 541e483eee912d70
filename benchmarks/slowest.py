"""Slowest: the causes of delay of the slowest 1 % of durable appends, as a histogram, in one run.

A round of a log has two phases: the loop's (from the answer of one frame until the next one is submitted) and the disk's (until the loop
gets its completion). In each phase the loop's thread computes, waits for a processor (`run_delay` of the kernel), or waits for something
else: for the GIL in its own phase, for the disk in the other one. The garbage collector's part is measured separately. A slow append is one
of the slowest 1 %. Its cause is the part of its wait that exceeds the median of all rounds by the most.

Run: python -m benchmarks.slowest [--writers 256] [--seconds 3] [--rounds 3] [--freeze]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import tempfile
import threading
import time
from bisect import bisect_left
from collections import Counter
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop

from benchmarks.gauge import percentile
from benchmarks.stores import vchannel_name
from wal import Message, open_wal
from wal.storage.journal import preparer
from wal.storage.journal.writer import JournalWriter

CAUSES: Final = ("loop computes", "loop waits for a processor", "loop waits for the GIL", "gc", "disk", "completion waits for a processor")


class Stamp(msgspec.Struct, gc=False):
    """The end of a phase of the loop's thread: the time, and the thread's seconds of computing and of waiting for a processor so far."""

    at: float
    cpu: float
    delay: float
    gc: float
    thread: bool


class Probe:
    """Records the ends of phases and the work beside them. It replaces methods of the journal, so it belongs to this process alone."""

    def __init__(self) -> None:
        self.stamps: list[tuple[Stamp, Stamp]] = []
        """For each frame, the time of its submission, and the time at which the loop got its completion."""
        self.fills: list[tuple[float, float]] = []
        self.full_collections: list[float] = []
        """The seconds of each collection of the oldest generation."""
        self._gc_s = self._gc_at = 0.0
        self._schedstat = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self._handed: Stamp | None = None
        gc.callbacks.append(self._collected)
        self._wrap()

    def _wrap(self) -> None:
        append, deliver, fill = JournalWriter.append, JournalWriter.deliver, preparer.fill_with_zeros
        probe = self

        def append_stamped(writer: JournalWriter, *args: Any) -> None:
            append(writer, *args)
            probe._handed = probe._stamp(writer)

        def deliver_stamped(writer: JournalWriter) -> None:
            if (handed := probe._handed) is not None and writer._outcomes:
                probe._handed = None
                probe.stamps.append((handed, probe._stamp(writer)))
            deliver(writer)

        def fill_stamped(*args: Any, **options: Any) -> bool:
            began = time.perf_counter()
            try:
                return fill(*args, **options)
            finally:
                probe.fills.append((began, time.perf_counter()))

        JournalWriter.append = append_stamped  # type: ignore[method-assign,assignment]
        JournalWriter.deliver = deliver_stamped  # type: ignore[method-assign,assignment]
        preparer.fill_with_zeros = fill_stamped

    def _stamp(self, writer: JournalWriter) -> Stamp:
        delay = int(os.pread(self._schedstat, 64, 0).split()[1]) / 1e9
        in_thread = writer._loop_path is None or writer._loop_path.flight is None
        return Stamp(time.perf_counter(), time.thread_time(), delay, self._gc_s, in_thread)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._gc_at = time.perf_counter()
            return
        took_s = time.perf_counter() - self._gc_at
        self._gc_s += took_s
        if info["generation"] == 2:
            self.full_collections.append(took_s)

    def filling(self, began: float, ended: float) -> bool:
        """Returns whether a segment was filled with zeros in this time."""
        return any(fill[0] < ended and began < fill[1] for fill in self.fills)


class Phases:
    """The seconds of each cause in each phase, and the end of each phase."""

    def __init__(self, probe: Probe, since: float) -> None:
        self.ends: list[float] = []
        self.parts: list[dict[str, float]] = []
        before: Stamp | None = None
        for handed, ended in probe.stamps:
            if before is not None and before.at >= since:
                self._add(before, handed, computing="loop computes", delayed=CAUSES[1], waiting=CAUSES[2])
                self._add(handed, ended, computing="loop computes", delayed=CAUSES[5], waiting="disk")
            before = ended
        usual: dict[tuple[int, str], float] = {}
        for kind in (0, 1):
            for cause in CAUSES:
                usual[kind, cause] = statistics.median(part.get(cause, 0.0) for part in self.parts[kind::2])
        self.usual = usual
        self.beyond = [{cause: value - usual[number % 2, cause] for cause, value in part.items()} for number, part in enumerate(self.parts)]

    def _add(self, began: Stamp, ended: Stamp, *, computing: str, delayed: str, waiting: str) -> None:
        wall, collected = ended.at - began.at, ended.gc - began.gc
        cpu, delay = ended.cpu - began.cpu, ended.delay - began.delay
        self.ends.append(ended.at)
        self.parts.append({computing: cpu - collected, "gc": collected, delayed: delay, waiting: max(wall - cpu - delay, 0.0)})

    def cause(self, began: float, ended: float) -> tuple[str, float]:
        """Returns the cause of an append that waited in this time, and its seconds beyond the usual ones."""
        beyond: Counter[str] = Counter()
        at = bisect_left(self.ends, began)
        while at < len(self.ends):
            for cause, value in self.beyond[at].items():
                beyond[cause] += value  # type: ignore[assignment]
            if self.ends[at] >= ended:
                break
            at += 1
        return max(beyond.items(), key=lambda item: item[1]) if beyond else ("disk", 0.0)


async def _measure(directory: str, writers: int, seconds: float, probe: Probe) -> None:
    name, data, stopping = vchannel_name(0), os.urandom(1024), False
    appends: list[tuple[float, float]] = []
    async with open_wal(directory, pchannels=1) as log:

        async def write() -> None:
            while not stopping:
                began = time.perf_counter()
                await log.raw_append(Message(name, data))
                appends.append((began, time.perf_counter()))

        tasks = [asyncio.ensure_future(write()) for _ in range(writers)]
        await asyncio.sleep(0.5)
        since = time.perf_counter()
        probe.full_collections.clear()
        await asyncio.sleep(seconds)
        stopping = True
        await asyncio.gather(*tasks)
    _report(probe, [append for append in appends if append[0] >= since], since, seconds)


def _report(probe: Probe, appends: list[tuple[float, float]], since: float, seconds: float) -> None:
    took = sorted(ended - began for began, ended in appends)
    p50, p99 = percentile(took, 0.5) or 0.0, percentile(took, 0.99) or 0.0
    phases = Phases(probe, since)
    filling = sum(
        min(ended, since + seconds) - max(began, since) for began, ended in probe.fills if ended > since and began < since + seconds
    )
    print(
        f"{len(appends) / seconds:,.0f} appends/s, p50 {1000 * p50:.2f} ms, p99 {1000 * p99:.2f} ms, longest {1000 * took[-1]:.1f} ms; "
        f"segments were filled for {filling / seconds:.0%} of the time"
    )
    usual = ", ".join(
        f"{cause} {1e6 * (phases.usual[0, cause] + phases.usual[1, cause]):.0f}"
        for cause in CAUSES
        if phases.usual[0, cause] + phases.usual[1, cause] > 1e-6
    )
    print(f"  a usual round, µs: {usual}")
    slow = [append for append in appends if append[1] - append[0] > p99]
    counts: Counter[tuple[str, bool]] = Counter()
    excess: dict[tuple[str, bool], list[float]] = {}
    for began, ended in slow:
        cause, beyond = phases.cause(began, ended)
        key = cause, probe.filling(began, ended)
        counts[key] += 1
        excess.setdefault(key, []).append(beyond)
    for (cause, fills), count in counts.most_common():
        beside = "while a segment is filled" if fills else "otherwise"
        median = 1000 * statistics.median(excess[cause, fills])
        print(f"  {count / max(len(slow), 1):4.0%} {cause}, {beside}: {median:.1f} ms beyond the usual")
    thread = sum(1 for handed, _ in probe.stamps if handed.at >= since and handed.thread)
    print(f"  {len(phases.ends) // 2:,} frames, {thread:,} of them by the thread")
    longest = 1000 * max(probe.full_collections, default=0.0)
    print(f"  {len(probe.full_collections)} full collections of {len(gc.get_objects()):,} objects, the longest took {longest:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slowest", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--writers", type=int, default=256, help="(256)")
    parser.add_argument("--seconds", type=float, default=3.0, help="(3)")
    parser.add_argument("--rounds", type=int, default=3, help="(3)")
    parser.add_argument("--freeze", action="store_true", help="call gc.freeze() first, as a service may after its start")
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="where the logs are made and removed; a real disk (.)")
    options = parser.parse_args()
    probe = Probe()
    if options.freeze:
        gc.collect()
        gc.freeze()
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(dir=options.directory, prefix=".bench-") as directory:
            os.sync()
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(_measure(directory, options.writers, options.seconds, probe))
            probe.stamps.clear()
            probe.fills.clear()


if __name__ == "__main__":
    main()
