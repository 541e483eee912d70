"""JournalStatistics: the counters of one open log."""

from __future__ import annotations

import msgspec

__all__ = ["JournalStatistics"]


class JournalStatistics(msgspec.Struct, frozen=True, gc=False):
    """Counters since this opening: `frames` with `frame_bytes` in all were written with one sync each (`syncs`), `loop_frames` of them
    from the event loop; `segments` were begun, truncated ones were `recycled` or `removed`; `segments_held` exist now."""

    frames: int
    frame_bytes: int
    syncs: int
    segments: int
    recycled: int
    removed: int
    segments_held: int
    loop_frames: int
