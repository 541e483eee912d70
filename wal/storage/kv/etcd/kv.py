"""EtcdKV: metadata in etcd, shared by every process that names the same cluster and root path.

Owns: the tasks of its watches, and the sessions that were opened through it. It gives the guarantees of KVBase, with etcd's linearizable
reads and its transactions; a multi-operation is one transaction of at most 128 operations. It never sends a write twice: a lost answer
raises UnknownOutcomeError, because a slow member may still carry the write out. It keeps no data.
"""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from collections.abc import Sequence
from typing import Final, Self

import grpc

from wal.errors import ChannelFencedError, ClosedError, InvalidArgumentError, TruncatedError, UnavailableError
from wal.network import Endpoints, TlsFiles
from wal.runtime.secret import Secret, shown
from wal.runtime.tasks import keep_task
from wal.storage.kv.base import OPERATION_BYTES_MAX, OPERATIONS_MAX, KVBase, KVBatch, KVStatistics
from wal.storage.kv.etcd.api import rpc_pb2 as rpc
from wal.storage.kv.etcd.connection import EtcdCalls, EtcdConnection, delete, get
from wal.storage.kv.etcd.refusals import CompactedError
from wal.storage.kv.etcd.requests import RANGE, REVOKE, TIME_TO_LIVE, TXN, decoded, page_limit, range_of
from wal.storage.kv.etcd.session import EtcdSession
from wal.storage.kv.etcd.watcher import Watcher
from wal.storage.kv.records import is_sealed
from wal.storage.kv.watch import Watch

TIMEOUT_S: Final = 10.0
"""The default deadline of a call: etcd itself gives up a change after 7 s."""
_COMPARED_BYTES_MAX: Final = 64 << 10
"""A longer value is compared here, and by its revision in etcd, so that a request does not contain it twice."""
_PROBE: Final = (RANGE, rpc.RangeRequest(key=b"\0", count_only=True))
_UPGRADED_MAX: Final = 60
"""The number of records that get their checksum in one operation."""
_SCANS_MAX: Final = 5
"""The number of compactions that may overtake a scan before it gives up."""


class LeaderFence:
    """The comparisons of etcd before each change of a leader: that it still leads, and that its earlier changes exist.

    `key` of the election has the create revision `token` while it leads. Each of its changes puts `mark` as well, so the mark is as new as
    the newest of them. A restore of etcd from an older copy breaks that, and only the mark shows it, since the key and the lease may be in
    the copy. Both keys are complete, as etcd has them.
    """

    def __init__(self, key: bytes, token: int, mark: bytes) -> None:
        self.key = key
        self.mark = mark
        self.revision: int = 0
        """The revision of the newest change that was answered, 0 before the first one."""
        self._token = token

    def compares(self) -> list[rpc.Compare]:
        """Returns the comparisons for etcd."""
        leads = rpc.Compare(target=rpc.Compare.CREATE, key=self.key, create_revision=self._token)
        if not self.revision:
            return [leads]
        above = rpc.Compare(target=rpc.Compare.MOD, result=rpc.Compare.GREATER, key=self.mark, mod_revision=self.revision - 1)
        return [leads, above]

    def check(self, responses: Sequence[rpc.ResponseOp], revision: int) -> None:
        """Raises ChannelFencedError if these answers of etcd for the leader's key and the mark, at this `revision`, show a loss."""
        own, mark = (one.response_range.kvs for one in responses)
        if [kv.create_revision for kv in own] != [self._token]:
            raise ChannelFencedError(
                f"the leadership of {self.key.decode()!r} with token {self._token} has ended: nothing was changed; campaign again"
            )
        if revision and (not mark or mark[0].mod_revision < revision):
            raise ChannelFencedError(
                f"etcd was restored from an older copy, which lacks what this leader saved at revision {revision}: nothing was "
                "changed; load everything again"
            )


