"""The statistics of a system: frozen structs, created on request.

`pending` counts the unhandled messages, including those being handled; `handled` counts the messages handled without an error, and `turns`
the calls that this took. `failure` is the text of the cause if the actor was poisoned.
"""

from __future__ import annotations

import msgspec

from actors.errors import described


class SystemStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """An ActorSystem at one moment, in the order of starting.

    `stalled` names the actors and groups that have pending messages and have made no progress for longer than `stall_s`.
    """

    name: str
    actors: tuple[ActorStatistics, ...]
    groups: tuple[GroupStatistics, ...]
    stalled: tuple[str, ...]


class ActorStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """An actor that owns a task, at one moment."""

    name: str
    pending: int
    handled: int
    turns: int
    failure: str | None


class MemberStatistics(ActorStatistics, frozen=True, kw_only=True):
    """A member at one moment; its `turns` are the batches and control messages that it got."""


class GroupStatistics(ActorStatistics, frozen=True, kw_only=True):
    """A group at one moment; `members` are in the order of joining, and include failed ones until they leave."""

    paused: bool
    members: tuple[MemberStatistics, ...]


def failure_text(cause: BaseException | None) -> str | None:
    """Returns the cause as one line: `ValueError: no such thing`."""
    return None if cause is None else described(cause)
