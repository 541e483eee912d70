"""The Pulsar backend: a topic for each pchannel, a frame for each message, fenced by Pulsar and by the metadata."""

from wal.backends.pulsar.address import Allowances, PulsarAddress
from wal.backends.pulsar.backend import PulsarBackend
from wal.backends.pulsar.control import RecordStore
from wal.backends.pulsar.log import PulsarLog

__all__ = ["Allowances", "PulsarAddress", "PulsarBackend", "PulsarLog", "RecordStore"]