class EtcdKV(KVBase):
    """A KV in etcd 3.4 or newer, created by `await EtcdKV.open(["host:2379", …])`.

    A call waits for a connection until its deadline, and then raises UnavailableError: nothing was changed. It raises
    UnknownOutcomeError when a change was sent and no answer came: it may have happened. A change of more than 1.5 MiB (etcd's
    --max-request-bytes) raises InvalidArgumentError, and a used-up quota of etcd NoSpaceError; nothing was changed then. A read by
    prefix that compactions overtake repeatedly raises TruncatedError.
    """

    operations_max: int = OPERATIONS_MAX

    def __init__(self, connection: EtcdConnection, *, root_path: str, waiting_max: int) -> None:
        super().__init__(root_path=root_path)
        self.calls: EtcdCalls = EtcdCalls(connection, root=self._root, waiting_max=waiting_max)
        self._watchers: dict[Watch, tuple[Watcher, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._sessions: set[EtcdSession] = set()
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def open(
        cls,
        endpoints: Sequence[str],
        *,
        root_path: str = "",
        timeout_s: float = TIMEOUT_S,
        tls: TlsFiles | None = None,
        user: tuple[str, str | Secret] | None = None,
        waiting_max: int = 65_536,
    ) -> Self:
        """Connects to one of `endpoints` (`host:port`, members of one cluster), and asks it for its revision.

        `user`: name and password, for an etcd with authentication. At most `waiting_max` calls may be in progress: above it a call raises
        WouldBlockError. Raises UnavailableError, with a list of the attempts, when no member answers within `timeout_s`;
        InvalidArgumentError for a wrong user, a wrong password or certificates that cannot be read.
        """
        if isinstance(endpoints, str) or not endpoints:
            raise InvalidArgumentError(f"endpoints={_masked(endpoints)!r} is not a list of addresses: name for example ['127.0.0.1:2379']")
        if any("@" in address or "/" in address for address in endpoints):
            raise InvalidArgumentError(
                f"endpoints={_masked(endpoints)!r} hold more than addresses: name for example ['127.0.0.1:2379'], and a user with user=…"
            )
        if timeout_s <= 0:
            raise InvalidArgumentError(f"timeout_s={timeout_s} is not above 0: a call needs time to be answered")
        if waiting_max < 1:
            raise InvalidArgumentError(f"waiting_max={waiting_max} is below 1: then no call could be made")
        named = None if user is None else (user[0], Secret.of(user[1]))
        credentials: grpc.ChannelCredentials | None = None if tls is None else await tls.credentials()
        members = Endpoints(endpoints, credentials=credentials, probe=_PROBE)
        connection = EtcdConnection(members, timeout_s=timeout_s, user=named)
        kv = cls(connection, root_path=root_path, waiting_max=waiting_max)
        try:
            await kv._learn_form()
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(kv.close()))
            raise
        return kv

    async def session(self, *, ttl_s: float = 15.0) -> EtcdSession:
        """Opens a session: a lease that is kept until its `close()`, or until it is lost. `ttl_s` is rounded up to whole seconds."""
        self._check_open()
        session = await self.calls.count(EtcdSession.open(self.calls, ttl_s=ttl_s, on_end=self._sessions.discard))
        self._sessions.add(session)
        if self._closed:
            await session.close()
            raise ClosedError("the KV was closed while a session was being opened: open it again")
        return session

    async def lifetime(self, lease: int) -> float:
        """Returns the lifetime in seconds with which the lease of a session was granted, or 0.0 if the lease is gone for good."""
        self._check_open()
        request = rpc.LeaseTimeToLiveRequest(ID=lease)
        answer = await self.calls.read(TIME_TO_LIVE, request, "asking for the lifetime of a lease")
        return float(answer.grantedTTL) if answer.TTL >= 0 else 0.0  # 0: less than a second is left, in which it can be renewed

    async def revoke(self, lease: int) -> None:
        """Revokes the lease of another session, with its keys: its owner does not answer. A lease that is gone already is fine."""
        self._check_open()
        with contextlib.suppress(InvalidArgumentError):
            await self.calls.read(REVOKE, rpc.LeaseRevokeRequest(ID=lease), "revoking a lease")

    async def close(self) -> None:
        """Waits for the calls that were sent, closes the sessions, ends the watches with ClosedError and disconnects. Idempotent."""
        self._closed = True
        if self._closing is None:
            self._closing = self.calls.loop.create_task(self._close(), name="etcd: closing")
        await asyncio.shield(self._closing)

    def statistics(self) -> KVStatistics:
        """Returns the counters; `revision` is the highest revision of the store that was seen, including other clients' changes."""
        return KVStatistics(
            revision=self.calls.revision,
            operations=self.calls.operations,
            commits=self.calls.commits,
            waiting=self.calls.waiting,
            watches=len(self._watchers),
        )

    async def store_revision(self) -> int:
        """Returns the newest revision of the store, by a linearizable read."""
        key, _ = range_of(self._root)
        return self.calls.saw(await self.calls.read(RANGE, rpc.RangeRequest(key=key, count_only=True), "asking for the revision"))

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(
                f"the KV at etcd {self.calls.connection.where} was not closed: await kv.close()", ResourceWarning, source=self, stacklevel=1
            )

    async def upgrade(self) -> None:
        await self.upgrade_as(None)

    async def upgrade_as(self, leader: LeaderFence | None) -> None:
        """Upgrades as `upgrade` does; with `leader` only while it is the leader. The records of sessions stay unchanged."""
        self._check_open()
        self.calls.sealed = True
        while True:
            bare: list[str] = []
            records = dict(await self.calls.count(self._pages(self._root, bare)))
            keys = [key for key in bare if key not in self.calls.plain]
            if not keys:
                return
            size, batches = 0, [dict[str, str]()]
            for key in keys:
                size += 2 * len(key) + 2 * len(records[key])
                if len(batches[-1]) == _UPGRADED_MAX or size > OPERATION_BYTES_MAX // 4:
                    batches.append({})
                    size = 0
                batches[-1][key] = records[key]
            for batch in batches:  # a record that another process has changed meanwhile fails, and is checked again
                await self.commit_as(leader, KVBatch(batch, (), tuple(batch.items())))

    async def _learn_form(self) -> None:
        """Asks for the revision, and for a few records: new ones get a checksum if an existing record has it, or if no record exists."""
        first, end = range_of(self._root)
        request = rpc.RangeRequest(key=first, range_end=end, limit=page_limit(0, 0))
        answer = await self.calls.read(RANGE, request, "asking for the revision")
        self.calls.sealed = not answer.kvs or any(is_sealed(kv.value) for kv in answer.kvs)

    async def _load(self, keys: list[str]) -> list[str | None]:
        if len(keys) == 1:
            request = rpc.RangeRequest(key=keys[0].encode())
            answers = [await self.calls.read(RANGE, request, "loading a key")]
        else:
            gets = rpc.TxnRequest(success=[get(key.encode()) for key in keys])
            answer = await self.calls.read(TXN, gets, f"loading {len(keys)} keys")
            answers = [one.response_range for one in answer.responses]
        return [self.calls.value(one.kvs[0].key, one.kvs[0].value) if one.kvs else None for one in answers]

    async def _scan(self, prefix: str) -> list[tuple[str, str]]:
        for _ in range(_SCANS_MAX):
            try:
                return await self.calls.count(self._pages(prefix))
            except CompactedError as error:
                overtaken = error
        raise TruncatedError(
            f"etcd was compacted {_SCANS_MAX} times while the keys that start with {prefix!r} were loaded: compact it less often"
        ) from overtaken

    async def _pages(self, prefix: str, bare: list[str] | None = None) -> list[tuple[str, str]]:
        """Returns the records; adds to `bare` the keys of records without a session and without a checksum."""
        first, end = range_of(prefix)
        pairs: list[tuple[str, str]] = []
        revision, limit = 0, page_limit(0, 0)
        while True:
            request = rpc.RangeRequest(key=first, range_end=end, limit=limit, revision=revision)
            answer = await self.calls.connection.read(RANGE, request, "loading a prefix")
            revision = revision or self.calls.saw(answer)
            pairs += [(decoded("key", kv.key), self.calls.value(kv.key, kv.value)) for kv in answer.kvs]
            if bare is not None:
                bare += [decoded("key", kv.key) for kv in answer.kvs if not kv.lease and not is_sealed(kv.value)]
            if not answer.more:
                return pairs
            first = answer.kvs[-1].key + b"\0"
            limit = page_limit(len(answer.kvs), answer.ByteSize())

    async def _commit(self, batch: KVBatch) -> str | None:
        return await self.commit_as(None, batch)

    async def commit_as(self, leader: LeaderFence | None, batch: KVBatch) -> str | None:
        """Commits as `_commit` does; with `leader` only while it leads and its own changes exist: else ChannelFencedError."""
        operations = [self.calls.put(key.encode(), value) for key, value in batch.saves.items()]
        operations += [delete(key.encode()) for key in batch.removals]
        if batch.removed_prefix is not None:
            operations.append(delete(*range_of(batch.removed_prefix)))
        if leader is not None:
            operations.append(rpc.RequestOp(request_put=rpc.PutRequest(key=leader.mark)))
        if not batch.compare and leader is None:
            await self.calls.transact([], operations, "saving")
            return None
        return await self.calls.count(self._swap(leader, batch.compare, operations))

    async def confirm(self, leader: LeaderFence) -> None:
        """Raises ChannelFencedError unless it is the leader, and its own changes exist. Its first call makes one, the mark alone."""
        self._check_open()
        if not (revision := leader.revision):
            await self.commit_as(leader, KVBatch())
            return
        gets = rpc.TxnRequest(success=[get(leader.key), get(leader.mark)])
        answer = await self.calls.read(TXN, gets, "asking who leads")
        leader.check(answer.responses, revision)

    async def _swap(
        self, leader: LeaderFence | None, compare: Sequence[tuple[str, str | None]], operations: Sequence[rpc.RequestOp]
    ) -> str | None:
        """Compares and changes as one call in progress, including the comparison of long values here: `close` waits for it."""
        forms = {key: None if expected is None else self.calls.kept(key, expected) for key, expected in compare}
        while True:
            compares: list[rpc.Compare] = []
            for key, form in forms.items():
                comparison = await self._comparison(key, form)
                if comparison is None:
                    return key
                compares.append(comparison)
            keys, revision = [key.encode() for key, _ in compare], 0
            if leader is not None:
                compares += leader.compares()
                keys += (leader.key, leader.mark)
                revision = leader.revision
            answer = await self.calls.send(compares, operations, "comparing and changing", otherwise=map(get, keys))
            if answer.succeeded:
                if leader is not None:
                    leader.revision = max(leader.revision, answer.header.revision)
                return None
            if leader is not None:
                leader.check(answer.responses[len(compare) :], revision)
            for (key, expected), one in zip(compare, answer.responses, strict=leader is None):
                kvs = one.response_range.kvs
                if (self.calls.value(kvs[0].key, kvs[0].value) if kvs else None) != expected:
                    return key
                forms[key] = kvs[0].value if kvs else None
            # The value may be stored in the other form, with a checksum or without; or a long one was rewritten meanwhile.

    async def _comparison(self, key: str, form: bytes | None) -> rpc.Compare | None:
        """Returns the comparison with the stored form of a value for etcd; None if it has already failed here."""
        encoded = key.encode()
        if form is None:
            return rpc.Compare(target=rpc.Compare.CREATE, key=encoded, create_revision=0)
        if len(form) <= _COMPARED_BYTES_MAX:
            return rpc.Compare(target=rpc.Compare.VALUE, key=encoded, value=form)
        answer = await self.calls.connection.read(RANGE, rpc.RangeRequest(key=encoded), "comparing a value")
        if not answer.kvs or self.calls.value(encoded, answer.kvs[0].value) != self.calls.value(encoded, form):
            return None
        return rpc.Compare(target=rpc.Compare.MOD, key=encoded, mod_revision=answer.kvs[0].mod_revision)

    async def _watch(self, subject: str, *, is_prefix: bool, root_length: int, buffer_max: int) -> Watch:
        name = f"{'prefix' if is_prefix else 'key'} {subject[root_length:]!r}"
        watch = Watch(name, buffer_max=buffer_max, on_end=self._watch_ended)
        # The start is read first, so that a lagging member does not show earlier changes.
        start = await self.store_revision() + 1
        self._check_open()
        watcher = Watcher(self.calls, watch, subject, is_prefix=is_prefix, root_length=root_length, start=start)
        task = self.calls.loop.create_task(watcher.run(), name=f"etcd: watching {subject!r}")
        self._watchers[watch] = watcher, task
        keep_task(self._ending, task)
        try:
            await asyncio.wait([watcher.active], timeout=self.calls.connection.timeout_s)
            if not watcher.active.done():
                if watch.ended:
                    raise ClosedError("the KV was closed while a watch was being opened: open it again")
                raise UnavailableError(
                    f"{watcher} was not confirmed within {self.calls.connection.timeout_s} s: is the member alive? Try again"
                )
            watcher.active.result()
        except BaseException:
            await watch.close()
            raise
        return watch

    def _watch_ended(self, watch: Watch) -> None:
        _, task = self._watchers.pop(watch, (None, None))
        if task is not None and task is not asyncio.current_task():
            task.cancel()

    async def _close(self) -> None:
        self.calls.connection.stop()
        await asyncio.gather(*(session.close() for session in list(self._sessions)))
        await self.calls.idle.wait()
        # Again, for a session that was being opened.
        await asyncio.gather(*(session.close() for session in list(self._sessions)))
        error = ClosedError("the KV was closed: open it again, load the keys again and watch them again")
        for watch in list(self._watchers):
            watch.fail(error)
        if self._ending:
            await asyncio.wait(list(self._ending))
        await self.calls.connection.close()


def _masked(endpoints: Sequence[str]) -> list[str]:
    """Returns endpoints that an error may show: the given ones may be URLs with a password."""
    return [
        shown(each if "://" in each else f"etcd://{each}").removeprefix("etcd://")
        for each in ([endpoints] if isinstance(endpoints, str) else endpoints)
    ]
