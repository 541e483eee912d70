"""Reading: policies, filters, selection and assembly. Pure and synchronous; used by everything that reads.

Files:

* Asked for: policies, filters, selection, options, position; progress (what a read does next, whoever drives it);
  given: assembly, shared_copies, frame_rows, columns
"""

from wal.reading.assembly import assemble, event_indices
from wal.reading.columns import COLUMNS, NO_TXN, RowColumns
from wal.reading.filters import DeliverFilter, EventFilter, MessageTypes, TimeTickGT, TimeTickGTE
from wal.reading.frame_rows import FrameRows, frame_rows, in_parts
from wal.reading.options import READ_TAKES, ReadOptions
from wal.reading.policies import All, DeliverPolicy, Latest, StartAfter, StartFrom
from wal.reading.position import ReadPosition
from wal.reading.progress import Need, Progress, TailView
from wal.reading.selection import Selection, named
from wal.reading.shared_copies import SharedCopies, shared_by, shared_copies

__all__ = [
    "COLUMNS",
    "NO_TXN",
    "READ_TAKES",
    "All",
    "DeliverFilter",
    "DeliverPolicy",
    "EventFilter",
    "FrameRows",
    "Latest",
    "MessageTypes",
    "Need",
    "Progress",
    "ReadOptions",
    "ReadPosition",
    "RowColumns",
    "Selection",
    "SharedCopies",
    "StartAfter",
    "StartFrom",
    "TailView",
    "TimeTickGT",
    "TimeTickGTE",
    "assemble",
    "event_indices",
    "frame_rows",
    "in_parts",
    "named",
    "shared_by",
    "shared_copies",
]
