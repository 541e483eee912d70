"""Limits: how large a frame may be on one Pulsar, and where group commits are cut by that.

Owns: what follows from the broker's `maxMessageSize`, which is 5 MiB unless its administrator chose another. A frame above it must never
be handed to the client: the client refuses that one alone and sends what comes behind it, and the log would have a gap. The client
learns the value when it connects and does not tell it, so the admin REST is asked; where that is for administrators only, the largest
frame that goes through is found by trying, in a topic that keeps nothing.
"""

from __future__ import annotations

import logging
from typing import Final

from wal.backends.pulsar.connection import Connection
from wal.backends.pulsar.layout import FRAME_BYTES_LIMIT

__all__ = ["frame_bytes_limit", "group_bytes", "probed_limit"]

GROUP_BYTES: Final = 1 << 20
"""Frames of a megabyte side by side are quicker than one of four."""
GROUP_TABLES_BYTES: Final = 1 << 19
"""What the header and tables of a group's frame may take beside what was counted of its messages."""
METADATA_BYTES_MAX: Final = 64 << 10
"""Left below `maxMessageSize` for Pulsar's own metadata of a message: less than a hundred bytes for a frame."""
METADATA_SHARE: Final = 16
PROBE_BYTES_MIN: Final = 16 << 10
_log: Final = logging.getLogger("wal.pulsar")


def frame_bytes_limit(message_bytes_max: int) -> int:
    """The largest frame for this `maxMessageSize`; FRAME_BYTES_LIMIT at most, so that a log does not depend on a broker's raised one."""
    return min(
        FRAME_BYTES_LIMIT, message_bytes_max - min(METADATA_BYTES_MAX, max(message_bytes_max, 0) // METADATA_SHARE)
    )


def group_bytes(limit: int) -> int:
    """Where a group commit is cut, for frames of at most `limit` bytes."""
    return min(GROUP_BYTES, max(limit - GROUP_TABLES_BYTES, limit // 2))


def probed_limit(connection: Connection, topic: str) -> int | None:
    """The largest of some sizes, FRAME_BYTES_LIMIT and downwards, of which a message goes through; None when that cannot be found out.

    `topic`: a non-persistent one; what is sent there is dropped. Blocks.
    """
    import pulsar

    size = FRAME_BYTES_LIMIT
    try:
        producer = connection.producer(topic, fencing=False)
        try:
            while size >= PROBE_BYTES_MIN:
                try:
                    producer.send(bytes(size))
                    return size
                except pulsar.exceptions.MessageTooBig:  # said by the client: nothing was sent
                    size = size * 3 // 4
        finally:
            producer.close()
    except pulsar.PulsarException as error:
        _log.warning(
            "how large a message the broker takes could not be found out (%s): taking Pulsar's default; should its maxMessageSize be "
            "lower, writing fails at the first frame above it, and nothing is lost",
            error,
        )
    return None
