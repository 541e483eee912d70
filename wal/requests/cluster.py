"""Requests of a cluster's operator, which the coordinator that leads answers: the state of the cluster, drained nodes, paused moves."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from wal.requests.request import LogRequest
from wal.requests.rights import Right


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A node of a cluster. `trouble` is the reason why it is not healthy, and `healthy_s` how long it has been healthy."""

    server_id: int
    address: str
    healthy: bool = False
    drains: bool = False
    trouble: str = ""
    pchannels: int = 0
    healthy_s: float = 0.0


class PlacedPChannel(msgspec.Struct, frozen=True, kw_only=True):
    """The assignment of a pchannel. `state` is an AssignmentState (`wal.coordinator.assignments`), and `since_s` its age.

    `server_id` is 0 and `address` empty for a pchannel without a node; `trouble` is the reason why it is not ASSIGNED.
    """

    name: str
    term: int
    state: int
    server_id: int = 0
    address: str = ""
    histories: int = 0
    trouble: str = ""
    since_s: float = 0.0


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster. `leader` is the address of the leading coordinator. `broadcasts` is why broadcasts are unavailable, or empty."""

    leader: str
    token: int = 0
    paused: bool = False
    nodes: tuple[NodeStatus, ...] = ()
    pchannels: tuple[PlacedPChannel, ...] = ()
    broadcasts: str = ""


class GetClusterStatus(LogRequest[ClusterStatus], frozen=True):
    """Asks for the state of the cluster."""

    saying: ClassVar[str] = "asking for the state of the cluster"


class DrainNode(LogRequest[None], frozen=True):
    """Takes the pchannels of a node away, and gives it none, or (`drain` is False) gives it some again."""

    right: ClassVar[Right] = Right.ADMIN
    writes: ClassVar[bool] = True

    server_id: int
    drain: bool = True

    @property
    def doing(self) -> str:
        return f"ordering to {'drain' if self.drain else 'undrain'} a node"


class PauseBalancer(LogRequest[None], frozen=True):
    """Moves no pchannel away from a healthy node, or (`pause` is False) moves them again."""

    right: ClassVar[Right] = Right.ADMIN
    writes: ClassVar[bool] = True

    pause: bool = True

    @property
    def doing(self) -> str:
        return f"ordering to {'pause' if self.pause else 'resume'}"
