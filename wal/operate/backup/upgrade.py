"""Upgrade: stores the newest backup of an earlier version once more, in the form that readers of the archive need.

Objects of earlier versions have no index. The upgrade reads them, stores each segment again with its index, and makes one more backup of
the same tick. It needs no log, reads one segment after the other into memory, and changes no earlier backup; `forget` removes those.
"""

from __future__ import annotations

import time
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path

import msgspec

from wal.errors import FormatError, LockedError
from wal.node.archiving.rounds import CHUNK_BYTES, Progress, StoredObjects
from wal.runtime.threads import in_thread
from wal.storage.archive.manifest import (
    NEWEST,
    OBJECTS,
    PREFIX,
    VERSION,
    Chunk,
    Manifest,
    SegmentCopy,
    manifest_name,
    numbered,
    part_of_segment,
)
from wal.storage.archive.objects import fetch_part, load_manifest, plan_chunks, state_after
from wal.storage.archive.store import BackupStore, ObjectExistsError, open_store
from wal.storage.journal.layout import HEADER_PAGE_BYTES, SegmentHeader, segment_name
from wal.storage.journal.verify import check_frames


async def upgrade(target: str, *, progress: Progress | None = None) -> Manifest | None:
    """Makes a backup of the present version from the newest one at `target`; returns None if that has this version already.

    `progress` is called in other threads, with the objects that were stored so far. Raises FormatError for a target without backups,
    CorruptionError for a damaged backup, LockedError if another process has made a backup there meanwhile.
    """

    def make() -> Manifest | None:
        store = open_store(target)
        with closing(StoredObjects(store, progress)) as objects:
            return _upgrade(store, objects)

    return await in_thread(make)


def _upgrade(store: BackupStore, objects: StoredObjects) -> Manifest | None:
    names = numbered(store.names(PREFIX))
    if not names:
        raise FormatError(f"{store.place} holds no backup")
    newest = load_manifest(store, names[-1][1])
    if newest.version == VERSION and all(
        _is_indexed(newest, name, each) for name, copy in newest.pchannels.items() for each in copy.segments
    ):
        return None
    objects.there = set(store.names(OBJECTS))
    pchannels = {}
    for name, copy in newest.pchannels.items():
        segments: list[SegmentCopy] = []
        state: SegmentHeader | None = None
        for segment in copy.segments:
            copied, state = _stored_again(store, objects, newest, name, segment)
            segments.append(copied)
        pchannels[name] = msgspec.structs.replace(
            copy,
            segments=tuple(segments),
            newest=None if state is None else state.newest,
            promised_tick=0 if state is None else state.promised_tick,
        )
    manifest = msgspec.structs.replace(newest, version=VERSION, number=names[-1][0] + 1, at_s=time.time(), pchannels=pchannels)
    try:
        store.create(manifest_name(manifest.number), manifest.encode())
    except ObjectExistsError:
        raise LockedError(
            f"another process has made backup {manifest.number} at {store.place} meanwhile: upgrade again", pid=None
        ) from None
    store.replace(NEWEST, b"%d" % manifest.number)
    return manifest


def _is_indexed(manifest: Manifest, pchannel: str, segment: SegmentCopy) -> bool:
    """Returns whether every chunk of a segment has an index, but for those with damage of the log."""
    return all(chunk.index is not None or manifest.damage_in(pchannel, segment, chunk) is not None for chunk in segment.chunks)


def _stored_again(
    store: BackupStore, objects: StoredObjects, manifest: Manifest, pchannel: str, segment: SegmentCopy
) -> tuple[SegmentCopy, SegmentHeader]:
    """Stores a segment with its index; returns its copy, and the header of a segment that would begin after it."""
    data = b"".join([fetch_part(store, segment, chunk) for chunk in segment.chunks])
    state = SegmentHeader.unpack(data)
    path = Path("pchannels", pchannel, segment_name(segment.base))
    frames, _ = check_frames(path, state, lambda length, at: data[at : at + length], begin=HEADER_PAGE_BYTES, end=len(data))
    is_needed = not _is_indexed(manifest, pchannel, segment)
    chunks: list[Future[Chunk]] = []
    for plan in plan_chunks(frames, segment.base, 0, len(data), CHUNK_BYTES):
        if is_needed:
            part = part_of_segment(pchannel, segment.base, segment.generation, plan.start)
            chunks.append(objects.put_frames(data[plan.start : plan.end], part, plan, state))
        state = state_after(state, plan.frames)
    if not is_needed:
        return segment, state
    return msgspec.structs.replace(segment, chunks=tuple(chunk.result() for chunk in chunks)), state
