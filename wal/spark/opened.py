"""Which sources this process has open: a few, by their recipe, so that the tasks of a worker share what is known of a log.

Workers are forked: what a parent had open is not used here, it is opened anew. What falls out of the few is not closed, since a read may
still hold it, but let go of.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Final

from wal.spark.frame_source import FrameLogs, FrameSource

__all__ = ["opened"]

_OPEN_MAX: Final = 4
_lock: Final = threading.RLock()
_logs: Final[OrderedDict[tuple[int, int, FrameSource], FrameLogs]] = OrderedDict()


def opened(source: FrameSource) -> FrameLogs:
    """The logs of this source, for this thread of this process; opened if they are not, or are no longer the ones that lie there."""
    key = (os.getpid(), threading.get_ident(), source)
    with _lock:
        logs = _logs.get(key)
        if logs is None or not logs.is_current():
            logs = _logs[key] = source.open()
            while len(_logs) > _OPEN_MAX:
                _logs.popitem(last=False)
        _logs.move_to_end(key)
        return logs
