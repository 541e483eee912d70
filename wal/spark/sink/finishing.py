"""Finishing: the steps of a commit once the tasks have staged, and of the recovery after a crash.

All commits use one order: take the lock of the sink, open the log, finish the unfinished writes of others, store the write's own manifest
(or load the stored one), publish it, remove its files. A write that has a stored manifest publishes that and nothing else. Nothing is
stored for a log that cannot be opened.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from wal.api.accesser import WALAccesser
from wal.api.opening import open_wal
from wal.errors import InvalidArgumentError, StorageError, WALError
from wal.runtime.loop_thread import LoopThread
from wal.runtime.threads import in_thread
from wal.spark.sink.folder import SinkFolder
from wal.spark.sink.locks import PublishingLock, check_topics
from wal.spark.sink.manifest import BatchManifest, StagedFile, WriteKey
from wal.spark.sink.options import SinkOptions
from wal.spark.sink.publishing import Publisher

_log: Final = logging.getLogger("wal.spark")

_DECIDED: Final = (
    "What this job writes is decided, and partly in the log: the next write to this log will finish it, or call "
    "wal.spark.sink.recover({}); do not run the job again"
)


class PendingWrite(msgspec.Struct, frozen=True):
    """A write that was decided but is not fully published: `published` of its `chunks` are known to be in the log.

    `write_id` is the query's id with its `batch_id`, or a batch job's own. `error` describes damage of its files, and is empty without
    damage.
    """

    write_id: str
    batch_id: int
    stream: bool
    rows: int
    chunks: int
    published: int
    error: str = ""


def commit_write(options: SinkOptions, key: WriteKey, files: tuple[StagedFile, ...], *, stream: bool) -> None:
    """Publishes the content of these files, or the content that an earlier commit of this write has decided; returns when it is in the log.

    Raises LockedError when another process has the log open for writing: then nothing was stored. After any other error the manifest may be
    stored. Then the next commit to the same log, or `recover`, continues with it.
    """
    folder = options.folder
    with PublishingLock(folder, timeout_s=options.lock_timeout_s):
        if stream and folder.is_published(key):
            folder.forget(key)
            return
        _in_log(options, lambda log: _commit(log, options, folder, key, files, stream=stream))


def pending(path: str | None = None, **options: str) -> list[PendingWrite]:
    """Returns the writes to a log that were decided but are not fully published, by id. It opens and changes nothing.

    `path` is the journal's directory; for another log pass the options of the write: `pending(address=…, staging=…)`.
    """
    folder = _options(path, options).folder
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


def recover(path: str | None = None, **options: str) -> list[PendingWrite]:
    """Publishes the decided, unfinished writes of killed drivers, and removes their leftover files. Returns the published writes.

    The arguments are those of `pending`, and other options of a write. A write that cannot be published does not stop the others: the first
    such error is raised at the end.
    """
    chosen = _options(path, options)
    writes = pending(path, **options)
    if not writes:
        return []
    with PublishingLock(chosen.folder, timeout_s=chosen.lock_timeout_s):
        _in_log(chosen, lambda log: _recover(log, chosen, chosen.folder))
    return writes


def discard(path: str | None, write_id: str, batch_id: int = 0, **options: str) -> None:
    """Discards a pending write whose files are damaged: its unpublished chunks will never be in the log.

    A streaming query that replays the batch publishes all its rows as new, so the rows of the published chunks are then in the log twice.
    Raises InvalidArgumentError if the write does not exist.
    """
    chosen = _options(path, options)
    key = WriteKey(write_id, batch_id)
    with PublishingLock(chosen.folder, timeout_s=chosen.lock_timeout_s):
        if key not in chosen.folder.decided():
            raise InvalidArgumentError(f"no pending write {write_id!r} with batch {batch_id}: pending(path) lists them")
        chosen.folder.forget(key)


def _options(path: str | None, options: dict[str, str]) -> SinkOptions:
    return SinkOptions.parse(options if path is None else {"path": path, **options})


async def _commit(
    log: WALAccesser, options: SinkOptions, folder: SinkFolder, key: WriteKey, files: tuple[StagedFile, ...], *, stream: bool
) -> None:
    publisher = Publisher(log, folder, options.settings)
    await _finish_others(publisher, folder, key)
    own = await in_thread(_decided, folder, key, files, stream=stream)
    try:
        await publisher.publish(own)
    except Exception as error:
        if not stream:
            journal = options.location.directory()
            error.add_note(_DECIDED.format("with the options of this job" if journal is None else repr(str(journal))))
        raise
    await in_thread(folder.sweep, age_s=options.orphan_age_s)


async def _recover(log: WALAccesser, options: SinkOptions, folder: SinkFolder) -> None:
    failures = await _finish_others(Publisher(log, folder, options.settings), folder, None)
    await in_thread(folder.sweep, age_s=options.orphan_age_s)
    if failures:
        raise failures[0]


async def _finish_others(publisher: Publisher, folder: SinkFolder, key: WriteKey | None) -> list[WALError]:
    """Publishes every manifest except that of `key`. Returns the failures, but raises the failure of an earlier batch of the same query."""
    manifests: list[BatchManifest] = []
    failures: list[WALError] = []
    damaged = False
    for other in await in_thread(folder.decided):
        try:
            manifest = await in_thread(folder.load, other)
        except WALError as error:
            if key is not None and other.write_id == key.write_id:
                raise
            _log.warning("a write of Spark cannot be finished: %s", error)
            failures.append(error)
            damaged = True
            continue
        if manifest is not None:
            manifests.append(manifest)
    if not damaged:  # a damaged manifest does not name the producers that it still needs
        await publisher.tidy(manifests)
    for manifest in manifests:
        if manifest.key == key:
            continue
        try:
            if manifest.stream and await in_thread(folder.is_published, manifest.key):
                await in_thread(folder.forget, manifest.key)
            else:
                await publisher.publish(manifest)
        except WALError as error:
            if key is not None and manifest.key.write_id == key.write_id:
                raise
            _log.warning("write %s of Spark cannot be finished: %s", manifest.key, error)
            failures.append(error)
    return failures


def _decided(folder: SinkFolder, key: WriteKey, files: tuple[StagedFile, ...], *, stream: bool) -> BatchManifest:
    """Returns the manifest of this write: the stored one, or a new one for these files, which it stores."""
    manifest = folder.load(key)
    if manifest is None:
        token = secrets.token_hex(8)
        manifest = BatchManifest(key, stream, f"{folder.id}-{token}" if folder.id else token, files)
        if missing := folder.missing(manifest):
            raise StorageError(
                f"staged files in {folder.staged(key)} are gone or cut off ({', '.join(missing[:3])}), nothing was written: "
                "all tasks and the driver have to see the same files there, and the option orphanAgeMs has to be longer than a batch"
            )
        folder.store(manifest)
    return manifest


def _in_log(options: SinkOptions, work: Callable[[WALAccesser], Awaitable[None]]) -> None:
    """Runs `work` with the log open for writing, in its own loop and thread; the log is closed on return."""
    location, own = options.location.opening()
    if options.location.directory() is None:
        if options.location.servers() is None:
            check_topics(options.location)
        options.folder.claim(str(location))

    async def run() -> None:
        async with open_wal(location, settings=options.settings, **own) as log:
            await work(log)

    thread = LoopThread()
    try:
        thread.call(run)
    finally:
        thread.stop()
