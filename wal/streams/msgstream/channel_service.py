"""ChannelService: channels for streams, with generated names and an owner, created and destroyed several at once.

It owns the names and their owners, in a KV; a medium creates its own channel at the first use. Each call is one operation of the KV: it
happens as a whole or not at all, and other processes see it when it has returned. A name is never used again, even after its channel was
destroyed. A log has channels of its own, which are vchannels: `log.create_channels`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from wal.channels.channels import CHANNELS_MAX, ChannelDescription, check_channel_count, check_channel_names
from wal.channels.owners import OwnerDescription, check_owner
from wal.errors import ChannelNotExistError, KeyNotExistError, corruption
from wal.storage.kv import OPERATIONS_MAX, KVBase
from wal.timestamp import IdAllocator

_KEYS: Final = "channels/"
_decoder: Final = msgspec.json.Decoder(OwnerDescription)
_encoder: Final = msgspec.json.Encoder()


class ChannelService:
    """Creates, destroys and describes channels.

    `kv` stores them under `channels/`, and `ids` numbers them. Both belong to the caller, who closes them. Two services on one KV must draw
    their numbers from one key of it. The errors of the KV pass through.
    """

    def __init__(self, kv: KVBase, ids: IdAllocator) -> None:
        self._kv = kv
        self._ids = ids

    async def create_channels(self, owner: OwnerDescription, count: int = 1) -> list[str]:
        """Returns the names of `count` (1 … 60) new channels, which are durable on return."""
        owner, count = check_owner(owner), check_channel_count(count)
        names = [f"channel-{number}" for number in await self._ids.alloc(count)]
        await self._kv.multi_save(dict.fromkeys(map(_key, names), _encoder.encode(owner).decode()))
        return names

    async def destroy_channels(self, names: Iterable[str]) -> None:
        """Removes these channels (at most 60). If one does not exist, it raises ChannelNotExistError and removes none of them.

        A call that is repeated after an unknown outcome therefore raises it if the first one succeeded.
        """
        keys = list(map(_key, check_channel_names(names, names_max=CHANNELS_MAX)))
        await self._load(keys)
        await self._kv.multi_remove(keys)

    async def describe_channels(self, names: Iterable[str] | None = None) -> list[ChannelDescription]:
        """Returns these channels (at most 128), in their order, or (None) all of them, by number. Raises ChannelNotExistError if one does
        not exist.
        """
        if names is None:
            keys, values = await self._kv.load_with_prefix(_KEYS)
            entries = sorted(zip(keys, values, strict=True), key=lambda one: (len(one[0]), one[0]))
        else:
            keys = list(map(_key, check_channel_names(names, names_max=OPERATIONS_MAX)))
            entries = list(zip(keys, await self._load(keys), strict=True))
        return [ChannelDescription(key.removeprefix(_KEYS), _owner(key, value)) for key, value in entries]

    async def _load(self, keys: list[str]) -> list[str]:
        try:
            return await self._kv.multi_load(keys)
        except KeyNotExistError as error:
            raise ChannelNotExistError(
                f"channel {error.key.removeprefix(_KEYS)!r} does not exist: describe_channels() lists the channels"
            ) from None


def _key(name: str) -> str:
    return _KEYS + name


def _owner(key: str, value: str) -> OwnerDescription:
    with corruption(f"the KV has {value!r:.80} on {key!r}, which is no owner of a channel"):
        return _decoder.decode(value)
