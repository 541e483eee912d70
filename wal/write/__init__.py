"""Writing: the actors of one pchannel, and their pure tables.

An operation goes to its `VChannel`, which decides about it; what may be written becomes a submission. At the end of the turn the
`FramePipeline` makes one frame of all submissions, with ticks from the supply, hands it to the backend, and settles the callers when it
is durable. The `PChannel` has what its vchannels share: transactions, ticks, idempotency keys, copies of broadcasts; start, failure and
end. `recovery.py` makes checkpoints of that state, and gets it back from the last one and the frames written after it. `checks.py` has
the checks that every engine makes before it sends anything.
"""
