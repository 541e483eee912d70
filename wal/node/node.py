"""StreamingNode: the node's half of a log: its pchannels, each in its term, and every request to them.

Owns the oracle, the hosting of pchannels, the routes of vchannels, appends, cursors and retention, and the order in which they are opened
and closed. The coordinator's half decides which vchannels exist and in which terms pchannels are opened; a node only has a view of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from actors import Actor, ActorRef, ActorSystem
from broadcaster.message import BroadcasterStatistics
from wal.channels.pchannels import PChannelMeta
from wal.channels.pchannels import raise_format as raise_metadata_format
from wal.engine import InboxStatistics, LogStatistics
from wal.errors import InvalidArgumentError, WALError
from wal.node.appends import LocalAppends
from wal.node.archiving.archiver import Archiver
from wal.node.cursor_claims import CursorClaims, LocalCursorHome
from wal.node.cursors import NodeCursors
from wal.node.hosting import Hosting
from wal.node.pattern_pins import PatternPins
from wal.node.retention.keeper import RetentionKeeper
from wal.node.retention.policy import RetentionBounds
from wal.node.retention.wall_time import WallTime
from wal.node.routes import KnownVChannels, Routes
from wal.node.shared_cursors import HomeEngine, SharedCursors
from wal.read.cursors.cursor import REDRIVE, CursorKey, other_key, pattern_home
from wal.read.cursors.pins import AsyncPins
from wal.read.cursors.status import LogRange, LogView
from wal.read.lease import OWN, Lease
from wal.read.merged import AttachMatching
from wal.read.options import named
from wal.settings import Settings
from wal.storage.base import LogBackend
from wal.storage.kv import KVBase
from wal.timestamp import TimestampOracle
from wal.timestamp.oracle import LIMIT_KEY, SAVE_WINDOW_S
from wal.write.checkpoint_ledger import CheckpointRule
from wal.write.in_flight import InFlight
from wal.write.pchannel import PChannel
from wal.write.txn_table import TxnLimits

_NO_EVENT: Final = (-1, 0)
"""Stands for the newest event of a pchannel without any: a cursor anywhere is after it."""


class StreamingNode:
    """The pchannels of a log in this process. From `open_oracle` on, `host` and `open_cursors` set the other attributes, in this order."""

    oracle: TimestampOracle
    routes: Routes
    appends: LocalAppends
    cursors: NodeCursors
    claims: CursorClaims
    shared: SharedCursors
    frame_bytes_max: int
    """The largest frame that the log takes."""
    retention: RetentionKeeper
    hosting: Hosting

    def __init__(self, settings: Settings, system: ActorSystem, *, place: str) -> None:
        self.settings = settings
        self.system = system
        self.pchannels: dict[str, PChannel] = {}
        self.in_flight: InFlight = InFlight(settings.in_flight_bytes_max)
        self.wall: WallTime = WallTime(system.clock)
        self.archiver: Archiver | None = None
        """The archiver of a log that archives itself, set before `start_retention`."""
        self._place = place
        self._spawned = 0

    async def open_oracle(self, kv: KVBase, *, key: str = LIMIT_KEY, save_window_s: float = SAVE_WINDOW_S) -> None:
        """Opens the oracle that saves its limit on this key, `save_window_s` seconds ahead, and gives ticks from now on."""
        self.oracle = TimestampOracle(kv, key=key, clock=self.system.clock, save_window_s=save_window_s)
        await self.oracle.start()

    def host(
        self,
        backend: LogBackend,
        kv: KVBase,
        known: KnownVChannels,
        *,
        limits: TxnLimits,
        checkpoint_rule: CheckpointRule,
        lease: Lease = OWN,
    ) -> None:
        """Gets ready to open pchannels; none is open yet. `known` are the vchannels that exist."""
        self.frame_bytes_max = limits.frame_bytes_max
        self.routes = Routes(known, self.pchannels, self.settings, spawn=self.spawn, location=self._place, clock=self.system.clock)
        self.appends = LocalAppends(self.routes, self.pchannels, self.in_flight, self.settings)
        self.hosting = Hosting(
            backend,
            kv,
            self.oracle,
            self.system,
            self.settings,
            pchannels=self.pchannels,
            in_flight=self.in_flight,
            limits=limits,
            checkpoint_rule=checkpoint_rule,
            wall=self.wall,
            is_live=lambda name: self.routes.incarnation(name[0]) == name[1],
            lease=lease,
        )
        self.hosting.on_closing = self._closing

    async def open_all(self, raising: Iterable[Awaitable[PChannelMeta]]) -> dict[str, int]:
        """Opens pchannels side by side, each in the term of its record, once that is raised.

        Returns by name how many events were replayed, in this order. Raises the first failure once all have ended.
        """

        async def opened(meta: Awaitable[PChannelMeta]) -> tuple[PChannel, int]:
            return await self.hosting.open(await meta)

        # Every opening runs to its end, so that undoing a failure finds everything there is to undo.
        outcomes = await asyncio.gather(*map(opened, raising), return_exceptions=True)
        replayed: dict[str, int] = {}
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            pchannel, replayed[outcome[0].channel] = outcome
            self.pchannels[pchannel.channel] = self.pchannels.pop(pchannel.channel)  # not in the order of the openings
        return replayed

    async def open_cursors(
        self,
        pins: AsyncPins | None,
        kv: KVBase,
        *,
        raise_format: Callable[[], Awaitable[None]],
        patterns: PatternPins | None = None,
        attach_matching: AttachMatching | None = None,
    ) -> None:
        """Serves cursors; `pins` are those of processes beside this one. `raise_format` is the backend's. If other nodes have pchannels of
        the log, `patterns` is what the cursors of patterns hold back there, and `attach_matching` reads all pchannels.
        """

        async def raise_both() -> None:
            await raise_format()
            await raise_metadata_format(kv)

        self.cursors = self.routes.cursors = self.appends.cursors = NodeCursors(
            pins,
            view=self._cursor_view,
            catch_up=self.routes.known.catch_up,
            pchannel_of=self.routes.known.pchannel_of,
            pchannels=self.routes.known.pchannels,
            raise_format=raise_both,
            clock=self.system.clock,
            patterns=patterns,
        )
        await self.cursors.open(self.pchannels.values())
        self.claims = CursorClaims(self.cursors, self.appends, clock=self.system.clock)
        engine = HomeEngine(
            self.routes,
            self.cursors,
            self.claims,
            self.appends,
            self.settings,
            self.frame_bytes_max,
            attach_matching=attach_matching or self.routes.attach_matching,
        )
        self.shared = SharedCursors(engine, self.system.clock)

    async def start_retention(self) -> None:
        """Begins to drop what the settings say; `retention.close` ends that."""
        settings = self.settings
        bounds = RetentionBounds(settings.retention_bytes, settings.retention_s, settings.cursor_lag_bytes_max, settings.cursor_age_max_s)
        self.retention = RetentionKeeper(
            bounds, self.pchannels, self.cursors, clock=self.system.clock, wall=self.wall, archiver=self.archiver
        )
        self.hosting.on_opened = self._opened
        await self.retention.start()

    async def _closing(self, pchannel: PChannel, closed: Callable[[], WALError]) -> None:
        """Refuses what comes for a pchannel that is being closed by itself, and waits for a truncation of it that is under way."""
        await self.shared.end(pchannel.channel)
        self.routes.close(pchannel, closed)
        self.claims.leave(self.cursors.detach(pchannel))
        await self.retention.settled()

    async def _opened(self, pchannel: PChannel) -> None:
        """Includes a new pchannel in this node's truncation; a closed one has left `pchannels` already."""
        await self.cursors.open([pchannel])
        self.retention.watch(pchannel)

    async def close(self, cause: Callable[[], WALError]) -> tuple[BaseException | str | None, list[BaseException]]:
        """Takes no append any more, writes what was accepted, and ends all pchannels with one closing tick.

        Returns why the next opening has to recover the log, or None, and the failures.
        """
        await self.shared.end()
        self.in_flight.fail(cause)
        await self.retention.close()
        self.claims.end()
        await self.cursors.end()
        trouble = await self.hosting.drain()
        return trouble, await self.hosting.finish(cause)

    async def cursor_home(self, key: CursorKey, *, pchannel: str | None = None) -> LocalCursorHome:
        """Returns the home of a cursor, named if it has none; see `WritableEngine.cursor_home`."""
        if key.pattern:
            pchannel = pattern_home(self.routes.known.pchannels)
        infos = [info for info in await self.cursors.infos() if info.name == key.name]
        for info in infos:
            if key.excludes(other := CursorKey(info.name, info.vchannels, info.pattern)):
                raise other_key(key, other)
        saved = [info.vchannels for info in infos]
        if saved and key.vchannels not in saved and key.name != REDRIVE:
            raise InvalidArgumentError(
                f"cursor {key.name!r} is saved for {named(saved[0])}, and this consumer is of {named(key.vchannels)}, where it would begin "
                f"at the oldest message: name another cursor, consume the same vchannels, or {key.deletion} before"
            )
        await self.cursors.name(key, pchannel=pchannel)
        return self.claims.home(key)

    # -- reading

    def spawn(self, actor: Actor, name: str) -> ActorRef:
        """Starts an actor that ends with the log at the latest. A number is added to make its name unique."""
        self._spawned += 1
        return self.system.spawn(actor, name=f"{name} #{self._spawned}")

    def statistics(
        self, name: str, *, vchannels: int, broadcasts: BroadcasterStatistics | None = None, opening_s: float = 0.0
    ) -> LogStatistics:
        """Returns the counts of the pchannels that are here, and of what they share."""
        in_flight, system = self.in_flight, self.system.statistics()
        inboxes = [actor.pending for actor in system.actors] + [group.pending for group in system.groups]
        return LogStatistics(
            name,
            vchannels,
            in_flight.size,
            in_flight.waiting,
            tuple(pchannel.statistics() for pchannel in self.pchannels.values()),
            bytes_in_flight_max=in_flight.bytes_max,
            appends_refused=in_flight.refused,
            appends_delayed=in_flight.delayed,
            opening_s=opening_s,
            broadcasts=broadcasts,
            inboxes=InboxStatistics(len(inboxes), sum(inboxes), max(inboxes, default=0), len(system.stalled)),
            archive=None if self.archiver is None else self.archiver.statistics(),
        )

    def events(self) -> int:
        """Returns how many events were appended since the pchannels were opened."""
        return sum(pchannel.frames.events for pchannel in self.pchannels.values())

    def _cursor_view(self) -> LogView:
        """Returns what cursors are compared with."""
        places = {
            name: LogRange(
                pchannel.log.incarnation,
                pchannel.log.earliest,
                pchannel.log.durable_end,
                newest=pchannel.tail.newest or _NO_EVENT,
                bytes_between=pchannel.log.bytes_between,
                lineage=pchannel.log.lineage,
                unread_for=pchannel.log.unread_for,
            )
            for name, pchannel in self.pchannels.items()
        }
        known = self.routes.known
        elsewhere = frozenset(known.pchannels) - places.keys()
        return LogView(places, self.routes.incarnation, known.next_incarnation, elsewhere)
