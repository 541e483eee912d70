"""EtcdElection: one of many candidates is the leader, as long as its session lasts.

Owns: the keys under its name, one per candidate, each on the candidate's lease. The leader is the candidate whose key was created first
(the order of etcd's own election recipe: no stampede, and no overtaking). Guarantees: `Leadership.token`, the create revision of the
leader's key, rises from leader to leader. A change through the Leadership is made only while that key exists, which etcd decides in the
same transaction. No clock ever decides who leads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

import msgspec

from wal.errors import ChannelFencedError, InvalidArgumentError, TruncatedError, UnknownOutcomeError, WALError
from wal.runtime.user_code import shielded
from wal.storage.kv.base import KVBatch, RootedKV
from wal.storage.kv.etcd.api import rpc_pb2 as rpc
from wal.storage.kv.etcd.connection import delete
from wal.storage.kv.etcd.kv import EtcdKV, LeaderFence
from wal.storage.kv.etcd.requests import RANGE, decoded, range_of
from wal.storage.kv.etcd.session import EtcdSession
from wal.storage.kv.keys import check_key, check_keys, check_saves, check_value

MARK: Final = "leader-mark"
"""The key that every change of a leader puts as well; see `LeaderFence`."""
_WITHDRAW_TIMEOUT_S: Final = 2.0


class Leader(msgspec.Struct, frozen=True):
    """The current leader: `value` is its last proclaimed value, `token` its fencing number, `key` its key in the KV."""

    value: str
    token: int
    key: str
    revision: int
    """The revision of the store at which this value was saved."""


class EtcdElection:
    """The election called `name`, a path below the KV's root path for this election alone."""

    def __init__(self, kv: EtcdKV, name: str) -> None:
        self._kv = kv
        self._prefix = check_key(name).rstrip("/") + "/"

    async def campaign(self, value: str, session: EtcdSession) -> Leadership:
        """Waits to become the leader, with `value` for all to see. Cancelling withdraws the candidate.

        Raises the session's error when the session is lost before that, and UnknownOutcomeError when etcd did not answer whether it is a
        candidate. In that case, and when etcd does not answer a withdrawal, the session is lost, so that no candidate waits for a leader
        that is unaware of its role.
        """
        check_value("the candidate", value)
        key = f"{self._prefix}{session.lease:016x}"
        return await session.guard(self._campaign(key, value, session))

    async def leader(self) -> Leader | None:
        """Returns the current leader; None without a candidate."""
        candidates = await self._candidates()
        return candidates[0] if candidates else None

    async def observe(self) -> AsyncIterator[Leader | None]:
        """Yields the current leader, then each change of leader or of its value; values in rapid succession may be skipped."""
        previous: Leader | None = None
        first = True
        while True:
            async with await self._kv.watch_with_prefix(self._prefix) as watch:
                try:
                    while True:
                        leader = await self.leader()
                        if first or leader != previous:
                            first, previous = False, leader
                            yield leader
                        await anext(watch)
                except TruncatedError:
                    continue  # the state is loaded again, and only the state matters here

    async def _campaign(self, key: str, value: str, session: EtcdSession) -> Leadership:
        full = self._kv.calls.full_key(key)
        absent = rpc.Compare(target=rpc.Compare.CREATE, key=full, create_revision=0)
        put_it = [self._kv.calls.put(full, value, lease=session.lease)]
        try:
            answer = await session.transact([absent], put_it, "becoming a candidate")
            if answer.succeeded:
                await self._wait_for_turn(key, answer.header.revision, session)
                return Leadership(self._kv, session, key, answer.header.revision, value)
        except BaseException as error:
            if session.alive:  # else the key is removed with the lease
                await self._withdraw(key, session, unknown=isinstance(error, UnknownOutcomeError))
            raise
        raise InvalidArgumentError(
            f"this session is a candidate of {self._prefix!r} already: one campaign a session, or open another session"
        )

    async def _withdraw(self, key: str, session: EtcdSession, *, unknown: bool) -> None:
        """Removes a candidate that no caller waits for. If the key's removal is not certain, the session is given up, so that the key is
        removed with the lease.

        `unknown`: whether the key exists or will exist is unknown; then its removal proves nothing.
        """
        removed = False
        try:
            with contextlib.suppress(WALError, TimeoutError):
                await asyncio.wait_for(self._kv.remove(key), _WITHDRAW_TIMEOUT_S)
                removed = not unknown
        finally:
            if not removed:
                session.give_up(f"its candidate {key!r} could not be withdrawn for sure")

    async def _wait_for_turn(self, key: str, token: int, session: EtcdSession) -> None:
        while True:
            candidates = await self._candidates()
            before = [candidate for candidate in candidates if candidate.token < token]
            if all(candidate.token != token for candidate in candidates):
                await session.confirm()  # the key may have been removed with the lease
                raise ChannelFencedError(f"the candidate's key {key!r} was removed by somebody else: campaign again")
            if not before:
                return
            async with await self._kv.watch(before[-1].key) as watch:
                with contextlib.suppress(TruncatedError):
                    # The key may have been removed between the load and the watch.
                    while any(one.token == before[-1].token for one in await self._candidates()):
                        await anext(watch)

    async def _candidates(self) -> list[Leader]:
        calls = self._kv.calls
        first, end = range_of(calls.full_key(self._prefix).decode())
        answer = await calls.read(RANGE, rpc.RangeRequest(key=first, range_end=end), "looking for the leader")
        cut = len(calls.full_key(""))
        candidates = [
            Leader(calls.value(one.key, one.value), one.create_revision, decoded("key", one.key[cut:]), one.mod_revision)
            for one in answer.kvs
        ]
        return sorted(candidates, key=lambda leader: leader.token)


