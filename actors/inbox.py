"""Inbox: the two lanes of the inbox of an actor that owns a task.

Owns the messages that the actor has not taken yet, and the callers that wait for room. Guarantees: data keeps the order in which it was
accepted, and callers that wait for room get it in order of arrival; at most `inbox_max` data messages. A refusal, once set, is raised by
every later call. It never drops a message: `close` returns the remaining ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from actors.errors import ActorError, InboxFullError

__all__ = ["Inbox"]


class Inbox:
    """An inbox: `wait`, `next_control` and `take` are for the actor, the other methods are for the callers that tell it messages."""

    __slots__ = (
        "_control",
        "_control_refusal",
        "_data",
        "_data_refusal",
        "_loop",
        "_max",
        "_name",
        "_parked",
        "_wakeup",
    )

    def __init__(self, name: str, *, inbox_max: int, loop: asyncio.AbstractEventLoop) -> None:
        if inbox_max < 1:
            raise ValueError(f"inbox_max is {inbox_max}: actor {name!r} needs room for at least 1 message")
        self._name = name
        self._max = inbox_max
        self._loop = loop
        self._data: list[Any] = []
        self._control: deque[Any] = deque()
        self._parked: dict[asyncio.Future[None], Any] = {}  # empty unless _data is full
        self._wakeup: asyncio.Future[None] | None = None
        self._data_refusal: Callable[[], ActorError] | None = None
        self._control_refusal: Callable[[], ActorError] | None = None

    def __len__(self) -> int:
        return len(self._data) + len(self._control)

    @property
    def control_pending(self) -> int:
        return len(self._control)

    def tell(self, message: Any, *, inside: bool = False) -> None:
        """Adds a message, or raises InboxFullError. `inside`: the actor tells itself, which it may do even while it drains."""
        self._refuse(inside=inside)
        if len(self._data) >= self._max:
            raise InboxFullError(
                f"the inbox of actor {self._name!r} holds {len(self._data)} of at most {self._max} messages: "
                "wait for room with tell_wait(), or try again later"
            )
        self._data.append(message)
        self.wake()

    async def tell_wait(self, message: Any, *, inside: bool = False) -> None:
        """Adds a message, after those that already wait for room. A call that is cancelled while it waits adds nothing."""
        self._refuse(inside=inside)
        if len(self._data) < self._max:
            self._data.append(message)
            self.wake()
            return
        room: asyncio.Future[None] = self._loop.create_future()
        self._parked[room] = message
        try:
            await room
        finally:
            self._parked.pop(room, None)

    def tell_control(self, message: Any) -> None:
        """Adds a message to the control lane, which has no bound of its own."""
        if self._control_refusal is not None:
            raise self._control_refusal()
        self._control.append(message)
        self.wake()

    async def wait(self) -> None:
        """Returns when there is a message to take, or after a `wake`."""
        if not self:
            self._wakeup = self._loop.create_future()
            try:
                await self._wakeup
            finally:
                self._wakeup = None

    def wake(self) -> None:
        """Ends a `wait`, even if no message was told."""
        wakeup = self._wakeup
        if wakeup is not None and not wakeup.done():
            wakeup.set_result(None)

    def next_control(self) -> Any:
        """Removes and returns the oldest control message; there must be one."""
        return self._control.popleft()

    def take(self) -> list[Any]:
        """Removes and returns all data, and admits the messages that waited for room."""
        batch, self._data = self._data, []
        accepted = []
        for room, message in self._parked.items():
            if len(self._data) >= self._max:
                break
            accepted.append(room)
            if not room.done():  # otherwise its caller was cancelled and has not run yet
                room.set_result(None)
                self._data.append(message)
        for room in accepted:
            del self._parked[room]
        return batch

    def refuse_data(self, refusal: Callable[[], ActorError]) -> None:
        """Accepts no more data, except from inside; callers that wait for room get the refusal."""
        self._data_refusal = refusal
        parked, self._parked = self._parked, {}
        for room in parked:
            if not room.done():
                room.set_exception(refusal())

    def close(self, refusal: Callable[[], ActorError]) -> list[Any]:
        """Accepts no more messages at all, and returns the remaining ones: control first, then data."""
        self._control_refusal = refusal
        self.refuse_data(refusal)
        left = [*self._control, *self._data]
        self._control.clear()
        self._data = []
        return left

    def _refuse(self, *, inside: bool) -> None:
        refusal = self._control_refusal if inside else self._data_refusal
        if refusal is not None:
            raise refusal()
