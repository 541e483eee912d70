"""Serving: the calls of a node and a coordinator over gRPC, on one `Server`.

`submit.py` executes the requests of clients (`wal.requests`), by the tables of the node and of the coordinator. The other services ask
`Hosted` for a pchannel in its term before they do anything: `produce.py` executes one stream of appends, `tail.py` and `frame_calls.py`
feed the readers of clients. Only clients of Milvus' protocol use `milvus.py`. `watch.py` pushes the list of vchannels to clients, and
`AssignmentDiscover` the nodes of the pchannels. `Bounded` accounts for the clients' calls, `CallFence` refuses calls that a client has
abandoned, and `Access` checks tokens.
"""
