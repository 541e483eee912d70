"""What everything on Pulsar needs, logs and message streams: an address, a client, the admin REST. Imported only where Pulsar is used.

Files:

* positions   positions of entries, and the ledgers that hold them: pure
* address     the address of a Pulsar, and the names of topics: pure
* client_log  the client's log, one for the process
* connection  the client, and the threads for its blocking calls
* admin       the admin REST
"""

from wal.pulsar.address import PulsarAddress
from wal.pulsar.admin import Admin
from wal.pulsar.connection import Connection, check_requirements
from wal.pulsar.positions import TopicLedger

__all__ = ["Admin", "Connection", "PulsarAddress", "TopicLedger", "check_requirements"]
