"""Journals for the readers of Spark, with messages of every kind over several pchannels."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from tests.api.blocking.logs import message
from wal import BroadcastMessage, bridge

NAMES = ("orders", "payments", "returns", "ü")
"""The first two are on p0, the others on p1."""


def write_everything(data: str | Path, random: Random, *, steps: int = 60, pchannels: int = 2, **settings: Any) -> None:
    """Writes plain messages, narrow, wide and rolled-back transactions and broadcasts; recreates one vchannel and drops another."""
    with bridge.blocking(data, segment_bytes=1 << 20, pchannels=pchannels, **settings) as log:
        places = {vchannel.name: vchannel.pchannel for vchannel in log.vchannels()}
        for at, name in enumerate((*NAMES, "gone")):
            if name not in places:
                log.create_vchannel(name, pchannel=f"p{min(at // 2, pchannels - 1)}")
        for step in range(steps):
            name = random.choice(NAMES)
            pair = random.choice((NAMES[:2], NAMES[2:]))
            kind = random.randrange(7)
            if kind <= 1:
                log.append_bulk([message(random, random.choice(NAMES)) for _ in range(random.choice((1, 3, 40)))])
            elif kind == 2:
                log.append_bulk([message(random, name) for _ in range(random.choice((1, 100, 300)))])
            elif kind == 3:
                with log.txn(name) as txn:
                    for _ in range(random.randrange(4)):
                        txn.append(message(random, name, dml=True))
            elif kind == 4:
                with log.txn(vchannels=list(pair)) as txn:
                    for _ in range(random.randrange(5)):
                        txn.append(message(random, random.choice(pair), dml=True))
            elif kind == 5:
                rolled_back = log.txn(name).__enter__()
                rolled_back.append(b"never")
                rolled_back.rollback()
            else:
                copies = random.sample(NAMES, 3)
                log.broadcast().append(BroadcastMessage(vchannels=copies, payload=b"to all", needs_ack=False))
            if step == steps // 2:
                log.append_bulk([message(random, "gone") for _ in range(5)])
                log.drop_vchannel("ü")
                log.drop_vchannel("gone")
                log.create_vchannel("ü", pchannel=f"p{pchannels - 1}")
