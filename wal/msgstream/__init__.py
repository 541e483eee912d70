"""Message streams: packs of messages with hash keys and timestamps, over channels of Pulsar, RocksMQ, a log or memory.

Files:

* medium:  the seam that a system implements to carry messages
* sending: the broadcast of a medium that has none of its own
* errors:  the errors that only message streams raise
"""

from wal.msgstream.errors import PartialSendError
from wal.msgstream.medium import Medium, MediumConsumer, MediumProducer, Outgoing, Received
from wal.msgstream.sending import send_to_each

__all__ = [
    "Medium",
    "MediumConsumer",
    "MediumProducer",
    "Outgoing",
    "PartialSendError",
    "Received",
    "send_to_each",
]
