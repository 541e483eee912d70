"""NodeCursors: the cursors of this node's pchannels.

How it works. A cursor is a record in the log of one pchannel, its home: the pchannel that it reads, or the pchannel of the first
transaction that saves it. `CursorWrites` writes the records, `CursorTable` judges them. The cursors of a home are in memory, and retention
asks the tables.

Processes beside this one store pins (`wal/read/cursors/pins.py`). `look` makes records of the new ones: when the pchannel is opened, when
a caller asks for cursors, and before anything is truncated. A pin stays as long as its record is the newest one of its cursor. After
another change it is removed, so that its process, which keeps no records, reads the log again.

A truncation sets an intent while it looks at cursors and pins (`intend`): a save below the intent is refused, as if the log was truncated
already. So no save comes between the look and the truncation.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from actors import ActorError, Clock
from wal.errors import ChannelNotExistError, InvalidArgumentError, TruncatedError, UnavailableError, WALError, closed_log
from wal.message import Lineage, LogPosition
from wal.node.pattern_pins import COPIES_LAG_S, PatternPins, UncoveredError
from wal.read.cursors.cursor import Cursor, CursorInfo, CursorKey, other_key, pattern_home
from wal.read.cursors.pins import AsyncPins, Pin, newest_pin, order_of, prefix_of, stem_of
from wal.read.cursors.records import CursorRecord
from wal.read.cursors.service import infos_of
from wal.read.cursors.status import CursorStatus, LogView, cursor_status, resumable
from wal.read.cursors.store import DamagedCursor, adopted, check_replaced
from wal.runtime.tasks import keep_task, retrieve
from wal.runtime.threads import in_thread
from wal.storage.search import distance, event_below, position_after, run_async
from wal.write.cursor_table import CursorChange, CursorTable
from wal.write.cursor_writes import CursorOperation, save_after
from wal.write.pchannel import PChannel

_log: Final = logging.getLogger("wal.cursors")


class NodeCursors:
    """See the top of the file, and `wal.read.cursors.service.Cursors`.

    `pins` are None where no other process reads the log. `view` returns, on the loop, the logs with which cursors are compared; `catch_up`
    updates the view of vchannels, and `pchannel_of` returns the pchannel of a vchannel. `raise_format` is called before the first record:
    earlier versions must not write the log from then on. `pchannels` are those of the log, here or elsewhere. `patterns` is what the
    cursors of patterns hold back on other nodes, None if all pchannels of the log are here.
    """

    def __init__(
        self,
        pins: AsyncPins | None,
        *,
        view: Callable[[], LogView],
        catch_up: Callable[[], Awaitable[None]],
        pchannel_of: Callable[[str], str],
        pchannels: Iterable[str],
        raise_format: Callable[[], Awaitable[None]],
        clock: Clock,
        patterns: PatternPins | None,
    ) -> None:
        self._pins = pins
        self._view = view
        self._catch_up = catch_up
        self._pchannel_of = pchannel_of
        self._raise_format = raise_format
        self._pattern_home = pattern_home(pchannels)
        self._patterns = patterns
        self.wall: Callable[[], float] = clock.wall
        self.judge: Callable[[], Awaitable[None]] | None = None
        """Called before cursors are read: marks those over a bound."""
        self._served: dict[str, PChannel] = {}
        self._homes: dict[CursorKey, str] = {}
        """The home of each cursor that has one here."""
        self._moves: dict[CursorKey, asyncio.Future[None]] = {}
        """The cursors whose home is being changed."""
        self._raised = False
        self._raising = asyncio.Lock()
        self._in_line = 0
        """The callers that wait until the format is raised: later ones must not overtake them."""
        self._sound: dict[CursorKey, list[Pin]] = {}
        """The pins of each cursor as of the last look, in the order in which they were stored."""
        self._damaged: dict[str, DamagedCursor] = {}
        """The damaged pins as of the last look, by name."""
        self._pending: dict[CursorKey, Cursor | None] = {}
        """The cursors of pins whose records could not be written yet, for example on a full disk; None: the cursor was deleted."""
        self._looking = asyncio.Lock()
        self._adopting: set[CursorKey] = set()
        """The cursors whose pins the look that is under way makes records of."""
        self._intents: dict[str, LogPosition] = {}
        self._lost_ticks: dict[str, int] = {}
        """The tick of the last event of each pchannel that was truncated since the opening, or that a truncation means to."""
        self._positions: dict[tuple[str, int], LogPosition] = {}
        """The log position after all events of a pchannel up to a tick, for the cursors of patterns that there are."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._changes: set[asyncio.Future[Any]] = set()
        """The changes that were sent and are not settled."""
        self._closed = False

    # -- opening and closing

    async def open(self, pchannels: Iterable[PChannel]) -> None:
        """Serves the cursors of these pchannels, and makes records of what other processes have saved."""
        opened = list(pchannels)
        try:
            for pchannel in opened:
                await self._serve(pchannel)
            await self._adopt_restored()
            await self.look()
        except BaseException:
            for pchannel in opened:
                self.detach(pchannel)
            raise

    def detach(self, pchannel: PChannel) -> list[CursorKey]:
        """Serves the cursors of a pchannel that is being closed here no more, and returns them: its next owner does."""
        self._served.pop(pchannel.channel, None)
        pchannel.cursors.on_settled = None
        if self._patterns is not None:
            self._patterns.forget_floor(pchannel.channel)
            if pchannel.channel == self._pattern_home:
                self._patterns.leave()
        keys = [key for key, home in self._homes.items() if home == pchannel.channel]
        for key in keys:
            del self._homes[key]
        return keys

    async def end(self) -> None:
        """Refuses later changes and looks at no pins any more; waits for what is under way. Idempotent."""
        self._closed = True
        while self._tasks or self._changes:
            under_way: list[asyncio.Future[Any]] = [*self._tasks, *self._changes]
            await asyncio.wait(under_way)
        if self._patterns is not None:
            await self._patterns.close()

    async def _serve(self, pchannel: PChannel) -> None:
        name, table = pchannel.channel, pchannel.cursors.table
        await pchannel.log.intend(None)  # that of a writer that has died
        pchannel.cursors.first_for = self._first_for
        pchannel.cursors.on_settled = partial(self._settled, pchannel)
        self._served[name] = pchannel
        for record in table.all():
            if record.deleted:
                table.forget(record)
                continue
            other = self._served.get(self._homes.get(record.key, name))
            if other is not None and other is not pchannel:  # the process ended while the home was changed
                before = other.cursors.table.newest(record.key)
                older = other if before.revision < record.revision else pchannel
                self._homes[record.key] = name if older is other else other.channel
                await self.changed(older, record.key, make=partial(CursorTable.delete, key=record.key))
            else:
                self._homes[record.key] = name
        if self._patterns is not None:
            await self._patterns.open_floor(name, pchannel.log.term, pchannel.log.earliest)
            if name == self._pattern_home:
                await self._patterns.take_over(pchannel.log.term, [record for record in table.all() if record.key.pattern])

    async def _adopt_restored(self) -> None:
        """Moves the cursors of logs that were restored since to the incarnations that these have now.

        A cursor whose event was lost stays as it is: using it raises LogWentBackError.
        """
        lineages = self._lineages()
        if not any(lineage.restores for lineage in lineages.values()):
            return
        for key, home in list(self._homes.items()):
            record = self._served[home].cursors.table.newest(key)
            if record.cursor is not None and (moved := adopted(record.cursor, lineages)) is not None:
                await self.changed(self._served[home], key, make=partial(CursorTable.save, change=CursorChange(key, moved)))

    def _lineages(self) -> Mapping[str, Lineage]:
        return {name: pchannel.log.lineage for name, pchannel in self._served.items()}

    # -- what callers ask

    async def load(self, key: CursorKey, *, pchannel: str) -> Cursor | None:
        """Returns the cursor to resume from on this pchannel; see `Cursors.load`."""
        await self.look()
        if self.judge is not None:
            await self.judge()
        stem = stem_of(key)
        for name, damaged in self._damaged.items():
            if name.startswith(stem):
                raise damaged.error
        self._check_name(key)
        cursor = self._pending.get(key)
        if key not in self._pending and key in self._homes:
            home = self.home_of(key)
            home.check_lease()
            if home.fault is not None:
                raise home.fault
            record = home.cursors.table.get(key)
            cursor = None if record is None else record.cursor
        return resumable(cursor, await self.view_for((cursor,)), pchannel=self._pattern_home if key.pattern else pchannel)

    async def infos(self, *, pchannel: str | None = None) -> list[CursorInfo]:
        """Returns all cursors that are here, or those on one pchannel, by name and vchannels, without those of dropped vchannels.

        A damaged cursor is logged as a warning, and `retention` names it.
        """
        await self.look()
        if self.judge is not None:
            await self.judge()
        chosen = [each for each in self.saved() if pchannel is None or self._is_on(each, pchannel)]
        if pchannel is not None and self._patterns is not None and pchannel != self._pattern_home:
            chosen += await self._patterns.copies()
        view = await self.view_for(chosen)
        if pchannel is not None and self._patterns is not None:
            view = msgspec.structs.replace(view, logs={name: log for name, log in view.logs.items() if name == pchannel})
        return await in_thread(infos_of, chosen, view, now_s=self.wall())

    def _is_on(self, cursor: Cursor | DamagedCursor, pchannel: str) -> bool:
        """Returns whether a cursor is listed with this pchannel; a damaged one is with each."""
        if isinstance(cursor, DamagedCursor):
            return True
        return pchannel == (self._homes.get(cursor.key, self._pattern_home) if cursor.key.pattern else cursor.pchannel)

    async def save(self, cursor: Cursor, *, forward_only: bool = False, check_moving: Callable[[], None] | None = None) -> bool:
        """Stores a reader's position; durable on return. Returns whether it was stored; see `SavedCursors.save` for `forward_only`.

        `check_moving` is called before a cursor is moved that consumers or transactions move, and raises what refuses that.
        """
        key = cursor.key
        while (moving := self._moves.get(key)) is not None:
            await asyncio.shield(moving)
        if key not in self._homes or self._in_line:
            self._check_name(key)
            await self._name(key, self._pattern_home if key.pattern else cursor.pchannel)
        home = self.home_of(key)
        before = home.cursors.table.newest(key)
        if before.is_moving:
            if check_moving is not None:
                check_moving()
        elif before.cursor is not None:
            check_replaced(before.cursor, cursor, forward_only=False)
        cursor = msgspec.structs.replace(cursor, saved_at=self.wall())
        change = CursorChange(key, cursor, forward_only=forward_only)
        if key.pattern and self._patterns is not None:
            saving = keep_task(self._changes, asyncio.ensure_future(self._save_covered(self._patterns, change, home)))
            saving.add_done_callback(retrieve)
            saved: bool = await asyncio.shield(saving)
        else:
            saved = await self.changed(home, key, change=change) is not None
        await self.end_pins(key)
        return saved

    async def _save_covered(self, patterns: PatternPins, change: CursorChange, home: PChannel) -> bool:
        """Saves the cursor of a pattern in a cluster, once its copy covers the position."""
        key, table = change.key, home.cursors.table
        try:
            while True:
                try:
                    async with patterns.lowered(key, change):
                        return await self.changed(home, key, change=change) is not None
                except UncoveredError:  # it was deleted meanwhile
                    continue
        except WALError:
            if home.fault is None:
                self._note_pattern(patterns, table, key)
            raise

    async def claim(self, pchannel: PChannel, key: CursorKey, *, holder: bytes = b"", lease_ms: int = 0) -> CursorRecord:
        """Gives a cursor to a new consumer; see `CursorTable.claim`. Returns its durable record."""

        def make(table: CursorTable) -> CursorRecord:
            if patterns is not None and not table.newest(key).is_stale:
                patterns.check(key, newest=table.newest(key).cursor)
            return table.claim(key, holder=holder, lease_ms=lease_ms)

        patterns = self._patterns if key.pattern else None
        while True:
            newest = pchannel.cursors.table.newest(key)
            if patterns is not None and not newest.is_stale:
                await patterns.cover(key, newest=newest.cursor)
            try:
                record = await self.changed(pchannel, key, make=make)
            except UncoveredError:  # it was deleted meanwhile
                continue
            assert record is not None
            return record

    async def delete(self, name: str, vchannels: tuple[str, ...] | None) -> None:
        """Deletes cursors; see `Cursors.delete`."""
        stem = prefix_of(name) if vchannels is None else stem_of(CursorKey(name, vchannels))
        await self._delete(lambda key, _: key.name == name and vchannels in (None, key.vchannels), stem)
        if vchannels is None and self._patterns is not None and self._pattern_home in self._served:
            await self._patterns.remove_left(name)

    async def drop(self, vchannel: str, incarnation: int) -> None:
        """Deletes the cursors of this incarnation of a vchannel, including those of sets that contain it."""

        def is_dropped(key: CursorKey, cursor: Cursor | None) -> bool:
            if vchannel not in key.vchannels:
                return False
            saved = None if cursor is None else cursor.incarnations[key.vchannels.index(vchannel)]
            return (saved or 0) <= incarnation

        if self._homes or self._pins is not None:
            await self._delete(is_dropped)

    async def _delete(self, chosen: Callable[[CursorKey, Cursor | None], bool], stem: str | None = None) -> None:
        """Deletes the chosen cursors, and the damaged pins whose names begin with `stem`."""
        await self.look()
        async with self._looking:
            for key, home in list(self._homes.items()):
                table = self._served[home].cursors.table
                if chosen(key, table.newest(key).cursor):
                    await self.changed(self._served[home], key, make=partial(CursorTable.delete, key=key))
            names = [pin.name for own in self._sound.values() for pin in own if chosen(pin.cursor.key, pin.cursor)]
            if stem is not None:
                names += [name for name in self._damaged if name.startswith(stem)]
            await self._remove(names)

    async def holders(self, cursors: list[Cursor | DamagedCursor] | None = None) -> list[Cursor | DamagedCursor]:
        """Returns these cursors (None: all, after a look) with what they hold back of the pchannels here: in a cluster the cursors of
        patterns are their copies."""
        if cursors is None:
            await self.look()
            cursors = self.saved()
        if self._patterns is None:
            return cursors
        copies = {copy.key: copy for copy in await self._patterns.copies()}
        pins = [pin for own in self._sound.values() for pin in own if pin.cursor.key.pattern and not (pin.deleted or self._is_refused(pin))]
        for pin in pins:  # the home makes records of them
            copy = copies.get(pin.cursor.key)
            copies[pin.cursor.key] = pin.cursor if copy is None or pin.cursor.order < copy.order else copy
        return [*(each for each in cursors if isinstance(each, DamagedCursor) or not each.key.pattern), *copies.values()]

    @property
    def is_spread(self) -> bool:
        """Whether other nodes have other pchannels of the log."""
        return self._patterns is not None

    @property
    def copies_lag_s(self) -> float:
        """How long `holders` may have an earlier position of a cursor; 0 where they are the cursors themselves."""
        return 0.0 if self._patterns is None else COPIES_LAG_S

    async def is_held(self, pchannel: PChannel) -> bool:
        """Returns whether nothing may be truncated yet, since the needs of the cursors of patterns are not known."""
        return self._patterns is not None and not await self._patterns.is_seen(pchannel.channel)

    def saved(self) -> list[Cursor | DamagedCursor]:
        """Returns the durable cursors that are here as of the last look, by name and vchannels, damaged ones last."""
        cursors: dict[CursorKey, Cursor | None] = {}
        for pchannel in self._served.values():
            for record in pchannel.cursors.table.all():
                if record.cursor is not None:
                    cursors[record.key] = record.cursor
        cursors |= self._pending
        return [*(cursor for _, cursor in sorted(cursors.items()) if cursor is not None), *self._damaged.values()]

    async def view_for(self, cursors: Iterable[Cursor | DamagedCursor | None]) -> LogView:
        """Returns the view of the logs to compare these cursors with. The view is updated before a vchannel counts as dropped."""
        cursors = list(cursors)
        view = self._view()
        if any(isinstance(cursor, Cursor) and cursor_status(cursor, view) is CursorStatus.DROPPED for cursor in cursors):
            await self._catch_up()
            view = self._view()
        return msgspec.structs.replace(view, positions=positions) if (positions := await self._positions_of(cursors)) else view

    async def _positions_of(self, cursors: Iterable[Cursor | DamagedCursor | None]) -> Mapping[tuple[str, int], LogPosition]:
        """Returns where the cursors of patterns among these begin on the pchannels that are here."""
        ticks = [cursor.tick_position for cursor in cursors if isinstance(cursor, Cursor) and not cursor.stale]
        wanted = {(name, at.covered(name)) for at in ticks if at is not None for name in self._served}
        positions = {each: position for each, position in self._positions.items() if each in wanted}
        for name, tick in wanted - positions.keys():
            if (pchannel := self._served.get(name)) is not None and pchannel.fault is None:
                positions[name, tick] = await _position_after(pchannel, tick)
        self._positions = positions
        return positions

    def _check_name(self, key: CursorKey) -> None:
        """Raises InvalidArgumentError if another cursor has this name, and one of both is of a pattern."""
        if key not in self._homes:
            for other in self._homes:
                if other.excludes(key) and not self.home_of(other).cursors.table.newest(other).deleted:
                    raise other_key(key, other)

    async def mark_stale(self, cursor: Cursor, why: str) -> None:
        """Marks a cursor as stale, unless it was saved, deleted or marked meanwhile."""
        if cursor.key in self._homes:
            home = self.home_of(cursor.key)
            record = home.cursors.table.get(cursor.key)
            if record is not None and record.cursor == cursor:
                revision = record.revision
                await self.changed(home, cursor.key, make=lambda table: table.mark_stale(cursor.key, why, revision=revision))
                await self.end_pins(cursor.key)

    async def remove(self, cursor: Cursor) -> None:
        """Deletes the cursor of a vchannel that was dropped, unless it was saved meanwhile."""
        await self._delete(lambda key, saved: key == cursor.key and saved is not None and saved.incarnations == cursor.incarnations)

    # -- truncations

    async def intend(self, pchannel: PChannel, up_to: LogPosition | None) -> None:
        """Refuses saves below this position from now on, here and in other processes (None: no more), and returns when all saves that came
        before are settled."""
        if up_to is None:
            self._intents.pop(pchannel.channel, None)
            if self._patterns is not None:
                await self._patterns.settle(pchannel.channel, is_truncated=False)
            await pchannel.log.intend(None)
            return
        lost = await _tick_below(pchannel, up_to)
        self._lost_ticks[pchannel.channel] = max(lost, self._lost_ticks.get(pchannel.channel, 0))
        self._intents[pchannel.channel] = up_to
        if self._patterns is not None:
            await self._patterns.intend(pchannel.channel, lost, up_to)
        await pchannel.log.intend(up_to)
        for home in list(self._served.values()):
            if home.cursors.table.has_pending:
                settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                home.frames.when_settled(home.frames.newest, partial(settled.set_result, None))
                await settled

    async def truncated(self, pchannel: PChannel) -> None:
        """Ends the intent of a truncation that was carried out."""
        self._intents.pop(pchannel.channel, None)
        if self._patterns is not None:
            await self._patterns.settle(pchannel.channel, is_truncated=True)

    def _first_for(self, change: CursorChange) -> LogPosition:
        cursor = change.cursor
        assert cursor is not None
        if (at := cursor.tick_position) is not None:
            for name, lost_tick, first in self._lost(change):
                if lost_tick > at.covered(name) and first > at.first_of(name):
                    return first
            return 0, 0
        pchannel = self._served.get(cursor.pchannel)
        if pchannel is None or pchannel.log.incarnation != cursor.incarnation:
            return 0, 0
        return max(pchannel.log.earliest, self._intents.get(cursor.pchannel, (0, 0)))

    def _lost(self, change: CursorChange) -> Iterable[tuple[str, int, LogPosition]]:
        """Returns the pchannels that were truncated, each with the tick of its last lost event, and the first that is left, for the save of
        the cursor of a pattern. Raises an error if the save must not be written."""
        if self._patterns is None:
            return [
                (name, tick, max(pchannel.log.earliest, self._intents.get(name, (0, 0))))
                for name, tick in self._lost_ticks.items()
                if (pchannel := self._served.get(name)) is not None
            ]
        newest = self.home_of(change.key).cursors.table.newest(change.key)
        if change.fence is not None and (change.fence, change.number) != (newest.fence, newest.number + 1):
            return []  # it is refused, or was written before
        if not newest.is_stale:
            self._patterns.check(change.key, change, newest=newest.cursor)
        return [(name, floor.tick, floor.first) for name, floor in self._patterns.floors(change.key).items()]

    # -- homes, for transactions and consumers

    async def name(self, key: CursorKey, *, pchannel: str | None = None) -> None:
        """Names a home for a cursor that consumers will move: this pchannel, or (None) its home or the pchannel of its vchannels."""
        home = self._homes.get(key)
        if home is None or (pchannel not in (None, home) and not self._is_moving(key)):
            target = pchannel or self._own_pchannel(key)
            self.here(key, target)
            await self.named(key, target)

    async def named(self, key: CursorKey, pchannel: str) -> None:
        """Makes this pchannel the home of a cursor that only readers have saved. Raises InvalidArgumentError if consumers or transactions
        move it, and another one is its home."""
        if self._homes.get(key) != pchannel or key in self._moves or self._in_line:
            await self._settle_home(key, pchannel)
        if key.pattern and self._patterns is not None:
            newest = self.home_of(key).cursors.table.newest(key)
            if not newest.is_stale:
                await self._patterns.cover(key, newest=newest.cursor)
        await self.end_pins(key, moves=True)

    async def _settle_home(self, key: CursorKey, pchannel: str) -> None:
        self._check_name(key)
        if self.is_spread and (own := self._own_pchannel(key)) != pchannel:
            reads, where = ("all pchannels", "the first one") if key.pattern else (f"pchannel {own}", "the pchannel that it reads")
            raise InvalidArgumentError(
                f"{key} reads {reads}, and would be kept in the log of pchannel {pchannel}: in a cluster a cursor moves with transactions "
                f"on {where}; create the vchannels of the output on {own}"
            )
        while (moving := self._moves.get(key)) is not None:
            await asyncio.shield(moving)
        await self._name(key, pchannel)
        if self._homes[key] != pchannel and not self._is_moving(key):
            await self._move(key, pchannel)
        if (home := self._homes.get(key)) not in (None, pchannel):
            raise InvalidArgumentError(
                f"{key} is kept in the log of pchannel {home}, and this transaction is on pchannel {pchannel}: save it in a transaction on "
                f"vchannels of {home}, or delete the cursor to begin again"
            )

    def _own_pchannel(self, key: CursorKey) -> str:
        """Returns the pchannel of the vchannels of a cursor; for a pattern, which reads all, the home of patterns."""
        return self._pattern_home if key.pattern else self._pchannel_of(key.vchannels[0])

    def home_of(self, key: CursorKey) -> PChannel:
        """Returns the home of a cursor that has one. Raises UnavailableError if it is not here."""
        return self.here(key, self._homes[key])

    def here(self, key: CursorKey, name: str) -> PChannel:
        """Returns the pchannel of this name. Raises UnavailableError if it is not here."""
        if (pchannel := self._served.get(name)) is None:
            raise UnavailableError(f"{key} is kept in the log of pchannel {name}, which is not open here: try again when it is")
        return pchannel

    def _is_moving(self, key: CursorKey) -> bool:
        return self.home_of(key).cursors.table.newest(key).is_moving

    async def _name(self, key: CursorKey, pchannel: str) -> None:
        """Notes the home of a cursor that has none."""
        if not self._raised or self._in_line:
            self._in_line += 1
            try:
                async with self._raising:
                    if not self._raised:
                        await self._raise_format()
                        self._raised = True
            finally:
                self._in_line -= 1
        self._homes.setdefault(key, pchannel)

    async def _move(self, key: CursorKey, pchannel: str) -> None:
        """Moves a cursor that only readers have saved to another home. Its saves wait meanwhile."""
        source, target = self.home_of(key), self.here(key, pchannel)
        moved = self._moves[key] = asyncio.get_running_loop().create_future()
        try:
            await self.changed(source, key, make=lambda _: None)  # those under way are settled
            record = source.cursors.table.get(key)
            if record is not None and record.cursor is not None and not record.is_moving:
                await self.changed(target, key, make=partial(CursorTable.take_over, record=record))
                self._homes[key] = pchannel
                await self.changed(source, key, make=partial(CursorTable.delete, key=key))
            elif record is None:
                self._homes[key] = pchannel
        finally:
            del self._moves[key]
            moved.set_result(None)

    # -- changes

    def change_of(self, cursor: Cursor, after: LogPosition | None = None) -> CursorChange:
        """Returns the save of a cursor by a transaction."""
        return CursorChange(cursor.key, msgspec.structs.replace(cursor, saved_at=self.wall()), after=after, moves=True)

    def send(self, change: CursorChange, pchannel: PChannel) -> asyncio.Future[CursorRecord | None]:
        """Sends a save that comes without messages; it must be of a cursor whose home is this pchannel."""
        return self.tell(pchannel, change.key, change=change)

    def save_after(self, change: CursorChange, first: asyncio.Future[Any], pchannel: PChannel) -> asyncio.Future[Any]:
        """Sends the save of a transaction whose key was seen before; the future gets the `first` result once the save is durable."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._send(pchannel, save_after(change, first, future))
        return future

    def tell(
        self,
        pchannel: PChannel,
        key: CursorKey,
        *,
        change: CursorChange | None = None,
        make: Callable[[CursorTable], CursorRecord | None] | None = None,
    ) -> asyncio.Future[CursorRecord | None]:
        """Sends a change of a cursor to its home; the future gets its durable record, or None if nothing had to be written."""
        if self._closed:
            raise closed_log()
        future: asyncio.Future[CursorRecord | None] = asyncio.get_running_loop().create_future()
        self._send(pchannel, CursorOperation(key, future, change, make))
        self._changes.add(future)
        future.add_done_callback(self._changes.discard)
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
        """Carries a change out, and returns its durable record; None if nothing had to be written."""
        return await asyncio.shield(self.tell(pchannel, key, change=change, make=make))

    def _settled(self, pchannel: PChannel, key: CursorKey) -> None:
        """Takes note of a record that is durable or failed."""
        table = pchannel.cursors.table
        if key.pattern and self._patterns is not None:
            self._note_pattern(self._patterns, table, key)
        if table.get(key) is not None or table.is_pending(key):
            self._homes.setdefault(key, pchannel.channel)
        elif self._homes.get(key) == pchannel.channel:
            del self._homes[key]
        if key not in self._adopting and not self._closed and self._passed(key):
            self._run(self.end_pins(key))

    @staticmethod
    def _note_pattern(patterns: PatternPins, table: CursorTable, key: CursorKey) -> None:
        """Has the copy of a cursor follow its durable record."""
        record = table.get(key)
        if (record is None and not table.is_pending(key)) or (record is not None and record.is_stale):
            patterns.drop(key)
        elif record is not None and record.cursor is not None:
            patterns.moved(key, record.cursor, table.newest(key).cursor)

    # -- pins

    async def look(self) -> None:
        """Makes records of the pins that were stored since the last look, and removes those of cursors that were changed since."""
        if self._pins is None or self._closed:
            return
        async with self._looking:
            known = {pin.name: pin for own in self._sound.values() for pin in own}
            sound: dict[CursorKey, list[Pin]] = {}
            damaged: dict[str, DamagedCursor] = {}
            names = await self._pins.names()
            read = await self._pins.read_all([name for name in names if name not in known])  # a damaged one may have been restored
            for each in [*(known[name] for name in names if name in known), *read]:
                if isinstance(each, DamagedCursor):
                    damaged[each.file] = each
                else:
                    sound.setdefault(each.cursor.key, []).append(each)
            self._sound = {key: sorted(own, key=order_of) for key, own in sound.items()}
            self._damaged = damaged
            self._pending = {key: cursor for key, cursor in self._pending.items() if key in sound}
            later = [(key, pin) for key in sound if (pin := self._later(key)) is not None]
            self._adopting = {key for key, _ in later}
            try:
                # Side by side, so that the records of many share frames; each runs to its end.
                outcomes = await asyncio.gather(*[self._adopt(key, pin) for key, pin in later], return_exceptions=True)
            finally:
                self._adopting = set()
            replaced: set[str] = set()
            for outcome in outcomes:
                replaced.update(() if isinstance(outcome, BaseException) else outcome)
            await self._remove(pin.name for own in self._sound.values() for pin in own if pin.name in replaced or self._is_passed(pin))
            for outcome in outcomes:
                if isinstance(outcome, BaseException):
                    raise outcome

    def _later(self, key: CursorKey) -> Pin | None:
        """Returns the newest pin of a cursor if it is later than the record that there is."""
        home = self._served.get(self._homes.get(key, ""))
        if home is None and key in self._homes:
            return None  # it is being closed
        record = None if home is None else home.cursors.table.newest(key)
        pin = newest_pin(pin for pin in self._sound[key] if pin.is_later(record) and not self._is_refused(pin))
        if pin is None:
            self._pending.pop(key, None)
        return pin

    async def _adopt(self, key: CursorKey, pin: Pin) -> list[str]:
        """Makes a record of a pin that is later than the record of its cursor; returns the names of the pins that are not needed then."""
        replaced = [each.name for each in self._sound[key] if order_of(each) < order_of(pin)]
        home = self._homes.get(key)
        cursor = adopted(pin.cursor, self._lineages()) or pin.cursor
        is_read = not key.pattern and (cursor.pchannel in self._served or self.is_spread)
        target = home or (cursor.pchannel if is_read else self._own_pchannel(key))
        if (pchannel := self._served.get(target)) is None:
            return []  # another node has it
        try:
            if not pin.deleted:
                await self._name(key, target)
                change = CursorChange(key, cursor, seen=pin.revision)
                if key.pattern and self._patterns is not None:
                    await self._save_covered(self._patterns, change, pchannel)
                else:
                    await self.changed(pchannel, key, make=partial(CursorTable.save, change=change))
            elif home is not None:
                await self.changed(pchannel, key, make=partial(CursorTable.delete, key=key))
        except (TruncatedError, ChannelNotExistError) as error:
            _log.info("%s, which another process has saved, is not valid any more: %s", key, error)
            replaced.append(pin.name)
        except WALError as error:
            self._pending[key] = None if pin.deleted else cursor
            _log.warning("%s, which another process has saved, is not in the log yet: %s", key, error)
            return []
        self._pending.pop(key, None)
        return replaced

    def _is_refused(self, pin: Pin) -> bool:
        """Returns whether the log was truncated past a pin, so that its process refuses the save."""
        return pin.is_below({name: pchannel.log for name, pchannel in self._served.items()})

    def _passed(self, key: CursorKey, *, moves: bool = False) -> list[str]:
        """Returns the names of the pins of a cursor that are not its newest state any more, in the order in which they were stored."""
        return [pin.name for pin in self._sound.get(key, ()) if self._is_passed(pin, moves=moves)]

    def _is_passed(self, pin: Pin, *, moves: bool = False) -> bool:
        """Returns whether the durable state supersedes a pin: a later record, or consumers or transactions that move the cursor
        (`moves`: will do so now)."""
        if self._is_refused(pin):
            return True
        key = pin.cursor.key
        home = self._served.get(self._homes.get(key, ""))
        read = self._pattern_home if key.pattern else pin.cursor.pchannel
        if home is None and (key in self._homes or (self.is_spread and read not in self._served)):
            return False  # it is being closed, or another node has it
        record = None if home is None else home.cursors.table.get(key)
        if record is None or record.cursor is None:
            return pin.deleted or not pin.is_later(record)
        if pin.is_later(record):
            return False
        return moves or record.is_moving or pin.deleted or pin.copy or not _is_same(pin.cursor, record.cursor)

    async def _remove(self, names: Iterable[str]) -> None:
        """Removes pins. The pins of a cursor are removed in the order in which they were stored, so a crash leaves the newest."""
        if self._pins is not None and (gone := list(names)):
            await self._pins.remove(gone)
            left = set(gone)
            for key, own in list(self._sound.items()):
                if not left.isdisjoint([pin.name for pin in own]):
                    self._sound[key] = [pin for pin in own if pin.name not in left]
            self._damaged = {name: pin for name, pin in self._damaged.items() if name not in left}

    async def end_pins(self, key: CursorKey, *, moves: bool = False) -> None:
        """Removes the pins of a cursor that are not its newest state any more, or (`moves`) that a record has.

        While a pin is there, its process reads no records. So this comes before the answer to a change, where that is possible.
        """
        if not self._passed(key, moves=moves):
            return
        try:
            async with self._looking:
                await self._remove(self._passed(key, moves=moves))
        except WALError as error:  # the next look removes them
            _log.debug("the pins of %s could not be removed yet: %s", key, error)

    def _run(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("the pins of cursors could not be kept: %r", error, exc_info=error)


async def _position_after(pchannel: PChannel, tick: int) -> LogPosition:
    """Returns the log position after all events with ticks up to this one: before the first later one, or after the last of them."""
    earliest, end = pchannel.log.earliest, pchannel.tail.durable_end
    try:
        position: LogPosition = await run_async(position_after(tick, earliest[0], end, distance), pchannel.answer)
        # A log that is truncated up to the end of an extent has its newest tick for that of the last truncated event.
        if any(extent.sealed and extent.end <= position[0] and extent.newest_tick > tick for extent in pchannel.log.extents()):
            event = await run_async(event_below((0, 0), position, earliest, distance), pchannel.answer)
            position = earliest if event is None else (event[0], event[1] + 1)
    except TruncatedError:
        return pchannel.log.earliest
    return position


async def _tick_below(pchannel: PChannel, up_to: LogPosition) -> int:
    """Returns the tick of the newest event below a log position, 0 if all such events are truncated."""
    try:
        event = await run_async(event_below((0, 0), up_to, pchannel.log.earliest, distance), pchannel.answer)
        if event is None or event[0] >= pchannel.tail.durable_end:
            return 0
        page = await pchannel.page(event[0], None)
    except TruncatedError:
        return 0
    return page.frames[0].view.header.first_tick + event[1]


def _is_same(pin: Cursor, saved: Cursor) -> bool:
    """Returns whether a pin is what is saved."""
    return pin == msgspec.structs.replace(saved, moved_at=pin.moved_at, moving=pin.moving)
