"""Positions: the entries of a topic, each as one number, and the ledgers that contain them. Pure.

A position is `ledger << 64 | entry`, as in message ids: positions and entries have the same order.
"""

from __future__ import annotations

from typing import Final

import msgspec

ENTRY_BITS: Final = 64


_ENTRY_MASK: Final = (1 << ENTRY_BITS) - 1


class TopicLedger(msgspec.Struct, gc=False):
    """A ledger of a topic: its `entries` and `size` (bytes) so far."""

    number: int
    entries: int
    size: int


def position_of(ledger: int, entry: int) -> int:
    """Returns the position of this entry."""
    return ledger << ENTRY_BITS | entry


def ledger_of(position: int) -> int:
    return position >> ENTRY_BITS


def entry_of(position: int) -> int:
    return position & _ENTRY_MASK


def text_of(position: int) -> str:
    """Returns the text of a position: ledger.entry, as in message ids."""
    return f"{ledger_of(position)}.{entry_of(position)}"
