"""Writing: the actors of one pchannel, and their pure tables.

A `VChannel` decides about each operation on it; accepted operations become submissions. At the end of the turn the `FramePipeline` makes
one frame of all submissions, with ticks from the supply, passes it to the backend, and settles the callers when it is durable. The
`PChannel` has the common part of its vchannels: transactions, ticks, idempotency keys, copies of broadcasts; start, failure and end.
`recovery.py` makes checkpoints of that state, and restores it from the last one and the frames written after it. `checks.py` has the checks
that every engine makes before it sends anything.
"""
