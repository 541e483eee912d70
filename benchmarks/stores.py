"""Stores: opens both logs for the workloads, and defines the names and properties of messages.

Ours runs with its defaults. SQLite runs with the settings that were best on the machine of README.md for the number of its writers
(`sqlite`), or with its default page size and checkpoint (`sqlite as it comes`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from benchmarks import engines
from benchmarks.cell import Row
from benchmarks.sqlite_group import AS_IT_COMES, MANY, SqliteGroup

PROPERTIES: Final = {
    "tenant": "a-company-of-some-size",
    "trace": "4bf92f3577b34da6a3ce929d0e0e4736",
    "schema": "orders/v3",
    "source": "checkout-7f9c",
}
"""99 bytes in all."""


def properties_of(row: Row) -> dict[str, str]:
    """Returns the properties of every message of this row."""
    return dict(list(PROPERTIES.items())[: row.properties])


def vchannel_name(number: int) -> str:
    """Returns the name of a row's vchannel with this number."""
    return f"orders-{number:04}"


def log_path(directory: str) -> Path:
    """Returns the path of our log in a cell."""
    return Path(directory) / "data"


def sqlite_path(directory: str) -> Path:
    """Returns the path of SQLite's file in a cell."""
    return Path(directory) / "log.sqlite3"


@contextlib.asynccontextmanager
async def open_sqlite(
    directory: str, row: Row, *, engine: str, readers: bool = False, index: bool = False, keys: bool = False
) -> AsyncIterator[SqliteGroup]:
    """Opens SQLite for appending. With `readers` other connections read meanwhile. With `index` they read by vchannel. `keys`: see
    SqliteGroup.
    """
    tuning = AS_IT_COMES if row.writers == 1 or engine in (engines.AS_IT_COMES, engines.APART) else MANY
    group = SqliteGroup(sqlite_path(directory), tuning=tuning, readers=readers, index=index, apart=engine == engines.APART, keys=keys)
    try:
        yield group
    finally:
        await asyncio.to_thread(group.close)
