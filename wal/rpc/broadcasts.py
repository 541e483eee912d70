"""Broadcasts, their results and their tasks, as messages, and back. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from broadcaster.message import BroadcastAppendResult, BroadcastMessage, BroadcastState, BroadcastTask
from wal.errors import InvalidArgumentError
from wal.message import AppendResult, MessageType, ResourceKey
from wal.message.wire_pb2 import ResourceKey as ResourceKeyProto
from wal.rpc.api import cluster_pb2 as proto
from wal.rpc.converters import ranges_of, results_of


def broadcast_to_proto(message: BroadcastMessage, *, wait: bool, seen_time_tick: int = 0) -> proto.AppendBroadcastRequest:
    """Returns the request for a broadcast."""
    return proto.AppendBroadcastRequest(
        vchannels=message.vchannels,
        payload=message.payload,
        message_type=int(message.message_type),
        properties=message.properties,
        resource_keys=map(key_to_proto, message.resource_keys),
        needs_ack=message.needs_ack,
        wait=wait,
        seen_time_tick=seen_time_tick,
    )


def broadcast_from_proto(request: proto.AppendBroadcastRequest) -> BroadcastMessage:
    """Returns the broadcast of a request. Raises InvalidArgumentError for one that cannot be made."""
    try:
        kind = MessageType(request.message_type)
    except ValueError:
        raise InvalidArgumentError(
            f"message type {request.message_type} is not one that this version knows: {sorted(map(int, MessageType))}"
        ) from None
    return BroadcastMessage(
        vchannels=tuple(request.vchannels),
        payload=request.payload,
        message_type=kind,
        properties=dict(request.properties),
        resource_keys=tuple(map(key_from_proto, request.resource_keys)),
        needs_ack=request.needs_ack,
    )


def result_to_proto(result: BroadcastAppendResult) -> proto.AppendBroadcastResponse:
    """Returns the message of a broadcast's result; its copies are numbered in the order of the vchannels."""
    return proto.AppendBroadcastResponse(broadcast_id=result.broadcast_id, results=ranges_of(enumerate(result.append_results.values())))


def result_from_proto(vchannels: Sequence[str], response: proto.AppendBroadcastResponse) -> BroadcastAppendResult:
    """Returns the result of the broadcast to these vchannels. Raises InvalidArgumentError unless each of them has one."""
    results: dict[int, AppendResult] = {
        number: result for appended in response.results for number, result in results_of(appended) if result.message_id is not None
    }
    if sorted(results) != list(range(len(vchannels))):
        raise InvalidArgumentError(
            f"broadcast {response.broadcast_id} has {len(results)} results for {len(vchannels)} vchannels: a server sends one for each"
        )
    return BroadcastAppendResult(response.broadcast_id, {name: results[number] for number, name in enumerate(vchannels)})


def task_to_proto(task: BroadcastTask) -> proto.BroadcastTaskState:
    """Returns the message of a running broadcast."""
    return proto.BroadcastTaskState(
        broadcast_id=task.broadcast_id,
        state=int(task.state),
        resource_keys=map(key_to_proto, task.resource_keys),
        missing_appends=task.missing_appends,
        missing_acks=task.missing_acks,
        age_s=task.age_s,
        last_error=task.last_error,
    )


def task_from_proto(task: proto.BroadcastTaskState) -> BroadcastTask:
    """Returns a running broadcast. Raises InvalidArgumentError for a state that this version does not know."""
    try:
        state = BroadcastState(task.state)
    except ValueError:
        raise InvalidArgumentError(
            f"broadcast state {task.state} is not one that this version knows: {sorted(map(int, BroadcastState))}"
        ) from None
    return BroadcastTask(
        task.broadcast_id,
        state,
        tuple(map(key_from_proto, task.resource_keys)),
        tuple(task.missing_appends),
        tuple(task.missing_acks),
        task.age_s,
        task.last_error if task.HasField("last_error") else None,
    )


def key_to_proto(key: ResourceKey) -> ResourceKeyProto:
    """Returns the message of a resource key."""
    return ResourceKeyProto(domain=key.domain, key=key.key, shared=key.shared)


def key_from_proto(key: ResourceKeyProto) -> ResourceKey:
    """Returns a resource key. Raises InvalidArgumentError for an empty one."""
    return ResourceKey(key.domain, key.key, shared=key.shared)
