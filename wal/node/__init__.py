"""The node's half of a log: its pchannels, each in its term under a lease, and the operations on them. It does not import gRPC.

`StreamingNode` has the parts. `Hosting` opens and closes single pchannels; `Routes` lead from names of vchannels that exist to their
actors, and ask the coordinator's half before they refuse a name; appends, cursors, `retention/` and the copies of broadcasts stand on both.
`local/` puts a node and a coordinator together as the log of this process, and `wal/serve/` offers a node to clients.
"""
