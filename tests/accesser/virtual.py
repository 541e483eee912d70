"""A log whose time stands still until it is told: for leases, timers and promises."""

from __future__ import annotations

from actors import VirtualClock
from wal import Settings, WALAccesser
from wal.engine.local.log import LocalLog
from wal.location import parse_location

__all__ = ["open_virtual"]


async def open_virtual(location: str, clock: VirtualClock, **overrides: object) -> WALAccesser:
    """As `open_wal` does it, with this clock in the place of the machine's."""
    settings = Settings().replace(**overrides)

    async def make() -> LocalLog:
        return LocalLog(parse_location(location), settings, clock=clock)

    log = WALAccesser(location, make)
    await log.vchannels()
    return log
