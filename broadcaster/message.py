"""What a broadcast is made of, and what is said of one that is under way.

Owns: the checks of a broadcast before anything is done with it. A `BroadcastMessage` never changes; the same object may be appended
again and is a new broadcast then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from broadcaster.lock_table import distinct_keys
from broadcaster.names import names_of
from broadcaster.state import BroadcastState
from wal.errors import InvalidArgumentError
from wal.message import Message, MessageType, ResourceKey, properties_size, type_properties

__all__ = ["BroadcastMessage", "BroadcastTask"]

BYTES_A_VCHANNEL: Final = 64
"""What a vchannel of a broadcast counts in `estimate_size` beside its name."""


class BroadcastMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message for many vchannels (each counts once), with the keys that it holds until every one has acknowledged it.

    With `needs_ack=False` nobody has to acknowledge it: its keys are free once all copies are in. A wrong type is a TypeError; no
    vchannel, a reserved property key, or a message type that only the WAL writes is an InvalidArgumentError.
    """

    vchannels: Sequence[str]
    payload: bytes
    message_type: MessageType = MessageType.INSERT
    properties: dict[str, str] = {}
    resource_keys: Sequence[ResourceKey] = ()
    needs_ack: bool = True

    def __post_init__(self) -> None:
        vchannels, keys = self.vchannels, self.resource_keys
        if not _is_sequence(vchannels):
            raise TypeError(f"vchannels must be a sequence of str, not {type(vchannels).__name__}")
        if not vchannels:
            raise InvalidArgumentError("vchannels is empty: a broadcast goes to at least one vchannel")
        names = names_of(tuple(vchannels))
        if isinstance(keys, ResourceKey) or not _is_sequence(keys):
            raise TypeError(f"resource_keys must be a sequence of ResourceKey, not {type(keys).__name__}")
        for key in keys:
            if not isinstance(key, ResourceKey):
                raise TypeError(f"resource_keys must hold ResourceKey(domain, key), not {key!r}")
        if not isinstance(self.needs_ack, bool):
            raise TypeError(f"needs_ack must be a bool, not {self.needs_ack!r}")
        # The rest is checked as for any other message.
        message = Message(vchannels[0], self.payload, message_type=self.message_type, properties=self.properties)
        if not type_properties(self.message_type).appendable:
            raise InvalidArgumentError(
                f"message_type {self.message_type.name} cannot be broadcast, since only the WAL itself writes one: choose a type of your "
                "own messages"
            )
        force = msgspec.structs.force_setattr
        force(self, "vchannels", names.vchannels)
        force(self, "properties", message.properties)
        force(self, "resource_keys", distinct_keys(keys) if len(keys) > 1 else tuple(keys))

    def estimate_size(self) -> int:
        """Bytes of payload and properties, once, and of what its vchannels take beside them."""
        letters = names_of(tuple(self.vchannels)).letters
        return self.content_bytes() + letters + BYTES_A_VCHANNEL * len(self.vchannels)

    def content_bytes(self) -> int:
        """Bytes of payload and properties, once: what `Message.estimate_size` says of a single copy."""
        return len(self.payload) + (properties_size(self.properties) if self.properties else 0)


def _is_sequence(given: object) -> bool:
    """Of anything but letters; asked of the class first, since asking an abstract one costs more than all other checks."""
    return given.__class__ in (list, tuple) or (isinstance(given, Sequence) and not isinstance(given, str | bytes))


class BroadcastTask(msgspec.Struct, frozen=True):
    """A broadcast under way. `last_error` is what keeps a copy, or what is known of it, from being saved; None when nothing does."""

    broadcast_id: int
    state: BroadcastState
    resource_keys: tuple[ResourceKey, ...]
    missing_appends: tuple[str, ...]
    missing_acks: tuple[str, ...]
    age_s: float
    last_error: str | None = None
