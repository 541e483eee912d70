"""The journal backend: segment files on one host, a writer thread for each pchannel, readers beside it."""

from wal.backends.journal.backend import JournalBackend
from wal.backends.journal.control import CONTROL_NAME
from wal.backends.journal.disk import Disk, JournalFile
from wal.backends.journal.followed import FollowedLog
from wal.backends.journal.index import SegmentIndex
from wal.backends.journal.lock import is_being_written
from wal.backends.journal.log import JournalLog, JournalStatistics
from wal.backends.journal.observed import ObservedJournal, ObservedLog

__all__ = [
    "CONTROL_NAME",
    "Disk",
    "FollowedLog",
    "JournalBackend",
    "JournalFile",
    "JournalLog",
    "JournalStatistics",
    "ObservedJournal",
    "ObservedLog",
    "SegmentIndex",
    "is_being_written",
]
