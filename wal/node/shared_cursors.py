"""SharedCursors: the cursors that several consumers share, at their homes here.

How it works. The first member to join makes the home claim the cursor, as one consumer, and run a session of it (`SharedSession`): the
reader, the table and the commits are those of any consumer. Only the handlers are elsewhere: `SharedMembers` gives what may run to the
members that ask, and settles what they report. A member's outputs are committed in the frame that finishes their messages, which
`SettleWork` waits for.

The home of a cursor of a pattern in a cluster reads all pchannels, most of which are on other nodes, as a client of the cluster.

The last member that leaves ends the session. If the session fails, by a seek or a move of the pchannel for example, all members have to
join again, and what was handed out is released.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from actors import Clock
from wal.channels.vchannels import check_vchannel
from wal.consumers.delivery import Delivery
from wal.consumers.lifecycle import ConsumerCounts
from wal.consumers.options import ConsumerOptions
from wal.consumers.session import ConsumerSession
from wal.consumers.state import SavedState
from wal.errors import InvalidArgumentError, UnavailableError, closed_log
from wal.message import Message
from wal.message.matching import Matching
from wal.node.appends import LocalAppends
from wal.node.cursor_claims import CursorClaims
from wal.node.cursors import NodeCursors
from wal.node.routes import Routes
from wal.node.shared_members import SharedMembers, not_a_member
from wal.read.cursors.cursor import Cursor, CursorKey
from wal.read.merged import AttachMatching
from wal.requests.cursors import CursorClaim
from wal.requests.rights import is_served
from wal.requests.work import (
    JoinCursor,
    KeepMember,
    LeaveCursor,
    MemberRequest,
    SettleWork,
    SharedCursor,
    SharedWork,
    TakeWork,
    WorkTerms,
    WorkUnit,
)
from wal.settings import Settings
from wal.write.checks import LETTER_BYTES, bodies_of
from wal.write.pchannel import PChannel

if TYPE_CHECKING:
    from wal.engine import CursorHome, WritableEngine

CLOSE_S: Final = 2.0
"""The time that a pchannel that is being closed waits for the last commit of its shared cursors."""
_log: Final = logging.getLogger("wal.consumers")


class SharedCursors:
    """The shared cursors whose homes are on this node."""

    def __init__(self, engine: HomeEngine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._cursors: dict[CursorKey, _SharedCursor] = {}
        self._fences: dict[CursorKey, int] = {}
        """The number of the last claim of each cursor that failed while this process went on."""
        self._closed = False

    async def join(self, request: JoinCursor, pchannel: PChannel) -> int:
        """Adds a member; see `JoinCursor`."""
        key = request.key
        while True:
            if self._closed:
                raise closed_log()
            if (cursor := self._cursors.get(key)) is None:
                cursor = self._cursors[key] = _SharedCursor(self._engine, self._clock, request, pchannel, self._fences.pop(key, 0))
                cursor.task.add_done_callback(lambda _, key=key, cursor=cursor: self._ended(key, cursor))  # type: ignore[misc]
            await asyncio.shield(cursor.begun)
            if not cursor.is_ending:
                return cursor.session.pool.join(request)
            await asyncio.wait((cursor.task,))

    def _ended(self, key: CursorKey, cursor: _SharedCursor) -> None:
        if self._cursors.get(key) is cursor:
            del self._cursors[key]
        if cursor.failed_fence:
            self._fences[key] = cursor.failed_fence

    async def take(self, request: TakeWork) -> tuple[WorkUnit, ...]:
        """Returns work for a member; see `TakeWork`."""
        members = self._members(request)
        return await members.take(members.of(request), request)

    async def settle(self, request: SettleWork) -> int:
        """Settles what a member had; see `SettleWork`."""
        members = self._members(request)
        member = members.of(request)
        if request.outputs and is_served() and request.number > member.settlements:
            await self._check(request)
        return await members.settle(members.of(request), request)

    async def keep(self, request: KeepMember) -> SharedWork:
        """Renews the lease of a member; see `KeepMember`."""
        members = self._members(request)
        member = members.of(request)
        session = self._cursors[request.key].session
        is_caught_up = False
        with members.present(member):
            if request.resumes:
                members.resume(request.trip)
            waiting = session.caught_up(request.caught_up_to) if request.caught_up_to else members.next_trip(request.trip)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(request.wait_ms / 1000):
                    is_caught_up = await waiting
        members.of(request)
        return session.work(is_caught_up=is_caught_up)

    def listed(self, pchannels: Collection[str]) -> tuple[SharedCursor, ...]:
        """Returns the shared cursors with homes on these pchannels that have members."""
        cursors = [cursor for cursor in self._cursors.values() if cursor.home.pchannel in pchannels]
        return tuple([cursor.session.listed() for cursor in cursors if cursor.has_begun and not cursor.is_ending])

    async def leave(self, request: LeaveCursor) -> None:
        """Ends a membership; see `LeaveCursor`."""
        if (cursor := self._cursors.get(request.key)) is not None and cursor.has_begun:
            cursor.session.pool.leave(request.member)
            if cursor.is_ending:
                await asyncio.wait((cursor.task,))

    async def end(self, pchannel: str | None = None) -> None:
        """Ends the shared cursors with this home, or (None) all: their members have to join again elsewhere."""
        self._closed = self._closed or pchannel is None
        ending = [cursor for cursor in self._cursors.values() if pchannel in (None, cursor.home.pchannel)]
        for cursor in ending:
            cursor.end()
        if ending:
            await asyncio.wait([cursor.task for cursor in ending], timeout=CLOSE_S)

    def _members(self, request: MemberRequest[Any]) -> SharedMembers:
        cursor = self._cursors.get(request.key)
        if cursor is None or not cursor.has_begun or cursor.is_ending:
            raise not_a_member(request.key)
        return cursor.session.pool

    async def _check(self, request: SettleWork) -> None:
        """Raises InvalidArgumentError for outputs that cannot be committed at this home."""
        vchannels = self._engine.routes.known
        names = tuple(dict.fromkeys([message.vchannel for message in request.outputs]))
        counted = bodies_of(request.outputs, names, bytes_max=self._engine.appends.message_bytes_max + LETTER_BYTES).counted
        settings = self._engine.settings
        count_max, bytes_max = settings.txn_bodies_max, min(settings.txn_bytes_max, self._engine.frame_bytes_max // 2)
        if len(request.outputs) > 1 and (len(request.outputs) > count_max or counted > bytes_max):
            raise InvalidArgumentError(
                f"the settlement has {len(request.outputs)} outputs of {counted} bytes, and one commit takes {count_max} of {bytes_max} "
                "bytes: settle in several steps"
            )
        for name in map(check_vchannel, names):
            if name not in vchannels.records:
                await vchannels.look_up(name)
            if (place := vchannels.pchannel_of(name)) != request.pchannel:
                raise InvalidArgumentError(
                    f"vchannel {name!r} is on pchannel {place}, and {request.key} is kept in the log of pchannel {request.pchannel}: "
                    "append such outputs there before the settlement"
                )


_SHOWN: Final = frozenset(SharedWork.__struct_fields__)


class _SharedHome:
    """The home of a shared cursor, as its session uses it; see `wal.engine.CursorHome`."""

    def __init__(self, claims: CursorClaims, key: CursorKey, pchannel: PChannel) -> None:
        self.pchannel: str = pchannel.channel
        self._claims = claims
        self._key = key
        self._home = pchannel

    def commit(self, bodies: Sequence[Message], *, position: Cursor | None, state: bytes, fence: int) -> Awaitable[object]:
        """Writes outputs, position and state together."""
        return self._claims.commit(self._key, self.pchannel, bodies, position, state=state, fence=fence)

    async def release(self, fence: int) -> None:
        """Ends the claim."""
        await self._claims.end_lease(self._key, self._home, fence)


class HomeEngine:
    """The parts of a node that shared cursors use, and what a session at the home uses of an engine."""

    def __init__(
        self,
        routes: Routes,
        cursors: NodeCursors,
        claims: CursorClaims,
        appends: LocalAppends,
        settings: Settings,
        frame_bytes_max: int,
        *,
        attach_matching: AttachMatching,
    ) -> None:
        self.routes = routes
        self.cursors = cursors
        self.claims = claims
        self.appends = appends
        self.settings = settings
        self.frame_bytes_max = frame_bytes_max
        self.attach = routes.attach
        self.attach_matching = attach_matching


class _SharedCursor:
    """One shared cursor, from the claim to its release. `begun` is done when members may join."""

    def __init__(self, engine: HomeEngine, clock: Clock, first: JoinCursor, pchannel: PChannel, before: int) -> None:
        self.home: _SharedHome = _SharedHome(engine.claims, first.key, pchannel)
        self.session: SharedSession
        self.begun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_ending: bool = False
        self.failed_fence: int = 0
        self._engine = engine
        self._clock = clock
        self._first = first
        self._pchannel = pchannel
        self._before = before
        self.task: asyncio.Task[None] = asyncio.get_running_loop().create_task(self._run(), name=f"shared cursor {first.key.name}")

    @property
    def has_begun(self) -> bool:
        return self.begun.done() and self.begun.exception() is None

    def end(self) -> None:
        """Ends the session, and releases the messages of its members."""
        self.is_ending = True
        if hasattr(self, "session"):
            self.session.stop()

    async def _run(self) -> None:
        key, terms = self._first.key, self._first.terms
        try:
            options = options_of(key, terms, self._first)
            claim = await self._engine.claims.share(key, self._pchannel)
            session = self.session = SharedSession(
                options, self._engine, self.home, claim, terms=terms, clock=self._clock, on_left=self.end, before=self._before
            )
            if self.is_ending:
                session.stop()
            running = asyncio.ensure_future(session.run(lambda: 0.0))
            beginning = asyncio.ensure_future(session._begun.wait())
            await asyncio.wait((running, beginning), return_when=asyncio.FIRST_COMPLETED)
            beginning.cancel()
            if session.has_begun:
                self.begun.set_result(None)
            await asyncio.wait((running,))
            if not running.cancelled():
                running.result()
        except Exception as error:
            self.is_ending = True
            if hasattr(self, "session"):
                self.failed_fence = self.session.fence
            if not self.begun.done():
                self.begun.set_exception(error)
                self.begun.exception()
            else:
                _log.info("the members that share %s have to join again: %s", key, error)
        finally:
            self.is_ending = True
            if not self.begun.done():
                self.begun.set_exception(UnavailableError(f"{key} is being closed here: join its home again"))
                self.begun.exception()
            if self.has_begun:
                self.session.pool.end()


def options_of(key: CursorKey, terms: WorkTerms, member: JoinCursor) -> ConsumerOptions:
    """Returns the options of the session at the home. Raises InvalidArgumentError for terms that no consumer may have."""
    return ConsumerOptions.of(
        Matching(key.pattern) if key.pattern else key.vchannels,
        _never,
        cursor=key.name,
        concurrency=member.concurrency if terms.order != "vchannel" or len(key.vchannels) != 1 else 1,
        order=terms.order,
        key=terms.key,
        attempts=terms.attempts,
        backoff_s=terms.backoff_s,
        on_failure="block" if terms.blocks else "park",
        batch=member.batch,
        shared=True,
    )


async def _never(_delivery: Delivery) -> None:
    raise AssertionError("the handlers of a shared cursor are with its members")


class SharedSession(ConsumerSession):
    """The claim of a shared cursor: a session whose handlers are with members."""

    acks_copies = False  # members do, before they settle
    pool: SharedMembers

    def __init__(
        self,
        options: ConsumerOptions,
        engine: HomeEngine,
        home: _SharedHome,
        claim: CursorClaim,
        *,
        terms: WorkTerms,
        clock: Clock,
        on_left: Callable[[], None],
        before: int,
    ) -> None:
        """`on_left` is called when the last member has left."""
        used, shared_home = cast("WritableEngine", engine), cast("CursorHome", home)
        super().__init__(options, used, shared_home, claim, ConsumerCounts(), tripped=self.fail, before=before)
        self._terms = terms
        self._clock = clock
        self._on_left = on_left
        self._began_s = self._loop.time()

    def _handlers(self) -> SharedMembers:
        return SharedMembers(
            self.options,
            self._terms,
            self.table,
            self.fence,
            self._clock,
            self.counts,
            report=self._report,
            hurry=self._urgent.set,
            left=self._on_left,
        )

    def work(self, *, is_caught_up: bool = False) -> SharedWork:
        """Returns what members are shown of the cursor."""
        members, figures = self.pool, self.figures()
        return SharedWork(
            members.listed(),
            **{name: each for name, each in figures.items() if name in _SHOWN},
            is_caught_up=is_caught_up,
            trip=members.trip,
            tripped=members.tripped,
        )

    def listed(self) -> SharedCursor:
        """Returns what the cursor shows to others than its members."""
        counts, progress_s = self.counts, self.counts.progress_s
        return SharedCursor(
            self.options.cursor,
            self.fence,
            self.work(),
            counts.handled,
            counts.failed,
            counts.retried,
            counts.dead_lettered,
            self._loop.time() - (self._began_s if progress_s is None else progress_s),
            self.pool.tripped_at,
        )

    def _state(self, now: float) -> SavedState:
        state = super()._state(now)
        if self.table.apart and state.handed == 1:  # only the death of a member counts as an attempt at its message
            state = msgspec.structs.replace(state, handed=2)
        return state

    def _note(self, commit: Any) -> None:
        super()._note(commit)
        self.pool.committed(commit.count)
