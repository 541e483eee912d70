"""Watcher: the task that feeds one Watch from etcd, over broken streams and restarts; WatchPosition: the progress of the watch.

A Watcher owns the stream of its watch. It feeds every event from the start on once and in order, or ends the watch with an error that names
the loss: TruncatedError if etcd compacted it away, or if etcd's data is not the data that was watched (a restored backup, an empty
directory). It never skips silently, waits for etcd without limit, and ends when its watch does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Final

import grpc.aio
import msgspec

from wal.errors import CorruptionError, InnerError, TruncatedError, UnavailableError, WALError, caused
from wal.runtime.backoff import Backoff
from wal.storage.kv.etcd.api import rpc_pb2 as rpc
from wal.storage.kv.etcd.connection import EtcdCalls, EtcdStream
from wal.storage.kv.etcd.refusals import CompactedError, Refusal, RevisionAheadError, explain
from wal.storage.kv.etcd.requests import RANGE, WATCH, decoded, range_of
from wal.storage.kv.watch import Watch, WatchEvent, WatchKind


class Witness(msgspec.Struct, frozen=True):
    """A key that was put at `revision`: the store can confirm it until that revision is compacted."""

    key: bytes
    revision: int


class WatchPosition:
    """The progress of one watch, across its streams; it begins at the events of revision `start` (1 or more). Pure.

    It owns the revision at which the watch continues, and the events of a revision that has arrived in part. It delivers each event once,
    in order, all events of a revision together. After a broken stream it continues after the delivered events. It does not continue after
    the revision that the *store* has reached, because a stream names the store's revision before it has replayed anything. A witness shows
    when data went back: a delivered event must still be where it was.
    """

    def __init__(self, start: int) -> None:
        self.next_revision: int = start
        """The first revision whose events have not been delivered."""
        self.witness: Witness | None = None
        self._held: list[WatchEvent] = []

    def begin_stream(self) -> None:
        """Begins a new stream at `next_revision`: events that were held back are sent again."""
        self._held.clear()

    def take(self, events: Iterable[WatchEvent], *, more: bool) -> list[list[WatchEvent]]:
        """Returns the events to deliver now, one list per revision. `more`: the answer continues in another fragment."""
        groups: list[list[WatchEvent]] = []
        for event in [*self._held, *events]:
            if event.revision < self.next_revision:
                continue  # it was delivered before
            if groups and groups[-1][0].revision == event.revision:
                groups[-1].append(event)
            else:
                groups.append([event])
        self._held = groups.pop() if more and groups else []
        if groups:
            self.next_revision = groups[-1][0].revision + 1
        return groups

    def progressed(self, revision: int) -> None:
        """Records that the store has sent everything up to `revision`."""
        if not self._held:
            self.next_revision = max(self.next_revision, revision + 1)

    def saw_put(self, key: bytes, revision: int) -> None:
        """Makes a delivered event the witness."""
        self.witness = Witness(key, revision)

    def gone_back(self, store_revision: int) -> bool:
        """Returns whether a store with this newest revision cannot be the one whose events were delivered."""
        return store_revision + 1 < self.next_revision


_PAUSE_FIRST_S: Final = 0.05
_PAUSE_MAX_S: Final = 2.0
_log: Final = logging.getLogger("wal.kv.etcd")


class _BrokenError(Exception):
    """The stream ended, but a new stream can continue."""


class Watcher:
    """Feeds one watch; `run` is the task. `active` is done when the watch sees events, or with the error of a first attempt that cannot
    succeed.

    `subject`: the complete key or prefix; its first `root_length` characters are cut from the keys in the events.
    """

    def __init__(self, calls: EtcdCalls, watch: Watch, subject: str, *, is_prefix: bool, root_length: int, start: int) -> None:
        self.active: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.active.add_done_callback(lambda active: active.cancelled() or active.exception())  # its caller may be gone
        self._calls = calls
        self._connection = calls.connection
        self._watch = watch
        self._subject = subject
        self._root = subject[:root_length]
        self._key, self._end = range_of(subject) if is_prefix else (subject.encode(), b"")
        self._position = WatchPosition(start)
        self._cluster: int | None = None
        self._refused_tokens = 0
        self._backoff = Backoff(_PAUSE_FIRST_S, _PAUSE_MAX_S)
        self._unverified = False
        """Whether the store may differ from the one whose events were delivered."""

    async def run(self) -> None:
        """Runs until the watch ends or the task is cancelled."""
        try:
            while not self._watch.ended:
                try:
                    await self._follow()
                except _BrokenError as broken:
                    self._unverified = True
                    _log.debug("%s: the stream ended (%s)", self, broken)
                    await asyncio.sleep(self._backoff.next())
        except WALError as error:
            self._fail(error)
        except Exception as error:
            inner = caused(InnerError(f"{self} failed: {error!r}; watch again, and report this"), error)
            self._fail(inner)

    def __str__(self) -> str:
        return f"the watch of {self._subject!r} at etcd {self._connection.where}"

    async def _follow(self) -> None:
        if self._unverified:
            await self._verify()
        stream = await self._connection.open_stream(WATCH, str(self), timeout_s=None)
        try:
            self._position.begin_stream()
            create = rpc.WatchCreateRequest(
                key=self._key, range_end=self._end, start_revision=self._position.next_revision, progress_notify=True, fragment=True
            )
            await stream.write(rpc.WatchRequest(create_request=create))
            while (answer := await stream.read()) is not None:
                await self._take(answer, stream)
                if self._watch.ended:
                    return
            raise _BrokenError("ended by the member")
        except grpc.aio.AioRpcError as error:
            refusal = await self._connection.failed(stream, error)
            details = error.details() or str(error.code())
            if refusal in (Refusal.AWAY, Refusal.BUSY) or (refusal is Refusal.TOKEN and self._renewed()):
                raise _BrokenError(details) from error
            raise explain(refusal, str(self), details, writing=False) from error
        except asyncio.InvalidStateError as error:  # a request on a stream that broke just before
            raise _BrokenError(repr(error)) from error
        finally:
            stream.cancel()

    async def _take(self, answer: Any, stream: EtcdStream) -> None:
        if answer.canceled:
            await self._refused(answer, stream)
        self._check_cluster(answer.header.cluster_id)
        if answer.created:
            if self._position.gone_back(answer.header.revision):
                # This member may only lag; then the read of the verification makes it catch up.
                await self._verify()
            self._backoff.reset()
            self._refused_tokens, self._unverified = 0, False
            if not self.active.done():
                self.active.set_result(None)
        elif answer.events:
            groups = self._position.take(map(self._event, answer.events), more=answer.fragment)
            for events in groups:
                self._watch.feed(events)
            put = next((one for events in reversed(groups) for one in events if one.kind is WatchKind.PUT), None)
            if put is not None:
                self._position.saw_put((self._root + put.key).encode(), put.revision)
        elif not answer.fragment:
            self._position.progressed(answer.header.revision)

    async def _refused(self, answer: Any, stream: EtcdStream) -> None:
        if answer.compact_revision:
            raise CompactedError(
                f"{self} wanted revision {self._position.next_revision}, and etcd has compacted all below {answer.compact_revision}: "
                f"changes are missing; load the keys again and watch them again"
            )
        reason = answer.cancel_reason
        if "permission denied" in reason or "invalid auth token" in reason:
            # etcd also answers this for a forgotten token
            if self._renewed() and await self._connection.renew(stream.token):
                raise _BrokenError(reason)
            raise explain(Refusal.DENIED, str(self), reason, writing=False)
        if "future revision" in reason:
            raise _replaced(self, "it refuses the revision as one of the future")
        raise _BrokenError(reason or "cancelled by the member")

    async def _verify(self) -> None:
        """Checks that the store is the one whose events were delivered. It asks a majority, because one member may only lag."""
        position, witness = self._position, self._position.witness
        while True:
            try:
                if witness is not None:
                    asked = rpc.RangeRequest(key=witness.key, revision=witness.revision, keys_only=True)
                else:
                    asked = rpc.RangeRequest(key=self._key, count_only=True)
                answer = await self._connection.read(RANGE, asked, str(self))
            except CompactedError:
                witness = None  # a revision so far back cannot be confirmed any more
            except RevisionAheadError as error:
                raise _replaced(self, f"its newest revision is below {position.next_revision - 1}") from error
            except UnavailableError as error:
                raise _BrokenError(str(error)) from error
            else:
                break
        self._check_cluster(answer.header.cluster_id)
        if position.gone_back(answer.header.revision):
            raise _replaced(self, f"its newest revision is {answer.header.revision}, and {position.next_revision - 1} was seen")
        if witness is not None and [kv.mod_revision for kv in answer.kvs] != [witness.revision]:
            raise _replaced(self, f"revision {witness.revision} holds something else than before")

    def _check_cluster(self, cluster: int) -> None:
        if self._cluster is None:
            self._cluster = cluster
        elif cluster != self._cluster:
            raise _replaced(self, f"it is cluster {cluster:x}, and was {self._cluster:x}")

    def _event(self, event: Any) -> WatchEvent:
        key = decoded("key", event.kv.key)[len(self._root) :]
        if event.type == rpc.Event.PUT:
            return WatchEvent(WatchKind.PUT, key, self._calls.value(event.kv.key, event.kv.value), event.kv.mod_revision)
        return WatchEvent(WatchKind.DELETE, key, None, event.kv.mod_revision)

    def _renewed(self) -> bool:
        self._refused_tokens += 1
        return self._refused_tokens <= 2

    def _fail(self, error: WALError) -> None:
        if self.active.done():
            if not isinstance(error, TruncatedError | CorruptionError):
                _log.warning("%s ended: %s", self, error)
            self._watch.fail(error)
        else:
            self.active.set_exception(error)


def _replaced(watcher: Watcher, evidence: str) -> TruncatedError:
    return TruncatedError(
        f"{watcher}: the data in etcd is not the data that was watched, it was restored or replaced ({evidence}); "
        f"load the keys again and watch them again"
    )
