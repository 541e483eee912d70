"""The ticks of a pchannel: new ones from the oracle (`TickSupply`), and the promised tick, up to which it is complete. Pure.

Taking a tick never waits: if the oracle has to save a new limit first, one request is sent for all callers without a tick. Operations that
need a tick are held meanwhile, together with every later operation, which must not overtake them.

Everything at or below the promised tick (others call it watermark or closed timestamp) is in the log, and nothing at or below it follows
(D4). `PromisedTick` computes it, `BarrierHeap` has the appends that wait until it passes their barrier, and `TickFrames` decides when it
should be written to the log.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from wal.errors import WALError


class TickOracle(Protocol):
    """The part of the timestamp oracle that a pchannel uses."""

    def take(self, count: int) -> int | None:
        """Returns the first of `count` contiguous ticks, or None when the saved limit is reached."""

    @property
    def limit(self) -> int:
        """The saved limit: no tick at or above it is allocated."""

    @property
    def last(self) -> int:
        """The largest tick allocated so far."""


class Holder(Protocol):
    """A member of the group whose operations may have to wait for ticks."""

    def receive(self, batch: list[Any]) -> None:
        """Takes the operations again, once there are ticks."""

    def refuse(self, operations: list[Any], error: BaseException) -> None:
        """Fails operations that were not submitted."""


class TickSupply:
    """The ticks of one pchannel. `held` are the operations that wait, in the order of their calls, each with its holder.

    `request` asks for a new limit; the answer is a call of `take_held`. `fenced` is called if another writer has taken the oracle over.
    """

    __slots__ = ("_fault", "_fenced", "_request", "_requested", "held", "oracle")

    def __init__(self, oracle: TickOracle, *, request: Callable[[], None], fenced: Callable[[WALError], None]) -> None:
        self.oracle: TickOracle = oracle
        self.held: list[tuple[Holder, Any]] = []
        self._request = request
        self._requested = False
        self._fenced = fenced
        self._fault: WALError | None = None

    def take(self, count: int = 1) -> int | None:
        """Returns the first of `count` contiguous ticks, or None: then it has requested more, or this writer is fenced."""
        try:
            tick = self.oracle.take(count)
        except WALError as error:
            self._fenced(error)
            return None
        if tick is None and not self._requested:
            self._requested = True
            self._request()
        return tick

    def hold(self, holder: Holder, operations: Sequence[Any]) -> None:
        """Keeps operations until there are ticks (the caller found none, so they are requested); once stopped it refuses them."""
        if self._fault is not None:
            holder.refuse(list(operations), self._fault)
        else:
            self.held += [(holder, operation) for operation in operations]

    def take_held(self) -> list[tuple[Holder, Any]]:
        """Returns and releases all held operations, since the request was answered."""
        self._requested = False
        operations, self.held = self.held, []
        return operations

    def take_held_by(self, holder: Holder) -> list[Any]:
        """Returns the held operations of one holder, which accepts no more, and releases them."""
        operations = [operation for owner, operation in self.held if owner is holder]
        self.held = [waiting for waiting in self.held if waiting[0] is not holder]
        return operations

    def stop(self, fault: WALError) -> None:
        """Refuses every operation that is held now or later: nothing is written any more."""
        self._fault = fault
        for holder, operation in self.take_held():
            holder.refuse([operation], fault)


T = TypeVar("T")
AFTER_DATA_S: Final = 0.6
"""The pause after data. The timer checks every `time_tick_interval_s` (0.2), so the frame is in the log within a second."""
IDLE_S: Final = 10.0


class PromisedTick:
    """`tick` is the tick promised so far; `in_flight` are the first ticks of the frames that were handed over and are not yet durable.

    The promised tick is one less than the first tick of the oldest frame in flight. Without such a frame it is the last durable tick, or a
    fresh tick that is taken only for this purpose. It never decreases.
    """

    __slots__ = ("in_flight", "tick")

    def __init__(self, tick: int) -> None:
        self.tick: int = tick
        self.in_flight: deque[int] = deque()

    def submitted(self, first_tick: int) -> None:
        """Records that a frame with this first tick was handed over."""
        self.in_flight.append(first_tick)

    def settled(self, last_tick: int, *, durable: bool) -> int:
        """Records that the oldest frame in flight is durable, or failed and is not in the log; returns the promised tick.

        A failed frame does not raise it, since no caller then releases the barriers that it would pass.
        """
        self.in_flight.popleft()
        if durable:
            self._raise(self.in_flight[0] - 1 if self.in_flight else last_tick)
        return self.tick

    def advance(self, fresh: Callable[[], int | None]) -> int:
        """Raises the promised tick as far as possible and returns it. `fresh` returns a fresh tick, or None if none is available."""
        if self.in_flight:
            self._raise(self.in_flight[0] - 1)
        elif (tick := fresh()) is not None:
            self._raise(tick)
        return self.tick

    def _raise(self, tick: int) -> None:
        if tick > self.tick:
            self.tick = tick


class BarrierHeap(Generic[T]):
    """Items that wait until the promised tick passes their barrier; with the same barrier they leave in the order they came.

    An append with a barrier gets its tick only when everything up to the barrier is in the log. No other append may be overtaken.
    """

    __slots__ = ("_arrivals", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, T]] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def smallest(self) -> int | None:
        """The smallest barrier, which is passed next; None without a waiting item."""
        return self._heap[0][0] if self._heap else None

    def wait(self, barrier: int, item: T) -> None:
        """Sets an item aside."""
        heapq.heappush(self._heap, (barrier, self._arrivals, item))
        self._arrivals += 1

    def release(self, promised_tick: int) -> list[T]:
        """Takes out the items whose barrier is at or below the promised tick, in the order of barriers, then of arrival."""
        released: list[T] = []
        while self._heap and self._heap[0][0] <= promised_tick:
            released.append(heapq.heappop(self._heap)[2])
        return released

    def take_out(self, is_meant: Callable[[T], bool]) -> list[T]:
        """Takes out the wanted items, in the order of arrival; visits all items."""
        chosen = [entry for entry in self._heap if is_meant(entry[2])]
        if chosen:
            self._heap = [entry for entry in self._heap if not is_meant(entry[2])]
            heapq.heapify(self._heap)
        return [item for _, _, item in sorted(chosen, key=lambda entry: entry[1])]

    def drain(self) -> list[T]:
        """Takes out everything, in the order of arrival."""
        return self.take_out(lambda item: True)


class TickFrames:
    """Decides when a TimeTick frame is due in a log whose readers get the promised tick only from the log.

    A frame is due soon after data, so that a reader that waits for a tick above the last event need not wait for the next event. It is also
    due from time to time without data, so that readers see that the log is alive. `now_s` is monotonic time.
    """

    __slots__ = ("_data", "_last_s")

    def __init__(self, now_s: float) -> None:
        self._last_s = now_s
        self._data = False

    def written(self, now_s: float, *, data: bool) -> None:
        """Records that a frame is durable; `data`: it has events."""
        self._last_s = now_s
        self._data = data

    def is_due(self, now_s: float) -> bool:
        """Returns whether a frame should be written if no other one is in flight."""
        return now_s - self._last_s >= (AFTER_DATA_S if self._data else IDLE_S)
