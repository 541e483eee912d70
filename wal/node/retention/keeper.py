"""RetentionKeeper: executes retention, and every other truncation.

Owns the turn, about every second and whenever an extent was sealed. A turn marks cursors over their bounds as stale, deletes cursors of
dropped vchannels, and truncates what the policy drops. All truncations of the log pass here, one after the other (`_truncate`). Each first
publishes its end, then reads the cursors and the pins of other processes, and truncates only if none of them needs the dropped events. So a
truncation never passes a cursor that is saved meanwhile, and needs no lock.

A failure in a turn is logged once as a warning, and the next turn retries.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, Final, TypeVar

from actors import Clock
from wal.errors import ClosedError, InvalidArgumentError, WALError
from wal.message import LogPosition, MessageID
from wal.node.archiving.archiver import Archiver
from wal.node.cursors import NodeCursors
from wal.node.retention.clock_watch import AGREED_S, DRIFT_MAX_S
from wal.node.retention.policy import LogPin, RetentionBounds, TruncationPlan, over_bound, pins_of, pins_of_broadcasts, plan
from wal.node.retention.report import report_of
from wal.node.retention.wall_time import WallTime
from wal.read.cursors.cursor import DELETION, Cursor, CursorKey
from wal.read.cursors.status import CursorStatus, LogView, cursor_status
from wal.read.cursors.store import DamagedCursor
from wal.requests.pchannels import PChannelRetention
from wal.runtime.tasks import end_tasks
from wal.storage.base import Extent
from wal.write.pchannel import PChannel

_T = TypeVar("_T")
TURN_S: Final = 1.0
_EXTENTS_MAX: Final = 16
"""The maximum number of extents that are dropped at once, so that a save by another process meanwhile does not wait for long."""
_COPIES_LOOK_S: Final = 0.1
"""The pause between two looks at copies of cursors, which follow the cursors a little later."""
_log: Final = logging.getLogger("wal.retention")


class RetentionKeeper:
    """The retention of an open log. Call `start` when its pchannels are open, and `close` before they are closed."""

    def __init__(
        self,
        bounds: RetentionBounds,
        pchannels: Mapping[str, PChannel],
        cursors: NodeCursors,
        *,
        clock: Clock,
        wall: WallTime,
        archiver: Archiver | None = None,
    ) -> None:
        """Nothing is dropped that `archiver` has not archived."""
        self.bounds = bounds
        self._archiver = archiver
        self._pchannels = pchannels
        self._cursors = cursors
        self._clock = clock
        self._wall = wall
        self._sealed_since: dict[str, dict[int, float]] = {}
        """By pchannel, the end of each sealed extent, and the elapsed time at which it was first seen."""
        self._saved_since: dict[CursorKey, tuple[float, float]] = {}
        """The newest save of each cursor, and the elapsed time at which it was first seen."""
        self._unmarked: set[Cursor] = set()
        """The cursors that no longer hold the log, where this could not be stored."""
        self._lock = asyncio.Lock()
        self._warned: set[str] = set()
        """The logged warnings whose cause has not ended."""
        self._sealed = False
        self._woken: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[Any]] = set()
        self._closing = False

    async def start(self) -> None:
        """Marks the cursors that became stale while the log was closed, and starts the turns, if any bound is set."""
        if self.bounds.of_cursors:
            await self.turn()
            self._cursors.judge = self.judge
        if self.bounds.of_cursors or self.bounds.of_logs:
            for pchannel in self._pchannels.values():
                self.watch(pchannel)
            self._task = asyncio.get_running_loop().create_task(self._run(), name="retention")

    def watch(self, pchannel: PChannel) -> None:
        """Watches an open pchannel: a turn runs whenever one of its extents is sealed."""
        if self.bounds.of_cursors or self.bounds.of_logs:
            pchannel.log.sealed = self._extent_sealed

    async def close(self) -> None:
        """Stops the turns, and waits for the work in progress. Idempotent."""
        self._closing = True
        await end_tasks(self._task)
        if self._under_way:
            await asyncio.wait(list(self._under_way))

    async def settled(self) -> None:
        """Waits for the truncations that have already begun: a pchannel that is closed by then is not truncated any more."""
        async with self._lock:
            pass

    async def turn(self) -> None:
        """Does the work that is due. Never raises for a failure: it logs a warning, and the next turn retries."""
        await self._whole(self._guarded(self._step))

    async def judge(self) -> None:
        """Only marks the cursors beyond a bound. Never raises for a failure."""

        async def mark() -> bool:
            now_s = self._look()
            if await self._has_stale(now_s):
                await self._sweep(now_s)
            return False

        await self._whole(self._guarded(mark))

    async def truncate(self, message_id: MessageID) -> None:
        """Truncates the pchannel of this id up to its event, inclusive. A truncation past a pin is rejected as a whole, with an error that
        names the holders.
        """
        pchannel = self._pchannels[message_id.pchannel]
        up_to = await pchannel.end_of(message_id)
        if up_to is None:
            return

        async def unless_pinned() -> None:
            deadline = self._clock.monotonic() + self._cursors.copies_lag_s
            while True:
                async with self._lock:
                    cursors = await self._cursors.holders()
                    pins = [pin for pin in self._pins(cursors, await self._cursors.view_for(cursors), pchannel) if pin.position < up_to]
                    if not pins and not (pins := await self._truncate(pchannel, up_to)):
                        return
                if self._clock.monotonic() >= deadline or any(pin.kind != "cursor" for pin in pins):
                    raise InvalidArgumentError(_refusal(message_id, pins))
                await asyncio.sleep(_COPIES_LOOK_S)

        await self._whole(unless_pinned())
        await self._make_room([pchannel])

    async def report(self, pchannels: Iterable[PChannel] | None = None) -> list[PChannelRetention]:
        """Returns the state of the log of each of these pchannels (None: all)."""
        drift_s = None if self._look() is not None else self._wall.drift_s
        cursors = await self._cursors.holders()
        view = await self._cursors.view_for(cursors)
        return [
            await report_of(
                pchannel,
                self._pins(cursors, view, pchannel),
                self.bounds,
                extents=pchannel.log.extents(),
                checkpointed=pchannel.log.checkpointed,
                clock_drift_s=drift_s,
            )
            for pchannel in (self._pchannels.values() if pchannels is None else pchannels)
        ]

    # -- the turns

    async def _guarded(self, step: Callable[[], Awaitable[bool]]) -> None:
        """Runs steps until one returns False, or the keeper is closing."""
        try:
            async with self._lock:
                while await step() and not self._closing:
                    pass
        except ClosedError:
            pass
        except WALError as error:
            self._warn("failure", "retention failed and will be tried again: %s", error)
        except Exception:
            _log.exception("retention failed and will be tried again")
        else:
            self._warned.discard("failure")

    async def _whole(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Finishes the work even if its caller is cancelled: a truncation must not be left half done."""
        task = asyncio.get_running_loop().create_task(work, name="retention, under way")
        self._under_way.add(task)
        task.add_done_callback(self._done)
        return await asyncio.shield(task)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # its caller may have been cancelled

    async def _run(self) -> None:
        while True:
            if not self._sealed:
                self._woken = asyncio.get_running_loop().create_future()
                timer = self._clock.call_later(TURN_S, self._wake)
                try:
                    await self._woken
                finally:
                    timer.cancel()
            self._sealed = False
            await self.turn()

    def _extent_sealed(self) -> None:
        self._sealed = True
        self._wake()

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _step(self) -> bool:
        """Does a part of a turn; returns whether more can be dropped now."""
        now_s = self._look()
        if not self._is_due(now_s) and not await self._has_stale(now_s):
            self._warned = {episode for episode in self._warned if not episode.startswith(("held", "stale", "unsaved"))}
            return False
        truncated: list[PChannel] = []
        more = False
        await self._cursors.look()
        cursors = await self._cursors.holders(await self._sweep(now_s))
        view = await self._cursors.view_for(cursors)
        for name, pchannel in list(self._pchannels.items()):
            pins = self._disk_pins(self._pins(cursors, view, pchannel), pchannel)
            drop_plan = self._plan(pchannel, pins, now_s)
            if drop_plan.end is not None and await self._cursors.is_held(pchannel):
                continue
            if drop_plan.end is not None and not await self._truncate(pchannel, (drop_plan.end, 0), self._unmarked, frees=True):
                truncated.append(pchannel)
                more = more or drop_plan.end != drop_plan.unpinned_end
            if holders := [pin for pin in drop_plan.holders if pin.kind != "archive"]:  # the archiver warns of a store that is away
                self._warn(f"held {name}", "retention of pchannel %s is held back by %s", name, holders[0])
            else:
                self._warned.discard(f"held {name}")
        await self._make_room(truncated)
        return more

    def _look(self) -> float | None:
        """Returns the wall time, or None while it cannot be trusted."""
        if (now_s := self._wall.look()) is not None:
            self._warned.discard("clocks")
            return now_s
        self._warn(
            "clocks",
            "the wall clock has moved %+.0f s against elapsed time (more than %g s): nothing is dropped for an age by this clock, and no "
            "cursor turns stale for one, until it is back, has agreed with elapsed time for %g s, or is synchronised with a time server",
            self._wall.drift_s,
            DRIFT_MAX_S,
            AGREED_S,
        )
        return None

    def _note_saves(self, cursors: Iterable[Cursor | DamagedCursor]) -> None:
        """Records the new saves of cursors."""
        elapsed, before = self._wall.elapsed(), self._saved_since
        self._saved_since = {}
        for cursor in cursors:
            if isinstance(cursor, Cursor):
                saved_at, since = before.get(cursor.key, (None, elapsed))
                self._saved_since[cursor.key] = cursor.saved_at, since if saved_at == cursor.saved_at else elapsed

    def _is_due(self, now_s: float | None) -> bool:
        """Returns whether any part of a log would be dropped without pins."""
        return self.bounds.of_logs and any(
            self._plan(pchannel, (), now_s).unpinned_end is not None for pchannel in self._pchannels.values()
        )

    def _plan(self, pchannel: PChannel, pins: Iterable[LogPin], now_s: float | None) -> TruncationPlan:
        extents, elapsed = self._extents(pchannel), self._wall.elapsed()
        before = self._sealed_since.get(pchannel.channel, {})
        since = {extent.end: before.get(extent.end, elapsed) for extent in extents if extent.sealed}
        self._sealed_since[pchannel.channel] = since
        return plan(
            extents,
            self.bounds,
            pins,
            earliest=pchannel.log.local_earliest,
            now_s=now_s,
            extents_max=_EXTENTS_MAX,
            kept_s=lambda extent: elapsed - since[extent.end],
        )

    async def _has_stale(self, now_s: float | None) -> bool:
        """Returns whether any cursor is beyond its bound and not marked yet."""
        if not self.bounds.of_cursors:
            return False
        cursors = self._cursors.saved()
        self._note_saves(cursors)
        view = await self._cursors.view_for(cursors)
        return any(isinstance(cursor, Cursor) and self._turned_stale(cursor, view, now_s) for cursor in cursors)

    def _turned_stale(self, cursor: Cursor, view: LogView, now_s: float | None) -> str:
        if cursor_status(cursor, view) is not CursorStatus.LIVE:
            return ""
        saved_at, since = self._saved_since.get(cursor.key, (None, 0.0))
        kept_s = self._wall.elapsed() - since if saved_at == cursor.saved_at else 0.0
        return over_bound(cursor, view.held_bytes(cursor), self.bounds, now_s=now_s, kept_s=kept_s)

    async def _sweep(self, now_s: float | None) -> list[Cursor | DamagedCursor]:
        """Marks cursors over a bound, deletes cursors of dropped vchannels, and returns the others, which may hold the log.

        Best effort: a cursor that cannot be updated (disk full) does not block freeing space. Its reader gets a TruncatedError, or loses
        nothing.
        """
        cursors = self._cursors.saved()
        view = await self._cursors.view_for(cursors)
        holding: list[Cursor | DamagedCursor] = []
        self._unmarked = set()
        for cursor in cursors:
            why = ""
            if isinstance(cursor, Cursor):
                is_dropped = cursor_status(cursor, view) is CursorStatus.DROPPED
                why = "" if is_dropped else self._turned_stale(cursor, view, now_s)
                try:
                    if is_dropped:
                        await self._cursors.remove(cursor)
                    elif why:
                        await self._cursors.mark_stale(cursor, why)
                except WALError as error:
                    self._warn(f"unsaved {cursor}", "that %s holds the log no longer could not be stored: %s", cursor.key, error)
                    self._unmarked.add(cursor)
                if is_dropped:
                    continue
                if why:
                    self._warn(f"stale {cursor}", "%s is stale and holds the log no longer: %s", cursor.key, why)
                    continue
            holding.append(cursor)
        return holding

    async def _truncate(
        self, pchannel: PChannel, up_to: LogPosition, released: Collection[Cursor] = (), *, frees: bool = False
    ) -> list[LogPin]:
        """Truncates up to this position, exclusive, unless a pin needs an event below it; returns such pins.

        The cursors in `released` no longer hold anything. With `frees`, for retention, an archive keeps the events: cursors of this process
        may be saved below the position, and readers in other processes see the intent.
        """
        done = False
        try:
            if frees and self._archiver is not None:
                await pchannel.log.intend(up_to)
            else:
                await self._cursors.intend(pchannel, up_to)
            cursors = [cursor for cursor in await self._cursors.holders() if cursor not in released]
            view = await self._cursors.view_for(cursors)
            pins = self._pins(cursors, view, pchannel)
            if pins := [pin for pin in (self._disk_pins(pins, pchannel) if frees else pins) if pin.position < up_to]:
                return pins
            await (pchannel.log.free(up_to[0]) if frees else pchannel.log.truncate(*up_to))
            done = True
        finally:
            if done:
                await self._cursors.truncated(pchannel)
            else:
                await self._cursors.intend(pchannel, None)
        return []

    async def _make_room(self, pchannels: list[PChannel]) -> None:
        for pchannel in pchannels:
            if pchannel.checkpointer is not None:
                await pchannel.checkpointer.make_room()

    def _pins(self, cursors: list[Cursor | DamagedCursor], view: LogView, pchannel: PChannel) -> list[LogPin]:
        """Returns the pins of this pchannel's log: those of cursors, of unfinished broadcasts, and of the archive."""
        pins = pins_of(cursors, view, pchannel=pchannel.channel) + pins_of_broadcasts(pchannel.copies.table.pins())
        if (archiver := self._archiver) is not None:
            pins.append(LogPin("archive", archiver.place, (archiver.archived(pchannel.channel), 0)))
        return pins

    def _disk_pins(self, pins: list[LogPin], pchannel: PChannel) -> list[LogPin]:
        """Returns the pins that need what is on the disk: a reader below the local start reads the archive first, if there is one."""
        if self._archiver is None:
            return pins
        local = pchannel.log.local_earliest
        return [pin for pin in pins if pin.kind != "cursor" or pin.position >= local]

    def _extents(self, pchannel: PChannel) -> list[Extent]:
        return [] if pchannel.fault is not None else pchannel.log.extents()

    def _warn(self, episode: str, text: str, *values: object) -> None:
        """Logs a warning once per episode."""
        if episode not in self._warned:
            self._warned.add(episode)
            _log.warning(text, *values, extra={"wal_event": "retention", "wal_episode": episode})


def _refusal(message_id: MessageID, pins: list[LogPin]) -> str:
    pins.sort(key=lambda pin: pin.position)
    names = ", ".join(map(str, pins[:_SHOWN_MAX])) + (f" and {len(pins) - _SHOWN_MAX} more" * (len(pins) > _SHOWN_MAX))
    remedies = []
    if any(pin.kind == "archive" for pin in pins):
        remedies.append("wait until the archive has it")
    if any(pin.kind not in ("archive", "broadcast") for pin in pins):
        remedies.append(f"let their readers save a later position, or {DELETION}(…) them")
    if any(pin.kind == "broadcast" for pin in pins):
        remedies.append("have the broadcasts acknowledged on all their vchannels, or abort(…) them")
    return f"truncating up to {message_id} would drop what is still needed by {names}: truncate less, {'; '.join(remedies)}"


_SHOWN_MAX: Final = 10
