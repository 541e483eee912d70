"""Deliveries: the table of one consumer, with every body after the consumer's position, and its state. Pure.

A body goes through these states (`DeliveryState`):

    take --> WAITING --hand_out--> CHOSEN --recorded--> HANDED --start--> RUNNING --settle--> ENDED --finish--> DONE
                ^                     |                                      |
                +------ recall -------+                                      +--> RESTING --wake--> TRIED (as WAITING)

Owns the order, attempts and their limit, the pauses between them, and the saved form (`wal/consumers/state.py`). A **lane** keeps its
order: a vchannel, or a key; without an order each body is a lane of its own. The table never reads a clock and never waits: the consumer
passes the time, calls `hand_out` before each commit, commits `save`, and calls `recorded` when that is durable.

Invariants:
* No body runs before its hand-out is recorded, nor before the previous one of its lane has ended.
* The position (`mark`) never passes an unfinished body, nor a transaction with one. Later finished bodies are remembered.
* While suspect bodies (see `state.py`) may run, nothing else is handed out, and they are handed out only after everything else has ended.
* The consumer bounds `pending`, the bodies after the position: it reads no further at `pending_max`.

A lane with one body is that body's Delivery itself; it becomes a `Lane` with the second one, so that a key costs nothing while it is idle
and little when it is not. All bodies in their order, and the position, are `wal/consumers/sequence.py`.

The table of a shared cursor (`shared`) is at the home, and its handlers are with members. A body that is out of attempts by the deaths of
processes is handed out once more, with an attempt above the limit: the member that gets the body writes the dead letter. With `apart` the
members are other processes, which die by themselves: `lose` makes the bodies of a lost member suspect, others continue, and suspects are
handed out (`start_suspects`) to a member that has nothing else.

A consumer of one vchannel, in its order, has one lane. While all its bodies are handled at their first attempt, a few numbers replace the
states (`wal/consumers/stretch.py`). The table uses a stretch from a moment when it is empty until anything else happens.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from typing import TypeAlias

from wal.consumers.delivery import BodyPosition, Delivery, DeliveryState, Handling, PositionOf, log_position
from wal.consumers.plan import DIED, RELEASED, ConsumerPlan, Dead, Failed, Outcome, Rejected, Released
from wal.consumers.sequence import BodySequence
from wal.consumers.state import ALONE, NO_STATE, SavedState, Tried, UnfinishedRun
from wal.consumers.stretch import Stretch
from wal.message import ImmutableMessage
from wal.read.assembly import PlainMessages

WAITING, CHOSEN, HANDED, RUNNING, ENDED, RESTING, TRIED, DONE = map(int, DeliveryState)


class Lane:
    """Two or more bodies that keep their order: `items[at:]`, the first of which a handler has or gets next.

    Invariant: at <= at + running <= recorded <= handed <= len(items). Items up to the index `handed` are handed out, and up to `recorded`
    durably; `running` of them are with a handler. A lane whose first body is RESTING is blocked. `queued` and `ready` show in which queues
    of the table it is.
    """

    __slots__ = ("at", "handed", "items", "key", "queued", "ready", "recorded", "running")

    def __init__(self, key: Hashable, items: list[Delivery]) -> None:
        self.key: Hashable = key
        self.items: list[Delivery] = items
        self.at: int = 0
        self.handed: int = 0
        self.recorded: int = 0
        self.running: int = 0
        self.queued: bool = False
        self.ready: bool = False

    @property
    def blocked(self) -> bool:
        return self.at < len(self.items) and self.items[self.at]._state == RESTING

    def trim(self) -> None:
        """Removes passed items from time to time."""
        if (at := self.at) > 64 and 2 * at > len(self.items):
            del self.items[:at]
            self.at = 0
            self.handed -= at
            self.recorded -= at


Unit: TypeAlias = Delivery | Lane


class Deliveries:
    """The table; see the top of the file. `saved` is the state of the previous consumer, `now` monotonic and `wall` wall seconds.

    `lane` is the only lane of its bodies, None if they may have several. `position_of` orders the bodies, also in the saved state.
    """

    def __init__(
        self,
        plan: ConsumerPlan,
        saved: SavedState = NO_STATE,
        *,
        incarnation: int = 0,
        now: float = 0.0,
        wall: float = 0.0,
        lane: Hashable = None,
        shared: bool = False,
        position_of: PositionOf = log_position,
    ) -> None:
        self.plan: ConsumerPlan = plan
        self.shared: bool = shared
        self.apart: bool = False
        """Whether the handlers are in several processes; see the top of the file."""
        self.condemned: list[Dead] = []
        """Bodies whose attempts were used up by deaths of processes, until the consumer takes them."""
        self.taken: int = 0
        """The number of bodies that have entered the table."""
        self._ended: deque[Delivery] = deque()
        """The bodies that were handled and are not finished, in the order in which they ended; see `ended`."""
        self._incarnation = incarnation
        self.sequence: BodySequence = BodySequence(position_of)
        self._position_of = position_of
        self._handed = 0
        self._lanes: dict[Hashable, Unit] = {}
        self._candidates: deque[Unit] = deque()
        self._ready: deque[Unit] = deque()
        self._ready_suspects: deque[Unit] = deque()
        """With `apart` the units whose next body is suspect, and may run."""
        self._chosen: list[Unit] = []
        self._resting: list[tuple[float, int, Delivery]] = []
        self._tried: dict[Delivery, float] = {}  # failed before and unfinished, with the time of the retry
        self._rests = 0
        self._suspects: dict[Delivery, int] = {}
        self._suspect_units: deque[Unit] = deque()
        self._exclusive = False  # suspects are handed out
        self._lane = lane
        self._stretch: Stretch | None = None
        """The bodies while they are all regular; the fields above are empty then."""
        self._bytes = 0
        self._begin(saved, now, wall)

    def _begin(self, saved: SavedState, now: float, wall: float) -> None:
        """Prepares for bodies that the previous consumer had read. Its death, if it died, is counted here."""
        self._to_now = now - wall
        saved = saved.as_of(wall).after_a_death()
        self._known = saved if saved.covered is not None and saved.incarnation == self._incarnation else None
        self._known_run = 0
        self._known_tried = {} if self._known is None else {entry.at: entry for entry in self._known.tried}

    # -- reading

    @property
    def mark(self) -> ImmutableMessage | None:
        """The last event that is finished with everything before it; None until the first one since the consumer began."""
        return self.sequence.mark

    @property
    def finished(self) -> int:
        """The number of bodies that have left the table."""
        return self.sequence.finished

    @property
    def pending(self) -> int:
        """The number of bodies after the position: unfinished, or finished and remembered."""
        stretch = self._stretch
        return self.sequence.pending if stretch is None else stretch.length - stretch.front

    @property
    def unfinished(self) -> int:
        """The number of unfinished bodies."""
        return self.sequence.unfinished if self._stretch is None else self.pending

    @property
    def bytes(self) -> int:
        """The size of the payloads of unfinished bodies."""
        return self._bytes if self._stretch is None else self._stretch.bytes

    @property
    def handed(self) -> int:
        """The number of handed-out bodies, running or not."""
        stretch = self._stretch
        return self._handed if stretch is None else stretch.handed - stretch.front

    @property
    def ended_count(self) -> int:
        """The number of bodies that were handled and are not finished: those of `ended`."""
        stretch = self._stretch
        return len(self._ended) if stretch is None else stretch.at - stretch.front

    @property
    def ended(self) -> Sequence[Delivery]:
        """The bodies that were handled and are not finished, in the order in which they ended."""
        stretch = self._stretch
        return self._ended if stretch is None else stretch.items[stretch.front : stretch.at]

    @property
    def room(self) -> int:
        """The number of bodies that may still be taken."""
        return max(0, self.plan.pending_max - self.pending)

    @property
    def is_regular(self) -> bool:
        """Whether all bodies in the table are at their first attempt, and all ended bodies are handled."""
        return self._stretch is not None

    @property
    def hungry(self) -> bool:
        """Whether more bodies would give the handlers more to do."""
        if self._stretch is not None:
            return self.pending < 2 * self.plan.page
        # All bodies that the previous consumer had read come first. Later a page of candidates is enough; while suspects run alone, or the
        # order has a page to start already, more bodies start nothing.
        return self._known is not None or (not self._suspect_units and len(self._candidates) < self.plan.page and not self._filled)

    @property
    def _filled(self) -> bool:
        if self.plan.order == "none":
            return self.unfinished - self._handed - len(self._tried) >= self.plan.page
        return self.plan.order == "vchannel" and len(self._lanes) == 1 and self.unfinished >= 2 * self.plan.page

    @property
    def first(self) -> Delivery | None:
        """The first unfinished body: the position waits for it."""
        if (stretch := self._stretch) is None:
            return self.sequence.first
        if not self.pending:
            return None
        stretch.create(stretch.front + 1)
        return stretch.items[stretch.front]

    @property
    def first_state(self) -> DeliveryState:
        """The state of the first unfinished body."""
        stretch = self._stretch
        if stretch is None or stretch.front >= stretch.handed:
            return DeliveryState.WAITING if (first := self.first) is None else DeliveryState(first._state)
        return DeliveryState.ENDED if stretch.front < stretch.at else DeliveryState.HANDED

    def take(self, deliveries: list[Delivery], size: int | None = None) -> None:
        """Adds the next bodies in the order of the log. `size` is the size of their payloads, if known."""
        self.taken += len(deliveries)
        if size is None:
            size = sum([len(delivery.message.payload) for delivery in deliveries])
        if self._stretch is not None or self._straighten():
            assert self._stretch is not None
            self._stretch.take(deliveries, size)
            return
        self._bytes += size
        if self._known is not None:
            deliveries = self._recall_known(deliveries)
        else:
            self.sequence.items.extend(deliveries)
        if not deliveries:
            return
        if self.plan.order == "none":
            if self._suspects:
                for delivery in deliveries:
                    self._queue(delivery)
            else:
                self._candidates.extend(deliveries)
            return
        if self.plan.order == "vchannel" and not self._suspects and not self._tried:
            key = deliveries[0]._lane
            if all(delivery._lane == key for delivery in deliveries):
                self._take_lane(key, deliveries)
                return
        for delivery in deliveries:
            self._take_lane(delivery._lane, [delivery])

    def take_page(self, page: PlainMessages, owner: Handling) -> None:
        """Adds the next bodies, all of the table's only lane; `owner` is the owner of their deliveries."""
        if self._stretch is None and not self._straighten():
            self.take([Delivery(message, owner, self._lane) for message in page], page.payload_bytes)
            return
        assert self._stretch is not None
        self.taken += len(page)
        self._stretch.take_page(page, owner)

    def skip(self, deliveries: list[Delivery]) -> None:
        """Adds the next bodies, which are finished without a handler."""
        self._spread()
        self.taken += len(deliveries)
        for delivery in deliveries:
            delivery._state = DONE
        if self._known is not None:
            self._recall_known(deliveries)
        else:
            self.sequence.items.extend(deliveries)
            self.sequence.done(len(deliveries))

    def _straighten(self) -> bool:
        """Begins a stretch if all bodies are of one lane and the table is empty; returns whether it did."""
        # A stretch needs a single lane, and an empty table: no body left from before, of a saved state, suspect, or failed.
        if self._lane is None or self._known is not None or self.sequence.pending or self._suspects or self._tried:
            return False
        for left_over in (
            self._candidates,
            self._ready,
            self._ready_suspects,
            self._resting,
            self._chosen,
            self._suspect_units,
            self._lanes,
        ):
            left_over.clear()
        self._exclusive = False
        self.sequence.clear()
        self._stretch = Stretch(self.plan, self.sequence, self._lane)
        return True

    def _spread(self) -> None:
        """Takes over the bodies of the stretch, with a state for each."""
        stretch = self._stretch
        if stretch is None:
            return
        stretch.create(stretch.length)
        front, at, handed = stretch.front, stretch.at, stretch.handed
        items = stretch.items[front:]
        self.sequence.items.extend(items)
        self._bytes = sum([len(delivery.message.payload) for delivery in items])
        self._handed = handed - front
        self._ended.extend(stretch.items[front:at])
        for delivery in stretch.items[front:at]:
            delivery._state = ENDED
        for delivery in stretch.items[at:handed]:
            delivery._state = CHOSEN
        self._stretch = None  # not earlier: until now a sync handler may call `has_ended` in its thread
        if at == len(stretch.items):
            return
        lane = self._lanes[self._lane] = Lane(self._lane, stretch.items[at:])
        lane.handed, lane.recorded, lane.running = handed - at, stretch.recorded - at, stretch.running
        if lane.handed > lane.recorded:
            self._chosen.append(lane)
        self._make_ready(lane)
        self._queue(lane)

    def _take_lane(self, key: Hashable, deliveries: list[Delivery]) -> None:
        unit = self._lanes.get(key)
        if unit is None and len(deliveries) == 1 and self.plan.order == "key":
            self._lanes[key] = deliveries[0]
            if deliveries[0]._state != RESTING:
                self._queue(deliveries[0])
            return
        lane = unit if isinstance(unit, Lane) else self._as_lane(key, unit)
        lane.items.extend(deliveries)
        if not lane.blocked:
            self._queue(lane)

    def _as_lane(self, key: Hashable, only: Delivery | None) -> Lane:
        """Returns the lane of a key, created from its only delivery if there is one."""
        lane = self._lanes[key] = Lane(key, [] if only is None else [only])
        if only is not None:
            state = only._state
            lane.queued = state in (WAITING, TRIED)
            lane.ready = state == HANDED
            lane.handed = int(CHOSEN <= state <= RUNNING)
            lane.recorded = int(HANDED <= state <= RUNNING)
            lane.running = int(state == RUNNING)
        return lane

    def _recall_known(self, deliveries: list[Delivery]) -> list[Delivery]:
        """Applies the saved state to bodies, and returns the unfinished ones that are not condemned."""
        saved = self._known
        assert saved is not None
        assert saved.covered is not None
        rest: list[Delivery] = []
        done = 0
        for delivery in deliveries:
            at = self._position_of(delivery.message)
            self.sequence.items.append(delivery)
            if delivery._state == DONE or self._known is None or at > saved.covered:
                self._known = None if at >= saved.covered else self._known
                if delivery._state == DONE:
                    done += 1
                else:
                    rest.append(delivery)
                continue
            while self._known_run < len(saved.runs) and saved.runs[self._known_run].last < at:
                self._known_run += 1
            run = saved.runs[self._known_run] if self._known_run < len(saved.runs) else None
            if run is None or at < run.first:
                delivery._state = DONE
                self._bytes -= len(delivery.message.payload)
                done += 1
            elif self._recall(delivery, run.suspicion, self._known_tried.pop(at, None)):
                rest.append(delivery)
            if at >= saved.covered:
                self._known = None
        self.sequence.done(done)
        return rest

    @property
    def known_end(self) -> BodyPosition | None:
        """The last body whose saved state was not met yet; None once everything that the previous consumer had read is here."""
        return None if self._known is None else self._known.covered

    def end_known(self) -> None:
        """Ends the use of the saved state: the read has passed its last body, which may have been dropped with its vchannel."""
        self._known = None

    def _recall(self, delivery: Delivery, suspicion: int, tried: Tried | None) -> bool:
        """Applies the saved state to an unfinished body; returns whether it enters its lane now."""
        if suspicion:
            self._suspects[delivery] = suspicion
        if tried is None:
            return True
        if tried.failures >= self.plan.attempts and self.shared:
            self._suspects.pop(delivery, None)
            self._tried[delivery] = 0.0
            delivery.attempt, delivery._state = self.plan.attempts + 1, TRIED
            return True
        if tried.failures >= self.plan.attempts:
            delivery._state = ENDED
            delivery.attempt = self.plan.attempts
            self._handed += 1
            self._suspects.pop(delivery, None)
            self.condemned.append(Dead(delivery, tried.failures, DIED))
            return False
        delivery.attempt = tried.failures + 1
        self._rest(delivery, tried.due_ms / 1000 + self._to_now)
        if self.plan.blocks and self.plan.order != "none":
            return True
        delivery._lane = None
        return False

    # -- handing out

    def hand_out(self) -> bool:
        """Chooses the bodies of the next hand-out, for the next commit; returns whether there are any. Call `recorded` when it is
        durable.
        """
        if self._stretch is not None:
            return self._stretch.hand_out()
        if self._known is not None:
            return False
        if self.apart:
            self._choose_apart()
        elif self._exclusive:
            if self._handed:
                return False
            self._exclusive = False
        if self._suspect_units:
            self.recall()
            if not self._handed:
                self._choose_suspects()
            return bool(self._chosen)
        room = self.plan.page - self._handed
        candidates, quota = self._candidates, self.plan.lane_quota
        while candidates and room > 0:
            unit = self._resolve(candidates.popleft())
            if not isinstance(unit, Lane):
                if unit._state in (WAITING, TRIED):
                    unit._state = CHOSEN
                    self._handed += 1
                    self._chosen.append(unit)
                    room -= 1
                continue
            if not unit.queued:
                continue
            unit.queued = False
            count = min(quota - (unit.handed - unit.at), room, len(unit.items) - unit.handed)
            if count > 0 and (self._suspects or self._tried):
                count = self._sound(unit, count)
                if not count:
                    self._queue(unit)  # a suspect has come to the front since
            if count > 0:
                self._choose(unit, count)
                room -= count
                # A lane with more bodies that may be handed out, below its quota, gets another turn after the other lanes.
                if unit.handed < len(unit.items) and unit.handed - unit.at < quota and unit.items[unit.handed]._state != RESTING:
                    self._queue(unit)
        if self._suspect_units and (self.apart or not self._chosen):
            return self.hand_out()
        return bool(self._chosen)

    def _sound(self, lane: Lane, count: int) -> int:
        """Returns the number of next bodies of a lane before the first suspect or resting one."""
        for index in range(count):
            delivery = lane.items[lane.handed + index]
            if delivery._state == RESTING or delivery in self._suspects:
                return index
        return count

    def _choose(self, lane: Lane, count: int) -> None:
        for delivery in lane.items[lane.handed : lane.handed + count]:
            delivery._state = CHOSEN
        lane.handed += count
        self._handed += count
        self._chosen.append(lane)

    def _choose_suspects(self) -> None:
        """Chooses suspects while nothing is handed out: a small group, or one body if all of them have died in a group before."""
        self._exclusive = True
        units = [self._resolve(unit) for unit in self._suspect_units]
        self._suspect_units.clear()
        room = self.plan.concurrency * self.plan.batch
        rest: list[Unit] = []
        for unit in units:
            if room > 0 and (count := self._suspects_ahead(unit, min(room, self.plan.batch))):
                self._choose_unit(unit, count)
                room -= count
            else:
                rest.append(unit)
        if not self._chosen:
            self._choose_unit(rest.pop(0), 1)
        self._suspect_units.extend(rest)

    def _choose_apart(self) -> None:
        """Chooses all suspects that are next in their lanes: they wait for a member that has nothing else."""
        units, self._suspect_units = self._suspect_units, deque()
        for unit in map(self._resolve, units):
            if unit.queued if isinstance(unit, Lane) else unit._state in (WAITING, TRIED):
                self._choose_unit(unit, max(1, self._suspects_ahead(unit, self.plan.batch)))

    def _choose_unit(self, unit: Unit, count: int) -> None:
        if isinstance(unit, Lane):
            unit.queued = False
            self._choose(unit, count)
        else:
            unit._state = CHOSEN
            self._handed += 1
            self._chosen.append(unit)

    def _suspects_ahead(self, unit: Unit, count: int) -> int:
        """Returns the number of bodies at the front of a unit that may be in a group of suspects, `count` at most."""
        ahead = unit.items[unit.handed : unit.handed + count] if isinstance(unit, Lane) else [unit]
        for index, delivery in enumerate(ahead):
            if delivery._state == RESTING or self._suspects.get(delivery, ALONE) >= ALONE:
                return index
        return len(ahead)

    def recorded(self) -> None:
        """Marks the chosen bodies as recorded: they may run."""
        if (stretch := self._stretch) is not None:
            stretch.recorded = stretch.handed
            return
        chosen, self._chosen = self._chosen, []
        for unit in chosen:
            resolved = self._resolve(unit)
            if isinstance(resolved, Lane):
                resolved.recorded = resolved.handed
                self._make_ready(resolved)
            elif resolved._state == CHOSEN:
                resolved._state = HANDED
                self._ready_for(resolved).append(resolved)

    def recall(self) -> None:
        """Recalls handed-out bodies that do not run. Call it only while no hand-out is being recorded."""
        if self._stretch is not None:
            self._stretch.recall()
            return
        for unit in [*map(self._resolve, [*self._ready, *self._ready_suspects]), *self._lanes.values()]:
            if isinstance(unit, Lane):
                if unit.handed > unit.at + unit.running:
                    self._take_back(unit)
            elif unit._state == HANDED:
                unit._state = WAITING if unit.attempt == 1 else TRIED
                self._handed -= 1
                self._queue(unit)
        self._ready.clear()
        self._ready_suspects.clear()

    def _take_back(self, lane: Lane) -> None:
        """Recalls the handed-out bodies of a lane after the running ones."""
        start = lane.at + lane.running
        for delivery in lane.items[start : lane.handed]:
            delivery._state = WAITING if delivery.attempt == 1 else TRIED
        self._handed -= lane.handed - start
        lane.handed = lane.recorded = start
        lane.ready = False
        if not lane.blocked:
            self._queue(lane)

    def _queue(self, unit: Unit) -> None:
        """Adds a unit whose next body may be handed out to its queue."""
        if isinstance(unit, Lane):
            if unit.queued or unit.handed >= len(unit.items) or unit.items[unit.handed]._state == RESTING:
                return  # a resting body is queued when its pause ends, or when it comes to the front
            unit.queued = True
            following = unit.items[unit.handed]
        else:
            following = unit
        if self._suspects and following in self._suspects:
            self._suspect_units.append(unit)
        else:
            self._candidates.append(unit)

    def _make_ready(self, lane: Lane) -> None:
        if not lane.running and not lane.ready and lane.recorded > lane.at:
            lane.ready = True
            self._ready_for(lane.items[lane.at]).append(lane)

    def _ready_for(self, following: Delivery) -> deque[Unit]:
        """Returns the queue for a unit whose next body this is."""
        return self._ready_suspects if self.apart and following in self._suspects else self._ready

    def _resolve(self, unit: Unit) -> Unit:
        """Returns the lane that a delivery has become, or the unit itself."""
        if isinstance(unit, Delivery) and unit._lane is not None:
            return self._lanes.get(unit._lane, unit)
        return unit

    # -- running

    @property
    def startable(self) -> int:
        """The number of calls of `start` that may return bodies."""
        if (stretch := self._stretch) is not None:
            return int(not stretch.running and stretch.recorded > stretch.at)
        return len(self._ready)

    def start(self, size: int = 1, *, one_lane: bool = False) -> list[Delivery]:
        """Returns the next bodies for a handler, `size` at most: those of a lane in their order, of one lane only with `one_lane`."""
        if self._stretch is not None:
            return self._stretch.start(size)
        work: list[Delivery] = []
        ready = self._ready
        while ready and len(work) < (min(size, 1) if one_lane else size):
            unit = self._resolve(ready.popleft())
            if not isinstance(unit, Lane):
                if unit._state == HANDED:
                    unit._state = RUNNING
                    work.append(unit)
            elif unit.ready:
                unit.ready = False
                unit.running = min(size - len(work), unit.recorded - unit.at)
                if self.apart and self._suspects:
                    unit.running = self._count_until_suspect(unit, unit.running)
                work += unit.items[unit.at : unit.at + unit.running]
        return work

    def _count_until_suspect(self, lane: Lane, count: int) -> int:
        """Returns how many of the next `count` bodies of a lane come before the first suspect."""
        for index, delivery in enumerate(lane.items[lane.at : lane.at + count]):
            if delivery in self._suspects:
                return index
        return count

    @property
    def has_suspects(self) -> bool:
        """Whether suspects may run; see `start_suspects`."""
        return bool(self._ready_suspects)

    def start_suspects(self, size: int) -> list[list[Delivery]]:
        """Returns suspects for a member that has nothing else, those of each lane in their order.

        They are a group of at most `size` bodies, or one body if all of them have died in a group before.
        """
        units: list[list[Delivery]] = []
        alone: Unit | None = None
        rest: list[Unit] = []
        while self._ready_suspects and size > 0:
            unit = self._resolve(self._ready_suspects.popleft())
            if not (unit.ready if isinstance(unit, Lane) else unit._state == HANDED):
                continue
            ahead = unit.items[unit.at : min(unit.recorded, unit.at + size)] if isinstance(unit, Lane) else [unit]
            count = next((index for index, each in enumerate(ahead) if self._suspects.get(each, ALONE) >= ALONE), len(ahead))
            if count:
                units.append(self._start_front(unit, count))
                size -= count
            elif alone is None:
                alone = unit
            else:
                rest.append(unit)
        if alone is not None and not units:
            units.append(self._start_front(alone, 1))
            alone = None
        self._ready_suspects.extendleft(reversed(rest if alone is None else [alone, *rest]))
        return units

    @staticmethod
    def _start_front(unit: Unit, count: int) -> list[Delivery]:
        if not isinstance(unit, Lane):
            unit._state = RUNNING
            return [unit]
        unit.ready, unit.running = False, count
        return unit.items[unit.at : unit.at + count]

    def lose(self, work: Sequence[Delivery], now: float) -> None:
        """Releases the running bodies of a member that is lost with its process, which are all that it had. They are suspect from now on.

        The loss of a member with several bodies counts for none of them; with one body that was suspect before, it is a failed attempt.
        """
        self._spread()
        alone = len(work) == 1
        for delivery in work:
            before = self._suspects.get(delivery, 0)
            if alone and before:
                delivery.attempt += 1
                self._tried[delivery] = now
            if delivery.attempt > self.plan.attempts:
                self._suspects.pop(delivery, None)
            else:
                self._suspects[delivery] = ALONE if alone else min(before + 1, ALONE)
        self.settle(work, [RELEASED] * len(work), now)

    def has_ended(self, delivery: Delivery) -> bool:
        """Returns whether no handler has this delivery any longer. The thread of a sync handler may call it."""
        if (stretch := self._stretch) is None:
            return not CHOSEN <= delivery._state <= RUNNING
        span, message = stretch.span, delivery.message
        return span is None or not span[0] <= (message._origin.position, message._index) <= span[1]

    def settle(self, work: Sequence[Delivery], outcomes: Iterable[Outcome], now: float) -> tuple[list[Delivery], list[Dead]]:
        """Records the outcomes of the attempts at these bodies, which were started together.

        Returns the handled bodies, which `finish_ended` finishes, and the dead ones, for `finish`. After a failure that blocks its lane,
        and after a release, the later bodies of the lane among them count as released.
        """
        outcomes = list(outcomes)
        if self._stretch is not None and all(outcome is None for outcome in outcomes):
            self._stretch.end(work)
            return list(work), []
        self._spread()
        ended: list[Delivery] = []
        dead: list[Dead] = []
        stopped: set[Hashable] = set()
        for delivery, outcome in zip(work, outcomes, strict=True):
            key = delivery._lane
            if key in stopped:
                continue
            unit = delivery if key is None else self._lanes[key]
            if outcome is None or isinstance(outcome, Rejected):
                self._leave(delivery, unit)
                if outcome is None:
                    ended.append(delivery)
                else:
                    dead.append(Dead(delivery, delivery.attempt, outcome.reason))
            elif isinstance(outcome, Released):
                self._stop(delivery, unit, TRIED if delivery.attempt > 1 else WAITING)
                self._queue(unit)
                if key is not None:
                    stopped.add(key)
            elif delivery.attempt >= self.plan.attempts:
                self._leave(delivery, unit)
                dead.append(Dead(delivery, delivery.attempt, outcome.reason))
            else:
                self._fail(delivery, unit, outcome, now, stopped)
        self._ended.extend(ended)
        return ended, dead

    def end(self, work: Sequence[Delivery]) -> None:
        """Records that these bodies, which were started together and in this order, are handled; `settle` accepts any outcomes."""
        if self._stretch is not None:
            self._stretch.end(work)
            return
        self._ended.extend(work)
        key = work[0]._lane
        lane = None if key is None else self._lanes[key]
        # Running bodies are the front of their lane. So if the last of `work` is at its index, `work` is exactly that front, in order.
        if len(work) > 1 and isinstance(lane, Lane) and len(work) <= lane.running and lane.items[lane.at + len(work) - 1] is work[-1]:
            for delivery in work:
                delivery._state = ENDED
            if self._suspects:
                for delivery in work:
                    self._suspects.pop(delivery, None)
            lane.at += len(work)
            lane.running -= len(work)
            if not lane.running:
                self._go_on(lane)
            return
        for delivery in work:
            key = delivery._lane
            self._leave(delivery, delivery if key is None else self._lanes[key])

    def _leave(self, delivery: Delivery, unit: Unit) -> None:
        """Ends a body: its lane continues without it."""
        delivery._state = ENDED
        if self._suspects:
            self._suspects.pop(delivery, None)
        if isinstance(unit, Lane):
            unit.at += 1
            unit.running -= 1
            if not unit.running:
                self._go_on(unit)
        elif delivery._lane is not None:
            del self._lanes[delivery._lane]

    def _go_on(self, lane: Lane) -> None:
        """Continues a lane after its running bodies have ended."""
        lane.trim()
        if lane.at == len(lane.items):
            del self._lanes[lane.key]
            return
        if not lane.blocked:
            self._make_ready(lane)
            if lane.items[lane.handed : lane.handed + 1] and lane.items[lane.handed]._state != RESTING:
                self._queue(lane)

    def _stop(self, delivery: Delivery, unit: Unit, state: int) -> None:
        """Returns a body from its handler to the table, and recalls the later handed-out bodies of its lane."""
        if isinstance(unit, Lane):
            unit.running = 0
            for later in unit.items[unit.at : unit.handed]:
                later._state = WAITING if later.attempt == 1 else TRIED
            self._handed -= unit.handed - unit.at
            unit.handed = unit.recorded = unit.at
        else:
            self._handed -= 1
        delivery._state = state

    def _fail(self, delivery: Delivery, unit: Unit, outcome: Failed, now: float, stopped: set[Hashable]) -> None:
        delivery.attempt += 1
        self._suspects.pop(delivery, None)
        pause_s = self.plan.pause_s(delivery.attempt - 1) if outcome.delay_s is None else outcome.delay_s
        if self.plan.blocks or delivery._lane is None:
            self._stop(delivery, unit, RESTING)
            if delivery._lane is not None:
                stopped.add(delivery._lane)
        else:
            self._leave(delivery, unit)
            self._handed -= 1
            delivery._lane = None
        self._rest(delivery, now + pause_s)

    def _rest(self, delivery: Delivery, due: float) -> None:
        delivery._state = RESTING
        self._tried[delivery] = due
        self._rests += 1
        heapq.heappush(self._resting, (due, self._rests, delivery))

    def start_over(self, delivery: Delivery) -> None:
        """Resets the attempts at a body that is out of attempts, for the next consumer: a running body, before `settle` releases it, or one
        of `condemned`, which is retried alone.
        """
        self._spread()
        delivery.attempt = 1
        self._tried.pop(delivery, None)
        if delivery._state == ENDED:
            delivery._state = WAITING
            self._handed -= 1
            self._suspects[delivery] = ALONE

    @property
    def next_due(self) -> float | None:
        """The end of the next pause, None if nothing rests."""
        return self._resting[0][0] if self._resting else None

    def wake(self, now: float) -> None:
        """Ends the pauses that are due."""
        while self._resting and self._resting[0][0] <= now:
            delivery = heapq.heappop(self._resting)[2]
            if delivery._state != RESTING:
                continue
            delivery._state = TRIED
            unit = self._resolve(delivery)
            if not isinstance(unit, Lane) or unit.items[unit.at] is delivery:
                self._queue(unit)

    # -- finishing and saving

    def finish_ended(self, count: int) -> None:
        """Finishes the first of the handled bodies, whose outputs are in the next commit."""
        if self._stretch is None:
            self.finish([self._ended.popleft() for _ in range(count)])
        elif count:
            self._stretch.finish(count)

    def finish(self, deliveries: Sequence[Delivery]) -> None:
        """Finishes bodies that were dead-lettered or skipped."""
        self._spread()
        self._bytes -= sum([len(delivery.message.payload) for delivery in deliveries])
        self._handed -= len(deliveries)
        if self._tried:
            for delivery in deliveries:
                self._tried.pop(delivery, None)
        self.sequence.finish(deliveries)

    def save(self, *, now: float, wall: float) -> SavedState:
        """Returns the state to commit with the position after `mark`: the finished, and the chosen or handed-out bodies."""
        saved = self._known
        if self._stretch is not None:
            runs, covered = self._stretch.saved()
        else:
            self.sequence.merge()
            runs, covered = self.sequence.runs(self._suspects, complete=saved is not None)
        tried = [
            Tried(self._position_of(item.message), item.attempt - 1, round((due - now + wall) * 1000))
            for item, due in self._tried.items()
            if item._state != DONE
        ]
        if saved is not None:
            after = covered
            for run in saved.runs:
                if after is None or run.last > after:
                    first_at = run.first if after is None or run.first > after else (after[0], after[1] + 1)
                    runs.append(UnfinishedRun(first_at, run.last, run.handed, run.suspicion))
            tried += self._known_tried.values()
            covered = saved.covered
        mark = self.sequence.mark
        # Nothing beyond the mark is covered, so the position alone describes the consumer.
        if covered is None or (not runs and mark is not None and covered <= self._position_of(mark)):
            return NO_STATE
        tried.sort(key=lambda entry: entry.at)
        return SavedState(self._incarnation, covered, tuple(runs), tuple(tried), self.handed, round(wall * 1000) if tried else 0)
