"""Idempotency keys of a pchannel: what they are, which are remembered, and their bytes. Pure.

Files:

* keys: keys as callers give them, and as the frames of a log carry them
* table: IdempotencyTable: which keys were seen, and the first result of each
* state: the remembered keys in a recovery checkpoint
"""

from wal.pchannel.idempotency.keys import Key, ProducerInfo, ProducerKey, check_key, key_ext
from wal.pchannel.idempotency.table import Claim, IdempotencyTable, Kept

__all__ = [
    "Claim",
    "IdempotencyTable",
    "Kept",
    "Key",
    "ProducerInfo",
    "ProducerKey",
    "check_key",
    "key_ext",
]
