"""Publishing: the chunks of a manifest into an open log, each of them once.

A chunk is a transaction on each pchannel that its rows lie on, under (producer of the manifest, number of the chunk): what a process
before this one got into the log is a duplicate there, and not written again. A chunk is committed only when all before it are durable,
so rows of a vchannel keep their order whatever fails; the bodies of the next one are handed over meanwhile.

A producer is needed for each set of vchannels that the chunks of a manifest have, so after WINDOW chunks the manifest is stored
anew, with how many are in the log, and the producer until then is forgotten: few are remembered at a time, and none for good.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from wal.accesser import WALAccesser
from wal.accesser.txn import Txn
from wal.errors import ChannelNotExistError, InvalidArgumentError
from wal.message import AppendResult, ForgottenResult
from wal.pchannel import ProducerKey
from wal.settings import Settings
from wal.spark.sink.folder import SinkFolder
from wal.spark.sink.manifest import PRODUCER_PREFIX, Manifest
from wal.spark.sink.staging import Chunk, read_chunks, staged_file_gone

__all__ = ["Publisher"]

WINDOW: Final = 64
"""Chunks published under one producer, at most."""
_KEEPALIVE_S: Final = 60.0
"""Lease of a chunk's transaction; it only bounds how long a bug could hold memory."""
_MADE_AT_ONCE: Final = 256
"""Vchannels made at a time: those of one turn are saved together."""


class Publisher:
    """Publishes into one opening of a log. Nobody else uses the log meanwhile, see `PublishingLock`."""

    def __init__(self, log: WALAccesser, folder: SinkFolder, settings: Settings) -> None:
        self._log = log
        self._folder = folder
        self._settings = settings
        self._window = max(1, min(WINDOW, settings.producers_max // 2))
        self._places: dict[str, str] = {}

    async def tidy(self, manifests: list[Manifest]) -> None:
        """Forgets the sink's producers but for those of these manifests, which are all there are."""
        current = {manifest.producer for manifest in manifests}
        known = {info.name for info in await self._log.producers()}
        for name in sorted(known - current):
            if name.startswith(PRODUCER_PREFIX):
                await self._log.forget_producer(name)

    async def publish(self, manifest: Manifest) -> None:
        """Returns when every chunk is in the log, and the manifest, its mark and its files are settled. After an error: call it again."""
        if missing := await asyncio.to_thread(self._folder.missing, manifest):
            raise staged_file_gone(self._folder.staged(manifest.key) / missing[0])  # before a part of it is written
        await self._find_places()
        done = manifest.published
        chunks = _chunks(self._folder, manifest)
        committing: asyncio.Task[None] | None = None
        open_txns: list[Txn[AppendResult | ForgottenResult]] = []
        try:
            while (chunk := await asyncio.to_thread(next, chunks, None)) is not None:
                if done - manifest.published >= self._window:
                    if committing is not None:
                        await committing
                    committing = None
                    manifest = await self._advance(manifest, done)
                open_txns = await self._filled(chunk, ProducerKey(manifest.producer, done))
                if committing is not None:
                    await committing
                committing = asyncio.create_task(_committed(open_txns))
                open_txns = []
                done += 1
            if committing is not None:
                await committing
        except BaseException:
            if committing is not None:
                await asyncio.gather(committing, return_exceptions=True)
            await asyncio.gather(*(txn.rollback() for txn in open_txns), return_exceptions=True)
            raise
        await asyncio.to_thread(self._folder.finish, manifest)
        await self._forget(manifest.producer)

    async def _advance(self, manifest: Manifest, published: int) -> Manifest:
        """Stores how much is in the log, and only then forgets by what that could be seen."""
        after = manifest.after(published)
        await asyncio.to_thread(self._folder.store, after)
        await self._forget(manifest.producer)
        return after

    async def _forget(self, producer: str) -> None:
        try:
            await self._log.forget_producer(producer)
        except InvalidArgumentError:
            pass  # not known: nothing was written under it, or its vchannels were dropped

    async def _filled(self, chunk: Chunk, key: ProducerKey) -> list[Txn[AppendResult | ForgottenResult]]:
        """A transaction on each pchannel that the rows of the chunk lie on, with all of them in it."""
        await self._make_missing(chunk.names)
        names: dict[str, list[str]] = {}
        for name in chunk.names:
            names.setdefault(self._places[name], []).append(name)
        opened: dict[str, Txn[AppendResult | ForgottenResult]] = {}
        try:
            for place, on_it in names.items():
                opened[place] = await self._log.txn(vchannels=on_it, keepalive=_KEEPALIVE_S, idempotency_key=key)
            if len(opened) == 1:
                (txn,) = opened.values()
                for message in chunk.messages():
                    await txn.append(message)
            else:
                of = {name: opened[self._places[name]] for name in chunk.names}
                for message in chunk.messages():
                    await of[message.vchannel].append(message)
        except BaseException:
            await asyncio.gather(*(txn.rollback() for txn in opened.values()), return_exceptions=True)
            raise
        return list(opened.values())

    async def _find_places(self) -> None:
        self._places = {info.name: info.pchannel for info in await self._log.vchannels()}

    async def _make_missing(self, names: list[str]) -> None:
        missing = [name for name in names if name not in self._places]
        if missing and not self._settings.create_vchannels:
            raise ChannelNotExistError(
                f"vchannel {missing[0]!r} does not exist and create_vchannels is off: make it with create_vchannel({missing[0]!r}) and "
                "run the write again"
            )
        for first in range(0, len(missing), _MADE_AT_ONCE):
            made = await asyncio.gather(
                *(self._log.create_vchannel(name) for name in missing[first : first + _MADE_AT_ONCE])
            )
            self._places |= {info.name: info.pchannel for info in made}


async def _committed(txns: list[Txn[AppendResult | ForgottenResult]]) -> None:
    """Returns when all are durable; the first error otherwise, when all are settled."""
    outcomes = await asyncio.gather(*(txn.commit() for txn in txns), return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome


def _chunks(folder: SinkFolder, manifest: Manifest) -> Iterator[Chunk]:
    """The chunks that are not known to be in the log."""
    skip = manifest.published
    directory = folder.staged(manifest.key)
    for file in manifest.files:
        if skip < file.chunks:
            yield from read_chunks(directory, file, skip=skip)
        skip = max(0, skip - file.chunks)
