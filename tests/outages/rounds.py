"""The vchannels and the seed that the tests of outages share."""

from __future__ import annotations

import os
import random

from wal import WALAccesser

__all__ = ["SIDES", "choose_seed", "create_vchannels"]

SIDES = [["left-0", "left-1", "left-2"], ["right-0", "right-1", "right-2"]]
"""The vchannels that the clients write and read: those of a side are on one pchannel."""


def choose_seed() -> int:
    """Returns OUTAGE_SEED or a random seed, and prints it: the times of a run cannot be repeated, its calls can."""
    seed = int(os.environ.get("OUTAGE_SEED") or random.SystemRandom().getrandbits(32))
    print(f"OUTAGE_SEED={seed}")
    return seed


async def create_vchannels(log: WALAccesser) -> None:
    """Creates SIDES on the first two pchannels."""
    for number, side in enumerate(SIDES):
        for name in side:
            await log.create_vchannel(name, pchannel=f"p{number}")
