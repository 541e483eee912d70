"""RocksMQ: channels of messages and consumer groups on RocksDB, for message streams inside one process. It is not the WAL's log.

`RocksMQ` has the calls. The `Broker` actor owns all state, and makes one write and one sync for all calls of a turn. Channels, groups and
the catalog are pure tables that decide what is written and what retention drops. `Store` is the file.
"""

from wal.streams.rocksmq.broker import RocksMQStatistics
from wal.streams.rocksmq.catalog import ChannelInfo, GroupInfo
from wal.streams.rocksmq.channel import ConsumerMessage, ProducerMessage
from wal.streams.rocksmq.rocksmq import IDAllocator, RocksMQ
from wal.streams.rocksmq.settings import BATCH_MESSAGES_MAX, RocksMQSettings

__all__ = [
    "BATCH_MESSAGES_MAX",
    "ChannelInfo",
    "ConsumerMessage",
    "GroupInfo",
    "IDAllocator",
    "ProducerMessage",
    "RocksMQ",
    "RocksMQSettings",
    "RocksMQStatistics",
]
