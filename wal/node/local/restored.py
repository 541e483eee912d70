"""Notes that the journal in a directory was restored from a copy: each pchannel gets a new incarnation, with its lineage.

In four steps, so that an interruption leaves either the log as it was, or one whose next opening finishes the work:

1. The logs are recovered under the lock of the directory, without a frame being written: their ends are the forks.
2. The file `lineage` of each pchannel gets the restore. Until the next step it is ahead of the log, and does not count.
3. The metadata get all new incarnations, in one change.
4. The log is opened and closed: its control pages, the maps of its vchannels and its cursors take the new incarnations.
"""

from __future__ import annotations

from wal.channels.pchannels import load_checkpoint, load_pchannels, new_incarnation, raise_term, renew_incarnations
from wal.errors import InvalidArgumentError
from wal.location import Location
from wal.message import Lineage, Restore
from wal.node.local.log import LocalLog
from wal.node.local.storage import Storage, Undo, open_storage
from wal.runtime.threads import in_thread
from wal.settings import Settings
from wal.storage.base import LogState
from wal.storage.journal.backend import JournalBackend


async def mark_restored(location: Location, settings: Settings) -> dict[str, Lineage]:
    """Gives the journal at this location new incarnations; returns the lineages of its pchannels.

    Raises InvalidArgumentError for anything but a directory, FormatError for a directory without a log, LockedError while a process has it
    open for writing, CorruptionError for damage.
    """
    if location.path is None:
        raise InvalidArgumentError(f"{location} is not a directory: only a journal is restored from a copy of its files")
    undo = Undo()
    try:
        storage = await open_storage(location, settings, undo, create=False)
        assert isinstance(storage.backend, JournalBackend)
        lineages = await _renewed(storage.backend, storage)
    finally:
        failure = await undo.run()
    if failure is not None:
        raise failure
    log = LocalLog(location, settings, create=False)
    await log.open()
    await log.close()
    return lineages


async def _renewed(backend: JournalBackend, storage: Storage) -> dict[str, Lineage]:
    kv = storage.kv
    metas = {name: await raise_term(kv, meta) for name, meta in (await load_pchannels(kv)).items()}
    lineages: dict[str, Lineage] = {}
    for name, meta in metas.items():
        record = await load_checkpoint(kv, name)
        log = await backend.open(name, incarnation=meta.incarnation, term=meta.term, checkpoint=None if record is None else record.position)
        try:
            before, state = log.lineage, log.state
        finally:
            await log.close()
        restore = Restore(meta.incarnation, state.end, _newest(state))
        lineages[name] = Lineage(new_incarnation(), (*before.restores, restore))
        await in_thread(backend.save_lineage, name, lineages[name])
    await renew_incarnations(kv, metas, {name: lineage.incarnation for name, lineage in lineages.items()})
    return lineages


def _newest(state: LogState) -> tuple[int, int] | None:
    """Returns the newest event that is not truncated."""
    return state.newest if state.newest is not None and state.newest >= state.earliest else None
