"""RocksMQ: channels of messages and consumer groups on RocksDB, for message streams inside one process. It is not the WAL's log."""

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
