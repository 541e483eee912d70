"""ChannelCalls: the calls of an open log that create, end and list its vchannels and channels."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from wal.channels import (
    CHANNELS_MAX,
    ChannelDescription,
    OwnerDescription,
    VChannelInfo,
    check_channel_count,
    check_channel_names,
    check_owner,
)

if TYPE_CHECKING:
    from wal.accesser.lifecycle import Lifecycle

__all__ = ["ChannelCalls"]


class ChannelCalls:
    """The part of `WALAccesser` that concerns vchannels and channels."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle

    async def vchannels(self) -> list[VChannelInfo]:
        """Returns all vchannels, by name; with `read_only=True` those that this process knows of, which may lag by a moment."""
        return sorted(await (await self._lifecycle.readable()).list_vchannels(), key=lambda info: info.name)

    async def create_vchannel(self, name: str, *, pchannel: str | None = None) -> VChannelInfo:
        """Creates a vchannel durably; raises ChannelExistError if the name is taken."""
        return await (await self._lifecycle.ready()).create_vchannel(name, pchannel)

    async def drop_vchannel(self, name: str) -> None:
        """Drops a vchannel: its transactions fail, its readers end, and a recreated vchannel shows nothing of it.

        Once the call has returned, no new read in any process shows anything of it, even after a crash. If readers in other processes
        cannot be told, the call raises NoSpaceError or StorageError: the vchannel is gone here; repeat the call when there is room.
        """
        await (await self._lifecycle.ready()).drop_vchannel(name)

    async def create_channels(self, owner: OwnerDescription, count: int = 1) -> list[str]:
        """Creates so many channels (1 … 60) durably, all or none, and returns their names.

        A channel is a vchannel with a generated name, which the log gives only once, and with an owner. Once the call has returned,
        processes that read the log know the channels too. A cancelled caller does not learn the names: `describe_channels` lists them.
        """
        check_owner(owner)
        check_channel_count(count)
        return await (await self._lifecycle.ready()).create_channels(owner, count)

    async def destroy_channels(self, names: Iterable[str]) -> None:
        """Destroys channels (at most 60), all or none: each ends as `drop_vchannel` ends a vchannel.

        Raises ChannelNotExistError if one of the names is not that of a channel: then none is destroyed. If the metadata cannot be written,
        or readers in other processes cannot be told, the call raises the error and may be repeated.
        """
        checked = check_channel_names(names, names_max=CHANNELS_MAX)
        await (await self._lifecycle.ready()).destroy_channels(checked)

    async def describe_channels(self, names: Iterable[str] | None = None) -> list[ChannelDescription]:
        """Returns these channels and their owners, in the order of the names; None means all, in the order of their creation.

        Raises ChannelNotExistError if one of the names is not that of a channel. With `read_only=True` the answer may lag by a moment.
        """
        checked = None if names is None else check_channel_names(names)
        return await (await self._lifecycle.readable()).describe_channels(checked)
