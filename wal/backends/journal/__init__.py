"""The journal backend: segment files on one host, a writer thread for each pchannel, readers beside it."""

from wal.backends.journal.backend import JournalBackend
from wal.backends.journal.control import CONTROL_NAME
from wal.backends.journal.disk import Disk, JournalFile
from wal.backends.journal.followed import FollowedLog
from wal.backends.journal.index import SegmentIndex
from wal.backends.journal.lock import is_being_written
from wal.backends.journal.log import JournalLog, JournalStatistics
from wal.backends.journal.observed import ObservedJournal, ObservedLog
from wal.backends.journal.presence import ABSENT_REMEDY, check_present, is_present, pauses, wait_until_present

__all__ = [
    "ABSENT_REMEDY",
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
    "check_present",
    "is_being_written",
    "is_present",
    "pauses",
    "wait_until_present",
]
