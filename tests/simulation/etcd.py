"""EtcdServer: etcd as the product uses it: ranges, transactions with comparisons, leases, watches; one linearizable server.

It speaks etcd's protocol over the simulated gRPC, so `wal.storage.kv.etcd` runs as it is. What was committed survives a kill of its
process: the data are the run's (`EtcdData`), as those of a quorum are. Leases start again with each start, as after an election. Every
commit is shown to `on_commit`, in the moment in which it takes effect and before anybody is answered.

A `snapshot` can be restored: revisions go back, and keys and leases are as they were. The history can be compacted, and watches can be
stalled: a watch that had not sent everything before a compaction is cancelled with the first remaining revision, as etcd does.
"""

from __future__ import annotations

import asyncio
import copy
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Any, Final

import grpc
import msgspec

from tests.simulation.grpc_server import Server
from tests.simulation.loop import Process
from wal.network import Method
from wal.storage.kv.etcd.api import rpc_pb2 as rpc
from wal.storage.kv.etcd.requests import GRANT, KEEP_ALIVE, RANGE, REVOKE, TIME_TO_LIVE, TXN, WATCH
from wal.storage.kv.records import unsealed

ADDRESS: Final = "etcd:2379"
_Status = grpc.StatusCode


class Version(msgspec.Struct, frozen=True):
    """A key at one revision; `value` None: it was deleted there."""

    key: bytes
    value: bytes | None
    create_revision: int
    mod_revision: int
    version: int
    lease: int

    @property
    def text(self) -> str:
        """The value as whoever reads it by the KV gets it: without its checksum."""
        assert self.value is not None, "it is there"
        return unsealed(self.key, self.value, ADDRESS, bare=True)


class EtcdData:
    """What an etcd has on its disks."""

    def __init__(self) -> None:
        self.cluster: int = 1
        self.revision: int = 1
        self.history: list[tuple[int, list[Version]]] = []
        """Every revision with its events, ascending."""
        self.compacted: int = 0
        """Revisions below this one are gone."""
        self.base: dict[bytes, Version] = {}
        """The keys as they were at the revision `compacted`."""
        self.current: dict[bytes, Version] = {}
        self.keys: list[bytes] = []
        """The keys of `current`, ascending."""
        self.leases: dict[int, int] = {}
        """The lifetimes of the leases by id, in seconds."""
        self.granted: int = 0

    def range(self, first: bytes, end: bytes) -> list[bytes]:
        """Returns the keys of a range (`end` empty: the one key), ascending."""
        if not end:
            return [first] if first in self.current else []
        at = bisect_left(self.keys, first)
        return self.keys[at:] if end == b"\0" else self.keys[at : bisect_left(self.keys, end, lo=at)]

    def then(self, revision: int, first: bytes, end: bytes) -> list[Version]:
        """Returns a range as it was at a revision (0: now), in the order of the keys."""
        state = {key: self.current[key] for key in self.range(first, end)}
        if not revision:
            return list(state.values())
        after = bisect_left(self.history, revision + 1, key=lambda each: each[0])
        changed = {event.key for _, events in self.history[after:] for event in events if _within(event.key, first, end)}
        before = {key: self.base.get(key) for key in changed}
        for _, events in self.history[:after] if changed else ():
            before.update((event.key, event) for event in events if event.key in changed)
        for key, version in before.items():
            state.pop(key, None)
            if version is not None and version.value is not None:
                state[key] = version
        return [state[key] for key in sorted(state)]

    def text(self, key: str) -> str | None:
        """Returns the newest value of a key, for who looks from outside."""
        version = self.current.get(key.encode())
        return None if version is None or version.value is None else version.text


