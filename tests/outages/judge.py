"""Judges a log after the kill tests: reads it with a local reader, and compares it with the reports of the clients."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence

from tests.outages.client import END
from tests.outages.report import Call, Outcome, Report, Session, claims_of
from wal import ImmutableMessage, WALAccesser

Key = tuple[int, int]
"""A client and the number of a call."""


class Unit:
    """The messages of one call in the order of the log, with the indices of their bodies."""

    def __init__(self) -> None:
        self.messages: list[tuple[ImmutableMessage, list[int]]] = []


async def judge(log: WALAccesser, sides: Sequence[Sequence[str]], reports: Mapping[int, Report]) -> None:
    """Raises AssertionError for anything that a guarantee forbids."""
    calls = {(client, call.number): call for client, report in reports.items() for call in report.calls}
    units: dict[Key, Unit] = defaultdict(Unit)
    for number, side in enumerate(sides):
        async with log.read(list(side), follow=False) as scanner:
            messages = [message async for message in scanner]
        ids = [message.message_id for message in messages]
        assert ids == sorted(set(ids)), "the log has an order, and no id twice"
        ticks = [message.time_tick for message in messages]
        assert ticks == sorted(set(ticks))
        _take(messages, units, calls)
        texts = list(map(str, ids))
        for client, report in reports.items():
            assert report.scanned[number] == texts, (
                f"client {client} was given something else: {_difference(report.scanned[number], texts)}"
            )
            _check_sessions([one for one in report.sessions if one.side == number], texts)
    assert set(units) <= set(calls), f"in the log without a call: {set(units) - set(calls)}"
    for key, call in calls.items():
        _check(f"call {key[1]} of client {key[0]}, {call}", call, units[key].messages if key in units else [])
    assert await log.broadcast().tasks() == [], "all copies were acknowledged"


def _take(messages: Sequence[ImmutableMessage], units: dict[Key, Unit], calls: Mapping[Key, Call]) -> None:
    """Adds the messages of one pchannel to the units; checks that the ordered calls of each client are in their order."""
    newest: dict[int, int] = {}
    for message in messages:
        if [body.payload for body in message.bodies()] == [END]:
            continue
        claims = [claims_of(body.payload) for body in message.bodies()]
        keys = {claim[:2] for claim in claims}
        assert len(keys) == 1, f"{message.message_id} has bodies of calls {keys}"
        client, number = key = keys.pop()
        units[key].messages.append((message, [claim[2] for claim in claims]))
        if key in calls and calls[key].ordered:
            assert number > newest.get(client, 0), f"call {number} of client {client} comes after {newest[client]}"
            newest[client] = number


def _check(what: str, call: Call, found: list[tuple[ImmutableMessage, list[int]]]) -> None:
    match call.outcome:
        case Outcome.DONE:
            assert found, f"acknowledged and lost: {what}"
        case Outcome.NOTHING:
            assert not found, f"refused, and in the log: {what}"
    if not found:
        return
    messages = [message for message, _ in found]
    if call.broadcast:
        assert sorted(message.vchannel for message in messages) == sorted(call.vchannels), what
        assert all(message.broadcast is not None for message in messages)
    else:
        assert len(found) == 1, f"{len(found)} times in the log: {what}"
        ((message, indices),) = found
        assert sorted(indices) == list(range(call.count)), f"it has the bodies {indices}: {what}"
        if call.transaction:
            assert set(message.vchannels) == set(call.vchannels), what  # type: ignore[attr-defined]
            by_name = {name: [claims_of(body.payload)[2] for body in message.bodies() if body.vchannel == name] for name in call.vchannels}
            assert all(indices == sorted(indices) for indices in by_name.values()), what
        else:
            assert [message.vchannel] == call.vchannels
    if call.ids:
        assert set(call.ids) == {str(message.message_id) for message in messages}, what


def _check_sessions(sessions: Sequence[Session], ids: Sequence[str]) -> None:
    """Checks that each session begins where the newest save before it was, and has no gap and nothing twice."""
    at = 0
    for session in sessions:
        assert session.ids == ids[at : at + len(session.ids)], f"a session that begins at {at}: {_difference(session.ids, ids[at:])}"
        at += session.saved
    assert at == len(ids), "the last session has read everything"


def _difference(given: Sequence[str], expected: Sequence[str]) -> str:
    for at, (one, other) in enumerate(itertools.zip_longest(given, expected)):
        if one != other:
            return f"{len(given)} messages for {len(expected)}, at {at} {one} for {other}"
    return "none"
