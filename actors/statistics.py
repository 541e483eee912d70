"""What a system says about itself: frozen structs, made when asked for.

`pending` counts what was told and not yet handled (what an actor has in hand included), `handled` what was handled without an
error, `turns` the calls that took, and `failure` is the text of the cause of a poisoned one.
"""

from __future__ import annotations

import msgspec

__all__ = ["ActorStatistics", "GroupStatistics", "MemberStatistics", "SystemStatistics", "failure_text"]


class SystemStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of an ActorSystem, in the order of starting.

    `stalled` names the actors and groups that have pending messages and have made no progress for longer than `stall_s`.
    """

    name: str
    actors: tuple[ActorStatistics, ...]
    groups: tuple[GroupStatistics, ...]
    stalled: tuple[str, ...]


class ActorStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of an actor that owns a task."""

    name: str
    pending: int
    handled: int
    turns: int
    failure: str | None


class GroupStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of a group; `members` in the order of joining, the failed ones too until they leave."""

    name: str
    pending: int
    handled: int
    turns: int
    failure: str | None
    paused: bool
    members: tuple[MemberStatistics, ...]


class MemberStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """One moment of a member; its `turns` are the batches and control messages it was handed."""

    name: str
    pending: int
    handled: int
    turns: int
    failure: str | None


def failure_text(cause: BaseException | None) -> str | None:
    """The cause as one line: `ValueError: no such thing`."""
    return None if cause is None else f"{type(cause).__name__}: {cause}"
