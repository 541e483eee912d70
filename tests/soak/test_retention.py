"""Appends at full rate with retention on: the disk stays within its bound and, in a soak of five minutes, memory stays flat."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from tests.conftest import SOAK
from tests.soak.load import Load, Measure

ROOT: Final = Path(__file__).parents[2]
MIB: Final = 1 << 20
SEGMENT_BYTES: Final = 16 * MIB
RETENTION_BYTES: Final = 64 * MIB
SEGMENTS_BEYOND: Final = 4
"""The rest of the active segment, two spares, and one that fills up during a turn."""
DURATION_S: Final = 300.0 if SOAK else 5.0
SETTLED_S: Final = 60.0
RSS_GROWTH_MAX: Final = 32 * MIB


def test_disk_stays_within_its_bound_and_memory_flat(tmp_path: Path) -> None:
    load = Load(str(tmp_path / "data"), DURATION_S, SEGMENT_BYTES, RETENTION_BYTES)
    load.messages_min = 5 * RETENTION_BYTES // (2 * load.message_bytes)
    measures = run(load)
    last = measures[-1]
    assert last.messages * load.message_bytes > 2 * RETENTION_BYTES
    assert last.read > 0
    most = max(measure.disk_bytes for measure in measures)
    assert most <= RETENTION_BYTES + SEGMENTS_BEYOND * SEGMENT_BYTES, f"{most / MIB:.1f} MiB on the disk"
    if SOAK:
        settled = [measure.rss_bytes for measure in measures if measure.at_s >= SETTLED_S]
        growth = max(settled) - settled[0]
        assert growth < RSS_GROWTH_MAX, f"{growth / MIB:.1f} MiB more from minute 1 on"


def run(load: Load) -> list[Measure]:
    command = [sys.executable, "-m", "tests.soak.load", msgspec.json.encode(load).decode()]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=load.duration_s + 60, check=False)
    assert ran.returncode == 0, ran.stderr
    decode = msgspec.json.Decoder(Measure).decode
    return [decode(line) for line in ran.stdout.splitlines()]
