"""Backup: copies the durable part of a journal to a store, beside its writer, and manages the copies.

`wal.node.archiving.rounds` makes backups. This file has the calls of users, which make, list, verify and forget backups.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import msgspec

from broadcaster.records import read_records
from wal.channels.directory import infos_in
from wal.channels.metadata import broadcasts_in
from wal.channels.pchannels import checkpoint_records
from wal.errors import CorruptionError, FormatError, InvalidArgumentError
from wal.location import Location, parse_location
from wal.node.archiving.forgetting import StoredBackups, forget_all_but, manifests
from wal.node.archiving.rounds import Progress, Rounds
from wal.read.cursors.pins import CURSORS_NAME, decode_pin, stem_of
from wal.runtime.threads import in_thread
from wal.storage.archive.manifest import Chunk, Manifest, SegmentCopy
from wal.storage.archive.objects import check_index, damaged_chunk, fetch, fetch_part
from wal.storage.archive.store import BackupStore, open_store
from wal.storage.journal.layout import SegmentHeader


async def backup(location: str, target: str, *, progress: Progress | None = None) -> Manifest:
    """Makes a backup of the journal at `location` in the store at `target`, and returns its manifest.

    Damaged parts of the segments are copied unchanged, and listed in the manifest. `progress` is called in other threads, with the objects
    that were stored so far.

    Raises InvalidArgumentError for a log that is not a journal, or if the target has backups of another log. Raises LockedError if another
    process has made a backup there meanwhile, and NoSpaceError and StorageError for the target. The manifest is written last, and a failure
    before that leaves all earlier backups unchanged. Another attempt continues where the failed one ended.
    """
    directory = journal_path(location)

    def make() -> Manifest:
        with closing(Rounds(directory, open_store(target), progress)) as rounds:
            return rounds.make()

    return await in_thread(make)


async def follow(
    location: str, target: str, *, interval_s: float = 1.0, keep: int | None = None, progress: Progress | None = None
) -> AsyncIterator[Manifest]:
    """Makes a backup every `interval_s` (seconds) and yields each, until the caller ends the iteration. Raises as `backup` does.

    With `keep` it forgets all but the newest `keep` backups after each, as `forget` does.
    """
    if keep is not None:
        _check_keep(keep)
    directory = journal_path(location)
    rounds = await in_thread(lambda: Rounds(directory, open_store(target), progress))
    stored: StoredBackups | None = None
    try:
        while True:
            begun = time.monotonic()
            manifest = await in_thread(rounds.make)
            yield manifest
            if keep is not None and stored is not None:
                stored.add(manifest)
                await in_thread(stored.shrink, keep)
            elif keep is not None:
                _, stored = await in_thread(forget_all_but, rounds.store, keep)
            await asyncio.sleep(max(0.0, interval_s - (time.monotonic() - begun)))
    finally:
        await in_thread(rounds.close)


async def backups(target: str) -> list[Manifest]:
    """Returns the manifests of all backups at `target`, oldest first, without damaged ones, which `verify` lists.

    Raises FormatError for a target without backups, or with a backup of a newer version, CorruptionError if all are damaged.
    """
    return await in_thread(lambda: _backups(open_store(target)))


async def verify(target: str) -> list[str]:
    """Reads every object of all backups at `target`. Returns a sentence for each missing or damaged object, and for each part of the log
    that was damaged when it was copied.
    """
    return await in_thread(lambda: _verify(open_store(target)))


async def forget(target: str, *, keep: int) -> list[int]:
    """Removes all backups but the newest `keep`, and the objects that only they need; returns the numbers of the removed ones."""
    _check_keep(keep)
    return (await in_thread(lambda: forget_all_but(open_store(target), keep)))[0]


def journal_path(location: str) -> Path:
    """Returns the directory of the journal at this location; raises InvalidArgumentError for any other log."""
    parsed: Location = parse_location(location)
    if parsed.path is None:
        raise InvalidArgumentError(f"{location} is not a journal: only the directory of a journal is backed up and restored")
    return parsed.path


def fetch_metadata(store: BackupStore, manifest: Manifest) -> dict[str, str]:
    """Returns the metadata of a backup. Raises CorruptionError if they are missing or damaged."""
    data = fetch(store, manifest.metadata)
    try:
        metadata = msgspec.json.decode(data, type=dict[str, str])
        checkpoint_records(metadata)
        infos_in(metadata)
        broadcasts = broadcasts_in(metadata)
        read_records(broadcasts, broadcasts.values())
    except (msgspec.DecodeError, RecursionError, ValueError, CorruptionError) as error:
        raise damaged_chunk(store, manifest.metadata, str(error)) from error
    return metadata


def fetch_cursor(store: BackupStore, file: str, chunk: Chunk) -> bytes:
    """Returns the cursor in this file. Raises CorruptionError as `fetch` does, and if it belongs in another file. A cursor that was damaged
    in the log is returned unchanged.
    """
    data = fetch(store, chunk)
    try:
        stem = stem_of(decode_pin(data).cursor.key)
    except (CorruptionError, FormatError):
        return data
    if not file.startswith(f"{CURSORS_NAME}/{stem}"):
        raise damaged_chunk(store, chunk, f"it is the cursor {stem}, and the manifest names {file}")
    return data


def _backups(store: BackupStore) -> list[Manifest]:
    readable, damaged = manifests(store)
    if damaged and not readable:
        raise max(damaged.items())[1]
    if not readable:
        raise FormatError(f"{store.place} holds no backup")
    return readable


def _verify(store: BackupStore) -> list[str]:
    readable, damaged = manifests(store)
    if not readable and not damaged:
        raise FormatError(f"{store.place} holds no backup")
    findings = [f"backup {number}: {error}" for number, error in damaged.items()]
    checked: set[tuple[str, str | int]] = set()
    headers: dict[str, SegmentHeader] = {}
    damage = {part: manifest.number for manifest in reversed(readable) for part in manifest.damage}
    findings += [f"backup {number}: the log was damaged when it was copied, {part}" for part, number in damage.items()]
    for manifest in readable:
        for _, chunk, of in manifest.parts():
            if (key := (chunk.name, of if isinstance(of, str) else of.size)) in checked:
                continue
            checked.add(key)
            try:
                if chunk is manifest.metadata:
                    fetch_metadata(store, manifest)
                elif isinstance(of, SegmentCopy):
                    data = fetch_part(store, of, chunk)
                    first = of.chunks[0]
                    if chunk is first:
                        headers[first.name] = SegmentHeader.unpack(data)
                    if first.name in headers:  # otherwise it is damaged
                        check_index(store, of, chunk, headers[first.name], data)
                elif of:
                    fetch_cursor(store, of, chunk)
                else:
                    fetch(store, chunk)
            except CorruptionError as error:
                findings.append(f"backup {manifest.number}: {error}")
    return findings


def _check_keep(keep: int) -> None:
    if isinstance(keep, bool) or not isinstance(keep, int):
        raise TypeError(f"keep is an int, not {type(keep).__name__}")
    if keep < 1:
        raise InvalidArgumentError(f"keep={keep} would remove every backup: give at least 1")
