"""RemoteCursorHome: the home of a cursor in a log on the network, for one consumer of this process.

The server keeps the claim as a lease by its own clock, which a task here renews; when the lease expires, another consumer may take the
cursor, and this consumer's commits are refused. A commit is one request of the home's producer, so commits keep the order of the calls,
also over a lost connection: a repeated commit is recognised by its number.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, Literal

from msgspec import structs

from wal.client.appends import RemoteAppends
from wal.client.supervision import Supervision
from wal.errors import InvalidArgumentError, ResourceAcquiredError, SessionLostError, WALError
from wal.message import Message
from wal.read.cursors.cursor import STATE_BYTES_MAX, Cursor, CursorKey
from wal.requests.cursors import ClaimCursor, CursorClaim, CursorSave, KeepCursor
from wal.requests.request import Request
from wal.runtime.tasks import end_tasks

LEASE_MS: Final = 10_000
"""How long a consumer keeps its cursor after its process has ended, or has lost the server."""
RENEWALS: Final = 4
"""The lease is renewed this often while it lasts."""
POLL_S: Final = 0.5
"""The pause between two claims of a cursor that another consumer has."""
GIVE_BACK_S: Final = 1.0
"""How long the end of a claim that was cancelled waits for the server, to release what it may have given."""


class RemoteCursorHome:
    """See `wal.engine.CursorHome`. `save_of` returns the save of a cursor, as requests carry it."""

    def __init__(
        self,
        key: CursorKey,
        pchannel: str,
        submit: Callable[[Request[Any]], Awaitable[Any]],
        appends: RemoteAppends,
        supervision: Supervision,
        save_of: Callable[[Cursor], CursorSave],
    ) -> None:
        self.pchannel: str = pchannel
        self._key = key
        self._submit = submit
        self._appends = appends
        self._supervision = supervision
        self._save_of = save_of
        self._fence = 0
        self._commits = 0
        self._holder = secrets.token_bytes(16)
        """The identity of this consumer at the server. A lease left over from an outage does not exclude the consumer itself."""
        self._keeping: asyncio.Task[None] | None = None

    async def claim(self, *, exclusive: Literal["wait", "error"] = "wait") -> CursorClaim:
        """Gives the cursor to the caller; see `CursorHome.claim`."""
        if self._fence:
            if exclusive == "error":
                raise ResourceAcquiredError(
                    f"{self._key} is held by the caller itself (number {self._fence}): release it first", keys=(self._key.name,)
                )
            await self.release(self._fence)
        request = ClaimCursor(self._key, self.pchannel, self._holder, LEASE_MS)
        while True:
            claiming = asyncio.ensure_future(self._submit(request))
            try:
                claim: CursorClaim = await asyncio.shield(claiming)
                break
            except asyncio.CancelledError:
                await self._give_back(claiming)
                raise
            except ResourceAcquiredError:
                if exclusive == "error":
                    raise
            await asyncio.sleep(POLL_S)
        self._fence, self._commits = claim.fence, 0
        self._keeping = self._supervision.start(partial(self._keep, claim.fence), f"keep {self._key}")
        return claim

    def commit(self, bodies: Sequence[Message], *, position: Cursor | None, state: bytes, fence: int) -> Awaitable[object]:
        """Writes messages, position and state together; see `CursorHome.commit`."""
        if len(state) > STATE_BYTES_MAX:
            raise InvalidArgumentError(f"the state of the consumer with {self._key} has {len(state)} bytes: at most {STATE_BYTES_MAX}")
        if fence != self._fence:
            lost: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            lost.set_exception(
                SessionLostError(f"the consumer with number {fence} has released or lost {self._key}: nothing of the commit was written")
            )
            return lost
        save = CursorSave(self._key) if position is None else self._save_of(position)
        save = structs.replace(save, fence=fence, number=self._commits + 1, state=state)
        sent = self._appends.commit_with(bodies, save, self.pchannel)
        self._commits += 1
        outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        def settled(sent: asyncio.Future[object]) -> None:
            if outcome.done():
                return
            error = sent.exception()
            if error is None:
                outcome.set_result(sent.result())
            else:
                outcome.set_exception(SessionLostError(str(error)) if isinstance(error, ResourceAcquiredError) else error)

        sent.add_done_callback(settled)
        return outcome

    async def release(self, fence: int) -> None:
        """Ends the claim with this number; after a lost connection the lease ends by itself."""
        if fence != self._fence:
            return
        self._fence = 0
        if (keeping := self._keeping) is not None:
            self._keeping = None
            await end_tasks(keeping)
        await self._ask(fence, release=True)

    async def _give_back(self, claiming: asyncio.Future[CursorClaim]) -> None:
        """Releases what a claim that was cancelled still gets. If the server does not answer in time, that lease runs out."""
        with contextlib.suppress(WALError, TimeoutError):
            async with asyncio.timeout(GIVE_BACK_S):
                answer = await claiming
                await self._ask(answer.fence, release=True)

    async def _keep(self, fence: int) -> None:
        while True:
            await asyncio.sleep(LEASE_MS / 1000 / RENEWALS)
            try:
                await self._ask(fence)
            except ResourceAcquiredError:
                return  # another consumer has it: the next commit raises the error
            except WALError:
                continue  # the lease may outlast it, and if not, the commits are refused

    async def _ask(self, fence: int, *, release: bool = False) -> None:
        await self._submit(KeepCursor(self._key, self.pchannel, fence, self._holder, release))
