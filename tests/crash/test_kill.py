"""SIGKILL at any moment loses nothing acknowledged and leaves nothing half done (D1, D3, D5, D6, D10)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.conftest import by_loop, by_thread
from tests.crash.rounds import Rounds

pytestmark = pytest.mark.usefixtures("write_path")


@by_loop
@pytest.mark.one_loop
async def test_killed_under_load(data_dir: Path, soak: int) -> None:
    """The test runs three rounds on one directory, of one event, a few and many; a soak runs a hundred on each loop."""
    async with Rounds(data_dir) as rounds:
        for acked in (1, 100, 700) if soak == 1 else (int(1 + 200 * (number / 100) ** 2) for number in range(100)):
            await rounds.load_and_kill(acked)
            await rounds.check()
        assert rounds.ledger.acked_events > 800
        assert len(rounds.ledger.seen) == 2


@by_thread
async def test_killed_while_opening(data_dir: Path, soak: int) -> None:
    """The process that recovers is killed as well, twice in a row."""
    async with Rounds(data_dir) as rounds:
        for _ in range(1 if soak == 1 else 30):
            await rounds.load_and_kill(rounds.rng.randint(1, 200))
            for _ in range(2):
                await rounds.kill_while_opening()
            await rounds.check()
        while rounds.killed_while_opening < 2:  # each miss aims the next one earlier
            await rounds.kill_while_opening()
            await rounds.check()


@by_loop
async def test_killed_while_closing(data_dir: Path, soak: int) -> None:
    """A close under load answers every call that it accepted; a kill in the middle of it loses nothing acknowledged."""
    async with Rounds(data_dir) as rounds:
        await rounds.load_and_close(50, kill=False)
        await rounds.check()
        for _ in range(1 if soak == 1 else 30):
            await rounds.load_and_close(rounds.rng.randint(1, 200), kill=True)
            await rounds.check()
        while rounds.killed_while_closing < 2:  # each miss aims the next one earlier
            await rounds.load_and_close(rounds.rng.randint(1, 200), kill=True)
            await rounds.check()


@by_thread
async def test_killed_while_segments_roll_over(data_dir: Path, soak: int) -> None:
    """Segments of 1 MiB and bodies of up to 256 KiB: several new segments in every round."""
    small = {"segment_bytes": 1 << 20}
    async with Rounds(data_dir, settings=small, filler_bytes_max=1 << 18) as rounds:
        for _ in range(2 * soak):
            await rounds.load_and_kill(rounds.rng.randint(100, 200))
            await rounds.check()
    for pchannel in (data_dir / "pchannels").iterdir():
        assert len(list(pchannel.glob("*.wal"))) > 2 * soak, f"{pchannel.name} hardly rolled over"
