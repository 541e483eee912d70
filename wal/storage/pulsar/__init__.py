"""The Pulsar backend: a topic for each pchannel, a frame for each message, fenced by Pulsar and by the metadata.

Files:

* Pure:
    layout           messages
    ledgers          the ledgers of a topic: which positions there are
    fencing_floor    which messages of a topic are the log
    broker_settings  policies that endanger a log; how large a frame may be
    in_flight        the frames of a writer that are not answered yet
    repair           what a writer does after a gap, a lost producer or a fence, as a table of states
* The log:
    topic            the messages of a topic, in their order
    backend          the topics of a namespace
    opening          takes over a log in a new term
    recovery         finds the end of a log
    log              one open log
    writer           writes frames into the topic
    reader           reads pages of frames from the topic
    floor_index      the positions whose fencing floor is known
    control          the records in the metadata
    truncation       what Pulsar may delete
    checkpoints      the states that recovery begins with
    read_only        one log, for a process that only reads it

The client, the address and the admin REST are those of `wal.storage.pulsar`.
"""
