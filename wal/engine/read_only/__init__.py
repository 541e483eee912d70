"""Reading a log that another process writes: one core that blocks, a shell of it for an event loop, and a source for each backend.

The second shell, for callers without an event loop, is `wal.bridge`.

Files:

* source           ReadOnlySource: the questions that a backend answers
* journal          ReadOnlyJournalSource: a journal, from its files alone
* pulsar           ReadOnlyPulsarSource: a log on Pulsar, from its topics and its metadata in etcd
* pulsar_metadata  PulsarMetadata: that metadata for callers that block
* sources          the choice of the source for a location, and the wait for its log
* core             ReadOnlyCore: pchannels, vchannels, where a read begins and continues; blocks, in any thread
* log              ReadOnlyLog: the engine for an event loop, with threads and actors around the core
"""
