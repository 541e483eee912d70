"""RocksMQ: channels of messages and consumer groups on RocksDB, for message streams inside one process. It is not the WAL's log.

Files:

* Pure: keys, channel (ids, pages, groups), catalog, changes, retention, waiting; rocksmq (the calls), requests,
  broker (the actor), store (RocksDB and its traps); settings, message, statistics
"""

from wal.rocksmq.message import ConsumerMessage, ProducerMessage
from wal.rocksmq.rocksmq import IDAllocator, RocksMQ
from wal.rocksmq.settings import RocksMQSettings
from wal.rocksmq.statistics import ChannelInfo, GroupInfo, RocksMQStatistics

__all__ = [
    "ChannelInfo",
    "ConsumerMessage",
    "GroupInfo",
    "IDAllocator",
    "ProducerMessage",
    "RocksMQ",
    "RocksMQSettings",
    "RocksMQStatistics",
]
