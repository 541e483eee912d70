"""Admission: decides which broadcasts may begin and which wait for their resource keys, within the bounds of a broadcaster.

Owns the lock table, the calls that wait, and the bytes of all broadcasts that are not appended yet. Guarantees: a call is refused before it
has any effect, or begins once, with all of its keys. The lifecycle begins the broadcasts; admission only calls it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from broadcaster.calls import AppendCall, held, refuse
from broadcaster.lock_table import Conflict, LockTable
from wal.errors import InvalidArgumentError, WouldBlockError
from wal.message import ResourceKey

VCHANNELS_LIMIT: Final = 65_536
"""One operation of the KV removes all ack chunks of a broadcast; the chunks of this many vchannels are 64 of its 128 removals."""


class BroadcasterLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of a broadcaster; an append over one of them raises WouldBlockError. The first two are settings of the log.

    `bytes_max` bounds payloads, properties and names of broadcasts that wait for keys or copies; `done_marks_max` bounds the finished
    broadcasts that await a checkpoint. The others bound the memory of finished broadcasts beyond that.
    """

    tasks_max: int = 65_536
    vchannels_max: int = 16_384
    bytes_max: int = 64 * 1024 * 1024
    done_marks_max: int = 65_536
    tombstones_max: int = 8_192
    tombstone_age_max_s: float = 24 * 3_600.0

    def __post_init__(self) -> None:
        if self.vchannels_max > VCHANNELS_LIMIT:
            raise InvalidArgumentError(
                f"broadcast_vchannels_max={self.vchannels_max} is too large: at most {VCHANNELS_LIMIT}, since the end of a "
                "broadcast is one operation of the KV"
            )


class Admission:
    """Calls `begin(call)` once the call has its keys; `holder(owner)` returns the id of that owner's broadcast."""

    def __init__(self, limits: BroadcasterLimits, *, begin: Callable[[AppendCall], object], holder: Callable[[int], int]) -> None:
        self.bytes_held = 0
        self._limits = limits
        self._begin = begin
        self._holder = holder
        self._locks = LockTable()
        self._waiting: dict[int, AppendCall] = {}
        self._ready: deque[int] | None = None
        self._owners = 0
        self._no_waiting: Callable[[], Exception] | None = None

    @property
    def waiting(self) -> int:
        """The number of calls that wait for their keys."""
        return len(self._waiting)

    def append(self, call: AppendCall, *, running: int, done_marks: int) -> None:
        """Refuses the call, queues it, or begins it, given how many broadcasts run and how many finished ones await a checkpoint."""
        if (full := self._full(call, running=running, done_marks=done_marks)) is not None:
            refuse(call.reply, full)
            return
        self._owners += 1
        call.owner = self._owners
        keys = tuple(call.message.resource_keys)
        if call.wait and not self._locks.lock_or_wait(call.owner, keys):
            if call.withdrawn or self._no_waiting is not None:
                self._granted(self._locks.cancel(call.owner))
                if self._no_waiting is not None:
                    refuse(call.reply, self._no_waiting())
            else:
                call.waited = True
                self._waiting[call.owner] = call
                self.bytes_held += call.size
            return
        if not call.wait and (conflict := self._locks.try_lock(call.owner, keys)) is not None:
            refuse(call.reply, held(conflict, self._holder(conflict.holder)))
            return
        self.bytes_held += call.size
        self._begin(call)

    def resume(self, keys: tuple[ResourceKey, ...], size: int) -> tuple[int, Conflict | None]:
        """Takes the keys of a recovered broadcast again; returns its owner, and the conflict if another broadcast has them."""
        self._owners += 1
        self.bytes_held += size
        return self._owners, self._locks.try_lock(self._owners, keys)

    def withdraw(self, call: AppendCall) -> bool:
        """Removes a call that waits for keys; returns False if it does not wait."""
        call.withdrawn = True
        if self._waiting.pop(call.owner, None) is None:
            return False
        self.bytes_held -= call.size
        self._granted(self._locks.cancel(call.owner))
        return True

    def end_waiting(self, error: Callable[[], Exception]) -> None:
        """Answers each waiting call with a new error, and from now on every call that would have to wait."""
        self._no_waiting = error
        for call in list(self._waiting.values()):
            if call.owner in self._waiting:  # otherwise withdrawing another call has let this one begin
                self.withdraw(call)
                refuse(call.reply, error())

    def release(self, owner: int) -> None:
        """Frees the keys of an owner, and begins the calls that can get them now."""
        self._granted(self._locks.release(owner))

    def holders(self, key: ResourceKey) -> tuple[int, ...]:
        """Returns the owners that have this key."""
        return self._locks.holders(key)

    def fail(self, error: Callable[[], Exception]) -> None:
        """Answers each waiting call with its own error; no call gets keys after that."""
        for call in self._waiting.values():
            refuse(call.reply, error())
        self._waiting.clear()

    def _granted(self, owners: list[int]) -> None:
        """Begins these calls, in a loop: a call that is refused as it begins frees its keys for the next, and thousands may wait."""
        if not owners:
            return
        if self._ready is not None:
            self._ready.extend(owners)  # called from inside `_begin`: the loop below continues with them
            return
        self._ready = deque(owners)
        try:
            while self._ready:
                self._begin(self._waiting.pop(self._ready.popleft()))
        finally:
            self._ready = None

    def _full(self, call: AppendCall, *, running: int, done_marks: int) -> WouldBlockError | None:
        limits = self._limits
        if running + len(self._waiting) >= limits.tasks_max:
            return WouldBlockError(
                f"{limits.tasks_max} broadcasts are under way, as many as broadcast_tasks_max allows: acknowledge or abort some"
            )
        if self.bytes_held and self.bytes_held + call.size > limits.bytes_max:
            return WouldBlockError(
                f"broadcasts that are not appended yet hold {self.bytes_held} of {limits.bytes_max} bytes: wait until some are"
            )
        if done_marks >= limits.done_marks_max:
            return WouldBlockError(
                f"{done_marks} finished broadcasts await a checkpoint (limit {limits.done_marks_max}): one was requested, retry shortly"
            )
        return None
