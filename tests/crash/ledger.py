"""Ledger: records what a log must hold after a crash, and checks what it does hold. Pure: it never opens a log.

It gets every acknowledgement, every refused operation and all messages that followers received; after each crash it gets the whole log. It
remembers the log of the previous crash: a log may only grow, and only by events written since.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tests.crash.body import Body, Kind
from tests.crash.report import Absent, Acked, AckedEvent, Content, Delivered
from wal import MessageID


class Violation(AssertionError):
    """The log broke a guarantee."""


class ObservedBody(msgspec.Struct, frozen=True):
    """A body as a scanner delivered it, with the claims of its payload (for `Body.parse`)."""

    content: Content
    time_tick: int
    message_id: MessageID
    claims: bytes


class Event(msgspec.Struct, frozen=True):
    """A message as a scanner delivered it."""

    message_id: MessageID
    time_tick: int
    transaction: bool
    bodies: tuple[ObservedBody, ...]


_Claimed = tuple[bool, list[Body]]
"""Returns the shape of an event: whether it is a transaction, and the claims of its bodies."""


class Ledger:
    """`seen` is the log as of the last check, by pchannel."""

    def __init__(self) -> None:
        self.seen: dict[str, list[Event]] = {}
        self.acked_events = 0
        self._acked: dict[str, AckedEvent] = {}
        self._absent: dict[tuple[int, int, int], str] = {}
        self._delivered: dict[str, int] = {}
        self._rounds_seen = -1
        self._newest_round = -1
        self._newest_tick = 0
        self._tick_before_round = 0
        self._worker_ticks: dict[int, int] = {}

    # -- reports

    def round_begins(self, number: int) -> None:
        """Begins a round, to which later operations belong; their ticks are above all acknowledged before."""
        self._newest_round = number
        self._tick_before_round = self._newest_tick
        self._worker_ticks = {}

    def acked(self, report: Acked) -> None:
        """Records appends that returned. Each worker waits for one operation before the next, so its ticks rise; in a pchannel so do the
        ids."""
        newest_ids: dict[str, MessageID] = {}
        floor = max(self._tick_before_round, self._worker_ticks.get(report.worker, 0))
        for event in report.events:
            _require(
                event.time_tick > floor,
                f"worker {report.worker} op {report.op}: tick {event.time_tick} is not above {floor}, which was acknowledged before",
            )
            message_id = MessageID.parse(event.message_id)
            before = newest_ids.get(message_id.pchannel)
            _require(
                before is None or message_id > before,
                f"worker {report.worker} op {report.op}: id {message_id} is not above {before}, which was given before it",
            )
            newest_ids[message_id.pchannel] = message_id
            _require(event.message_id not in self._acked, f"id {event.message_id} was acknowledged twice")
            self._acked[event.message_id] = event
            self._newest_tick = max(self._newest_tick, event.time_tick)
            self._worker_ticks[report.worker] = max(self._worker_ticks.get(report.worker, 0), event.time_tick)
        self.acked_events += len(report.events)

    def absent(self, report: Absent) -> None:
        """Records a refused operation: no part of it may ever be in the log."""
        self._absent[(report.round, report.worker, report.op)] = report.why

    def delivered(self, report: Delivered) -> None:
        """Records messages that a follower received: delivered messages are durable."""
        self._delivered |= report.events

    # -- checks

    def check(self, log: Mapping[str, Sequence[Event]]) -> None:
        """Judges the whole log after a crash; raises Violation if anything is wrong."""
        ticks: set[int] = set()
        by_id: dict[str, Event] = {}
        for pchannel in self.seen.keys() | log.keys():
            events = list(log.get(pchannel, ()))
            seen = self.seen.get(pchannel, [])
            _require(
                events[: len(seen)] == seen,
                f"{pchannel}: what was read before is not what is read now, from event {_first_difference(seen, events)} on",
            )
            _check_order(pchannel, events)
            _require(ticks.isdisjoint(event.time_tick for event in events), f"{pchannel}: another pchannel has a tick of it")
            ticks.update(event.time_tick for event in events)
            new = events[len(seen) :]
            self._check_units(pchannel, new)
            by_id.update((str(event.message_id), event) for event in new)
            self.seen[pchannel] = events
        self._check_acked(by_id)
        for message_id, tick in self._delivered.items():
            event = by_id.get(message_id)
            _require(event is not None, f"{message_id} was delivered to a follower and is lost")
            assert event is not None
            _require(event.time_tick == tick, f"{message_id} was delivered with tick {tick}, is now {event.time_tick}")
        self._acked.clear()
        self._delivered.clear()
        self._rounds_seen = self._newest_round
        self._newest_tick = max(ticks, default=self._newest_tick)

    def _check_acked(self, by_id: Mapping[str, Event]) -> None:
        for message_id, acked in self._acked.items():
            event = by_id.get(message_id)
            _require(event is not None, f"{message_id} (tick {acked.time_tick}) was acknowledged and is lost")
            assert event is not None
            _require(
                event.time_tick == acked.time_tick,
                f"{message_id} was acknowledged with tick {acked.time_tick}, read with {event.time_tick}",
            )
            _require(
                _by_vchannel(body.content for body in event.bodies) == _by_vchannel(acked.bodies),
                f"{message_id}: what was acknowledged is not what is read: {acked.bodies} and {event.bodies}",
            )

    def _check_units(self, pchannel: str, events: Sequence[Event]) -> None:
        """Checks that each new operation in this pchannel is there once, and as complete as its kind requires."""
        units: dict[tuple[int, int, int], list[_Claimed]] = {}
        for event in events:
            if not event.bodies:  # only a transaction can be empty, and then it makes no claims
                _require(event.transaction, f"{event.message_id}: a plain message without its body")
                continue
            bodies = [Body.parse(body.claims) for body in event.bodies]
            for body, claims in zip(event.bodies, bodies, strict=True):
                at = f"{event.message_id}: {claims}"
                _require(claims.kind is not Kind.ROLLED_BACK, f"{at} is of a transaction that was rolled back")
                _require(claims.vchannel == body.content.vchannel, f"{at} was read on {body.content.vchannel}")
                why = self._absent.get(claims.operation)
                _require(why is None, f"{at} is in the log, but its operation was refused: {why}")
                _require(
                    self._rounds_seen < claims.round <= self._newest_round,
                    f"{at} appears only now, after rounds {self._rounds_seen + 1} to {self._newest_round}",
                )
                _require(body.time_tick == event.time_tick, f"{at} has tick {body.time_tick}, its event {event.time_tick}")
            operations = {claims.operation for claims in bodies}
            _require(len(operations) == 1, f"{event.message_id} holds bodies of operations {operations}")
            units.setdefault(operations.pop(), []).append((event.transaction, bodies))
        for operation, unit in units.items():
            _check_unit(f"{pchannel}: operation {operation}", unit)


def _check_unit(what: str, unit: Sequence[_Claimed]) -> None:
    transaction, bodies = unit[0]
    first = bodies[0]
    if first.kind is Kind.TXN:
        _require(len(unit) == 1, f"{what}: its transaction is there {len(unit)} times")
        _require(transaction, f"{what}: its transaction was delivered as a plain message")
        indices = [claims.index for claims in bodies]
        _require(sorted(indices) == list(range(first.count)), f"{what}: a transaction of {first.count} bodies has {indices}")
        for name in {claims.vchannel for claims in bodies}:
            indices = [claims.index for claims in bodies if claims.vchannel == name]
            _require(indices == sorted(indices), f"{what}: the bodies on {name} are out of order: {indices}")
        return
    _require(not any(entry[0] for entry in unit), f"{what}: plain messages were delivered as a transaction")
    indices = [claims.index for _, (claims,) in unit]
    _require(
        indices == list(range(len(indices))) and len(indices) <= first.count,
        f"{what}: of {first.count} appends in order there are {indices}",
    )


def _check_order(pchannel: str, events: Sequence[Event]) -> None:
    for before, event in itertools.pairwise(events):
        _require(event.message_id > before.message_id, f"{pchannel}: id {event.message_id} follows {before.message_id}")
        _require(event.time_tick > before.time_tick, f"{pchannel}: tick {event.time_tick} follows {before.time_tick}")


def _by_vchannel(contents: Iterable[Content]) -> dict[str, list[Content]]:
    grouped: dict[str, list[Content]] = {}
    for content in contents:
        grouped.setdefault(content.vchannel, []).append(content)
    return grouped


def _first_difference(seen: Sequence[Event], events: Sequence[Event]) -> str:
    for at, event in enumerate(seen):
        if at >= len(events):
            return f"{at} ({event.message_id}: lost)"
        if events[at] != event:
            return f"{at} ({event} became {events[at]})"
    return "none"


def _require(condition: bool, violation: str) -> None:
    if not condition:
        raise Violation(violation)
