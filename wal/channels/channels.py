"""The channel service: channels, which are vchannels with a generated name and an owner, created and destroyed several at once.

It has the checks of the calls, and their meaning for the records of a `VChannelDirectory`; it never waits and saves nothing, so any writer
of a directory can use it. A channel's owner is a part of its vchannel's record. So the two are created, dropped and lost together, and a
crash leaves nothing to clean up. All records of one call are saved in one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

import msgspec

from wal.channels.owners import OWNERS_MAX, OwnerDescription
from wal.channels.vchannels import VChannelInfo, check_vchannel
from wal.errors import ChannelNotExistError, InvalidArgumentError

CHANNELS_MAX: Final = OWNERS_MAX
"""The most channels that one call creates or destroys. Their records and the counter of incarnations are one operation, of which every KV
takes 128 parts and 1 MiB (`wal.storage.kv.OPERATIONS_MAX`, `OPERATION_BYTES_MAX`)."""


class ChannelDescription(msgspec.Struct, frozen=True, gc=False):
    """A channel: its name, which is also the name of its vchannel, and its owner."""

    channel_name: str
    owner: OwnerDescription


class Admitting(Protocol):
    """The part of a `VChannelDirectory` that the admission of channels uses."""

    next_incarnation: int

    @property
    def records(self) -> Mapping[str, VChannelInfo]: ...

    @property
    def saved(self) -> Mapping[str, VChannelInfo]: ...

    def admit(self, name: str, pchannel: str, owner: OwnerDescription | None = None) -> VChannelInfo: ...


def check_channel_count(count: object) -> int:
    """Returns the number of channels to create. Raises TypeError unless it is an int, InvalidArgumentError unless it is 1 … 60."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"count must be an int, not {count!r:.80}")
    if not 1 <= count <= CHANNELS_MAX:
        raise InvalidArgumentError(
            f"count={count} is not between 1 and {CHANNELS_MAX}, the most channels that are created at once: make several calls for more"
        )
    return count


def check_channel_names(channels: object, *, names_max: int | None = None) -> tuple[str, ...]:
    """Returns the names of channels that a caller passed.

    Raises TypeError unless they are an iterable of str (a single str is refused), InvalidArgumentError for a bad name, a duplicate, or more
    than `names_max`.
    """
    if isinstance(channels, str | bytes | bytearray | memoryview) or not isinstance(channels, Iterable):
        raise TypeError(f"names must be a list of names of channels, such as ['channel-1'], not {channels!r:.80}")
    names = tuple(check_vchannel(name) for name in channels)
    if names_max is not None and len(names) > names_max:
        raise InvalidArgumentError(f"names has {len(names)} channels, and one call takes at most {names_max}: make several calls")
    unique: set[str] = set()
    for name in names:
        if name in unique:
            raise InvalidArgumentError(f"names has {name!r} more than once: name each channel once")
        unique.add(name)
    return names


def admit_channels(directory: Admitting, owner: OwnerDescription, count: int, pchannel_for: Callable[[str], str]) -> list[VChannelInfo]:
    """Returns new channels, each on the pchannel that `pchannel_for` chooses. Their records must still be saved, by one `RecordChange`.

    A name contains the vchannel's incarnation, which a log never assigns twice, so no name of a destroyed channel comes back. A name that a
    caller has given to a vchannel is skipped.
    """
    infos: list[VChannelInfo] = []
    while len(infos) < count:
        name = f"channel-{directory.next_incarnation}"
        if name in directory.records or name in directory.saved:
            directory.next_incarnation += 1
        else:
            infos.append(directory.admit(name, pchannel_for(name), owner))
    return infos


def channels_named(records: Mapping[str, VChannelInfo], names: Iterable[str]) -> list[VChannelInfo]:
    """Returns the channels of these names, in their order. Raises ChannelNotExistError if a name is not that of a channel."""
    infos: list[VChannelInfo] = []
    for name in names:
        info = records.get(name)
        if info is None:
            raise ChannelNotExistError(f"channel {name!r} does not exist: describe_channels() lists the channels")
        if info.owner is None:
            raise ChannelNotExistError(
                f"{name!r} is a vchannel without an owner, which create_channels did not make: use drop_vchannel({name!r}) to end it"
            )
        infos.append(info)
    return infos


def describe_channels(records: Mapping[str, VChannelInfo], names: tuple[str, ...] | None = None) -> list[ChannelDescription]:
    """Returns the channels of these names, in their order, or (None) all, in the order of their creation.

    Raises ChannelNotExistError if a name is not that of a channel.
    """
    if names is None:
        owned = sorted((info for info in records.values() if info.owner), key=lambda info: info.incarnation)
    else:
        owned = channels_named(records, names)
    return [ChannelDescription(info.name, info.owner) for info in owned if info.owner is not None]
