"""Body: a payload that says of itself where it belongs, so that whatever a log delivers can be judged without having been announced.

A payload is a line of text (round, worker, operation, kind, index, count, vchannel), random bytes, and a CRC32 over both. `count` is how
many bodies its unit has and `index` its place there: the unit is a transaction, or the part of a bulk append on one pchannel.
"""

from __future__ import annotations

import enum
import random
import zlib

import msgspec

__all__ = ["Body", "Kind", "claims_of"]


class Kind(enum.StrEnum):
    """What the writer does with it."""

    PLAIN = "plain"
    """One append."""
    SERIES = "series"
    """One of several appends in order, each an event of its own: there as far as it got."""
    TXN = "txn"
    """One of the bodies of a transaction: there with all the others or not at all."""
    ROLLED_BACK = "rolled-back"
    """A body of a transaction that is never committed: never there."""


class Body(msgspec.Struct, frozen=True):
    """The claims of one payload. (`round`, `worker`, `op`) name the operation."""

    round: int
    worker: int
    op: int
    kind: Kind
    index: int
    count: int
    vchannel: str

    @property
    def operation(self) -> tuple[int, int, int]:
        return (self.round, self.worker, self.op)

    def payload(self, rng: random.Random, filler_bytes: int) -> bytes:
        """The payload that makes these claims, with so many random bytes in it."""
        claims = f"{self.round} {self.worker} {self.op} {self.kind} {self.index} {self.count} {self.vchannel}\n"
        text = claims.encode() + rng.randbytes(filler_bytes)
        return text + zlib.crc32(text).to_bytes(4, "big")

    @classmethod
    def parse(cls, claims: bytes) -> Body:
        """The body that makes these claims."""
        round_, worker, op, kind, index, count, vchannel = claims.decode().split(" ", 6)
        return cls(int(round_), int(worker), int(op), Kind(kind), int(index), int(count), vchannel)


def claims_of(payload: bytes) -> bytes:
    """The claims that a payload makes, for `Body.parse`; ValueError when it is not as it was made."""
    if zlib.crc32(payload[:-4]).to_bytes(4, "big") != payload[-4:]:
        raise ValueError(f"a payload of {len(payload)} bytes that begins {payload[:60]!r} has a wrong CRC")
    return payload[: payload.index(b"\n")]