class EtcdServer:
    """A running etcd over `data`. `serve` it as its process."""

    def __init__(self, process: Process, data: EtcdData, *, on_commit: Callable[[int, list[Version]], object] = lambda *_: None) -> None:
        self.data = data
        self.process = process
        self._on_commit = on_commit
        self._watchers: dict[_Watcher, None] = {}
        self._stalled = False
        self._expiries: dict[int, asyncio.TimerHandle] = {}
        self._leased: dict[int, dict[bytes, None]] = {}

    async def serve(self) -> None:
        """Begins to serve."""
        server = Server()
        server.add_insecure_port(ADDRESS)
        unary: dict[Method[Any, Any], Any] = {
            RANGE: self._range,
            TXN: self._txn,
            GRANT: self._grant,
            REVOKE: self._revoke,
            TIME_TO_LIVE: self._time_to_live,
        }
        services: dict[str, dict[str, Any]] = {}
        for method, handler in unary.items():
            _, service, name = method.path.split("/")
            services.setdefault(service, {})[name] = grpc.unary_unary_rpc_method_handler(
                handler, method.request.FromString, method.response.SerializeToString
            )
        streams: dict[Method[Any, Any], Any] = {WATCH: self._watch, KEEP_ALIVE: self._keep_alive}
        for method, stream in streams.items():
            _, service, name = method.path.split("/")
            services.setdefault(service, {})[name] = grpc.stream_stream_rpc_method_handler(
                stream, method.request.FromString, method.response.SerializeToString
            )
        server.add_generic_rpc_handlers(tuple(grpc.method_handlers_generic_handler(name, methods) for name, methods in services.items()))
        for version in self.data.current.values():
            if version.lease:
                self._leased.setdefault(version.lease, {})[version.key] = None
        for lease in self.data.leases:
            self._renew(lease)
        await server.start()

    # -- keys

    async def _range(self, request: Any, context: Any) -> Any:
        if request.revision > self.data.revision:
            await context.abort(_Status.OUT_OF_RANGE, "etcdserver: mvcc: required revision is a future revision")
        if 0 < request.revision < self.data.compacted:
            await context.abort(_Status.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted")
        return self._ranged(request)

    def _ranged(self, request: Any) -> Any:
        found = self.data.then(request.revision, request.key, request.range_end)
        limit = request.limit or len(found)
        response = rpc.RangeResponse(header=self._header(), count=len(found), more=len(found) > limit)
        if not request.count_only:
            response.kvs.extend(_pair(each, keys_only=request.keys_only) for each in found[:limit])
        return response

    async def _txn(self, request: Any, context: Any) -> Any:
        for operation in (*request.success, *request.failure):
            put = operation.request_put
            if operation.HasField("request_put") and put.lease and put.lease not in self.data.leases:
                await context.abort(_Status.NOT_FOUND, "etcdserver: requested lease not found")
        succeeded = all(map(self._holds, request.compare))
        chosen = request.success if succeeded else request.failure
        events: list[Version] = []
        responses = []
        for operation in chosen:
            if operation.HasField("request_range"):
                responses.append(rpc.ResponseOp(response_range=self._ranged(operation.request_range)))
            elif operation.HasField("request_put"):
                self._put(operation.request_put, events)
                responses.append(rpc.ResponseOp(response_put=rpc.PutResponse()))
            else:
                self._delete(operation.request_delete_range, events)
                responses.append(rpc.ResponseOp(response_delete_range=rpc.DeleteRangeResponse()))
        self._commit(events)
        return rpc.TxnResponse(header=self._header(), succeeded=succeeded, responses=responses)

    def _holds(self, compare: Any) -> bool:
        version = self.data.current.get(compare.key)
        if compare.target == rpc.Compare.CREATE:
            return bool((0 if version is None else version.create_revision) == compare.create_revision)
        if compare.target == rpc.Compare.MOD:
            revision = 0 if version is None else version.mod_revision
            return bool(revision > compare.mod_revision if compare.result == rpc.Compare.GREATER else revision == compare.mod_revision)
        assert compare.target == rpc.Compare.VALUE, "no other comparison is made"
        return version is not None and bool(version.value == compare.value)

    def _put(self, put: Any, events: list[Version]) -> None:
        revision = self.data.revision + 1
        before = self.data.current.get(put.key)
        created = revision if before is None else before.create_revision
        version = Version(put.key, put.value, created, revision, 1 if before is None else before.version + 1, put.lease)
        if before is not None and before.lease:
            self._leased.get(before.lease, {}).pop(put.key, None)
        if put.lease:
            self._leased.setdefault(put.lease, {})[put.key] = None
        if before is None:
            insort(self.data.keys, put.key)
        self.data.current[put.key] = version
        events.append(version)

    def _delete(self, deletion: Any, events: list[Version]) -> None:
        for key in self.data.range(deletion.key, deletion.range_end):
            self._remove(key, events)

    def _remove(self, key: bytes, events: list[Version]) -> None:
        before = self.data.current.pop(key)
        del self.data.keys[bisect_left(self.data.keys, key)]
        if before.lease:
            self._leased.get(before.lease, {}).pop(key, None)
        events.append(Version(key, None, 0, self.data.revision + 1, 0, 0))

    def _commit(self, events: list[Version]) -> None:
        if events:
            data = self.data
            data.revision += 1
            data.history.append((data.revision, events))
            self._on_commit(data.revision, events)
            for watcher in self._watchers:
                watcher.take(data.revision, events)

    def _header(self) -> Any:
        return rpc.ResponseHeader(cluster_id=self.data.cluster, member_id=1, revision=self.data.revision)

    # -- leases

    async def _grant(self, request: Any, _context: Any) -> Any:
        self.data.granted += 1
        lease = 0x1000 + self.data.granted
        self.data.leases[lease] = request.TTL
        self._renew(lease)
        return rpc.LeaseGrantResponse(header=self._header(), ID=lease, TTL=request.TTL)

    async def _time_to_live(self, request: Any, _context: Any) -> Any:
        expiry = self._expiries.get(request.ID)
        left_s = -1 if expiry is None else max(0, int(expiry.when() - self.process.loop.time()))
        return rpc.LeaseTimeToLiveResponse(header=self._header(), ID=request.ID, TTL=left_s, grantedTTL=self.data.leases.get(request.ID, 0))

    async def _revoke(self, request: Any, context: Any) -> Any:
        if request.ID not in self.data.leases:
            await context.abort(_Status.NOT_FOUND, "etcdserver: requested lease not found")
        self.end(request.ID)
        return rpc.LeaseRevokeResponse(header=self._header())

    async def _keep_alive(self, _requests: Any, context: Any) -> None:
        while (request := await context.read()) is not grpc.aio.EOF:
            ttl = self.data.leases.get(request.ID, 0)
            if ttl:
                self._renew(request.ID)
            await context.write(rpc.LeaseKeepAliveResponse(header=self._header(), ID=request.ID, TTL=ttl))

    def _renew(self, lease: int) -> None:
        if (timer := self._expiries.pop(lease, None)) is not None:
            timer.cancel()
        loop = self.process.loop
        self._expiries[lease] = loop.call_later(self.data.leases[lease], self.end, lease, context=self.process.main.context)

    def end(self, lease: int) -> None:
        """Ends a lease, and removes its keys."""
        if (timer := self._expiries.pop(lease, None)) is not None:
            timer.cancel()
        self.data.leases.pop(lease, None)
        events: list[Version] = []
        for key in sorted(self._leased.pop(lease, {})):
            if key in self.data.current:
                self._remove(key, events)
        self._commit(events)

    # -- watches

    async def _watch(self, _requests: Any, context: Any) -> None:
        request = await context.read()
        if request is grpc.aio.EOF:
            return
        create = request.create_request
        start = create.start_revision or self.data.revision + 1
        watcher = _Watcher(create.key, create.range_end)
        if start < self.data.compacted:
            await self._cancel(context)
            return
        await context.write(rpc.WatchResponse(header=self._header(), created=True))
        first = bisect_left(self.data.history, start, key=lambda each: each[0])
        for revision, events in self.data.history[first:]:
            watcher.take(revision, events)
        self._watchers[watcher] = None
        try:
            while True:
                await watcher.wait()
                while watcher.events and not self._stalled:
                    if watcher.events[0].mod_revision < self.data.compacted:
                        await self._cancel(context)
                        return
                    events, watcher.events = watcher.events, []
                    answer = rpc.WatchResponse(header=self._header(), events=map(_event, events))
                    await context.write(answer)
        finally:
            del self._watchers[watcher]

    async def _cancel(self, context: Any) -> None:
        """Cancels a watch that wants revisions which are gone."""
        await context.write(rpc.WatchResponse(header=self._header(), canceled=True, compact_revision=self.data.compacted))

    # -- faults

    def stall_watches(self, *, stalled: bool) -> None:
        """Sends no events of watches, or sends them again: what was compacted meanwhile is lost for them."""
        self._stalled = stalled
        for watcher in self._watchers:
            watcher.wake()

    def compact(self) -> None:
        """Forgets all revisions but the newest one."""
        self.data.compacted, self.data.base = self.data.revision, self.data.current.copy()
        del self.data.history[: bisect_left(self.data.history, self.data.revision, key=lambda each: each[0])]


class _Watcher:
    """A watch of a range: the events that were not sent yet."""

    def __init__(self, key: bytes, end: bytes) -> None:
        self.events: list[Version] = []
        self._key = key
        self.end = end
        self._woken = asyncio.Event()

    def take(self, _revision: int, events: Iterable[Version]) -> None:
        matching = [each for each in events if _within(each.key, self._key, self.end)]
        if matching:
            self.events += matching
            self._woken.set()

    def wake(self) -> None:
        self._woken.set()

    async def wait(self) -> None:
        await self._woken.wait()
        self._woken.clear()


def snapshot(data: EtcdData) -> EtcdData:
    """Returns a copy of the data, to be restored later."""
    return copy.deepcopy(data)


def _within(key: bytes, first: bytes, end: bytes) -> bool:
    return key == first if not end else key >= first and (end == b"\0" or key < end)


def _pair(version: Version, *, keys_only: bool = False) -> Any:
    return rpc.KeyValue(
        key=version.key,
        value=b"" if keys_only or version.value is None else version.value,
        create_revision=version.create_revision,
        mod_revision=version.mod_revision,
        version=version.version,
        lease=version.lease,
    )


def _event(version: Version) -> Any:
    kind = rpc.Event.DELETE if version.value is None else rpc.Event.PUT
    return rpc.Event(type=kind, kv=_pair(version))
