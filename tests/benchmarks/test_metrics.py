"""The benchmark of metrics runs, briefly; its figures are not checked."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.metrics import measure


async def test_benchmark_prints_its_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await measure(1, str(tmp_path / "data"))
    assert "scraped to not scraped" in capsys.readouterr().out
