"""Appends at full rate with retention on: the disk stays within its bound and, in a soak of five minutes, memory stays flat."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.conftest import SOAK, TEST_TIMEOUT_S
from tests.processes import run_python
from tests.soak.load import Load, Measure


def test_disk_stays_within_its_bound_and_memory_flat(tmp_path: Path) -> None:
    mib = 1 << 20
    segment_bytes = 16 * mib
    retention_bytes = 64 * mib
    # The rest of the active segment, two spares, and a segment that fills up during a turn.
    segments_beyond = 4
    duration_s = 300.0 if SOAK else 5.0
    settled_s = 60.0
    rss_growth_max = 32 * mib

    def run(load: Load) -> list[Measure]:
        # A slow disk needs minutes for the messages, so only a hanging process exceeds this.
        timeout_s = load.duration_s + TEST_TIMEOUT_S
        ended = run_python("-m", "tests.soak.load", msgspec.json.encode(load).decode(), timeout_s=timeout_s, fresh=True)
        decode = msgspec.json.Decoder(Measure).decode
        return [decode(line) for line in ended.out.splitlines()]

    load = Load(str(tmp_path / "data"), duration_s, segment_bytes, retention_bytes)
    load.messages_min = 5 * retention_bytes // (2 * load.message_bytes)
    measures = run(load)
    last = measures[-1]
    assert last.messages * load.message_bytes > 2 * retention_bytes
    assert last.read > 0
    most = max(measure.disk_bytes for measure in measures)
    assert most <= retention_bytes + segments_beyond * segment_bytes, f"{most / mib:.1f} MiB on the disk"
    if SOAK:
        settled = [measure.rss_bytes for measure in measures if measure.at_s >= settled_s]
        growth = max(settled) - settled[0]
        assert growth < rss_growth_max, f"{growth / mib:.1f} MiB more from minute 1 on"
