"""The journal backend: segment files on one host, a writer thread for each pchannel, readers beside it.

Files:

* Bytes: layout, segment, index; the log: backend, log, writer, active, segments, preparer, disk, creation, control,
  lock, permissions
* Read: reader, index_keeper; recover and drop: recovery, checkpoint, truncation
* read_only: a journal that this process only reads, with its writer at work or without one; is there a journal at all
* read_only_segments: the segments of such a journal, as far as its readers have to know them
"""

from wal.backends.journal.backend import JournalBackend
from wal.backends.journal.control import CONTROL_NAME
from wal.backends.journal.directory import is_being_written
from wal.backends.journal.disk import Disk, JournalFile
from wal.backends.journal.index import SegmentIndex
from wal.backends.journal.log import JournalLog, JournalStatistics
from wal.backends.journal.read_only import ReadOnlyJournal, ReadOnlyJournalLog, absence

__all__ = [
    "CONTROL_NAME",
    "Disk",
    "JournalBackend",
    "JournalFile",
    "JournalLog",
    "JournalStatistics",
    "ReadOnlyJournal",
    "ReadOnlyJournalLog",
    "SegmentIndex",
    "absence",
    "is_being_written",
]
