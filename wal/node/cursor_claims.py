"""CursorClaims: the consumers that have the cursors whose homes are here, each with its number.

A claim is a record of the cursor with a number above all before; the home refuses commits with another number in the turn that builds the
frame. So a consumer that was taken for dead, or stopped and woken, saves nothing. Who may claim is decided here, in memory:

* a consumer of this process has the cursor until it releases it, or the process ends: the next process waits for nothing;
* a consumer over the network has a lease by this process' clock, which it renews. After a restart the lease that the record names counts
  from the first claim by another one. The lease ends early when its client has lost the connection: the streams on which that follows
  pchannels have all ended, and for the grace of the server it neither opened one nor renewed. A killed process costs the next consumer
  that grace. If the guess is wrong, the number of the next claim refuses what the first consumer still sends, and messages come again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from typing import Final, Literal

import msgspec

from actors import Clock, Timer
from wal.errors import InvalidArgumentError, ResourceAcquiredError, SessionLostError, closed_log
from wal.message import AppendResult, ForgottenResult, Message
from wal.node.appends import LocalAppends
from wal.node.cursors import NodeCursors
from wal.read.cursors.cursor import STATE_BYTES_MAX, Cursor, CursorKey
from wal.read.cursors.records import CursorRecord
from wal.requests.cursors import CursorClaim
from wal.write.cursor_table import ConsumerLostError, CursorChange
from wal.write.pchannel import PChannel

SHARED: Final = b"shared"
"""The holder in the record of a shared cursor: another home takes the cursor over at once."""
SHARED_LEASE_MS: Final = 10_000
"""How long a consumer over the network that wants a shared cursor for itself waits after the death of its home."""


class CursorClaims:
    """The consumers of these cursors."""

    def __init__(self, cursors: NodeCursors, appends: LocalAppends, *, clock: Clock) -> None:
        self._cursors = cursors
        self._appends = appends
        self._clock = clock
        self._holders: dict[CursorKey, _Holder] = {}
        self._asked: dict[CursorKey, tuple[PChannel, float]] = {}
        """When a cursor with a lease of an earlier opening was first claimed by another consumer, until one has it."""
        self._streams: Counter[str] = Counter()
        """The streams on which each client follows pchannels."""
        self._ending: dict[str, float] = {}
        """When the leases of each client end that has no such stream any more, in monotonic time."""
        self._timer: Timer | None = None
        self._closed = False

    def leave(self, keys: Iterable[CursorKey]) -> None:
        """Forgets the consumers of cursors whose homes are here no more."""
        for key in keys:
            self._asked.pop(key, None)
            if (holder := self._holders.pop(key, None)) is not None:
                holder.end()

    def end(self) -> None:
        """Ends all waits for cursors: the log is being closed."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for holder in self._holders.values():
            holder.end()

    @contextlib.contextmanager
    def connected(self, client: str, grace_s: float) -> Iterator[None]:
        """A block in which a client follows a pchannel. `grace_s` after its last one, its leases end unless it has come back."""
        self._streams[client] += 1
        self._ending.pop(client, None)
        try:
            yield
        finally:
            self._streams[client] -= 1
            if not self._streams[client]:
                del self._streams[client]
                self._ending[client] = self._clock.monotonic() + grace_s
                self._wait(grace_s)

    def _wait(self, delay_s: float) -> None:
        if self._timer is None and not self._closed:
            self._timer = self._clock.call_later(delay_s, self._end_lost)

    def _end_lost(self) -> None:
        """Ends the leases of the clients that have not come back."""
        self._timer, now = None, self._clock.monotonic()
        lost = {client for client, end_s in self._ending.items() if end_s <= now}
        for client in lost:
            del self._ending[client]
        for holder in self._holders.values():
            if holder.client in lost:
                holder.until_s = now
                holder.end()
        if self._ending:
            self._wait(max(min(self._ending.values()) - now, 0.0))

    def home(self, key: CursorKey) -> LocalCursorHome:
        """Returns the home of a cursor that has one, for a consumer of this process."""
        return LocalCursorHome(self, key, self._cursors.home_of(key).channel)

    async def claim(self, key: CursorKey, home: str, *, exclusive: Literal["wait", "error"]) -> CursorClaim:
        """Gives a cursor to a consumer of this process; see `CursorHome.claim`."""
        while (holder := self._holders.get(key)) is not None:
            if exclusive == "error":
                others = "members that share it" if holder.session == SHARED else "another consumer of this process"
                raise ResourceAcquiredError(
                    f"{key} is held by {others} (number {holder.fence}): close that one, or wait for it with exclusive='wait'",
                    keys=(key.name,),
                )
            await holder.ended(self._clock)
            if self._closed:
                raise closed_log()
            if holder.until_s is not None and holder.until_s <= self._clock.monotonic():
                self._free(key, holder)
        holder = self._holders[key] = _Holder()
        try:
            await self._cursors.named(key, home)
            pchannel = self._cursors.here(key, home)
            await self._cursors.look()
            record = await self._cursors.claim(pchannel, key)
            await self._cursors.end_pins(key)
        except BaseException:
            self._free(key, holder)
            raise
        holder.fence = record.fence
        return CursorClaim(record.fence, record.cursor, record.state)

    def commit(
        self, key: CursorKey, home: str, bodies: Sequence[Message], cursor: Cursor | None, *, state: bytes, fence: int
    ) -> Awaitable[AppendResult | ForgottenResult | CursorRecord | None]:
        """Sends a commit of a consumer; see `CursorHome.commit`."""
        if len(state) > STATE_BYTES_MAX:
            raise InvalidArgumentError(f"the state of the consumer with {key} has {len(state)} bytes: at most {STATE_BYTES_MAX}")
        pchannel = self._cursors.here(key, home)
        future: asyncio.Future[AppendResult | ForgottenResult] | asyncio.Future[CursorRecord | None]
        holder = self._holders.get(key)
        if holder is None or holder.fence != fence:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(
                SessionLostError(f"the consumer with number {fence} has released {key}: nothing of the commit was written")
            )
            return future
        if cursor is not None:
            cursor = msgspec.structs.replace(cursor, saved_at=self._clock.wall())
        change = CursorChange(key, cursor, fence, holder.commits + 1, state)
        if bodies:
            future = self._appends.commit_with(bodies, change, pchannel)
        else:
            future = self._cursors.tell(pchannel, key, change=change)
        holder.commits += 1
        return future

    async def lease(self, key: CursorKey, pchannel: PChannel, *, holder: bytes, lease_ms: int, client: str = "") -> CursorClaim:
        """Gives a cursor to a consumer over the network until its lease expires, or it is released; `client` is a name that `connected`
        accepts.

        Raises ResourceAcquiredError while another consumer has it. A lease of an earlier term counts from the first such call.
        """
        await self._cursors.named(key, pchannel.channel)
        now, newest = self._clock.monotonic(), pchannel.cursors.table.newest(key)
        before = self._holders.get(key)
        if before is None and newest.holder and not newest.deleted:
            if (asked := self._asked.get(key)) is None or asked[0] is not pchannel:
                asked = self._asked[key] = pchannel, now
            before = _Holder(newest.fence, newest.holder, asked[1] + newest.lease_ms / 1000)
        if before is not None and before.session != holder and (before.until_s is None or now < before.until_s):
            others = "members that share it" if before.session == SHARED else "another consumer"
            raise ResourceAcquiredError(
                f"{key} is held by {others} (number {before.fence}): wait until it is released, or its lease expires", keys=(key.name,)
            )
        if before is not None:
            self._free(key, before)
        claimed = self._holders[key] = _Holder(0, holder, now + lease_ms / 1000, client)
        self._ending.pop(client, None)
        try:
            await self._cursors.look()
            record = await self._cursors.claim(pchannel, key, holder=holder, lease_ms=lease_ms)
            await self._cursors.end_pins(key)
        except BaseException:
            self._free(key, claimed)
            raise
        self._asked.pop(key, None)
        claimed.fence, claimed.until_s = record.fence, self._clock.monotonic() + lease_ms / 1000
        return CursorClaim(record.fence, record.cursor, record.state)

    async def share(self, key: CursorKey, pchannel: PChannel) -> CursorClaim:
        """Gives a cursor to its members, until `end_lease`: they count as one consumer.

        Raises ResourceAcquiredError while a consumer has the cursor alone, also one over the network whose lease is of an earlier term.
        """
        claim = await self.lease(key, pchannel, holder=SHARED, lease_ms=SHARED_LEASE_MS)
        self._holders[key].until_s = None
        return claim

    def renew(self, key: CursorKey, pchannel: PChannel, fence: int, *, holder: bytes, client: str = "") -> None:
        """Renews the lease of a consumer. Raises SessionLostError if another one has the cursor, or nobody any more."""
        record = pchannel.cursors.table.newest(key)
        if record.deleted or not fence or record.fence != fence or record.holder != holder:
            raise ConsumerLostError(f"the consumer with number {fence} has lost {key}: claim the cursor again")
        until_s = self._clock.monotonic() + record.lease_ms / 1000
        self._ending.pop(client, None)
        current = self._holders.get(key)
        if current is None or (current.fence == fence and current.has_ended):  # the pchannel was opened since, or the client is back late
            self._holders[key] = _Holder(fence, holder, until_s, client)
        elif current.fence == fence:
            current.until_s, current.client = until_s, client

    async def end_lease(self, key: CursorKey, pchannel: PChannel, fence: int) -> None:
        """Ends the lease of the consumer with this number, durably; does nothing if it has ended already."""
        await self._cursors.changed(pchannel, key, make=lambda table: table.release(key, fence))
        await self.release(key, fence)

    async def release(self, key: CursorKey, fence: int) -> None:
        """Ends the claim with this number."""
        holder = self._holders.get(key)
        if holder is not None and holder.fence == fence:
            self._free(key, holder)

    def _free(self, key: CursorKey, holder: _Holder) -> None:
        if self._holders.get(key) is holder:
            del self._holders[key]
        holder.end()


