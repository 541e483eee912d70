"""A log on a virtual clock, for tests of leases, timers and promised ticks."""

from __future__ import annotations

from typing import Any

from actors import VirtualClock
from wal import Settings, WALAccesser
from wal.local.log import LocalLog
from wal.location import parse_location


async def open_virtual(location: str, clock: VirtualClock, **overrides: Any) -> WALAccesser:
    """Opens a log as `open_wal` does, but with this clock instead of the system's."""
    settings = Settings().replace(**overrides)

    async def make() -> LocalLog:
        return LocalLog(parse_location(location), settings, clock=clock)

    log = WALAccesser(location, make)
    await log.vchannels()
    return log
