"""Hosting: the pchannels that this process writes, each in a term of its own.

Owns the pchannels of this node; how one is opened in a given term (its log, its recovered state, its actors, its checkpointer) and
closed by itself (drained, ended with a closing tick of its own, its log closed); the timer that drives all of them; the actor that waits
for ticks on their behalf; and the end of all together: drained first, then ended with one closing tick. The calls for one pchannel are
carried out in the order of (term, available): a late call is refused. Hosting never raises a term. Of vchannels it checks only whether a
name in a log still exists.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from actors import Actor, ActorError, ActorFailedError, ActorSystem, Clock, Group, Timer
from wal.channels.pchannels import CheckpointRecord, PChannelMeta, hand_over_checkpoint, load_checkpoint, load_compression, save_checkpoint
from wal.errors import ChannelFencedError, ClosedError, StorageError, UnmatchedChannelTermError, WALError, caused
from wal.frame import Compressor, RunName
from wal.node.retention.wall_time import WallTime
from wal.read.lease import OWN, Lease
from wal.runtime.threads import in_thread
from wal.settings import Settings
from wal.storage.base import LogBackend, PChannelLog
from wal.storage.kv import KVBase
from wal.timestamp import TimestampOracle
from wal.write.checkpoint_ledger import Checkpoint, CheckpointRule
from wal.write.checkpointer import Checkpointer
from wal.write.copies import CopyTable
from wal.write.idempotency.table import IdempotencyTable
from wal.write.in_flight import InFlight
from wal.write.pchannel import PChannel
from wal.write.recovery import RecoveryState, recover
from wal.write.schedule import ScheduleTable
from wal.write.txn_table import TxnLimits

INBOX_MAX: Final = 1 << 20
"""Operations in a pchannel's inbox; the bound on bytes in flight is reached first."""


class _Place:
    """A pchannel in the order of its calls, and what of it is open here."""

    def __init__(self) -> None:
        self.newest: tuple[int, bool] = (-1, False)
        """(term, whether it closes) of the newest call."""
        self.turn: asyncio.Lock = asyncio.Lock()
        self.log: PChannelLog | None = None
        self.group: Group | None = None
        self.recovering: RecoveryState | None = None
        """The state that is being recovered, while the pchannel is being opened."""
        self.checkpoint: CheckpointRecord | None = None
        """The record of the newest checkpoint, as it was loaded or saved here."""


