"""Serving: what a node and a coordinator offer over gRPC, on one `Server`.

`submit.py` executes the requests of clients (`wal.requests`), by the tables of the node and of the coordinator. The other services ask
`Hosted` for a pchannel in its term before they do anything: `produce.py` executes one stream of appends, `tail.py` and `frame_calls.py`
feed the readers of clients. `milvus.py` is what only clients of Milvus' protocol use. `watch.py` tells clients which vchannels there are,
and `AssignmentDiscover` which pchannels are on which node. `Bounded` accounts for what clients have under way, `CallFence` refuses what a
client has given up, and `Access` says who may call.
"""
