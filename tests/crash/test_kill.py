"""SIGKILL at any moment loses nothing acknowledged and leaves nothing half done (D1, D3, D5, D6, D10), on both write paths."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.rounds import Rounds

pytestmark = pytest.mark.usefixtures("write_path")


@pytest.mark.one_loop
async def test_killed_under_load(data_dir: Path, soak: int) -> None:
    """The test runs ten rounds on one directory; a soak runs a hundred shorter ones on each loop, since each reads everything."""
    count, acked_max = (10, 1800) if soak == 1 else (100, 200)
    async with Rounds(data_dir) as rounds:
        for number in range(count):
            part = (number + rounds.rng.random()) / count  # short and long rounds in every run
            await rounds.load_and_kill(int(1 + acked_max * part**2))
            await rounds.check()
        assert rounds.ledger.acked_events > 3000
        assert len(rounds.ledger.seen) == 2


async def test_killed_while_opening(data_dir: Path, soak: int) -> None:
    """The process that recovers is killed as well, up to three times in a row."""
    async with Rounds(data_dir) as rounds:
        for _ in range(3 * soak):
            await rounds.load_and_kill(rounds.rng.randint(1, 200))
            for _ in range(rounds.rng.randint(1, 3)):
                await rounds.kill_while_opening()
            await rounds.check()
        while rounds.killed_while_opening < 3:  # each miss aims the next one earlier
            await rounds.kill_while_opening()
            await rounds.check()


async def test_killed_while_closing(data_dir: Path, soak: int) -> None:
    """A close under load answers every call that it accepted; a kill in the middle of it loses nothing acknowledged."""
    async with Rounds(data_dir) as rounds:
        await rounds.load_and_close(50, kill=False)
        await rounds.check()
        for _ in range(3 * soak):
            await rounds.load_and_close(rounds.rng.randint(1, 200), kill=True)
            await rounds.check()
        while rounds.killed_while_closing < 3:  # each miss aims the next one earlier
            await rounds.load_and_close(rounds.rng.randint(1, 200), kill=True)
            await rounds.check()


async def test_killed_while_segments_roll_over(data_dir: Path, soak: int) -> None:
    """Segments of 1 MiB and bodies of up to 256 KiB: several new segments in every round."""
    small = {"segment_bytes": 1 << 20}
    async with Rounds(data_dir, settings=small, filler_bytes_max=1 << 18) as rounds:
        for _ in range(3 * soak):
            await rounds.load_and_kill(rounds.rng.randint(20, 250))
            await rounds.check()
    for pchannel in (data_dir / "pchannels").iterdir():
        assert len(list(pchannel.glob("*.wal"))) > 3 * soak, f"{pchannel.name} hardly rolled over"
