"""Serving: what a node and a coordinator offer over gRPC, on one `Server`.

The services ask `Hosted` for a pchannel in its term before they do anything: `produce.py` executes one stream of appends, `tail.py` and
`frame_calls.py` feed the readers of clients, `pchannel_service.py` serves the calls that belong to one pchannel. `milvus.py` is what only
clients of Milvus' protocol use. `LogService` serves what belongs to the log as a whole, and `AssignmentDiscover` tells clients which
pchannels are on which node. `Bounded` accounts for what clients have under way, `CallFence` refuses what a client has given up, and
`Access` says who may call.
"""
