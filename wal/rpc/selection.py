"""Deliver policies and filters of the messages that ask for a read. Pure.

Milvus puts the vchannel among the filters; here it is the argument of a read. Without one a consumer gets the whole pchannel.
"""

from __future__ import annotations

from collections.abc import Iterable

from wal.errors import InvalidArgumentError
from wal.message import MessageType
from wal.read.options import All, DeliverFilter, DeliverPolicy, Latest, MessageTypes, StartAfter, StartFrom, TimeTickGT, TimeTickGTE
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.converters import id_from_bytes


def policy_from_proto(policy: proto.DeliverPolicy) -> DeliverPolicy:
    """Returns the policy of a message. Raises InvalidArgumentError for one that is not set, or whose id is none."""
    match policy.WhichOneof("policy"):
        case "all":
            return All()
        case "latest":
            return Latest()
        case "start_from":
            return StartFrom(id_from_bytes("deliver_policy.start_from", policy.start_from.id))
        case "start_after":
            return StartAfter(id_from_bytes("deliver_policy.start_after", policy.start_after.id))
        case _:
            raise InvalidArgumentError("deliver_policy is not set: set all, latest, start_from or start_after")


def filters_from_proto(filters: Iterable[proto.DeliverFilter]) -> tuple[tuple[str, ...], list[DeliverFilter]]:
    """Returns the vchannels that filters name, each once, and the other filters.

    Raises InvalidArgumentError for a filter that is not set, an empty name, or a type that cannot be filtered for.
    """
    vchannels: dict[str, None] = {}
    others: list[DeliverFilter] = []
    for one in filters:
        match one.WhichOneof("filter"):
            case "time_tick_gt":
                others.append(TimeTickGT(one.time_tick_gt.time_tick))
            case "time_tick_gte":
                others.append(TimeTickGTE(one.time_tick_gte.time_tick))
            case "vchannel":
                if not one.vchannel.vchannel:
                    raise InvalidArgumentError("a filter by vchannel names none: name it, or leave the filter out for the whole pchannel")
                vchannels[one.vchannel.vchannel] = None
            case "message_types":
                others.append(MessageTypes(*map(_type, one.message_types.types)))
            case _:
                raise InvalidArgumentError(
                    "a deliver filter is not set, or not known to this version: set time_tick_gt, time_tick_gte, vchannel or message_types"
                )
    return tuple(vchannels), others


def _type(number: int) -> MessageType:
    try:
        return MessageType(number)
    except ValueError:
        raise InvalidArgumentError(f"message type {number} is not one that this version knows: {sorted(map(int, MessageType))}") from None