class Hosting:
    """`pchannels` are the open pchannels, by name. `is_live` returns whether a vchannel, in this incarnation, still exists."""

    def __init__(
        self,
        backend: LogBackend,
        kv: KVBase,
        oracle: TimestampOracle,
        system: ActorSystem,
        settings: Settings,
        *,
        pchannels: dict[str, PChannel],
        in_flight: InFlight,
        limits: TxnLimits,
        checkpoint_rule: CheckpointRule,
        wall: WallTime,
        is_live: Callable[[RunName], bool],
        lease: Lease = OWN,
    ) -> None:
        self._pchannels = pchannels
        self._backend = backend
        self._kv = kv
        self._oracle = oracle
        self._system = system
        self._clock: Clock = system.clock
        self._settings = settings
        self._in_flight = in_flight
        self._limits = limits
        self._rule = checkpoint_rule
        self._wall = wall
        self._is_live = is_live
        self._lease = lease
        self._places: dict[str, _Place] = {}
        self.on_opened: Callable[[PChannel], Awaitable[None]] | None = None
        """Called with each pchannel that was opened, before it is among `pchannels`."""
        self.on_closing: Callable[[PChannel, Callable[[], WALError]], Awaitable[None]] | None = None
        """Called with each pchannel that is closed by itself, once it is not in `pchannels` any more, and with the reason for callers."""
        self._ticks = system.spawn(_TickKeeper(oracle), name="ticks")
        self._timer: Timer | None = None

    async def open(self, meta: PChannelMeta) -> tuple[PChannel, int]:
        """Opens a pchannel in the term of its record, which must be saved.

        Returns the pchannel, and how many events after the last checkpoint were replayed. Raises ChannelFencedError if another writer has a
        higher term; CorruptionError for damage; UnmatchedChannelTermError if a later call for the pchannel was made already. A failure
        releases what was opened.
        """
        place = self._admit(meta.name, meta.term, available=True)
        async with place.turn:
            self._check_newest(place, meta.name, meta.term, available=True)
            if meta.name in self._pchannels:  # in an earlier term
                await self._close_one(meta.name, place)
            try:
                pchannel, replayed = await self._open(meta, place)
                if self.on_opened is not None:
                    await self.on_opened(pchannel)
            except BaseException:
                await self._release(place)
                raise
            self._pchannels[meta.name] = pchannel
            return pchannel, replayed

    async def close_one(self, name: str, term: int) -> int:
        """Closes a pchannel that is here in this term: it refuses at once, what it accepted is written, and it ends with a closing tick.

        Returns the closing tick: whoever opens the pchannel next gives no tick up to it; 0 if the pchannel is not here. Raises
        UnmatchedChannelTermError if a later call for the pchannel was made already, and the failure of a pchannel that could not be closed
        in order, after it is closed.
        """
        place = self._admit(name, term, available=False)
        async with place.turn:
            self._check_newest(place, name, term, available=False)
            return await self._close_one(name, place)

    def _admit(self, name: str, term: int, *, available: bool) -> _Place:
        """Notes a call for a pchannel; raises UnmatchedChannelTermError if it comes after a later one, or a second time."""
        place = self._places.setdefault(name, _Place())
        order = (term, not available)
        if order < place.newest or (order == place.newest and available):
            raise _too_late(name, term, place.newest)
        place.newest = order
        return place

    def _check_newest(self, place: _Place, name: str, term: int, *, available: bool) -> None:
        """Raises UnmatchedChannelTermError if a later call was made while this one waited for its turn."""
        if (term, not available) < place.newest:
            raise _too_late(name, term, place.newest)

    async def _close_one(self, name: str, place: _Place) -> int:
        pchannel = self._pchannels.pop(name, None)
        tick = 0
        try:
            if pchannel is not None:
                if self.on_closing is not None:
                    await self.on_closing(pchannel, partial(_moved, name))
                await pchannel.drain()
                fault = pchannel.fault
                if pchannel.checkpointer is not None:
                    await pchannel.checkpointer.close()
                tick = await self._closing_tick([pchannel])
                await pchannel.finish(tick, _moved(name))
                if fault is not None:
                    raise fault
        finally:
            await self._release(place)
        return tick

    async def _release(self, place: _Place) -> None:
        """Stops the actors of a pchannel and closes its log, if they are there."""
        group, log, place.group, place.log = place.group, place.log, None, None
        try:
            if group is not None:
                await group.stop()
        finally:
            if log is not None:
                await log.close()

    async def _open(self, meta: PChannelMeta, place: _Place) -> tuple[PChannel, int]:
        began_s = self._clock.monotonic()
        record = place.checkpoint = await load_checkpoint(self._kv, meta.name)
        compressor = await in_thread(Compressor) if await load_compression(self._kv) else None
        log = place.log = await self._backend.open(
            meta.name, incarnation=meta.incarnation, term=meta.term, checkpoint=None if record is None else record.position
        )
        state, last, (replayed, replayed_bytes) = await self._recover(log, meta, record, place)
        self._oracle.adopt(log.state.promised_tick)
        group = self._system.group(meta.name, inbox_max=INBOX_MAX)
        place.group = group
        pchannel = PChannel(
            log,
            form=self._backend.form,
            group=group,
            oracle=self._oracle,
            request_ticks=lambda asking: self._ticks.tell(asking),
            in_flight=self._in_flight,
            limits=self._limits,
            keepalive=self._settings.txn_keepalive,
            interval_s=self._settings.time_tick_interval_s,
            monotonic=self._clock.monotonic,
            due_ms=self._wall.due_ms,
            state=state,
            lease=self._lease,
            compressor=compressor,
        )
        group.on_turn_end = pchannel.turn_ended
        group.join(pchannel, name=meta.name)
        group.join(pchannel.copies, name=f"{meta.name} copies")
        group.join(pchannel.cursors, name=f"{meta.name} cursors")
        await pchannel.start()
        pchannel.checkpointer = Checkpointer(
            log,
            state,
            last=last,
            replayed_bytes=replayed_bytes,
            end=lambda: pchannel.tail.durable_end,
            save=partial(self._save_checkpoint, meta, place),
            monotonic=self._clock.monotonic,
            rule=self._rule,
        )
        pchannel.opening_s, pchannel.replayed_events = self._clock.monotonic() - began_s, replayed
        return pchannel, replayed

    def claim(self, name: str) -> PChannelMeta | None:
        """Returns the record of a pchannel that is open or being opened here, in its term here; None for another one."""
        place = self._places.get(name)
        return None if place is None or place.log is None else PChannelMeta(name, place.log.incarnation, place.log.term)

    def progress(self, name: str) -> int:
        """Returns a number that grows while the opening of a pchannel has something to show: the bytes that it has replayed."""
        place = self._places.get(name)
        return 0 if place is None or place.recovering is None else place.recovering.replayed_bytes

    def arm(self) -> None:
        """Starts the timer that drives the pchannels: ticks, leases and checkpoints."""
        self._timer = self._clock.call_later(self._settings.time_tick_interval_s, self._timer_turn)

    def disarm(self) -> None:
        """Stops the timer."""
        if self._timer is not None:
            self._timer.cancel()

    async def drain(self) -> BaseException | None:
        """Waits until every pchannel has written what it accepted and no checkpoint is under way; returns the first failure, if any."""
        live = list(self._pchannels.values())
        await asyncio.gather(*(pchannel.drain() for pchannel in live))
        fault = next((fault for pchannel in live if (fault := pchannel.fault)), None)
        await asyncio.gather(*(pchannel.checkpointer.close() for pchannel in live if pchannel.checkpointer is not None))
        return fault

    async def finish(self, cause: Callable[[], WALError]) -> list[BaseException]:
        """Ends all pchannels with one closing tick, and their readers with `cause`. Returns the failures."""
        live = list(self._pchannels.values())
        tick = await self._closing_tick(live)
        ended = await asyncio.gather(*(pchannel.finish(tick, cause()) for pchannel in live), return_exceptions=True)
        return [error for error in ended if error is not None]

    async def close(self) -> None:
        """Closes the logs. Raises the first failure after all of them are closed."""
        logs = [place.log for place in self._places.values() if place.log is not None]
        outcomes = await asyncio.gather(*(log.close() for log in logs), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def _closing_tick(self, pchannels: list[PChannel]) -> int:
        """Returns a tick above all that these pchannels gave; if there is none, they fail."""
        try:
            return await self._oracle.allocate()
        except Exception as error:
            unsaved = error if isinstance(error, WALError) else _no_ticks(error)
            for pchannel in pchannels:
                pchannel.fail(unsaved)
            return 0

    async def _recover(
        self, log: PChannelLog, meta: PChannelMeta, record: CheckpointRecord | None, place: _Place
    ) -> tuple[RecoveryState, Checkpoint, tuple[int, int]]:
        """Returns the pchannel's state at the end of its log, the checkpoint that recovery started from, and what `recover` counted."""
        if record is None:
            # A log from before checkpoints existed: it is replayed from its earliest event. From now on it has one.
            last = Checkpoint(log.local_earliest[0])
            await self._save_checkpoint(meta, place, last)
            await log.release(last.position, state=None)
        else:
            last = Checkpoint(record.position, record.state)
        keys = IdempotencyTable.of(self._settings)
        schedule = ScheduleTable(count_max=self._settings.scheduled_max, bytes_max=self._settings.scheduled_bytes_max)
        state = place.recovering = RecoveryState(keys, CopyTable(), schedule)
        try:
            return state, last, await recover(log, state, last, live=self._is_live)
        finally:
            place.recovering = None

    async def _save_checkpoint(self, meta: PChannelMeta, place: _Place, checkpoint: Checkpoint) -> None:
        """Saves the record of a checkpoint. Raises ChannelFencedError if the pchannel has a higher term by now.

        A coordinator raises the term before it takes a pchannel away. The closing checkpoint is then saved for the next owner, which would
        replay all since the last one otherwise; this writer frees nothing for it any more.
        """
        record = CheckpointRecord(meta.term, checkpoint.position, checkpoint.state)
        try:
            await save_checkpoint(self._kv, meta, record)
        except ChannelFencedError:
            if place.checkpoint is not None and self._lease.alive:
                await hand_over_checkpoint(self._kv, meta.name, place.checkpoint, record)
            raise
        place.checkpoint = record

    def _timer_turn(self) -> None:
        self.arm()
        self._wall.look()
        for pchannel in self._pchannels.values():
            try:
                pchannel.actor_group.tell_control(pchannel, pchannel.timer_turn)
                if pchannel.checkpointer is not None and pchannel.checkpointer.moved:
                    pchannel.checkpointer.look()
            except ActorFailedError:  # its callers have the failure
                pass
            except Exception as defect:  # the timer continues for the others
                pchannel.poisoned(defect, [])


class _TickKeeper(Actor):
    """Waits for the oracle on behalf of the pchannels, which must not wait."""

    def __init__(self, oracle: TimestampOracle) -> None:
        self._oracle = oracle

    async def receive(self, batch: list[Any]) -> None:
        """Extends the oracle's limit once for all pchannels of the batch."""
        failure: WALError | None = None
        try:
            await self._oracle.extend()
        except WALError as error:
            failure = error
        except Exception as error:
            failure = _no_ticks(error)
        for pchannel in batch:
            if pchannel.failure is None:  # a failed one has failed what waited
                with contextlib.suppress(ActorError):  # it failed meanwhile
                    pchannel.actor_group.tell_control(pchannel, partial(pchannel.ticks_extended, failure))

    def poisoned(self, cause: BaseException, unhandled: list[Any]) -> None:
        """Fails the pchannels that wait: after a defect in this actor no pchannel gets ticks any more."""
        for pchannel in unhandled:
            pchannel.poisoned(cause, [])


def _too_late(name: str, term: int, newest: tuple[int, bool]) -> UnmatchedChannelTermError:
    what = "closed" if newest[1] else "opened"
    return UnmatchedChannelTermError(
        f"pchannel {name!r} was to be {what} here in term {newest[0]} already, which a call for term {term} must not undo: ask the "
        "coordinator for the current term",
        term=newest[0],
    )


def _moved(name: str) -> ClosedError:
    return ClosedError(f"pchannel {name} is not on this node any more: ask AssignmentDiscover where it is")


def _no_ticks(cause: Exception) -> StorageError:
    return caused(StorageError(f"the timestamp oracle's limit could not be saved: {cause!r}"), cause)
