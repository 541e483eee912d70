"""SubmitService: the one method of our own requests: parsed, judged by their attributes, and executed by the node or the coordinator.

A request is executed if the token of the call has its right, unless it is a late change (`wal.serve.fence`). This file names no request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from wal.channels.slices import SLICE
from wal.errors import InvalidArgumentError
from wal.network import Method
from wal.node.node import StreamingNode
from wal.node.submit import NodeRequests
from wal.requests.request import Request, Where
from wal.requests.rights import calling_from, check_right
from wal.rpc.api.nodes_pb2 import ManagerCall
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.api.requests_pb2 import SubmitRequest
from wal.rpc.conversation import COUNTED_BYTES
from wal.rpc.converter import answer_to_proto, request_from_proto
from wal.rpc.headers import client_in
from wal.rpc.methods import SUBMIT
from wal.rpc.serving import Handler
from wal.runtime.threads import in_thread
from wal.serve.fence import CallFence
from wal.serve.hosted import Hosted

NodeCall = Callable[[Request[Any], PChannelInfo], Awaitable[Any]]
"""Answers a request for a pchannel in a term; an empty name is none that there is."""
LogCall = Callable[[Request[Any]], Awaitable[Any]]
"""Answers a request to the coordinator."""


LeaderCall = Callable[[Request[Any], PChannelInfo, ManagerCall], Awaitable[Any]]
"""Answers a request of a cluster's leader to this node."""


async def _of_no_cluster(request: Request[Any], _pchannel: PChannelInfo, _call: ManagerCall) -> Any:
    raise InvalidArgumentError(
        f"{type(request).__name__} is for a node of a cluster, and this server has none: send it to the node that the leader means"
    )


class SubmitService:
    """Serves Submit. Requests for pchannels go to `node`, those for the log as a whole to `coordinator`, those of a leader to `led`."""

    def __init__(self, *, node: NodeCall, coordinator: LogCall, led: LeaderCall = _of_no_cluster) -> None:
        self._fence = CallFence()
        self._node = node
        self._coordinator = coordinator
        self._led = led

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handler of the method."""
        return {SUBMIT: self._submit}

    async def _submit(self, envelope: SubmitRequest, context: Any) -> bytes:
        if envelope.ByteSize() > COUNTED_BYTES:  # many names, whose checks would keep the loop
            request = await in_thread(request_from_proto, envelope)
        else:
            request = request_from_proto(envelope)
        check_right(request.right, type(request).__name__)
        metadata = context.invocation_metadata() or ()
        with calling_from(client_in(metadata)):
            answer = await self._fence.execute(metadata, request, lambda: self._answer(request, envelope))
        return await _encoded(type(request), request.packed(answer))

    async def _answer(self, request: Request[Any], envelope: SubmitRequest) -> Any:
        if request.where is Where.COORDINATOR:
            return await self._coordinator(request)
        if request.where is Where.NODE:
            return await self._led(request, envelope.pchannel, envelope.call)
        return await self._node(request, envelope.pchannel)


def hosted_calls(node: StreamingNode, hosted: Hosted) -> NodeCall:
    """Returns what answers requests for the pchannels that are `hosted` here."""
    requests = NodeRequests(node)

    async def answer(request: Request[Any], info: PChannelInfo) -> Any:
        return await requests.submit(request, hosted.find(info))

    return answer


async def _encoded(kind: type[Request[Any]], answer: Any) -> bytes:
    """Returns an encoded answer; a long list is encoded in slices, whose messages follow each other: that is the message of all."""
    if not isinstance(answer, tuple) or len(answer) <= SLICE:
        return answer_to_proto(kind, answer).SerializeToString()
    parts: list[bytes] = []
    for first in range(0, len(answer), SLICE):
        parts.append(answer_to_proto(kind, answer[first : first + SLICE]).SerializeToString())
        await asyncio.sleep(0)
    return b"".join(parts)
