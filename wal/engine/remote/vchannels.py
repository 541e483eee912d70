"""KnownVChannels: the vchannels of a log as its server has shown them. Pure.

It is a copy that may lag behind. Where it matters, as at the beginning of a read, the server is asked, and its answer is added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from wal.channels import VChannelInfo
from wal.errors import ChannelNotExistError
from wal.message import MessageType
from wal.reading import Selection
from wal.rpc.api import cluster_pb2, pchannel_pb2
from wal.rpc.positions import vchannel_from_proto

__all__ = ["KnownVChannels"]

_State = pchannel_pb2.VChannelState


class KnownVChannels:
    """The vchannels by name, and for each pchannel the smallest incarnation that an unknown vchannel of it can have."""

    def __init__(self) -> None:
        self.records: dict[str, VChannelInfo] = {}
        self.floors: dict[str, int] = {}
        self.version: int = 0
        """Grows with every change, so that a copy can be compared with what is known now."""
        self._spanned: dict[str, tuple[int, MessageType]] = {}

    def replace(self, states: cluster_pb2.VChannelStates) -> None:
        """Takes all vchannels from the server, in place of those known."""
        self.records.clear()
        self.update(states)

    def update(self, states: cluster_pb2.VChannelStates) -> None:
        """Takes the vchannels that changed."""
        self.take(states.vchannels)
        self.version += 1
        for pchannel, floor in states.floors.items():
            self.floors[pchannel] = max(floor, self.floors.get(pchannel, 0))

    def take(self, states: Iterable[_State]) -> None:
        """Takes single vchannels; an older incarnation than the known one is ignored.

        The floors stay: one vchannel says nothing about those that were created before it.
        """
        for state in states:
            known = self.records.get(state.name)
            if known is not None and state.incarnation < known.incarnation:
                continue
            self.version += 1
            if state.state == _State.EXISTS:
                self.records[state.name] = vchannel_from_proto(state)
            elif known is not None:
                del self.records[state.name]
                self._spanned.pop(state.name, None)

    def appended(self, name: str, message_type: MessageType, time_tick: int) -> None:
        """Takes a message of this client that no transaction may span."""
        if name in self.records and time_tick > self._spanned.get(name, (0,))[0]:
            self._spanned[name] = time_tick, message_type

    def spanned(self, names: Iterable[str], txn_id: int) -> tuple[str, MessageType] | None:
        """Returns one of these vchannels to which this client appended a message of this type after the transaction began, or None."""
        for name in names:
            tick, message_type = self._spanned.get(name, (0, MessageType.UNKNOWN))
            if tick > txn_id:  # the id of a transaction is a tick, from its begin
                return name, message_type
        return None

    def selection(self, states: Iterable[_State]) -> Selection:
        """Returns the selection of a read of these vchannels, from what the server has just answered about them."""
        bound: dict[str, int | None] = {}
        floor = 0
        for state in states:
            exists = state.state == _State.EXISTS
            bound[state.name] = state.incarnation if exists else None
            if not exists:
                floor = max(floor, state.incarnation)
        return Selection(bound, floor=floor)

    def changes(
        self, pchannel: str, bound: Mapping[str, int | None]
    ) -> Iterator[tuple[str, VChannelInfo | ChannelNotExistError]]:
        """Yields what the known vchannels mean to a read of these vchannels on this pchannel, by vchannel; `bound` has their incarnations.

        A dropped vchannel ends the read with the error. If none was met and the vchannel exists on another pchannel, it is read there.
        """
        for name, incarnation in bound.items():
            info = self.records.get(name)
            if incarnation is None:
                if info is not None and info.pchannel != pchannel:
                    yield name, info
            elif (info is None or info.incarnation != incarnation) and incarnation < self.floors.get(pchannel, 0):
                yield name, ChannelNotExistError(f"vchannel {name!r} was dropped: nothing comes from it any more")
