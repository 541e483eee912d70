"""Coordinator: the coordinator's half of a log: its pchannels, vchannels and channels, their terms, and the broadcasts over all of it.

Owns the records of pchannels and their terms, the directory of vchannels and channels with their owners, the maps that publish them to
readers in other processes, the broadcaster, and the ids that clients allocate. It writes no frame: the nodes have the pchannels. It calls
them as a `VChannelHost`, where the actors of vchannels begin and end, and as an `AppendOperator`, which appends the copies of broadcasts.

How a log opens, and who calls: `wal/node/local/log.py` calls `load`, which reads every record and creates the pchannels that the settings
add (first the storage of the log, then the record, so that a record never names a missing log). Then, for each pchannel, `raise_term` makes
its term durable by compare-and-swap, and a node may open it in that term. Last comes `start_broadcasts`, once the copies in all logs can be
listed: the broadcaster completes the unfinished broadcasts of earlier openings. A close has the reverse order.

What can go wrong: another process raises the same term: one of the two gets ChannelFencedError, and has opened nothing. Unreadable records,
or records that name missing pchannels, are a CorruptionError: nothing is created in their place. A crash between any two steps leaves an
unused term, or the storage of an empty log without a record, which the next opening creates again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from actors import ActorSystem
from broadcaster.admission import BroadcasterLimits
from broadcaster.broadcast import Broadcast
from broadcaster.operator import AppendOperator
from wal.channels.directory import VChannelDirectory
from wal.channels.map_keeper import VChannelMapKeeper
from wal.channels.metadata import BROADCAST_ROOT
from wal.channels.pchannels import (
    PChannelMeta,
    check_count,
    create_pchannel,
    load_pchannels,
    new_incarnation,
    pchannel_names,
    raise_term,
    save_compression,
)
from wal.channels.vchannel_map import MapPlace
from wal.coordinator.vchannels import VChannels
from wal.errors import CorruptionError, UnavailableError, WALError
from wal.settings import Settings
from wal.storage.files import HeldDirectory
from wal.storage.kv import KVBase

DIRECTORY_INBOX_MAX = 1 << 20
"""The maximum number of vchannel changes that wait to be saved; the limit on bytes in flight is reached first."""
BROADCASTS_S = 8.0
"""The time that a call waits for a starting broadcaster: less than the deadline of a client's call."""


class Coordinator:
    """The coordinator of the log whose metadata are in `kv`. `load` comes first, `start_broadcasts` last."""

    broadcasts: Broadcast

    def __init__(self, kv: KVBase, settings: Settings, system: ActorSystem) -> None:
        self.kv = kv
        self.settings = settings
        self.pchannels: dict[str, PChannelMeta] = {}
        """The records of all pchannels of the log, in their order, each in its newest term."""
        self.is_new: bool = False
        """Whether this opening creates the log."""
        self._broadcasting = asyncio.Event()
        self.broadcasts_trouble: WALError | None = None
        """The reason why the broadcaster could not start, after an attempt."""
        self._system = system
        directory = VChannelDirectory(kv)
        saver = system.spawn(directory, name="directory", inbox_max=DIRECTORY_INBOX_MAX)
        self.vchannels: VChannels = VChannels(directory, saver, self.pchannels, settings)

    async def load(self, create: Callable[[PChannelMeta], Awaitable[None]]) -> None:
        """Loads all records, and creates the pchannels that the settings add: `create` creates the storage of a log, before its record.

        Raises CorruptionError for records that are unreadable, or that do not belong together.
        """
        directory = self.vchannels.directory
        await directory.load()
        metas = await load_pchannels(self.kv)
        self.is_new = not metas
        if self.settings.compression is not None:
            await save_compression(self.kv, self.settings.compression)
        for name in pchannel_names(check_count(self.settings.pchannels, len(metas))):
            if name not in metas:
                meta = PChannelMeta(name, new_incarnation(), 0)
                await create(meta)
                await create_pchannel(self.kv, meta)
                metas[name] = meta
        if lost := {info.pchannel for info in directory.records.values()} - metas.keys():
            raise CorruptionError(
                f"vchannel records in the KV name the pchannels {', '.join(sorted(lost))}, which have no record",
                expected=f"pchannels {', '.join(metas)}",
            )
        self.pchannels.update(metas)

    @property
    def log_id(self) -> int:
        """The identity of this log on every server: the incarnation of its first pchannel, which is drawn when the log is created."""
        return next(iter(self.pchannels.values())).incarnation

    async def raise_term(self, name: str) -> PChannelMeta:
        """Raises the term of a pchannel durably and returns its record: a node may open it in this term.

        Raises ChannelFencedError if another process raised it meanwhile.
        """
        meta = self.pchannels[name] = await raise_term(self.kv, self.pchannels[name])
        return meta

    def make_maps(self, places: dict[str, MapPlace], *, held: HeldDirectory | None) -> VChannelMapKeeper:
        """Returns the keeper that publishes the vchannels to other processes once it is started."""
        maps = VChannelMapKeeper(self.vchannels.directory, places, monotonic=self._system.clock.monotonic, held=held)
        self.vchannels.maps = maps
        return maps

    async def start_broadcasts(self, operator: AppendOperator) -> None:
        """Starts the broadcaster, which completes the unfinished broadcasts of earlier openings; `broadcasts.close` ends it."""
        settings = self.settings
        broadcasts = await Broadcast.start(
            self._system,
            kv=self.kv.under(BROADCAST_ROOT),
            operator=operator,
            limits=BroadcasterLimits(tasks_max=settings.broadcast_tasks_max, vchannels_max=settings.broadcast_vchannels_max),
        )
        self.broadcasts = broadcasts
        self._broadcasting.set()

    async def running_broadcasts(self) -> Broadcast:
        """Returns the broadcaster, once it has started. Raises UnavailableError if that takes longer than `BROADCASTS_S`."""
        if not self._broadcasting.is_set():
            try:
                await asyncio.wait_for(self._broadcasting.wait(), BROADCASTS_S)
            except TimeoutError:
                trouble = self.broadcasts_trouble or "it asks every pchannel first, and some are on no node"
                raise UnavailableError(f"the broadcaster has not started yet: {trouble}; nothing was done, try again") from None
        return self.broadcasts

    @property
    def broadcasting(self) -> bool:
        """Whether the broadcaster has started."""
        return self._broadcasting.is_set()

    async def end_broadcasts(self) -> None:
        """Ends the broadcaster, if it has started."""
        if self.broadcasting:
            await self.broadcasts.close()

    def end_waiting(self, error: Callable[[], Exception]) -> None:
        """Fails the broadcasts that wait for their resource keys."""
        if self._broadcasting.is_set():
            self.broadcasts.end_waiting(error)
