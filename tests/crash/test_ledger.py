"""The judge of the crash tests: a correct log passes, and each broken guarantee is reported as such."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

from tests.crash.body import Body, Kind, claims_of
from tests.crash.ledger import Event, Ledger, ObservedBody, Violation
from tests.crash.reading import check_resuming, read_log
from tests.crash.report import Absent, Acked, AckedEvent, Delivered, content
from wal import Message, MessageID, open_wal

Log = dict[str, list[Event]]


def _body(op: int, vchannel: str, kind: Kind = Kind.PLAIN, index: int = 0, count: int = 1, *, round: int = 0, worker: int = 0) -> bytes:
    return Body(round, worker, op, kind, index, count, vchannel).payload(random.Random(op), 20)


def _event(position: int, *bodies: bytes, pchannel: str = "p-0", tick: int | None = None, transaction: bool = False) -> Event:
    """Returns an event at this position; its tick is ten times the position, unless given."""
    at = MessageID(pchannel, 7, position, 0)
    tick = position * 10 if tick is None else tick
    observed = [
        ObservedBody(
            content(Body.parse(claims_of(payload)).vchannel, 2, payload, {}),
            tick,
            msgspec.structs.replace(at, index=index),
            claims_of(payload),
        )
        for index, payload in enumerate(bodies)
    ]
    return Event(at, tick, transaction, tuple(observed))


def _txn(position: int, op: int, count: int, **event: object) -> Event:
    bodies = [_body(op, f"v-{index % 2}", Kind.TXN, index, count) for index in range(count)]
    return _event(position, *bodies, transaction=True, **event)  # type: ignore[arg-type]


def _acked(*events: Event, op: int, worker: int = 0, round: int = 0) -> Acked:
    return Acked(
        round, worker, op, [AckedEvent(str(event.message_id), event.time_tick, [body.content for body in event.bodies]) for event in events]
    )


def _story() -> tuple[Ledger, Log]:
    """Returns a correct run: its reports, and a log that holds the reported events and those in flight."""
    log = {
        "p-0": [
            _event(1, _body(1, "v-0")),
            _txn(2, 2, 3),
            *(_event(3 + index, _body(3, "v-0", Kind.SERIES, index, 4)) for index in range(3)),
            _event(6, transaction=True),
            _txn(7, 7, 2),
            _event(8, _body(8, "v-1")),
        ],
        "p-1": [_event(1, _body(9, "w-0"), pchannel="p-1", tick=15)],
    }
    ledger = Ledger()
    ledger.round_begins(0)
    first, txn, *series = log["p-0"][:5]
    ledger.acked(_acked(first, op=1))
    ledger.acked(_acked(txn, op=2))
    ledger.acked(_acked(*series[:2], op=3))
    ledger.acked(_acked(log["p-0"][5], op=4))
    ledger.acked(_acked(log["p-1"][0], op=9, worker=1))
    ledger.absent(Absent(0, 0, 5, "expired"))
    last = log["p-0"][-1]
    ledger.delivered(Delivered([(str(last.message_id), last.time_tick)], "…"))
    return ledger, log


def test_honest_log_passes_again_and_again() -> None:
    ledger, log = _story()
    ledger.check(log)
    ledger.check(log)
    ledger.round_begins(1)
    grown = _event(9, _body(1, "v-0", round=1))
    ledger.acked(_acked(grown, op=1, round=1))
    log["p-0"].append(grown)
    ledger.check(log)
    assert ledger.acked_events == 7
    assert ledger.seen == log


def _lose(at: int, pchannel: str = "p-0") -> Callable[[Log], None]:
    return lambda log: log[pchannel].__delitem__(at)


def _put(at: int, event: Event) -> Callable[[Log], None]:
    return lambda log: log["p-0"].__setitem__(at, event)


def _add(event: Event) -> Callable[[Log], None]:
    return lambda log: log["p-0"].append(event)


def _drop_body(log: Log) -> None:
    txn = log["p-0"][6]
    log["p-0"][6] = msgspec.structs.replace(txn, bodies=txn.bodies[:1])


def _reorder_bodies(log: Log) -> None:
    txn = _txn(7, 7, 4)
    log["p-0"][6] = msgspec.structs.replace(txn, bodies=txn.bodies[::-1])


def _as_plain(log: Log) -> None:
    log["p-0"][6] = _event(7, _body(7, "v-0", Kind.TXN, 0, 1))


def test_each_damage_is_seen(subtests: pytest.Subtests) -> None:
    damages: dict[str, tuple[Callable[[Log], None], str]] = {
        "an acknowledged message lost": (_lose(0), "acknowledged and is lost"),
        "an acknowledged transaction lost": (_lose(1), "acknowledged and is lost"),
        "an empty transaction lost": (_lose(5), "acknowledged and is lost"),
        "an acknowledged message of the other pchannel lost": (_lose(0, "p-1"), "acknowledged and is lost"),
        "all of a pchannel lost": (lambda log: log["p-1"].clear(), "acknowledged and is lost"),
        "a delivered message lost": (_lose(7), "delivered to a follower and is lost"),
        "other content": (_put(0, _event(1, _body(10, "v-0"))), "not what is read"),
        "another tick": (_put(0, _event(1, _body(1, "v-0"), tick=11)), "acknowledged with tick 10, read with 11"),
        "a repeated transaction": (_add(_txn(9, 2, 3)), "its transaction is there 2 times"),
        "a repeated message": (_add(_event(9, _body(1, "v-0"))), "of 1 appends in order there are"),
        "ids out of order": (_add(_event(5, _body(11, "v-0"), tick=99)), "id p-0:7:5:0 follows"),
        "ticks out of order": (_add(_event(9, _body(11, "v-0"), tick=80)), "tick 80 follows 80"),
        "a tick used twice": (
            lambda log: log["p-1"].append(_event(2, _body(13, "w-0"), pchannel="p-1", tick=80)),
            "another pchannel has a tick of it",
        ),
        "half a transaction": (_drop_body, "a transaction of 2 bodies has"),
        "bodies out of order": (_reorder_bodies, "are out of order"),
        "a transaction as a plain message": (_as_plain, "delivered as a plain message"),
        "a rolled-back body": (_add(_event(9, _body(11, "v-0", Kind.ROLLED_BACK))), "that was rolled back"),
        "a refused operation": (_add(_event(9, _body(5, "v-0"))), "its operation was refused: expired"),
        "a gap in a series": (_lose(3), "of 4 appends in order there are"),
        "a gap in what nobody acknowledged": (_add(_event(9, _body(12, "v-0", Kind.SERIES, 1, 3))), "of 3 appends in order there are"),
        "a message on another vchannel": (
            _add(
                msgspec.structs.replace(
                    (moved := _event(9, _body(11, "v-0"))),
                    bodies=(msgspec.structs.replace(moved.bodies[0], content=content("v-1", 2, b"", {})),),
                )
            ),
            "was read on v-1",
        ),
        "a body with a tick of its own": (
            _add(
                msgspec.structs.replace(
                    (lone := _event(9, _body(11, "v-0"))), bodies=(msgspec.structs.replace(lone.bodies[0], time_tick=1),)
                )
            ),
            "has tick 1, its event 90",
        ),
        "two operations in one event": (
            _add(_event(9, _body(11, "v-0"), _body(12, "v-0"), transaction=True)),
            "holds bodies of operations",
        ),
    }

    for damage in damages:
        with subtests.test(repr(damage)):
            ledger, log = _story()
            apply, text = damages[damage]
            apply(log)
            with pytest.raises(Violation, match=text):
                ledger.check(log)


@pytest.mark.parametrize("at", [0, 3, 7])
def test_messages_read_once_stay(at: int) -> None:
    ledger, log = _story()
    ledger.check(log)
    del log["p-0"][at]
    with pytest.raises(Violation, match=f"from event {at} "):
        ledger.check(log)


def test_nothing_of_an_earlier_round_appears_late() -> None:
    ledger, log = _story()
    ledger.check(log)
    ledger.round_begins(1)
    log["p-0"].append(_event(9, _body(11, "v-0", round=0)))
    with pytest.raises(Violation, match="appears only now, after rounds 1 to 1"):
        ledger.check(log)


def test_acknowledgements_are_judged_as_they_come() -> None:
    ledger, log = _story()
    with pytest.raises(Violation, match="was acknowledged twice"):
        ledger.acked(_acked(log["p-0"][0], op=20, worker=5))
    with pytest.raises(Violation, match="is not above 60, which was acknowledged before"):
        ledger.acked(_acked(_event(40, tick=60), op=21))
    with pytest.raises(Violation, match="which was given before it"):
        ledger.acked(_acked(_event(41, tick=410), _event(40, tick=420), op=22))
    ledger, log = _story()
    ledger.check(log)
    ledger.round_begins(1)
    with pytest.raises(Violation, match="is not above 80, which was acknowledged before"):
        ledger.acked(_acked(_event(42, tick=79), op=1, round=1))


def test_damaged_payload_makes_no_claims() -> None:
    payload = bytearray(_body(1, "v-0"))
    payload[3] ^= 1
    with pytest.raises(ValueError, match="wrong CRC"):
        claims_of(bytes(payload))


async def test_resuming_is_compared_with_the_whole() -> None:
    async with open_wal("memory:") as log:
        for op in range(40):
            await log.raw_append(Message("v-0", _body(op, "v-0")))
        async with log.read("v-0", follow=False) as scanner:
            for _ in range(20):
                await anext(scanner)
            stored = str(scanner.position)
        whole = await read_log(log)
        await check_resuming(log, whole, [stored], random.Random(1))
        (events,) = whole.values()
        assert len(events) == 40
        del events[30]
        with pytest.raises(Violation, match="gives 20 events, not the 19 expected"):
            await check_resuming(log, whole, [stored], random.Random(1))
        with pytest.raises(Violation, match=r"gives \d+ events, not the \d+ expected"):
            await check_resuming(log, whole, [], random.Random(1))
