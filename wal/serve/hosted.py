"""Hosted: the pchannels that this process serves, each in its term. Every service asks it before it does anything for a pchannel.

`tail_of` and `identity_of` encode the end of a hosted pchannel's log, as clients see it, and what identifies the log.
"""

from __future__ import annotations

from collections.abc import Mapping

from wal.errors import ChannelNotExistError, UnmatchedChannelTermError
from wal.node.read_requests import snapshot_of
from wal.rpc.api.pchannel_pb2 import LogIdentity, PChannelInfo, TailState
from wal.rpc.converters import identity_to_proto, tail_to_proto
from wal.write.pchannel import PChannel


class Hosted:
    """The open pchannels by name, as their owner keeps them: they may change at any time."""

    def __init__(self, pchannels: Mapping[str, PChannel]) -> None:
        self._pchannels = pchannels

    def find(self, info: PChannelInfo) -> PChannel:
        """Returns the pchannel in the term that a request names; term 0 is the term that it has here.

        Raises ChannelNotExistError if it is not here, UnmatchedChannelTermError if it is here in another term, and SessionLostError if
        its lease is lost.
        """
        pchannel = self._pchannels.get(info.name)
        if pchannel is None:
            raise ChannelNotExistError(
                f"pchannel {info.name!r} is not on this node, which has {', '.join(self._pchannels) or 'none'}: "
                "AssignmentDiscover returns its node"
            )
        if info.term not in (0, pchannel.log.term):
            raise UnmatchedChannelTermError(
                f"pchannel {info.name!r} is on this node in term {pchannel.log.term}, not {info.term}: ask AssignmentDiscover for its term"
            )
        pchannel.check_lease()
        return pchannel

    def infos(self) -> list[PChannelInfo]:
        """Returns the pchannels that are here, with their terms."""
        return [PChannelInfo(name=name, term=pchannel.log.term) for name, pchannel in self._pchannels.items()]


def identity_of(pchannel: PChannel) -> LogIdentity:
    """Returns the message that identifies the log of a pchannel, with the term in which it is written."""
    return identity_to_proto(pchannel.origin(), term=pchannel.log.term, lineage=pchannel.log.lineage)


def tail_of(pchannel: PChannel) -> TailState:
    """Returns the end of the log at this moment."""
    return tail_to_proto(snapshot_of(pchannel))
