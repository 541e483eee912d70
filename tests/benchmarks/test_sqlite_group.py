"""SqliteGroup stores keyed appends correctly. A run of the benchmarks does not check that, since its keys are new."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.sqlite_group import SqliteGroup


async def test_key_is_stored_once_for_all_callers(tmp_path: Path) -> None:
    group = SqliteGroup(tmp_path / "log.sqlite3", keys=True)
    try:
        first = await group.append_keyed("orders", b"a", "1")
        together = await asyncio.gather(*[group.append_keyed("orders", b"b", key) for key in ("2", "1", "3", "2")])
        after = await group.append_keyed("orders", b"c", "4")
    finally:
        await asyncio.to_thread(group.close)
    assert (first, together, after, group.rows) == (1, [2, 1, 3, 2], 4, 4)
