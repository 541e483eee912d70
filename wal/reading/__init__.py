"""Reading: the options of a read, where it begins and ends, and what it delivers. Pure and synchronous; every reader uses it.

Files, in the order in which a read meets them:

* options        the options of a read, checked: deliver policies and deliver filters
* start          where a read begins
* truncated      the first event of a log, whether it went back, and the errors of readers that this has overtaken
* progress       what a read needs next, what it has handed over, and where it ends
* position       the position of a reader, and the text that it resumes from
* selection      the vchannels that a reader reads, and their incarnations
* assembly       the messages of a frame
* shared_copies  the copies of a broadcast in a frame
* shared_messages  the messages that readers with the same selection share
* frame_rows     the rows of a frame, for readers that want columns instead of messages
* columns        the columns of such rows, packed for Arrow
"""

from wal.reading.assembly import assemble, event_indices
from wal.reading.frame_rows import FrameRows, frame_rows, in_parts
from wal.reading.options import (
    READ_TAKES,
    All,
    DeliverFilter,
    DeliverPolicy,
    EventFilter,
    Latest,
    MessageTypes,
    ReadOptions,
    StartAfter,
    StartFrom,
    TimeTickGT,
    TimeTickGTE,
)
from wal.reading.position import Reached, ReadPosition
from wal.reading.progress import BodyTurns, Need, Progress
from wal.reading.selection import Selection, WholePChannel, named
from wal.reading.shared_copies import SharedCopies, shared_by, shared_copies
from wal.reading.shared_messages import SharedMessages
from wal.reading.start import TailView
from wal.reading.truncated import (
    PageRequest,
    event_named,
    first_event_in,
    is_there,
    log_went_back,
    newest_up_to,
    overtaken,
    start_truncated,
)

__all__ = [
    "READ_TAKES",
    "All",
    "BodyTurns",
    "DeliverFilter",
    "DeliverPolicy",
    "EventFilter",
    "FrameRows",
    "Latest",
    "MessageTypes",
    "Need",
    "PageRequest",
    "Progress",
    "Reached",
    "ReadOptions",
    "ReadPosition",
    "Selection",
    "SharedCopies",
    "SharedMessages",
    "StartAfter",
    "StartFrom",
    "TailView",
    "TimeTickGT",
    "TimeTickGTE",
    "WholePChannel",
    "assemble",
    "event_indices",
    "event_named",
    "first_event_in",
    "frame_rows",
    "in_parts",
    "is_there",
    "log_went_back",
    "named",
    "newest_up_to",
    "overtaken",
    "shared_by",
    "shared_copies",
    "start_truncated",
]
