"""The objects that callers hold: the accesser and its calls, transactions and broadcasts; and the same without an event loop.

`open_wal`, or `init` / `WAL` / `release`, returns a `WALAccesser`. It checks the arguments, and its `Lifecycle` gives each call the
engine while the log is open; `factory.py` alone chooses the engine of a location; the accesser uses the protocols in `wal/engine.py`.
`blocking` runs an accesser on a loop of its own in a thread, and `make twins` generates the classes for that from the async ones;
`iterate` and `record_batches` read in the caller's thread, without any loop.
"""
