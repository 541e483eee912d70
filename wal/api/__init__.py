"""The objects that callers hold: the accesser and its calls, transactions and broadcasts; and how a log is opened and closed.

Files:

* opening:   `open_wal`, and `init` / `WAL` / `release` for the log that a process shares
* accesser:  the public calls of an open log, with the checks of its arguments
* channels:  the calls that create, end and list vchannels and channels, a part of the accesser
* broadcast: `log.broadcast()`, the calls of the log's broadcaster
* responses: `append_messages`: how messages are grouped, and the response for each of them
* txn:       a transaction as its user holds it
* expected:  `expected_last`, and what a conflict with it means
* txn_calls: the calls that begin a transaction or append a whole one, a part of the accesser
* guesses:   which call was meant by a name that an open log does not have
* lifecycle: the check that the log is open for a call, and how it is opened and closed
* releases:  how a log is released that was garbage-collected without being closed
"""