class LocalCursorHome:
    """See `wal.engine.CursorHome`."""

    __slots__ = ("_claims", "_key", "pchannel")

    def __init__(self, claims: CursorClaims, key: CursorKey, pchannel: str) -> None:
        self._claims = claims
        self._key = key
        self.pchannel: str = pchannel

    async def claim(self, *, exclusive: Literal["wait", "error"] = "wait") -> CursorClaim:
        """Gives the cursor to the caller; see `CursorHome.claim`."""
        return await self._claims.claim(self._key, self.pchannel, exclusive=exclusive)

    def commit(
        self, bodies: Sequence[Message], *, position: Cursor | None, state: bytes, fence: int
    ) -> Awaitable[AppendResult | ForgottenResult | CursorRecord | None]:
        """Writes messages, position and state together; see `CursorHome.commit`."""
        return self._claims.commit(self._key, self.pchannel, bodies, position, state=state, fence=fence)

    async def release(self, fence: int) -> None:
        """Ends the claim with this number."""
        await self._claims.release(self._key, fence)


class _Holder:
    """The consumer that has a cursor: its number, 0 while it claims, and how many commits it has sent.

    One over the network has a `session`, and a lease until `until_s` in monotonic time, and is of a `client`.
    """

    def __init__(self, fence: int = 0, session: bytes = b"", until_s: float | None = None, client: str = "") -> None:
        self.fence: int = fence
        self.session: bytes = session
        self.until_s: float | None = until_s
        self.client: str = client
        self.commits: int = 0
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @property
    def has_ended(self) -> bool:
        return self._ended.done()

    def end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    async def ended(self, clock: Clock) -> None:
        """Returns once it has ended, or its lease may be over."""
        if self.until_s is None:
            await asyncio.shield(self._ended)
            return
        woken = asyncio.Event()
        self._ended.add_done_callback(lambda _: woken.set())
        timer = clock.call_later(max(self.until_s - clock.monotonic(), 0.0), woken.set)
        try:
            await woken.wait()
        finally:
            timer.cancel()
