"""The Pulsar backend: a topic for each pchannel, a frame for each message, fenced by Pulsar and by the metadata.

Files:

* Pure: address, layout, floor (which messages count), floors, ledgers, policies, window (what the client may send
  again); limits (how large a frame may be); the log: backend, log, writer, control (what the metadata keeps),
  recovery, truncation, checkpoints
* Read: reader, topic; by who does not write: observed; the way there: connection, client_log (what the client logs),
  admin
* read_only: one pchannel's log on Pulsar as a process sees it that does not write it
"""

from wal.backends.pulsar.address import Allowances, PulsarAddress
from wal.backends.pulsar.backend import PulsarBackend
from wal.backends.pulsar.control import RecordStore
from wal.backends.pulsar.log import PulsarLog

__all__ = ["Allowances", "PulsarAddress", "PulsarBackend", "PulsarLog", "RecordStore"]
