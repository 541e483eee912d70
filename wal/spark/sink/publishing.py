"""Publishing: writes the chunks of a manifest into an open log, each of them once.

A chunk is a transaction on each pchannel of its rows, under (producer of the manifest, number of the chunk). A chunk that an earlier
process wrote is a duplicate there, and is not written again. A chunk is committed only when all chunks before it are durable, so rows of a
vchannel keep their order after any failure. The bodies of the next chunk are submitted meanwhile.

The log remembers a producer for each set of vchannels that its chunks have. So after WINDOW chunks the manifest is stored again, with the
number of chunks in the log, and the previous producer is forgotten. The log thus remembers few producers, and none for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from wal.api.accesser import WALAccesser
from wal.api.txn import Txn
from wal.errors import ChannelNotExistError, InvalidArgumentError
from wal.message import AppendResult, ForgottenResult
from wal.runtime.threads import in_thread
from wal.settings import Settings
from wal.spark.sink.folder import SinkFolder
from wal.spark.sink.manifest import BatchManifest, is_producer_of
from wal.spark.sink.staging import StagedRows, read_chunks, staged_file_gone
from wal.write.idempotency.keys import ProducerKey

WINDOW: Final = 64
"""The maximum number of chunks that are published under one producer."""
_KEEPALIVE_S: Final = 60.0
"""The keepalive of a chunk's transaction; it only bounds how long a bug could hold memory."""
_CREATED_AT_ONCE: Final = 256
"""The number of vchannels created at once: those of one turn are saved in one operation."""


class Publisher:
    """Publishes into one opening of a log, which no other writer of the sink uses: see `PublishingLock`."""

    def __init__(self, log: WALAccesser, folder: SinkFolder, settings: Settings) -> None:
        self._log = log
        self._folder = folder
        self._settings = settings
        self._window = max(1, min(WINDOW, settings.producers_max // 2))
        self._pchannels: dict[str, str] = {}
        """The pchannel of each vchannel."""

    async def tidy(self, manifests: list[BatchManifest]) -> None:
        """Forgets this folder's producers except those of these manifests, which must be all manifests of the folder."""
        current = {manifest.producer for manifest in manifests}
        names = {info.name for info in await self._log.producers()}
        folder_id = await in_thread(lambda: self._folder.id)
        for name in sorted(names - current):
            if is_producer_of(folder_id, name):
                await self._log.forget_producer(name)

    async def publish(self, manifest: BatchManifest) -> None:
        """Publishes every chunk, then finishes the manifest, its mark and its files. It can be called again after an error."""
        if missing := await in_thread(self._folder.missing, manifest):
            raise staged_file_gone(self._folder.staged(manifest.key) / missing[0])  # before any part of it is written
        self._pchannels = {info.name: info.pchannel for info in await self._log.vchannels()}
        published = manifest.published
        chunks = _chunks(self._folder, manifest)
        committing: asyncio.Task[None] | None = None
        open_txns: list[Txn[AppendResult | ForgottenResult]] = []
        try:
            while (chunk := await in_thread(next, chunks, None)) is not None:
                if published - manifest.published >= self._window:
                    if committing is not None:
                        await committing
                    committing = None
                    manifest = await self._advance(manifest, published)
                open_txns = await self._filled(chunk, ProducerKey(manifest.producer, published))
                if committing is not None:
                    await committing
                committing = asyncio.create_task(_committed(open_txns))
                open_txns = []
                published += 1
            if committing is not None:
                await committing
        except BaseException:
            if committing is not None:
                await asyncio.gather(committing, return_exceptions=True)
            await asyncio.gather(*(txn.rollback() for txn in open_txns), return_exceptions=True)
            raise
        await in_thread(self._folder.finish, manifest)
        await self._forget(manifest.producer)

    async def _advance(self, manifest: BatchManifest, published: int) -> BatchManifest:
        """Stores the number of chunks in the log, and only then forgets the producer that records it."""
        after = manifest.after(published)
        await in_thread(self._folder.store, after)
        await self._forget(manifest.producer)
        return after

    async def _forget(self, producer: str) -> None:
        try:
            await self._log.forget_producer(producer)
        except InvalidArgumentError:
            pass  # unknown: no chunk was written under it, or its vchannels were dropped

    async def _filled(self, chunk: StagedRows, key: ProducerKey) -> list[Txn[AppendResult | ForgottenResult]]:
        """Returns a transaction on each pchannel of the chunk's rows; together they hold all rows."""
        await self._create_missing(chunk.names)
        names: dict[str, list[str]] = {}
        for name in chunk.names:
            names.setdefault(self._pchannels[name], []).append(name)
        opened: dict[str, Txn[AppendResult | ForgottenResult]] = {}
        try:
            for pchannel, on_it in names.items():
                opened[pchannel] = await self._log.txn(vchannels=on_it, keepalive=_KEEPALIVE_S, idempotency_key=key)
            if len(opened) == 1:
                (txn,) = opened.values()
                for message in chunk.messages():
                    await txn.append(message)
            else:
                of = {name: opened[self._pchannels[name]] for name in chunk.names}
                for message in chunk.messages():
                    await of[message.vchannel].append(message)
        except BaseException:
            await asyncio.gather(*(txn.rollback() for txn in opened.values()), return_exceptions=True)
            raise
        return list(opened.values())

    async def _create_missing(self, names: list[str]) -> None:
        missing = [name for name in names if name not in self._pchannels]
        if missing and not self._settings.create_vchannels:
            raise ChannelNotExistError(
                f"vchannel {missing[0]!r} does not exist and create_vchannels is off: create it with create_vchannel({missing[0]!r}) and "
                "run the write again"
            )
        for first in range(0, len(missing), _CREATED_AT_ONCE):
            created = await asyncio.gather(*(self._log.create_vchannel(name) for name in missing[first : first + _CREATED_AT_ONCE]))
            self._pchannels |= {info.name: info.pchannel for info in created}


async def _committed(txns: list[Txn[AppendResult | ForgottenResult]]) -> None:
    """Waits for all transactions to end; raises the first error, if any."""
    outcomes = await asyncio.gather(*(txn.commit() for txn in txns), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


def _chunks(folder: SinkFolder, manifest: BatchManifest) -> Iterator[StagedRows]:
    """Yields the chunks after the last one known to be in the log."""
    skip = manifest.published
    directory = folder.staged(manifest.key)
    for file in manifest.files:
        if skip < file.chunks:
            yield from read_chunks(directory, file, skip=skip)
        skip = max(0, skip - file.chunks)
