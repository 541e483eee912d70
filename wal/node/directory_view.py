"""DirectoryView: a node's view of the vchannels of a cluster: a copy of the coordinator's records in etcd.

How it works. A watch brings what changes; after a watch that broke, and once a minute, all records are read again and replace the copy. A
copy lags, so nothing is refused by it alone: `look_up` asks etcd for one name, and `catch_up` reads everything that was saved before the
call. A record is only replaced by one of a later incarnation, in whatever order the two ways bring them.

Who calls: the routes and the services of a node, as `KnownVChannels`. `on_changed` reports new and ended vchannels to the owner, so that
actors of an ended incarnation end too.

A view gives no name an incarnation, and writes nothing. `ask_to_create` requests that from the coordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from wal.channels.directory import BOTH, NEXT_KEY, PREFIX, RecordCounter, SavedVChannels, record_from
from wal.channels.vchannels import VChannelBegin, VChannelInfo, check_vchannel, place
from wal.errors import ChannelNotExistError, WALError
from wal.runtime.tasks import end_tasks
from wal.storage.kv import KVBase, WatchEvent
from wal.storage.kv.following import follow_prefix

_log: Final = logging.getLogger("wal.node")


class DirectoryView:
    """The vchannels in `kv` whose pchannels are `pchannels`. `start` it before use, and `close` it."""

    saving: Mapping[str, asyncio.Future[None]] = {}
    """Empty: every vchannel of the view is saved."""
    begins: Mapping[str, VChannelBegin] = {}
    """Empty: the coordinator does not know where a log ends."""

    def __init__(self, kv: KVBase, pchannels: Iterable[str]) -> None:
        self.records: dict[str, VChannelInfo] = {}
        self.next_incarnation: int = 1
        self.pchannels: list[str] = list(pchannels)
        self.on_dropped: Callable[[str], object] = lambda name: None
        self.on_changed: Callable[[VChannelInfo | None, VChannelInfo | None], object] = lambda before, now: None
        """Called with what a name was before and what it is now, after each change."""
        self.ask_to_create: Callable[[str, str], Awaitable[None]] | None = None
        """Has the coordinator create a vchannel, by its name and pchannel; one that exists is fine. None: nobody is asked."""
        self._kv = kv
        self._ended: set[tuple[str, int]] = set()
        """The vchannels that were ended here, and whose records are still in etcd."""
        self._watching: asyncio.Task[None] | None = None
        self._listing: asyncio.Task[None] | None = None
        self._next_listing: asyncio.Task[None] | None = None

    @property
    def directory(self) -> DirectoryView:
        """This view."""
        return self

    async def start(self) -> None:
        """Reads all records, and follows them from then on. Raises what the KV raises, CorruptionError for records that cannot be read."""
        watching: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watching = asyncio.get_running_loop().create_task(self._follow(watching), name="directory of vchannels")
        await asyncio.wait([watching, self._watching], return_when=asyncio.FIRST_COMPLETED)
        if self._watching.done():
            self._watching.result()

    async def close(self) -> None:
        """Follows the records no longer. Idempotent."""
        await end_tasks(self._watching, self._listing, self._next_listing)

    def durable(self) -> Iterable[VChannelInfo]:
        """Returns the vchannels whose records are saved: all that are known."""
        return self.records.values()

    def pchannel_of(self, name: str) -> str:
        """Returns the pchannel of this vchannel: where it is, or where the coordinator would create it."""
        info = self.records.get(check_vchannel(name))
        return place(name, self.pchannels) if info is None else info.pchannel

    async def look_up(self, name: str) -> VChannelInfo | None:
        """Returns the vchannel of this name as etcd has it now, or None if there is none."""
        key = PREFIX + check_vchannel(name)
        if (value := await self._kv.find(key)) is None:
            return None
        info = record_from(key, value)
        self._take(info)
        return self.records.get(name)

    async def create_on(self, name: str, pchannel: str) -> None:
        """Has the coordinator create a vchannel on this pchannel; on return this view has its record."""
        if self.ask_to_create is not None and name not in self.records:
            await self.ask_to_create(name, pchannel)
            await self.look_up(name)

    async def catch_up(self) -> None:
        """Returns when everything is known that was saved before the call. Callers that wait together share a reading."""
        if self._listing is not None and not self._listing.done():
            # The one under way may have begun before what this caller wants to know was saved.
            if self._next_listing is None or self._next_listing.done():
                self._next_listing = asyncio.get_running_loop().create_task(self._list_after(self._listing), name="directory: catching up")
            await asyncio.shield(self._next_listing)
            return
        self._listing = asyncio.get_running_loop().create_task(self._list(), name="directory: catching up")
        await asyncio.shield(self._listing)

    def check_new(self, names: Iterable[str]) -> None:
        """Raises ChannelNotExistError for the first of these vchannels that is not known: only the coordinator creates one."""
        for name in names:
            if check_vchannel(name) not in self.records:
                self.create_nowait(name)

    def create_nowait(self, name: str) -> None:
        """Raises ChannelNotExistError: only the coordinator gives a name its incarnation."""
        raise ChannelNotExistError(f"vchannel {name!r} does not exist: have the coordinator create it (LocateVChannels), then append again")

    def forget(self, info: VChannelInfo) -> None:
        """Forgets a vchannel that the coordinator ends, before its record is gone."""
        self._ended.add((info.name, info.incarnation))
        if self.records.get(info.name) == info:
            del self.records[info.name]

    async def _list_after(self, listing: asyncio.Task[None]) -> None:
        await asyncio.wait([listing])
        await self._list()

    async def _list(self) -> None:
        before, known_next = self.records.copy(), self.next_incarnation  # changes that come during the read are newer
        saved = SavedVChannels.of(*await self._kv.load_with_prefix(BOTH))
        infos, following = saved.records, saved.counter.next_incarnation
        if following < known_next:  # an older copy of etcd was restored, and what had ended is there again
            self._ended.clear()
        self.next_incarnation = max(self.next_incarnation, following)
        self._ended &= {(info.name, info.incarnation) for info in infos.values()}
        for name, info in before.items():
            if name not in infos and self.records.get(name) == info:
                self._end(info)
        for info in infos.values():
            self._take(info)

    async def _follow(self, begun: asyncio.Future[None]) -> None:
        async def read() -> None:
            await self._list()
            if not begun.done():
                begun.set_result(None)

        def late(error: WALError) -> None:
            if not begun.done():
                raise error
            _log.warning("what this node knows of the vchannels gets older: %s", error)

        await follow_prefix(self._kv, BOTH, read=read, changed=self._changed, late=late)

    def _changed(self, event: WatchEvent) -> None:
        if event.key == NEXT_KEY:
            with contextlib.suppress(ValueError):
                self.next_incarnation = max(self.next_incarnation, RecordCounter.parse(event.value or "").next_incarnation)
        elif event.key.startswith(PREFIX):
            name = event.key.removeprefix(PREFIX)
            if event.value is not None:
                self._take(record_from(event.key, event.value))
            elif (info := self.records.get(name)) is not None:
                self._end(info)
            else:
                self.on_dropped(name)

    def _take(self, info: VChannelInfo) -> None:
        before = self.records.get(info.name)
        if (before is not None and before.incarnation >= info.incarnation) or (info.name, info.incarnation) in self._ended:
            return
        self.records[info.name] = info
        self.next_incarnation = max(self.next_incarnation, info.incarnation + 1)
        self.on_changed(before, info)

    def _end(self, info: VChannelInfo) -> None:
        if self.records.get(info.name) == info:
            del self.records[info.name]
        self.on_changed(info, None)
        self.on_dropped(info.name)
