"""The services of the protocol: each method by its path and the types of its messages.

The services of Milvus' protocol keep its names, those of ours are named after our package.
"""

from __future__ import annotations

from typing import Any, Final

from wal.network import Method
from wal.rpc.api import append_pb2 as append
from wal.rpc.api import cluster_pb2 as cluster
from wal.rpc.api import component_pb2 as component
from wal.rpc.api import frames_pb2 as frames
from wal.rpc.api import requests_pb2 as requests
from wal.rpc.api import streaming_pb2 as streaming

# -- Milvus' protocol
_COORDINATOR_STATE: Final = "/milvus.proto.streaming.StreamingCoordStateService/"
_NODE_STATE: Final = "/milvus.proto.streaming.StreamingNodeStateService/"
_ASSIGNMENT: Final = "/milvus.proto.streaming.StreamingCoordAssignmentService/"
_HANDLER: Final = "/milvus.proto.streaming.StreamingNodeHandlerService/"
_MANAGER: Final = "/milvus.proto.streaming.StreamingNodeManagerService/"

COORDINATOR_STATES: Final = Method(
    _COORDINATOR_STATE + "GetComponentStates", component.GetComponentStatesRequest, component.ComponentStates
)
NODE_STATES: Final = Method(_NODE_STATE + "GetComponentStates", component.GetComponentStatesRequest, component.ComponentStates)
ASSIGNMENT_DISCOVER: Final = Method(
    _ASSIGNMENT + "AssignmentDiscover", streaming.AssignmentDiscoverRequest, streaming.AssignmentDiscoverResponse
)
MILVUS_PRODUCE: Final = Method(_HANDLER + "Produce", streaming.ProduceRequest, streaming.ProduceResponse)
CONSUME: Final = Method(_HANDLER + "Consume", streaming.ConsumeRequest, streaming.ConsumeResponse)
ASSIGN: Final = Method(_MANAGER + "Assign", streaming.StreamingNodeManagerAssignRequest, streaming.StreamingNodeManagerAssignResponse)
REMOVE: Final = Method(_MANAGER + "Remove", streaming.StreamingNodeManagerRemoveRequest, streaming.StreamingNodeManagerRemoveResponse)
COLLECT_STATUS: Final = Method(
    _MANAGER + "CollectStatus", streaming.StreamingNodeManagerCollectStatusRequest, streaming.StreamingNodeManagerCollectStatusResponse
)

# -- the log
_LOG: Final = "/wal.rpc.LogService/"

SUBMIT: Final = Method(_LOG + "Submit", requests.SubmitRequest, requests.SubmitResponse)
"""Whatever is asked of the log or of a pchannel: its attributes say what it needs (wal.requests)."""
WATCH_VCHANNELS: Final = Method(_LOG + "WatchVChannels", cluster.WatchVChannelsRequest, cluster.VChannelStates)

# -- a pchannel
_PCHANNEL: Final = "/wal.rpc.PChannelService/"

PRODUCE: Final = Method(_PCHANNEL + "Produce", append.ProducerRequest, append.ProducerResponse)
FOLLOW_TAIL: Final = Method(_PCHANNEL + "FollowTail", frames.FollowTailRequest, frames.TailUpdate)
READ_FRAMES: Final = Method(_PCHANNEL + "ReadFrames", frames.ReadFramesRequest, frames.FramePage)


def _of(*services: str) -> tuple[Method[Any, Any], ...]:
    return tuple([method for method in globals().values() if isinstance(method, Method) and method.path.startswith(services)])


PCHANNEL_METHODS: Final = _of(_PCHANNEL, _HANDLER)
"""The methods that a client calls at the node that has a pchannel."""
