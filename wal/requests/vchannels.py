"""Requests about what exists: vchannels and channels, and the ticks and ids that a log allocates. The coordinator answers them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import ClassVar, Final

import msgspec

from wal.channels.channels import CHANNELS_MAX, ChannelDescription, check_channel_count, check_channel_names
from wal.channels.owners import OwnerDescription, check_owner
from wal.channels.vchannels import VChannelInfo, check_vchannel
from wal.requests.request import LogChange, LogRequest
from wal.requests.rights import Right

QUICK_NAMES: Final = 2000
"""The most vchannels that are located within the deadline of any call."""
NAME_S: Final = 0.005
"""The deadline for each of more vchannels. Locating one takes 0.05 ms of an idle processor, and creating one takes a record."""


class Existence(enum.IntEnum):
    """The known state of a vchannel's existence."""

    UNKNOWN = 0
    """It does not exist: it is an empty log, on the pchannel where it would be created. `incarnation` is its smallest possible one."""
    EXISTS = 1
    DROPPED = 2
    """This incarnation has ended."""


class VChannelState(msgspec.Struct, frozen=True, gc=False):
    """A vchannel, and the known state of its existence."""

    info: VChannelInfo
    state: Existence

    @property
    def name(self) -> str:
        """The name of the vchannel."""
        return self.info.name

    @property
    def pchannel(self) -> str:
        """The present or future pchannel of the vchannel."""
        return self.info.pchannel

    @property
    def incarnation(self) -> int:
        """The incarnation of the vchannel; see `Existence`."""
        return self.info.incarnation


class VChannelStates(msgspec.Struct, frozen=True):
    """The answer to a watcher: first all vchannels, then the changed ones.

    `floors` has, by pchannel, the smallest incarnation that an unknown vchannel of it can have.
    """

    vchannels: tuple[VChannelState, ...] = ()
    floors: Mapping[str, int] = {}


class LocateVChannels(LogRequest[tuple[VChannelState, ...]], frozen=True):
    """Asks for the pchannels of these vchannels, to read or to write them; the answer has each name once, in this order. `create` creates
    missing vchannels, as an append does, and needs the right to write. With `together` they must be on one pchannel: InvalidArgumentError.
    """

    changes: ClassVar[bool] = True

    names: tuple[str, ...]
    create: bool = False
    together: bool = False

    @property
    def doing(self) -> str:
        return f"locating {len(self.names)} vchannels"

    @property
    def timeout_s(self) -> float | None:
        return len(self.names) * NAME_S if len(self.names) > QUICK_NAMES else None


class CreateVChannel(LogChange[VChannelInfo], frozen=True):
    """Creates a vchannel durably, on this pchannel or (None) on a pchannel of the log's choice.

    ChannelExistError if the name is taken; InvalidArgumentError for a pchannel that does not exist, or past `vchannels_max`; NoSpaceError,
    UnavailableError or StorageError if it could not be saved: then the vchannel does not exist.
    """

    saying: ClassVar[str] = "creating vchannel {0.name!r}"

    name: str
    pchannel: str | None = None

    def __post_init__(self) -> None:
        check_vchannel(self.name)
        if self.pchannel is not None and not isinstance(self.pchannel, str):
            raise TypeError(f"pchannel must be a str or None, not {type(self.pchannel).__name__}")


class DropVChannel(LogChange[None], frozen=True):
    """Drops a vchannel durably, with its transactions, readers and cursors; ChannelNotExistError if there is none.

    NoSpaceError or StorageError if other processes' readers could not be told: the vchannel is gone, and the call may be repeated.
    """

    saying: ClassVar[str] = "dropping vchannel {0.name!r}"
    right: ClassVar[Right] = Right.ADMIN

    name: str

    def __post_init__(self) -> None:
        check_vchannel(self.name)

    @property
    def ends(self) -> tuple[str, ...]:
        return (self.name,)


class ListVChannels(LogRequest[tuple[VChannelInfo, ...]], frozen=True):
    """Asks for all vchannels, in any order."""

    saying: ClassVar[str] = "listing the vchannels"


class CreateChannels(LogChange[tuple[str, ...]], frozen=True):
    """Creates `count` channels durably, all or none, and asks for their names. Errors are those of CreateVChannel.

    After an UnknownOutcomeError all exist, or none.
    """

    saying: ClassVar[str] = "creating {0.count} channels"

    owner: OwnerDescription
    count: int = 1

    def __post_init__(self) -> None:
        check_owner(self.owner)
        check_channel_count(self.count)


class DestroyChannels(LogChange[None], frozen=True):
    """Destroys channels durably, all or none, as DropVChannel drops a vchannel.

    ChannelNotExistError if one of the names is not that of a channel: then none is destroyed. After NoSpaceError, UnavailableError,
    UnknownOutcomeError or StorageError the call may be repeated.
    """

    right: ClassVar[Right] = Right.ADMIN

    names: tuple[str, ...]

    def __post_init__(self) -> None:
        check_channel_names(self.names, names_max=CHANNELS_MAX)

    @property
    def doing(self) -> str:
        return f"destroying {len(self.names)} channels"

    @property
    def ends(self) -> tuple[str, ...]:
        return self.names


class DescribeChannels(LogRequest[tuple[ChannelDescription, ...]], frozen=True):
    """Asks for these channels, in this order, or (None) all, in the order of their creation.

    ChannelNotExistError if one of the names is not that of a channel.
    """

    saying: ClassVar[str] = "describing channels"

    names: tuple[str, ...] | None = None


class AllocatedRange(msgspec.Struct, frozen=True):
    """Ticks or ids that belong to the caller alone: `count` of them, from `first` on."""

    first: int
    count: int


class AllocateTimeTicks(LogRequest[AllocatedRange], frozen=True):
    """Asks for ticks above every tick allocated before, and above the client's last seen tick.

    StorageError if the limit of ticks cannot be saved; InvalidArgumentError for a seen tick too far ahead of the clock.
    """

    saying: ClassVar[str] = "allocating time ticks"
    right: ClassVar[Right] = Right.WRITE

    count: int = 1
    seen_time_tick: int = 0

    def newest_tick(self, answer: AllocatedRange) -> int:
        return answer.first + answer.count - 1


class AllocateIds(LogRequest[AllocatedRange], frozen=True):
    """Asks for ids that the log gives once."""

    saying: ClassVar[str] = "allocating ids"
    right: ClassVar[Right] = Right.WRITE

    count: int = 1
