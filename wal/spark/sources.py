"""Sources: chooses the source that reads the log at a location, and keeps the sources that this process has open.

A process keeps a few sources open, by their recipe, so that the tasks of a worker share the knowledge about a log. Workers are forked: a
child reopens the sources of its parent. A source that no longer fits is forgotten without being closed, because a read may still hold it.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Final

from wal.errors import InvalidArgumentError
from wal.spark.frame_source import FrameLogs, FrameSource
from wal.spark.journal_frames import JournalSource
from wal.spark.location import SparkLocation

__all__ = ["opened", "source_of"]

_OPEN_MAX: Final = 4
_lock: Final = threading.RLock()
_logs: Final[OrderedDict[tuple[int, int, FrameSource], FrameLogs]] = OrderedDict()


def source_of(location: SparkLocation) -> FrameSource:
    """Returns the source that reads the log at this location. Raises InvalidArgumentError for a location that Spark cannot read."""
    if (directory := location.directory()) is not None:
        return JournalSource(str(directory))
    if (servers := location.servers()) is not None:
        from wal.spark.server_frames import ServerSource

        return ServerSource(servers, location.token)
    from wal.spark.pulsar_frames import PulsarSource
    from wal.storage.pulsar.address import PulsarAddress  # most logs are journals

    place, kv = location.pulsar()
    if location.is_kv_file:
        raise InvalidArgumentError(
            f"kv={str(kv)!r} is a file, which one process has for itself, and Spark reads in several beside the writer: keep "
            "the metadata of a log that Spark reads in etcd (kv=etcd://host:port/root)"
        )
    address = PulsarAddress(
        place.service_url,
        place.tenant,
        place.namespace,
        admin_url=location.admin_url,
        token=location.token,
        tls_authority=location.authority,
    )
    return PulsarSource(address, kv)


def opened(source: FrameSource) -> FrameLogs:
    """Returns the logs of this source for this thread of this process. Opens them unless they are open and still at their location."""
    key = (os.getpid(), threading.get_ident(), source)
    with _lock:
        logs = _logs.get(key)
        if logs is None or not logs.is_current():
            logs = _logs[key] = source.open()
            while len(_logs) > _OPEN_MAX:
                _logs.popitem(last=False)
        _logs.move_to_end(key)
        return logs
