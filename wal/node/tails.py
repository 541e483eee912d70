"""The end of a hosted pchannel's log, as clients see it, and what identifies the log."""

from __future__ import annotations

from wal.backends import LogSnapshot
from wal.pchannel import PChannel
from wal.rpc.api.pchannel_pb2 import LogIdentity, TailState
from wal.rpc.positions import identity_to_proto
from wal.rpc.reports import tail_to_proto

__all__ = ["identity_of", "tail_of"]


def identity_of(pchannel: PChannel) -> LogIdentity:
    """Returns the message that identifies the log of a pchannel, with the term in which it is written."""
    return identity_to_proto(pchannel.origin(), term=pchannel.log.term, lineage=pchannel.log.lineage)


def tail_of(pchannel: PChannel) -> TailState:
    """Returns the end of the log at this moment."""
    log, tail = pchannel.log, pchannel.tail
    snapshot = LogSnapshot(log.term, tail.durable_end, log.earliest, tail.promised_tick, False, tail.newest)
    return tail_to_proto(snapshot, last_truncated=log.last_truncated)
