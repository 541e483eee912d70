"""What callers hold: the accesser and its calls, transactions, broadcasts, and the opening and closing of a log.

Files:

* appender: how messages and transactions get from a call to the inbox of their vchannel
* broadcast: what `log.broadcast()` gives, the calls of the broadcaster of an open log
* lifecycle: whether the log is there for a call, and how it comes and goes
* releases: open logs that were collected without being closed, on their way to being released
* responses: what `append_messages` answers, one entry for each message in input order
* txn: a transaction as its user holds it
"""

from wal.accesser.accesser import LogStatistics, WALAccesser

__all__ = ["LogStatistics", "WALAccesser"]
