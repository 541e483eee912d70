"""Layout: the messages of a log on Pulsar. Pure.

    frame   the bytes of a frame (wal.frame) as they are, no properties; unbatched, so that an entry of the ledger is a frame
    mark    no bytes; properties `wal=mark`, `term`, `incarnation` (decimal): from here on the log belongs to this term
    piece   a piece of a checkpoint, in the topic of checkpoints; properties `wal=piece`, `save` (its checkpoint), `part` (from 0 on)

The next position (`address.py`) in a ledger is one more; only the list of ledgers (`ledgers.py`) has the beginning of the next ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from wal.errors import CorruptionError
from wal.storage.pulsar.positions import text_of

FRAME_BYTES_LIMIT: Final = 5 * 1024 * 1024 - 64 * 1024
"""Pulsar's default `maxMessageSize` of 5 MiB, less a generous margin for its own metadata of a message."""
FRAMES_IN_FLIGHT: Final = 8
"""The most unanswered frames of a writer. Part of the format: readers derive from it how far back a duplicate can reach."""
KIND: Final = "wal"
MARK: Final = "mark"
PIECE: Final = "piece"


class Mark(msgspec.Struct, frozen=True, gc=False):
    """A mark in the log: frames of a lower term after it were written by a fenced writer, and do not count."""

    term: int
    incarnation: int


def mark_properties(mark: Mark) -> dict[str, str]:
    """Returns the properties that make a message a mark."""
    return {KIND: MARK, "term": str(mark.term), "incarnation": str(mark.incarnation)}


def mark_of(properties: Mapping[str, str], position: int) -> Mark | None:
    """Returns the mark with these properties, None for a message of another kind. Raises CorruptionError for a damaged mark."""
    if properties.get(KIND) != MARK:
        return None
    try:
        return Mark(int(properties["term"]), int(properties["incarnation"]))
    except (KeyError, ValueError) as error:
        raise CorruptionError(f"the mark at {text_of(position)} has {dict(properties)}", expected="a term and an incarnation") from error
