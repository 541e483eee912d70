"""The Pulsar backend: a topic for each pchannel, a frame for each message, fenced by Pulsar and by the metadata.

`opening.py` takes a log over in a new term: it fences first, and then finds the end. The `PulsarWriter` sends frames and answers each with
its outcome. `Repair`, a pure table, has the writer's actions after a gap, a lost producer or a fence. Positions are those of `LedgerTable`;
the `FencingFloor` decides which messages of a topic are the log. A state that recovery begins with is in a topic of its own.
`connection.py` and `admin.py` are the client and the REST calls.
"""
