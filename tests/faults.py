"""Faults that a user cannot cause at will."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

from wal.node.local.log import LocalLog


def copy_of_open(directory: Path | str, copy: Path) -> Path:
    """Copies the directory of an open log: what a kill at this moment leaves. Files that are not finished come and go, and are left out."""
    return Path(shutil.copytree(directory, copy, ignore=shutil.ignore_patterns("*.tmp", "*.spare", "*.zeros")))


class SavingGate:
    """Blocks the KV's compare-and-swap, with which the oracle saves its limit, until `open` is set; then it fails if `failure` is set.

    No tick that was saved ahead is left when the gate is created.
    """

    def __init__(self, log: LocalLog, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = asyncio.Event()
        self.failure: Exception | None = None
        self.waiting = 0
        real = log.coordinator.kv.compare_and_swap

        async def compare_and_swap(*arguments: Any) -> bool:
            self.waiting += 1
            await self.open.wait()
            self.waiting -= 1
            if self.failure is not None:
                raise self.failure
            return await real(*arguments)

        monkeypatch.setattr(log.coordinator.kv, "compare_and_swap", compare_and_swap)
        while log.node.oracle.take(262_144) is not None:
            pass
