"""The costs of a read with a pattern: names are matched once, and each of many matching vchannels takes at most 200 bytes."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from tests.probes import read_all
from wal import Matching, open_wal
from wal.read.options import MatchingSelection

FAMILY = 50_000


async def test_names_are_matched_once() -> None:
    names, version, calls = [f"account-{number}" for number in range(10)], 1, 0

    def known() -> list[str]:
        nonlocal calls
        calls += 1
        return names

    fetched: list[frozenset[str] | None] = []

    async def fetch(wanted: frozenset[str] | None) -> object:
        nonlocal version
        fetched.append(wanted)
        if len(fetched) == 3:  # a vchannel joins while the page is fetched
            names.append("account-later")
            version += 1
        return None

    selection = MatchingSelection(Matching("account-*"), lambda *_: True, known, lambda: version)
    for _ in range(4):
        await selection.page(fetch)  # type: ignore[arg-type]
    assert calls == 2
    assert [wanted is not None and "account-later" in wanted for wanted in fetched] == [False, False, False, True, True]


async def test_large_family_takes_little_memory() -> None:
    names = [f"account-{number}" for number in range(FAMILY)]
    selection = MatchingSelection(Matching("account-*"), lambda *_: True, lambda: names, lambda: 1)
    sizes: list[int] = []

    async def fetch(wanted: frozenset[str] | None) -> object:
        assert wanted is not None
        sizes.append(len(wanted))
        return None

    tracemalloc.start()
    try:
        await selection.page(fetch)  # type: ignore[arg-type]
        assert sizes == [FAMILY]
        assert tracemalloc.get_traced_memory()[0] < 200 * FAMILY
    finally:
        tracemalloc.stop()


async def test_pattern_of_one_vchannel_reads_its_own_frames(tmp_path: Path) -> None:
    async with open_wal(tmp_path / "data", pchannels=1) as log:
        for number in range(64):
            await log.append(f"many-{number}", b"x" * 1000)
        frames = []
        for vchannels in ("many-7", Matching("many-7"), Matching("many-7*")):
            async with log.read(vchannels, follow=False) as scanner:
                assert len([message async for message in scanner]) == 1
                frames.append(scanner.statistics().frames)
        assert frames[0] == frames[1] == frames[2]
        assert len(await read_all(log, Matching("many-*"))) == 64
