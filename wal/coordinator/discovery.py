"""AssignmentDiscover: which pchannels are on which node. Here one node has all of them, as long as it runs."""

from __future__ import annotations

from typing import Any

import grpc.aio

from wal.errors import InvalidArgumentError
from wal.network import Method
from wal.node.hosted import Hosted
from wal.rpc.api import streaming_pb2 as proto
from wal.rpc.api.pchannel_pb2 import PChannelInfo
from wal.rpc.methods import ASSIGNMENT_DISCOVER
from wal.rpc.serving import Draining, Handler


class Discovery:
    """Serves the one assignment: all pchannels that are `hosted` here, at this node."""

    def __init__(self, hosted: Hosted, draining: Draining, *, server_id: int, address: str) -> None:
        self._hosted = hosted
        self._draining = draining
        self._node = proto.StreamingNodeInfo(server_id=server_id, address=address)

    def handlers(self) -> dict[Method[Any, Any], Handler]:
        """Returns the handler of AssignmentDiscover."""
        return {ASSIGNMENT_DISCOVER: self._discover}

    async def _discover(self, context: Any) -> None:
        await context.write(self._assignment())
        with self._draining.ending():
            while (request := await context.read()) is not grpc.aio.EOF:
                match request.WhichOneof("command"):
                    case "report_error":
                        # An error of a pchannel that is here as the client knows it says nothing about the assignment.
                        if not self._is_assigned(request.report_error.pchannel):
                            await context.write(self._assignment())
                    case "close":
                        await context.write(proto.AssignmentDiscoverResponse(close=proto.CloseAssignmentDiscoverResponse()))
                        return
                    case _:
                        raise InvalidArgumentError(
                            "an AssignmentDiscoverRequest has no command that this version knows: set report_error or close"
                        )

    def _assignment(self) -> proto.AssignmentDiscoverResponse:
        channels = self._hosted.infos()
        full = proto.FullStreamingNodeAssignmentWithVersion(
            # Terms rise at each start of the process, so the version of a later one is larger.
            version=proto.VersionPair(**{"global": max((info.term for info in channels), default=0)}, local=1),
            assignments=[proto.StreamingNodeAssignment(node=self._node, channels=channels)],
            answered_by=self._node,
        )
        return proto.AssignmentDiscoverResponse(full_assignment=full)

    def _is_assigned(self, reported: PChannelInfo) -> bool:
        return any(info.name == reported.name and info.term == reported.term for info in self._hosted.infos())
