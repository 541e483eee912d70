"""Reading: reads a whole log after a crash through scanners, in the ledger's form, and compares each way to resume with it."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.crash.body import claims_of
from tests.crash.ledger import Event, ObservedBody, Violation
from tests.crash.report import content
from wal import ImmutableMessage, ImmutableTxnMessage, MessageID, ReadPosition, StartAfter, WALAccesser


async def names_by_pchannel(log: WALAccesser) -> dict[str, list[str]]:
    """Returns the vchannels of each pchannel."""
    names: dict[str, list[str]] = {pchannel.name: [] for pchannel in log.statistics().pchannels}
    for info in await log.vchannels():
        names[info.pchannel].append(info.name)
    return names


async def read_log(log: WALAccesser) -> dict[str, list[Event]]:
    """Returns all events, read by a scanner for each pchannel."""
    return {pchannel: await _read(log, names, None) if names else [] for pchannel, names in (await names_by_pchannel(log)).items()}


async def check_resuming(log: WALAccesser, whole: dict[str, list[Event]], stored: Sequence[str], rng: random.Random) -> None:
    """Raises Violation unless every read that begins elsewhere gives exactly the rest of `whole`.

    The reads begin at the `stored` positions (texts, of followers that were killed); and on a random pchannel at a position taken from a
    random point of a read, after a random id, and with one vchannel alone.
    """
    names = await names_by_pchannel(log)
    for text in stored:
        position = ReadPosition.parse(text)
        pchannel = position.message_id.pchannel
        rest = [event for event in whole[pchannel] if event.message_id > position.message_id]
        _same(f"resuming at {text}", await _read(log, names[pchannel], position), rest)
    filled = [pchannel for pchannel, events in whole.items() if events]
    if not filled:
        return
    pchannel = rng.choice(filled)
    events = whole[pchannel]
    taken = rng.randint(1, len(events))
    position = await _position_after(log, names[pchannel], taken)
    what = f"resuming at {position}, taken after {taken} events of {pchannel}"
    _same(what, await _read(log, names[pchannel], position), events[taken:])
    at = rng.randrange(len(events))
    after = await _read(log, names[pchannel], StartAfter(events[at].message_id))
    _same(f"StartAfter({events[at].message_id})", after, events[at + 1 :])
    name = rng.choice(names[pchannel])
    _same(f"reading {name} alone", _bodies_on(name, await _read(log, [name], None)), _bodies_on(name, events))


def _bodies_on(name: str, events: Sequence[Event]) -> list[tuple[MessageID, list[ObservedBody]]]:
    """Returns the events with bodies on this vchannel, with those bodies only."""
    parts = [(event.message_id, [body for body in event.bodies if body.content.vchannel == name]) for event in events]
    return [part for part in parts if part[1]]


async def _read(log: WALAccesser, names: Sequence[str], start: ReadPosition | StartAfter | None) -> list[Event]:
    events: list[Event] = []
    policy = start if isinstance(start, StartAfter) else None
    resume = start if isinstance(start, ReadPosition) else None
    async with log.read(names, deliver_policy=policy, resume=resume, follow=False) as scanner:
        async for page in scanner.batches():
            events += [_event(message) for message in page]
    return events


async def _position_after(log: WALAccesser, names: Sequence[str], count: int) -> ReadPosition:
    """Returns a scanner's position after this many messages, parsed from its text."""
    async with log.read(names, follow=False) as scanner:
        for _ in range(count):
            await anext(scanner)
        position = scanner.position
    if position is None:
        raise Violation(f"a scanner has no position after {count} messages")
    return ReadPosition.parse(str(position))


def _event(message: ImmutableMessage) -> Event:
    bodies = []
    for body in message.bodies():
        try:
            claims = claims_of(body.payload)
        except ValueError as error:
            raise Violation(f"{body.message_id} on {body.vchannel}: {error}") from error
        what = content(body.vchannel, body.message_type, body.payload, body.properties)
        bodies.append(ObservedBody(what, body.time_tick, body.message_id, claims))
    return Event(message.message_id, message.time_tick, isinstance(message, ImmutableTxnMessage), tuple(bodies))


def _same(what: str, given: Sequence[object], expected: Sequence[object]) -> None:
    if list(given) == list(expected):
        return
    at = next((i for i, pair in enumerate(zip(given, expected, strict=False)) if pair[0] != pair[1]), None)
    differ = "one is longer" if at is None else f"first at {at}: {given[at]} is not {expected[at]}"
    raise Violation(f"{what} gives {len(given)} events, not the {len(expected)} expected ({differ})")
