"""Checkpoint records in the KV: where the recovery of each pchannel begins.

Owns the key `checkpoints/<pchannel>` and its value; `save_checkpoint` in pchannel_meta.py owns when one may be saved. The state itself
lies with the backend; a record is small.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from wal.errors import CorruptionError, KeyNotExistError
from wal.message import Natural

if TYPE_CHECKING:
    from wal.kv import KVBase

__all__ = ["CheckpointRecord", "checkpoint_key", "encode_checkpoint", "load_checkpoint"]

PREFIX: Final = "checkpoints/"


class CheckpointRecord(msgspec.Struct, frozen=True):
    """Saved in `term`: recovery begins at `position`, with the state that was stored for position `state` (None: with none)."""

    term: Natural
    position: Natural
    state: Natural | None = None


def checkpoint_key(pchannel: str) -> str:
    """The key of its record."""
    return PREFIX + pchannel


def encode_checkpoint(record: CheckpointRecord) -> str:
    """The value of the key."""
    return _encoder.encode(record).decode()


async def load_checkpoint(kv: KVBase, pchannel: str) -> CheckpointRecord | None:
    """The record of this pchannel; None for a log that was made before there were checkpoints, or whose record was removed."""
    key = checkpoint_key(pchannel)
    try:
        return _decoder.decode(await kv.load(key))
    except KeyNotExistError:
        return None
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise CorruptionError(f"the checkpoint record in the KV cannot be read: {error}", expected=key) from error


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(CheckpointRecord)
