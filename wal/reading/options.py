"""ReadOptions: what a read asks for, checked once, whoever reads: a scanner on a loop, or the bridge without one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from wal.errors import InvalidArgumentError
from wal.reading.filters import DeliverFilter, EventFilter
from wal.reading.policies import All, DeliverPolicy, Latest, StartAfter, StartFrom
from wal.reading.position import ReadPosition
from wal.ticks import check_tick

__all__ = ["READ_TAKES", "ReadOptions"]

READ_TAKES: Final = "a read takes the name of a vchannel, or several names on one pchannel, as in read('orders')"
"""What the error says to a caller that named none."""


class ReadOptions(msgspec.Struct, frozen=True):
    """What a read asks for; see `WALAccesser.read`."""

    vchannels: tuple[str, ...]
    policy: DeliverPolicy
    event_filter: EventFilter
    follow: bool = True
    until_time_tick: int | None = None
    resume: ReadPosition | None = None
    include_time_ticks: bool = False

    @classmethod
    def of(
        cls,
        vchannels: tuple[str, ...],
        *,
        deliver_policy: DeliverPolicy | None = None,
        filters: DeliverFilter | Iterable[DeliverFilter] = (),
        follow: bool = True,
        until_time_tick: int | None = None,
        resume: ReadPosition | None = None,
        include_time_ticks: bool = False,
    ) -> ReadOptions:
        """The options as a caller gave them: a wrong type is a TypeError, a wrong value an InvalidArgumentError.

        The names of the vchannels have been checked already.
        """
        if not vchannels:
            raise InvalidArgumentError("read([]) names no vchannel: name at least one")
        if deliver_policy is not None and not isinstance(deliver_policy, All | Latest | StartFrom | StartAfter):
            raise TypeError(
                f"deliver_policy must be All(), Latest(), StartFrom(id) or StartAfter(id), not {deliver_policy!r}"
            )
        if resume is not None and not isinstance(resume, ReadPosition):
            raise TypeError(f"resume must be a ReadPosition, not {type(resume).__name__}: use ReadPosition.parse(text)")
        if resume is not None and deliver_policy is not None:
            raise InvalidArgumentError("resume=… and deliver_policy=… both say where to begin: give one of them")
        for flag, value in (("follow", follow), ("include_time_ticks", include_time_ticks)):
            if not isinstance(value, bool):
                raise TypeError(f"{flag} must be a bool, not {value!r}")
        if until_time_tick is not None:
            check_tick("until_time_tick", until_time_tick)
        return cls(
            vchannels,
            deliver_policy or All(),
            EventFilter.of(filters),
            follow,
            until_time_tick,
            resume,
            include_time_ticks,
        )
