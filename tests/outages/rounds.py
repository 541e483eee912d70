"""The vchannels that the tests of outages share."""

from __future__ import annotations

from wal import WALAccesser

SIDES = [["left-0", "left-1", "left-2"], ["right-0", "right-1", "right-2"]]
"""The vchannels that the clients write and read: those of a side are on one pchannel."""


async def create_vchannels(log: WALAccesser) -> None:
    """Creates SIDES on the first two pchannels."""
    for number, side in enumerate(SIDES):
        for name in side:
            await log.create_vchannel(name, pchannel=f"p{number}")
