"""Finishing: what a commit does once the tasks have staged, and what is left to do after a crash.

One order for all: the lock of the sink, the journal opened, what others left unfinished, then the write's own manifest stored (or
the one that is there already), published, and its files removed. A write that finds a manifest of its own publishes that and nothing
else. A journal that cannot be opened stores nothing.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from wal.accesser import WALAccesser
from wal.accesser.opening import open_wal
from wal.errors import InvalidArgumentError, StorageError, WALError
from wal.loop_thread import LoopThread
from wal.spark.sink.folder import SinkFolder
from wal.spark.sink.locks import PublishingLock
from wal.spark.sink.manifest import Manifest, StagedFile, WriteKey
from wal.spark.sink.options import SinkOptions
from wal.spark.sink.publishing import Publisher

__all__ = ["PendingWrite", "commit_write", "discard", "pending", "recover"]

_log: Final = logging.getLogger("wal.spark")

_DECIDED: Final = (
    "What this job writes is decided, and partly in the log: the next write to this journal will finish it, or call "
    "wal.spark.sink.recover({!r}); do not run the job again"
)


class PendingWrite(msgspec.Struct, frozen=True):
    """A write that was decided and is not published as a whole: `published` of its `chunks` are known to be in the log.

    `write_id` is the query's id with its `batch_id`, or a batch job's own; `error` says what is wrong with its files, "" for nothing.
    """

    write_id: str
    batch_id: int
    stream: bool
    rows: int
    chunks: int
    published: int
    error: str = ""


def commit_write(options: SinkOptions, key: WriteKey, files: tuple[StagedFile, ...], *, stream: bool) -> None:
    """Publishes what these files hold, or what an earlier commit of the same write decided; returns when that is in the log.

    LockedError when somebody else has the journal open: then nothing was stored. After any other error the manifest may be there, and
    the next commit of this write, or of another one to the same journal, or `recover`, goes on with it.
    """
    folder = SinkFolder(options.journal)
    with PublishingLock(folder, timeout_s=options.lock_timeout_s):
        if stream and folder.is_published(key):
            folder.forget(key)
            return
        _in_log(options, lambda log: _commit(log, options, folder, key, files, stream=stream))


def pending(path: str) -> list[PendingWrite]:
    """The writes to this journal that were decided and are not published as a whole, by id. It opens nothing and changes nothing."""
    folder = SinkFolder(SinkOptions.parse({"path": path}).journal)
    writes = []
    for key in folder.decided():
        try:
            manifest = folder.load(key)
        except WALError as error:
            writes.append(PendingWrite(key.write_id, key.batch_id, False, 0, 0, 0, str(error)))
            continue
        if manifest is not None and not (manifest.stream and folder.is_published(key)):
            missing = folder.missing(manifest)
            damage = f"staged files are gone or cut off: {', '.join(missing)}" if missing else ""
            counts = (manifest.rows, manifest.chunks, manifest.published)
            writes.append(PendingWrite(key.write_id, key.batch_id, manifest.stream, *counts, damage))
    return writes


def recover(path: str, **options: str) -> list[PendingWrite]:
    """Publishes what killed drivers left decided and unfinished, and removes what is left over; answers what it published.

    `options` are those of a write. The first write that cannot be published is raised, when all others are done.
    """
    chosen = SinkOptions.parse({"path": path, **options})
    folder = SinkFolder(chosen.journal)
    done = pending(path)
    if not done:
        return []
    with PublishingLock(folder, timeout_s=chosen.lock_timeout_s):
        _in_log(chosen, lambda log: _recover(log, chosen, folder))
    return done


def discard(path: str, write_id: str, batch_id: int = 0) -> None:
    """Gives a pending write up: what of it is not in the log never will be. For one whose files are damaged.

    A streaming query that replays the batch publishes its rows as new, so what was in the log already is there twice.
    InvalidArgumentError when there is no such write.
    """
    chosen = SinkOptions.parse({"path": path})
    folder = SinkFolder(chosen.journal)
    key = WriteKey(write_id, batch_id)
    with PublishingLock(folder, timeout_s=chosen.lock_timeout_s):
        if key not in folder.decided():
            raise InvalidArgumentError(
                f"there is no pending write {write_id!r} with batch {batch_id}: pending(path) lists them"
            )
        folder.forget(key)


async def _commit(
    log: WALAccesser,
    options: SinkOptions,
    folder: SinkFolder,
    key: WriteKey,
    files: tuple[StagedFile, ...],
    *,
    stream: bool,
) -> None:
    publisher = Publisher(log, folder, options.settings)
    await _finish_others(publisher, folder, key)
    own = await asyncio.to_thread(_decided, folder, key, files, stream=stream)
    try:
        await publisher.publish(own)
    except Exception as error:
        if not stream:
            error.add_note(_DECIDED.format(str(options.journal)))
        raise
    await asyncio.to_thread(folder.sweep, age_s=options.orphan_age_s)


async def _recover(log: WALAccesser, options: SinkOptions, folder: SinkFolder) -> None:
    failures = await _finish_others(Publisher(log, folder, options.settings), folder, None)
    await asyncio.to_thread(folder.sweep, age_s=options.orphan_age_s)
    if failures:
        raise failures[0]


async def _finish_others(publisher: Publisher, folder: SinkFolder, key: WriteKey | None) -> list[WALError]:
    """Publishes every manifest but that of `key`; an earlier batch of the same query has to succeed, others are only told of."""
    manifests: list[Manifest] = []
    failures: list[WALError] = []
    damaged = False
    for other in await asyncio.to_thread(folder.decided):
        try:
            manifest = await asyncio.to_thread(folder.load, other)
        except WALError as error:
            if key is not None and other.write_id == key.write_id:
                raise
            _log.warning("a write of Spark cannot be finished: %s", error)
            failures.append(error)
            damaged = True
            continue
        if manifest is not None:
            manifests.append(manifest)
    if not damaged:  # else nobody knows which producers are still needed
        await publisher.tidy(manifests)
    for manifest in manifests:
        if manifest.key == key:
            continue
        try:
            if manifest.stream and await asyncio.to_thread(folder.is_published, manifest.key):
                await asyncio.to_thread(folder.forget, manifest.key)
            else:
                await publisher.publish(manifest)
        except WALError as error:
            if key is not None and manifest.key.write_id == key.write_id:
                raise
            _log.warning("write %s of Spark cannot be finished: %s", manifest.key, error)
            failures.append(error)
    return failures


def _decided(folder: SinkFolder, key: WriteKey, files: tuple[StagedFile, ...], *, stream: bool) -> Manifest:
    """The manifest of this write: the one that is stored, or a new one of these files, stored."""
    manifest = folder.load(key)
    if manifest is None:
        manifest = Manifest(key, stream, secrets.token_hex(8), files)
        if missing := folder.missing(manifest):
            raise StorageError(
                f"what the tasks staged in {folder.staged(key)} is gone or cut off ({', '.join(missing[:3])}), nothing was written: "
                "all tasks and the driver have to run on one host, and the option orphanAgeMs has to be longer than a batch"
            )
        folder.store(manifest)
    return manifest


def _in_log(options: SinkOptions, work: Callable[[WALAccesser], Awaitable[None]]) -> None:
    """Runs `work` with the journal open for writing, in a loop and thread of its own; closed when it returns."""

    async def run() -> None:
        async with open_wal(options.journal, settings=options.settings) as log:
            await work(log)

    thread = LoopThread()
    try:
        thread.call(run)
    finally:
        thread.stop()
