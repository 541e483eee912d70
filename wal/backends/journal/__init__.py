"""The journal backend: segment files on one host, a writer thread for each pchannel, readers beside it.

Files:

* Bytes: layout, segment, index; the log: backend, log, writer, active, segments, preparer, disk, creation, control,
  lock, permissions, presence (is there a journal yet)
* Read: reader, index_keeper; recover and drop: recovery, checkpoint, truncation; from another process: observed,
  observed_segments, followed (for a loop)
* read_only: ReadOnlyJournal and ReadOnlyJournalLog: a journal that this process only reads, beside its writer or
  without one
* read_only_segments: the segments of a log that another process writes, as far as this one has to know them
"""

from wal.backends.journal.backend import JournalBackend
from wal.backends.journal.control import CONTROL_NAME
from wal.backends.journal.disk import Disk, JournalFile
from wal.backends.journal.followed import FollowedLog
from wal.backends.journal.index import SegmentIndex
from wal.backends.journal.lock import is_being_written
from wal.backends.journal.log import JournalLog, JournalStatistics
from wal.backends.journal.presence import ABSENT_REMEDY, check_present, is_present, pauses, wait_until_present
from wal.backends.journal.read_only import ReadOnlyJournal, ReadOnlyJournalLog

__all__ = [
    "ABSENT_REMEDY",
    "CONTROL_NAME",
    "Disk",
    "FollowedLog",
    "JournalBackend",
    "JournalFile",
    "JournalLog",
    "JournalStatistics",
    "ReadOnlyJournal",
    "ReadOnlyJournalLog",
    "SegmentIndex",
    "check_present",
    "is_being_written",
    "is_present",
    "pauses",
    "wait_until_present",
]
