"""The benchmark of patterns runs, briefly; its figures are not checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import patterns


async def test_benchmark_prints_its_ratios(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "MESSAGES", 2048)
    monkeypatch.setattr(patterns, "LOGS", ((64, 1024),))
    await patterns.measure(1, tmp_path)
    assert capsys.readouterr().out.count("of one vchannel") == 2
