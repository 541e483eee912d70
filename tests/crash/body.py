"""Body: a payload that names its own operation, so that every message of a log can be judged without an earlier announcement.

A payload is a line of text (round, worker, operation, kind, index, count, vchannel), random bytes, and a CRC32 over both. `count` is the
number of bodies in its unit and `index` its position there: the unit is a transaction, or the part of a bulk append on one pchannel.
"""

from __future__ import annotations

import enum
import random
import zlib

import msgspec


class Kind(enum.StrEnum):
    """The operation with which the writer appends a body."""

    PLAIN = "plain"
    """One append."""
    SERIES = "series"
    """One of several appends in order, each a separate event: a prefix of them is in the log."""
    TXN = "txn"
    """One of the bodies of a transaction: all of them are in the log, or none."""
    ROLLED_BACK = "rolled-back"
    """A body of a transaction that is never committed: never in the log."""


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
        """Returns the payload that makes these claims, with this many random bytes in it."""
        claims = f"{self.round} {self.worker} {self.op} {self.kind} {self.index} {self.count} {self.vchannel}\n"
        text = claims.encode() + rng.randbytes(filler_bytes)
        return text + zlib.crc32(text).to_bytes(4, "big")

    @classmethod
    def parse(cls, claims: bytes) -> Body:
        """Returns the body that makes these claims."""
        round_, worker, op, kind, index, count, vchannel = claims.decode().split(" ", 6)
        return cls(int(round_), int(worker), int(op), Kind(kind), int(index), int(count), vchannel)


def claims_of(payload: bytes) -> bytes:
    """Returns the claims of a payload, for `Body.parse`; ValueError when it is not as it was created."""
    if zlib.crc32(payload[:-4]).to_bytes(4, "big") != payload[-4:]:
        raise ValueError(f"a payload of {len(payload)} bytes that begins {payload[:60]!r} has a wrong CRC")
    return payload[: payload.index(b"\n")]
