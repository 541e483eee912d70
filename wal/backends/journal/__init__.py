"""The journal backend: segment files on one host, a writer thread for each pchannel, readers beside it."""

from wal.backends.journal.backend import JournalBackend
from wal.backends.journal.disk import Disk, JournalFile
from wal.backends.journal.log import JournalLog, JournalStatistics

__all__ = ["Disk", "JournalBackend", "JournalFile", "JournalLog", "JournalStatistics"]
