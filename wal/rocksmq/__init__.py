"""RocksMQ: channels of messages and consumer groups on RocksDB, for message streams inside one process. It is not the WAL's log.

Files, from the bottom up:

* settings:   the bounds, and what retention may drop
* keys:       the keys and numbers in RocksDB, and Changes: the writes of one turn. Pure
* channel:    one channel: its ids, pages, groups and messages, and what retention drops from it. Pure
* catalog:    all channels, in their stored form and as users see them. Pure
* store:      RocksDB and the traps of its binding
* requests:   the messages to the broker, and the calls of `consume` that wait
* consuming:  the delivery of messages to consumer groups
* broker:     the actor: one write and one sync for all calls of a turn
* rocksmq:    RocksMQ, the calls"""

from wal.rocksmq.broker import RocksMQStatistics
from wal.rocksmq.catalog import ChannelInfo, GroupInfo
from wal.rocksmq.channel import ConsumerMessage, ProducerMessage
from wal.rocksmq.rocksmq import IDAllocator, RocksMQ
from wal.rocksmq.settings import BATCH_MESSAGES_MAX, RocksMQSettings

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
