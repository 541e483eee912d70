"""Msg: what a node takes and gives, and the message that says that a tick has none."""

from __future__ import annotations

from typing import Protocol

import msgspec

__all__ = ["Msg", "SkipTickMsg"]


class Msg(Protocol):
    """One message on one edge. An edge carries at most one message a tick, so a message holds everything of its tick."""

    @property
    def time_tick(self) -> int:
        """The tick, which ascends on every edge."""

    @property
    def skip_this_tick(self) -> bool:
        """Whether there is nothing at this tick. Such a message only lets a join continue; `operate` is not called if all inputs skip."""

    @property
    def down_stream_node_idx(self) -> int:
        """The index of the out-edge that the message goes to, in the order of `set_edges(out=…)`; -1 for all of them.

        It is an edge of the node that gives the message: a node that passes on what it was sent by a router has to address it anew.
        """


class SkipTickMsg(msgspec.Struct, frozen=True):
    """Says that there is nothing at this tick. The graph sends it on every out-edge that a node left empty."""

    time_tick: int

    @property
    def skip_this_tick(self) -> bool:
        """Always True."""
        return True

    @property
    def down_stream_node_idx(self) -> int:
        """Always -1."""
        return -1
