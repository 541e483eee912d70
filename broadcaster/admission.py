"""Admission: which broadcasts may begin, and which stand in line for their keys.

Owns: the lock table, the calls that wait, and the bytes of all broadcasts that are not appended yet. Promises: a call is refused
before anything is done, or begins once, holding all of its keys. Never begins anything itself: it says when.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from broadcaster.answers import held
from broadcaster.calls import AppendCall, refuse
from broadcaster.limits import BroadcasterLimits
from broadcaster.lock_table import Conflict, LockTable
from wal.errors import ClosedError, WouldBlockError
from wal.message import ResourceKey

__all__ = ["Admission"]


class Admission:
    """`begin(call)` is called once the call holds its keys; `holder(owner)` answers with the id of that owner's broadcast."""

    def __init__(
        self, limits: BroadcasterLimits, *, begin: Callable[[AppendCall], object], holder: Callable[[int], int]
    ) -> None:
        self.bytes_held = 0
        self._limits = limits
        self._begin = begin
        self._holder = holder
        self._locks = LockTable()
        self._waiting: dict[int, AppendCall] = {}
        self._ready: deque[int] | None = None
        self._owners = 0

    @property
    def waiting(self) -> int:
        """Calls that stand in line."""
        return len(self._waiting)

    def append(self, call: AppendCall, *, running: int, done_marks: int) -> None:
        """Refuses the call, lets it wait, or begins it; there are so many broadcasts running, and over but not left behind."""
        if (full := self._full(call, running=running, done_marks=done_marks)) is not None:
            refuse(call.reply, full)
            return
        self._owners += 1
        call.owner = self._owners
        keys = tuple(call.message.resource_keys)
        if call.wait and not self._locks.lock_or_wait(call.owner, keys):
            if call.withdrawn:
                self._granted(self._locks.cancel(call.owner))
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
        """Takes the keys of a recovered broadcast again; returns its owner, and who holds them already."""
        self._owners += 1
        self.bytes_held += size
        return self._owners, self._locks.try_lock(self._owners, keys)

    def withdraw(self, call: AppendCall) -> bool:
        """Takes a call out of the line; False when it does not stand there."""
        call.withdrawn = True
        if self._waiting.pop(call.owner, None) is None:
            return False
        self.bytes_held -= call.size
        self._granted(self._locks.cancel(call.owner))
        return True

    def release(self, owner: int) -> None:
        """Frees the keys of an owner and begins who can have them now."""
        self._granted(self._locks.release(owner))

    def holders(self, key: ResourceKey) -> tuple[int, ...]:
        return self._locks.holders(key)

    def close(self) -> None:
        """Nobody gets keys any more."""
        self.fail(lambda: ClosedError("the log was closed while this broadcast waited for its resource keys"))

    def fail(self, error: Callable[[], Exception]) -> None:
        """The same, with an error of its own for each call in the line."""
        for call in self._waiting.values():
            refuse(call.reply, error())
        self._waiting.clear()

    def _granted(self, owners: list[int]) -> None:
        """Begins those calls; one that is refused as it begins frees its keys to the next, and there may be thousands in the line."""
        if self._ready is not None:
            self._ready.extend(owners)  # we are inside of `_begin`: the loop below goes on with them
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
                f"{done_marks} broadcasts are over but not left behind by a checkpoint yet, of at most {limits.done_marks_max}: "
                "one has been asked for, try again soon"
            )
        return None