class Leadership:
    """The leadership that `campaign` won: it lasts as long as the session, unless resigned. `async with` resigns at its end."""

    def __init__(self, kv: EtcdKV, session: EtcdSession, key: str, token: int, value: str) -> None:
        self.session = session
        self.key = key
        self.token = token
        """The create revision of the key: higher than that of every earlier leader. A service that receives it can refuse older ones."""
        self.value: str = value
        self._kv = kv

    @property
    def alive(self) -> bool:
        """Returns whether, by the session's clock, no other candidate can be the leader yet."""
        return self.session.alive

    async def proclaim(self, value: str) -> None:
        """Publishes another value. Raises ChannelFencedError when this is no longer the leader."""
        calls = self._kv.calls
        put = calls.put(calls.full_key(self.key), check_value(self.key, value), lease=self.session.lease)
        await self._transact([put], "proclaiming")
        self.value = value

    async def multi_save_and_remove(self, saves: Mapping[str, str], removals: Sequence[str] = ()) -> None:
        """Saves and removes keys of the KV if this is still the leader, which etcd decides in the same transaction; else raises
        ChannelFencedError."""
        checked, removed = check_saves(saves), check_keys("removals", removals)
        calls = self._kv.calls
        puts = [calls.put(calls.full_key(key), value) for key, value in checked.items()]
        await self._transact([*puts, *(delete(calls.full_key(key)) for key in removed)], "saving as the leader")

    async def resign(self) -> None:
        """Gives up the leadership to the next candidate. Does nothing when this is no longer the leader."""
        with contextlib.suppress(ChannelFencedError):
            await self._transact([delete(self._kv.calls.full_key(self.key))], "resigning")

    async def __aenter__(self) -> Leadership:
        return self

    async def __aexit__(self, *_: object) -> None:
        with shielded():
            await self.resign()

    async def _transact(self, operations: list[rpc.RequestOp], what: str) -> None:
        own = rpc.Compare(target=rpc.Compare.CREATE, key=self._kv.calls.full_key(self.key), create_revision=self.token)
        if not (await self._kv.calls.transact([own], operations, what)).succeeded:
            raise ChannelFencedError(
                f"the leadership of {self.key!r} with token {self.token} has ended, {what} changed nothing: campaign again"
            )


class LedKV(RootedKV):
    """The KV of a leader: `kv` with the rights of the holder of `leadership`. Closing it leaves `kv` open.

    Every change is made only while this process leads, which etcd decides in the same transaction; no clock is read. A change after the end
    of the leadership raises ChannelFencedError, and nothing was changed. So does a change after etcd was restored from a copy that lacks an
    earlier change of this object; `confirm` checks it without a change. Reads and watches are those of `kv`.
    """

    def __init__(self, kv: EtcdKV, leadership: Leadership) -> None:
        super().__init__(kv, "")
        assert kv.operations_max is not None, "etcd has a bound"
        self.operations_max: int | None = kv.operations_max - 2
        """The comparisons of the leader's key and of the mark are operations too."""
        self.leadership: Leadership = leadership
        self._kv = kv
        self._fence = LeaderFence(kv.calls.full_key(leadership.key), leadership.token, kv.calls.full_key(MARK))

    async def confirm(self) -> None:
        """Raises ChannelFencedError if this process leads no more, or if an earlier change of this object was lost.

        Its first call puts the mark. Call it before the first load: the mark is then newer than all saves of earlier leaders.
        """
        self._check_open()
        await self._kv.confirm(self._fence)

    async def upgrade(self) -> None:
        await self._kv.upgrade_as(self._fence)

    async def _commit(self, batch: KVBatch) -> str | None:
        return await self._kv.commit_as(self._fence, batch)
