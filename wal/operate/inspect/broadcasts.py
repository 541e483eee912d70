"""The unfinished broadcasts of a log that another process may write, as its next opening would recover them. Nothing is changed.

`broadcaster.records.rebuild` recovers them from the records in the metadata, and from the copies in the logs after their last checkpoints.
A broadcast that ends during the reading may still be listed.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final, cast

from broadcaster.message import BroadcastTask, CopiesInLog
from broadcaster.records import read_records, rebuild
from wal.channels.metadata import broadcasts_in
from wal.channels.pchannels import checkpoint_records
from wal.errors import TruncatedError
from wal.operate.inspect.builders import broadcast_rows
from wal.operate.inspect.outside import metadata_of
from wal.operate.inspect.rows import BroadcastRow
from wal.read.read_only_core import ReadOnlyCore
from wal.settings import Settings
from wal.storage.read_only import ReadOnlyStoredLog
from wal.timestamp.timestamp import parse
from wal.write.copies import CopyTable, names_of

_PAGE_BYTES: Final = 4 << 20


def broadcasts_of(core: ReadOnlyCore, directory: Path | None, settings: Settings) -> list[BroadcastRow]:
    """Returns a row for each unfinished broadcast of a log whose frames this process reads, the oldest first. Blocks.

    `directory` is that of a journal, None for another log. Raises InvalidArgumentError if the location of the metadata is not known,
    FormatError or CorruptionError if they are missing or unreadable, and the errors of etcd.
    """
    metadata = metadata_of(directory, settings.kv)
    records = broadcasts_in(metadata)
    checkpoints = checkpoint_records(metadata)
    copies = []
    for name, log in core.logs.items():
        checkpoint = checkpoints.get(name)
        position, state = (0, None) if checkpoint is None else (checkpoint.position, checkpoint.state)
        copies += _copies(cast("ReadOnlyStoredLog", log), position, state)
    now_s = time.time()
    return broadcast_rows(
        BroadcastTask(
            task.broadcast_id,
            task.state,
            task.header.resource_keys,
            task.missing_appends,
            task.missing_acks,
            max(0.0, now_s - parse(task.broadcast_id)[0] / 1000),
        )
        for task, _ in rebuild(read_records(records, records.values()), copies).tasks
        if not task.finished
    )


def _copies(log: ReadOnlyStoredLog, position: int, state: int | None) -> list[CopiesInLog]:
    table = CopyTable()
    if state is not None and (blob := log.checkpoint_state(state)) is not None:
        table.restore(blob)
    snapshot = log.reach()
    at = max(position, snapshot.earliest[0])
    while at < snapshot.durable_end:
        try:
            page = log.page(at, snapshot.durable_end, None, _PAGE_BYTES)
        except TruncatedError:  # frames that an unfinished broadcast needs are never truncated
            at = log.reach().earliest[0]
            continue
        for frame in page.frames:
            table.replay(frame.position, frame.view)
        at = page.next_position
    return [
        CopiesInLog(
            log.pchannel,
            listed.header,
            tuple(name for name, _ in names_of(listed.parts, aborts=False)),
            tuple(name for name, _ in names_of(listed.parts, aborts=True)),
        )
        for listed in table.listed()
    ]
