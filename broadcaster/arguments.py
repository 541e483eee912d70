"""The checks of the arguments of a broadcaster's calls. They are the same in the process of the broadcaster and in a client."""

from __future__ import annotations

from typing import Final

from broadcaster.message import BroadcastMessage
from wal.errors import InvalidArgumentError
from wal.message import ImmutableMessage, ResourceKey

__all__ = ["REASON_BYTES_MAX", "check_append", "check_id", "check_key", "check_reason", "copy_named"]

REASON_BYTES_MAX: Final = 4_096
"""The most UTF-8 bytes in the reason of an abort, which is the payload of a message to each vchannel."""


def check_append(message: object, wait: object) -> None:
    """Raises TypeError for arguments that `append` does not accept."""
    if not isinstance(message, BroadcastMessage):
        raise TypeError(f"append takes a BroadcastMessage, not {type(message).__name__}")
    if not isinstance(wait, bool):
        raise TypeError(f"wait must be a bool, not {wait!r}")


def copy_named(broadcast: int | ImmutableMessage, vchannel: str | None) -> tuple[int, str]:
    """Returns the broadcast and the vchannel of the copy to acknowledge, for `ack(broadcast_id, vchannel)` or `ack(message)`."""
    if isinstance(broadcast, ImmutableMessage):
        if vchannel is not None:
            raise InvalidArgumentError(f"ack(message) knows its vchannel: leave out {vchannel!r}")
        if broadcast.broadcast is None:
            raise InvalidArgumentError(
                f"message {broadcast.message_id} is not a copy of a broadcast: acknowledge only copies"
            )
        return broadcast.broadcast.broadcast_id, broadcast.vchannel
    check_id(broadcast)
    if not isinstance(vchannel, str):
        raise TypeError(f"ack(broadcast_id, vchannel) takes a str for the vchannel, not {vchannel!r}")
    return broadcast, vchannel


def check_id(broadcast_id: object) -> None:
    """Raises TypeError for a value that is not the id of a broadcast."""
    if not isinstance(broadcast_id, int) or isinstance(broadcast_id, bool):
        raise TypeError(f"a broadcast id is an int, not {broadcast_id!r}")


def check_key(key: object) -> None:
    """Raises TypeError for a value that is not a resource key."""
    if not isinstance(key, ResourceKey):
        raise TypeError(f"a resource key is a ResourceKey(domain, key), not {key!r}")


def check_reason(reason: object) -> None:
    """Raises TypeError or InvalidArgumentError for a value that cannot be the reason of an abort."""
    if not isinstance(reason, str):
        raise TypeError(f"reason must be a str, not {type(reason).__name__}")
    try:
        length = len(reason.encode())
    except UnicodeEncodeError as error:
        raise InvalidArgumentError(
            f"reason cannot be encoded as UTF-8: {error.reason}; remove the surrogate"
        ) from error
    if length > REASON_BYTES_MAX:
        raise InvalidArgumentError(f"reason is {length} bytes long: at most {REASON_BYTES_MAX}")
