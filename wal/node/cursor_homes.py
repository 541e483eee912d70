"""CursorHomes: the cursors of a log that move with transactions, and the pchannels in whose logs they are kept, their homes.

How it works. The home of a cursor is named once, by compare-and-swap in the metadata, before anything of the cursor is written there; from
then on its records, in the log of that pchannel, say what is saved. `CursorWrites` writes them, `CursorTable` judges them. What the store
of cursors has is a copy. It says to other processes that the cursor has a home, so that none of them saves it beside the home, and where it
was at most a second ago; retention keeps the log from there on. A copy is never ahead of its record:

* a change that a truncation could overtake (a first save, one that moves back) is checked under the lock of the store, and a copy that
  holds the log from the new position on is stored before the change is judged (`_check`);
* all other copies are written from durable records, within `KEEP_S`, by the keeper, and at the end.

A cursor that was saved before it had a home brings its position along: the copy is marked, and the position becomes its first record.

After a crash, or where a log was restored to an earlier time than the copies, the log says what is saved, and copies are brought in line.
A cursor that is deleted leaves a tombstone in the log, until its copy and the name of its home are gone too.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from actors import ActorError, Clock, Timer
from wal.channels.metadata import HOME_ROOT
from wal.channels.pchannels import raise_format
from wal.errors import (
    ChannelFencedError,
    ClosedError,
    CorruptionError,
    InvalidArgumentError,
    StorageError,
    UnavailableError,
    WALError,
    closed_log,
)
from wal.message import LogPosition
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.read.cursors.files import file_name
from wal.read.cursors.service import CursorService
from wal.read.cursors.status import CursorStatus, cursor_status
from wal.read.cursors.store import CursorStore, DamagedCursor, adopted, below_earliest
from wal.storage.kv import KVBase
from wal.write.cursor_table import BROUGHT, CursorChange, CursorRecord, CursorTable
from wal.write.cursor_writes import CursorOperation, save_after
from wal.write.pchannel import PChannel

KEEP_S: Final = 0.5
"""The copy of a cursor is written this long after a record at the latest, if the disk allows it."""
ANSWER_S: Final = 10.0
"""How long a thread that holds the lock of the cursors waits for the turn of a pchannel."""
_log: Final = logging.getLogger("wal.cursors")


class CursorHomes:
    """See the top of the file. `raise_backend_format` is called before the first home is named: earlier versions must not write the log
    from then on. If it raises, no home is named. `pchannel_of` returns the pchannel of a vchannel."""

    def __init__(
        self,
        kv: KVBase,
        pchannels: Mapping[str, PChannel],
        cursors: CursorService,
        *,
        pchannel_of: Callable[[str], str],
        raise_backend_format: Callable[[], Awaitable[None]],
        clock: Clock,
        shared: bool,
    ) -> None:
        """`shared`: other nodes have other pchannels of the log, and come to have these."""
        self._shared = shared
        self._metadata = kv
        self._kv = kv.under(HOME_ROOT)
        self._pchannels = pchannels
        self._cursors = cursors
        self._store: CursorStore = cursors.store
        self._pchannel_of = pchannel_of
        self._raise_backend_format = raise_backend_format
        self._clock = clock
        self._names: dict[CursorKey, str] = {}
        self._changing = asyncio.Lock()
        """Held while a home is named, a change is checked, or a cursor is deleted."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._dirty: set[CursorKey] = set()
        self._timer: Timer | None = None
        self._warned = False
        self._closed = False

    # -- opening and closing

    async def open(self) -> None:
        """Loads the homes, and serves the cursors of the pchannels that are here."""
        await self._load_names()
        for pchannel in self._pchannels.values():
            self._serve(pchannel)
        for pchannel in self._pchannels.values():
            await self._reconcile(pchannel)

    async def attach(self, pchannel: PChannel) -> None:
        """Serves the cursors of a pchannel that was opened since."""
        self._forget_names(pchannel.channel)
        await self._load_names(pchannel.channel)
        self._serve(pchannel)
        await self._reconcile(pchannel)

    def detach(self, pchannel: PChannel) -> list[CursorKey]:
        """Serves the cursors of a pchannel that is being closed here no more, and returns them: its next owner does."""
        pchannel.cursors.check = None
        return self._forget_names(pchannel.channel)

    def _serve(self, pchannel: PChannel) -> None:
        pchannel.cursors.check = partial(self._begin_check, pchannel)
        pchannel.cursors.on_settled = self._settled

    async def _load_names(self, pchannel: str | None = None) -> None:
        """Loads the cursors whose home is this pchannel, or (None) one of those that are here."""
        keys, texts = await self._kv.load_with_prefix("")
        for key, text in zip(keys, texts, strict=True):
            home = _home_from(key, text)
            if home.pchannel == pchannel or (pchannel is None and (home.pchannel in self._pchannels or not self._shared)):
                self._names[CursorKey(home.name, home.vchannels)] = home.pchannel
        if self._names:
            await self._raise_format()

    def _forget_names(self, pchannel: str) -> list[CursorKey]:
        keys = [key for key, home in self._names.items() if home == pchannel]
        for key in keys:
            del self._names[key]
            self._dirty.discard(key)
        return keys

    async def end(self) -> None:
        """Begins no check any more, and waits for those under way."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Writes the last copies. Call it after `end`, when the logs take nothing any more, and before the store is closed."""
        await self._keep()

    # -- what the service of cursors asks

    def __contains__(self, key: object) -> bool:
        return key in self._names

    def homed_keys(self) -> list[CursorKey]:
        """Returns the cursors that have a home."""
        return [*self._names]

    def incarnations(self, key: CursorKey) -> tuple[int | None, ...]:
        """Returns the incarnations that a cursor was saved for, None for each of one that was not saved or is not here."""
        cursor = self._shown(key)
        return (None,) * len(key.vchannels) if cursor is None else cursor.incarnations

    async def load(self, key: CursorKey) -> Cursor | None:
        """Returns the cursor as its home has it, durably."""
        pchannel = self.home_of(key)
        pchannel.check_lease()
        if pchannel.fault is not None:
            raise pchannel.fault
        record = pchannel.cursors.table.get(key)
        if record is not None and (record.deleted or record.cursor is not None):
            return record.cursor
        return await self._cursors.run(lambda: self._store.load(key))

    async def save(self, cursor: Cursor, *, forward_only: bool = False) -> bool:
        """Saves a cursor at its home; durable on return. Returns whether it was written."""
        if cursor.key not in self._names:
            async with self._changing:
                await self._name(cursor.key, self._pchannel_of(cursor.key.vchannels[0]))
        change = CursorChange(cursor.key, cursor, forward_only=forward_only)
        return await self.changed(self.home_of(cursor.key), cursor.key, change=change) is not None

    def current(self, cursors: Iterable[Cursor | DamagedCursor]) -> list[Cursor | DamagedCursor]:
        """Returns these stored cursors, each copy replaced by what its home has."""
        shown: list[Cursor | DamagedCursor] = []
        for cursor in cursors:
            if isinstance(cursor, Cursor) and cursor.home and cursor.key in self._names:
                cursor = self._shown(cursor.key) or cursor
            shown.append(cursor)
        return shown

    async def delete(self, keys: Iterable[CursorKey]) -> None:
        """Deletes cursors at their homes, with their copies and the names of their homes; durable on return."""
        for key in keys:
            async with self._changing:
                if key in self._names:
                    await self._delete(self.home_of(key), key)

    def left_behind(self, copy: Cursor) -> Cursor | None:
        """Returns the cursor that was saved before it had a home.

        None for a later copy: the log has no output of what that has passed.
        """
        return msgspec.structs.replace(copy, home="", revision=0) if copy.revision == BROUGHT else None

    async def mark_stale(self, key: CursorKey, why: str) -> Cursor | None:
        """Marks a cursor as stale at its home; see `wal.read.cursors.service.CursorHomes`."""
        pchannel = self._pchannels.get(self._names.get(key, ""))
        if pchannel is None or (record := pchannel.cursors.table.get(key)) is None:
            return None
        revision = record.revision
        marked = await self.changed(pchannel, key, make=lambda table: table.mark_stale(key, why, revision=revision))
        return None if marked is None else _copy_of(marked, pchannel.channel)

    # -- what transactions and consumers need

    async def name(self, key: CursorKey, *, pchannel: str | None = None) -> None:
        """Names a home for a cursor that has none: this pchannel, or (None) that of its vchannels. It must be here."""
        if key not in self._names:
            own = self._pchannel_of(key.vchannels[0])
            self._check_shared(key, pchannel or own)
            self.here(key, pchannel or own)
            async with self._changing:
                await self._name(key, pchannel or own)

    def change_of(self, cursor: Cursor, after: LogPosition | None = None) -> CursorChange:
        """Returns the save of a cursor by a transaction."""
        return CursorChange(cursor.key, msgspec.structs.replace(cursor, saved_at=self._cursors.wall()), after=after)

    async def named(self, key: CursorKey, pchannel: str) -> None:
        """Names this pchannel as the home of a cursor that has none. Raises InvalidArgumentError if another one is its home."""
        if key not in self._names:
            self._check_shared(key, pchannel)
            async with self._changing:
                await self._name(key, pchannel)
        if (home := self._names.get(key)) not in (None, pchannel):
            raise InvalidArgumentError(
                f"{key} is kept in the log of pchannel {home}, and this transaction is on pchannel {pchannel}: save it in a transaction on "
                f"vchannels of {home}, or delete the cursor to begin again"
            )

    def send(self, change: CursorChange, pchannel: PChannel) -> asyncio.Future[CursorRecord | None]:
        """Sends a save that comes without messages; it must be of a cursor whose home is this pchannel."""
        return self.tell(pchannel, change.key, change=change)

    def save_after(self, change: CursorChange, first: asyncio.Future[Any], pchannel: PChannel) -> asyncio.Future[Any]:
        """Sends the save of a transaction whose key was seen before; the future gets the `first` result once the save is durable."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._send(pchannel, save_after(change, first, future))
        return future

    # -- changes

    def home_of(self, key: CursorKey) -> PChannel:
        """Returns the home of a cursor that has one. Raises UnavailableError if it is not here."""
        return self.here(key, self._names[key])

    def here(self, key: CursorKey, name: str) -> PChannel:
        """Returns the pchannel of this name. Raises UnavailableError if it is not here."""
        if (pchannel := self._pchannels.get(name)) is None:
            raise UnavailableError(f"{key} is kept in the log of pchannel {name}, which is not open here: try again when it is")
        return pchannel

    def _shown(self, key: CursorKey) -> Cursor | None:
        """Returns the durable cursor, if its home is here and has it."""
        pchannel = self._pchannels.get(self._names.get(key, ""))
        record = None if pchannel is None else pchannel.cursors.table.get(key)
        return None if record is None else record.cursor

    def tell(
        self,
        pchannel: PChannel,
        key: CursorKey,
        *,
        change: CursorChange | None = None,
        make: Callable[[CursorTable], CursorRecord | None] | None = None,
    ) -> asyncio.Future[CursorRecord | None]:
        """Sends a change of a cursor to its home; the future gets its durable record, or None if there was nothing to write."""
        future: asyncio.Future[CursorRecord | None] = asyncio.get_running_loop().create_future()
        self._send(pchannel, CursorOperation(key, future, change, make))
        return future

    @staticmethod
    def _send(pchannel: PChannel, operation: CursorOperation) -> None:
        try:
            pchannel.cursors.tell(operation)
        except ActorError as error:
            raise (pchannel.fault or closed_log()) from error

    async def changed(
        self,
        pchannel: PChannel,
        key: CursorKey,
        *,
        change: CursorChange | None = None,
        make: Callable[[CursorTable], CursorRecord | None] | None = None,
    ) -> CursorRecord | None:
        """Carries a change out, and returns its durable record; None if there was nothing to write."""
        return await asyncio.shield(self.tell(pchannel, key, change=change, make=make))

    async def adopt(self, pchannel: PChannel, key: CursorKey) -> None:
        """Gives a cursor that was saved without a home its first record."""
        if pchannel.cursors.table.newest(key).cursor is None:
            copy = await self._cursors.run(lambda: self._store.load(key))
            if copy is not None and copy.home:
                copy = self.left_behind(copy)
            if copy is not None:
                await self.changed(pchannel, key, change=CursorChange(key, copy, forward_only=True))

    async def _delete(self, pchannel: PChannel, key: CursorKey) -> None:
        await self.changed(pchannel, key, make=lambda table: table.delete(key))
        await self._forget(pchannel, key)

    async def _forget(self, pchannel: PChannel, key: CursorKey) -> None:
        """Removes what is left of a deleted cursor: its copy, the name of its home, and its tombstone."""
        await self._cursors.run(partial(self._remove_copy, key))
        await self._kv.remove(file_name(key))
        self._names.pop(key, None)
        self._dirty.discard(key)
        self._forget_tombstone(pchannel, key)

    def _remove_copy(self, key: CursorKey) -> None:
        """Runs in a thread."""
        with self._store.locked():
            if (copy := self._store.load(key)) is not None and copy.home:
                self._store.change(copy, None)
        self._store.sync()

    def _forget_tombstone(self, pchannel: PChannel, key: CursorKey) -> None:
        table = pchannel.cursors.table
        if (tombstone := table.get(key)) is not None and tombstone.deleted:
            with contextlib.suppress(ActorError):
                pchannel.actor_group.tell_control(pchannel.cursors, lambda: table.forget(tombstone))

    async def _name(self, key: CursorKey, pchannel: str) -> None:
        """Names the home of a cursor durably, unless it has one."""
        if key in self._names:
            return
        if not self._names:
            await self._raise_format()
        text = _encoder.encode(_Home(key.name, key.vchannels, pchannel)).decode()
        if not await self._kv.compare_and_swap(file_name(key), None, text):
            pchannel = _home_from(file_name(key), await self._kv.load(file_name(key))).pchannel
        self._names[key] = pchannel

    def _check_shared(self, key: CursorKey, pchannel: str) -> None:
        """Raises InvalidArgumentError for a home in a cluster that is not the pchannel of the cursor's vchannels: those have one owner."""
        if self._shared and (own := self._pchannel_of(key.vchannels[0])) != pchannel:
            raise InvalidArgumentError(
                f"{key} reads pchannel {own}, and would be kept in the log of pchannel {pchannel}: in a cluster a cursor moves with "
                f"transactions on the pchannel that it reads; create the vchannels of the output on {own}"
            )

    async def _raise_format(self) -> None:
        await self._raise_backend_format()
        await raise_format(self._metadata)

    # -- checks

    def _begin_check(self, pchannel: PChannel, change: CursorChange) -> None:
        self._run(self._check(pchannel, change))

    async def _check(self, pchannel: PChannel, change: CursorChange) -> None:
        """Compares a change with the log and the copy, stores a copy that holds the log for it, and has it judged."""
        key = change.key
        try:
            async with self._changing:
                if self._closed or pchannel.cursors.check is None:
                    raise closed_log()
                await self._name(key, pchannel.channel)
                if self._names[key] != pchannel.channel:
                    raise ChannelFencedError(f"{key} has moved to pchannel {self._names[key]} meanwhile: nothing was written")
                loop = asyncio.get_running_loop()
                await self._cursors.run(lambda: self._check_locked(pchannel, change, loop))
        except WALError as error:
            self._judge(pchannel, key, None, error)
        except Exception as error:
            failure = StorageError(f"{key} could not be saved: {error!r}; please report it")
            failure.__cause__ = error
            self._judge(pchannel, key, None, failure)

    def _check_locked(self, pchannel: PChannel, change: CursorChange, loop: asyncio.AbstractEventLoop) -> None:
        """Runs in a thread."""
        key, cursor, home, store = change.key, change.cursor, pchannel.channel, self._store
        assert cursor is not None
        with store.locked():
            log = self._pchannels[cursor.pchannel].log if cursor.pchannel in self._pchannels else None
            if log is not None and cursor.start < (first := log.earliest):
                raise below_earliest(cursor, first)
            copy, brought = store.load(key), None
            is_first = pchannel.cursors.table.newest(key).cursor is None
            if copy is not None and copy.home and is_first:
                copy = self.left_behind(copy)
            if copy is not None and not copy.home and is_first:
                brought = copy
            if copy is None or not _same_log(copy, cursor):
                revision = 0 if copy is None or brought is not None else copy.revision
                store.put(msgspec.structs.replace(cursor, home=home, revision=revision))
            else:
                revision = copy.revision if copy.home else BROUGHT
                store.put(msgspec.structs.replace(copy, home=home, revision=revision, start=min(copy.start, cursor.start)))
            store.sync()
            # The lock is held until the change is judged: no truncation may come between. So one that is given up here is judged no more.
            judged: concurrent.futures.Future[None] = concurrent.futures.Future()
            loop.call_soon_threadsafe(self._judge, pchannel, key, brought, None, judged)
            try:
                judged.result(ANSWER_S)
            except TimeoutError:
                if judged.cancel():
                    raise UnavailableError(
                        f"pchannel {home} did not take a save of {key} within {ANSWER_S:g} s, and nothing of it was written: save it again"
                    ) from None
                judged.result()

    def _judge(
        self,
        pchannel: PChannel,
        key: CursorKey,
        brought: Cursor | None,
        error: WALError | None,
        judged: concurrent.futures.Future[None] | None = None,
    ) -> None:
        """Continues the changes of a cursor in a turn of its home."""

        def checked() -> None:
            if judged is not None and not judged.set_running_or_notify_cancel():
                return  # the caller has given up: the error that it judges with comes next
            try:
                pchannel.cursors.checked(key, brought, error)
            finally:
                if judged is not None:
                    judged.set_result(None)

        try:
            pchannel.actor_group.tell_control(pchannel.cursors, checked)
        except ActorError:  # it has failed, or is closed: its changes have their errors
            if judged is not None and judged.set_running_or_notify_cancel():
                judged.set_exception(ClosedError("the log was closed: open it again to go on"))

    def _run(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the copies of cursors could not be kept: %r", error, exc_info=error)

    # -- copies

    def _settled(self, key: CursorKey) -> None:
        self._dirty.add(key)
        if self._timer is None and not self._closed:
            self._timer = self._clock.call_later(KEEP_S, self._due)

    def _due(self) -> None:
        self._timer = None
        if not self._closed:
            self._run(self._keep())

    async def _keep(self) -> None:
        """Writes the copies of the cursors whose records have changed; what cannot be written now is tried again."""
        keys, self._dirty = self._dirty, set()
        if not keys:
            return
        try:
            left = await self._cursors.run(lambda: self._write_copies(keys))
            self._warned = False
        except ClosedError:
            return
        except WALError as error:
            left = [*keys]
            if not self._warned:
                self._warned = True
                _log.warning("the copies of %d cursors could not be written and will be tried again: %s", len(keys), error)
        for key in left:
            self._settled(key)

    def _write_copies(self, keys: Iterable[CursorKey]) -> list[CursorKey]:
        """Writes copies; returns the cursors to look at again. Runs in a thread; the tables are only read."""
        left: list[CursorKey] = []
        with self._store.locked():
            for key in keys:
                home = self._names.get(key)
                pchannel = None if home is None else self._pchannels.get(home)
                if home is None or pchannel is None:
                    continue
                table = pchannel.cursors.table
                newest, record = table.newest(key), table.get(key)
                if record is None or record.cursor is None:
                    if newest is record or not table.is_pending(key):
                        copy = self._store.load(key)
                        if copy is not None and copy.unsaved:
                            self._store.change(copy, None)
                elif newest.cursor is not None and newest.cursor.start < record.cursor.start:
                    left.append(key)  # a save that moves back is under way: its copy holds the log already
                else:
                    self._store.put(_copy_of(record, home))
        self._store.sync()
        return left

    async def _reconcile(self, pchannel: PChannel) -> None:
        """Brings the copies of a pchannel's cursors in line with its log after an opening, whatever was interrupted."""
        home, table = pchannel.channel, pchannel.cursors.table
        named = [key for key, name in self._names.items() if name == home]
        if not named and not len(table):
            return
        copies = {copy.key: copy for copy in await self._cursors.run(self._store.load_all) if isinstance(copy, Cursor) and copy.home}
        view = self._cursors.view()
        lineages = {name: log.lineage for name, log in view.logs.items() if log.lineage is not None}
        for record in table.all():
            key = record.key
            if record.deleted and self._names.get(key) == home:
                await self._forget(pchannel, key)  # its deletion was interrupted
            elif record.deleted:
                self._forget_tombstone(pchannel, key)
            elif key not in self._names:
                await self._name(key, home)
                named.append(key)
        for key, left in copies.items():
            if left.home == home and key not in self._names and not any(key in each.cursors.table for each in self._pchannels.values()):
                await self._name(key, home)  # the metadata are of an earlier time than the copies
                named.append(key)
        for key in named:
            kept, copy = table.get(key), copies.get(key)
            cursor = None if kept is None else kept.cursor
            if key not in self._names or (kept is not None and kept.deleted):
                continue
            if cursor is None and copy is not None and copy.revision == BROUGHT:
                cursor = msgspec.structs.replace(copy, home="", revision=0)  # the process ended before its first record was written
                kept = await self.changed(pchannel, key, make=partial(_saved, change=CursorChange(key, cursor)))
            elif cursor is None and copy is not None and copy.revision > BROUGHT:
                # The log was restored to a time before its first record, and has no output of what the copy has passed.
                await self._cursors.run(partial(self._remove_copy, key))
                continue
            if cursor is not None and (moved := adopted(cursor, lineages)) is not None:
                kept = await self.changed(pchannel, key, make=partial(_saved, change=CursorChange(key, moved)))
            elif cursor is not None and cursor_status(cursor, view) is CursorStatus.DROPPED:
                await self._delete(pchannel, key)
                continue
            if copy != (None if kept is None or kept.cursor is None else _copy_of(kept, home)):
                self._settled(key)


def _saved(table: CursorTable, *, change: CursorChange) -> CursorRecord | None:
    return table.save(change)


class _Home(msgspec.Struct, frozen=True):
    """The record of a home in the metadata."""

    name: str
    vchannels: tuple[str, ...]
    pchannel: str


def _home_from(key: str, text: str) -> _Home:
    try:
        home = _decoder.decode(text)
        if file_name(CursorKey(home.name, home.vchannels)) != key:
            raise ValueError("it is that of another cursor")
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        raise CorruptionError(f"the home of a cursor in the KV cannot be read: {error}", expected=f"{HOME_ROOT}/{key}") from error
    return home


def _copy_of(record: CursorRecord, home: str) -> Cursor:
    assert record.cursor is not None
    return msgspec.structs.replace(record.cursor, home=home, revision=record.revision)


def _same_log(copy: Cursor, cursor: Cursor) -> bool:
    return (copy.pchannel, copy.incarnation, copy.incarnations) == (cursor.pchannel, cursor.incarnation, cursor.incarnations)


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(_Home)
