"""Checker: judges a history against the log as it is at the end: appends, reads and MVCC answers are linearizable.

An append takes effect at its tick, which nothing shares, so the order of the effects is known and one pass in the order of time judges it.
`check` returns every contradiction as a sentence. Pure.

What holds: what was acknowledged is in the log once, at its tick; what was refused is not, and what has an unknown outcome at most once; a
keyed append once in all, and with one result; a scheduled one too, not before its time; a transaction is whole, at one tick, or not there;
a broadcast is on all its vchannels. An append that began after another one of its pchannel had ended has a larger tick. An MVCC answer T
covers every append that ended before it was asked for, and no append that began after it was given has a tick up to T. A reader saw the log
of its vchannel without gap or duplicate, and a read that ended at the end saw everything that was acknowledged before it began, everything
that an earlier read had seen, and everything up to each MVCC answer that was given before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence

from tests.simulation.history import Follower, History, Kind, LoggedEvent, Operation, Outcome

_WRITES = (Kind.APPEND, Kind.KEYED, Kind.TXN, Kind.BROADCAST, Kind.SCHEDULED)


def check(history: History, log: Sequence[LoggedEvent], pchannels: dict[str, str]) -> list[str]:
    """Returns the violations of the guarantees. `pchannels` are the vchannels' pchannels."""
    faults = list(history.faults)
    by_vchannel: dict[str, list[LoggedEvent]] = {name: [] for name in pchannels}
    for event in log:
        by_vchannel.setdefault(event.vchannel, []).append(event)
    found = {name: _ticks_of(events) for name, events in by_vchannel.items()}
    written: dict[str, set[bytes]] = {}
    for operation in history.operations:
        if operation.kind in _WRITES:
            for vchannel in operation.vchannels:
                written.setdefault(vchannel, set()).update(operation.payloads)
            faults += _presence(operation, found)
    for name, ticks in found.items():
        for payload in ticks.keys() - written.get(name, set()):
            faults.append(f"{payload!r} is in {name}, and nobody wrote it")
    faults += _real_time(history.operations, pchannels)
    faults += _mvcc(history.operations, log, pchannels, found)
    for follower in history.followers:
        faults += _followed(follower, by_vchannel.get(follower.vchannel, []))
    for name, events in by_vchannel.items():
        faults += _later_reads([each for each in history.operations if each.vchannels == (name,)], events)
    for operation in history.operations:
        if operation.kind is Kind.READ and operation.outcome is Outcome.DONE:
            faults += _read(operation, history.operations, by_vchannel.get(operation.vchannels[0], []))
    return faults


def _ticks_of(events: Iterable[LoggedEvent]) -> dict[bytes, list[int]]:
    ticks: dict[bytes, list[int]] = {}
    for event in events:
        ticks.setdefault(event.payload, []).append(event.tick)
    return ticks


def _presence(operation: Operation, found: dict[str, dict[bytes, list[int]]]) -> list[str]:
    """Judges whether what an operation wrote is there as often as it must be."""
    faults = []
    there: list[int] = []
    for vchannel in operation.vchannels:
        for payload in operation.payloads:
            ticks = found.get(vchannel, {}).get(payload, [])
            there.append(len(ticks))
            if len(ticks) > 1:
                faults.append(f"{payload!r} is in {vchannel} {len(ticks)} times, at {ticks}: {operation}")
            tick = operation.ticks.get(vchannel)
            if operation.outcome is Outcome.DONE and tick is not None and ticks[:1] != [tick]:
                faults.append(f"{payload!r} was acknowledged at {tick} in {vchannel}, where it is at {ticks or 'no tick'}: {operation}")
            if ticks and ticks[0] < operation.due_tick:
                faults.append(f"{payload!r} is in {vchannel} at {ticks[0]}, before its time {operation.due_tick}: {operation}")
            if operation.outcome is Outcome.REFUSED and ticks and operation.kind is not Kind.BROADCAST:
                faults.append(f"{payload!r} was refused and is in {vchannel} at {ticks}: {operation}")
    if len(set(there)) > 1:
        faults.append(f"a part of it is there, and another is not ({there}): {operation}")
    if operation.kind is Kind.TXN and all(there):
        (vchannel,) = operation.vchannels
        if len({found[vchannel][payload][0] for payload in operation.payloads}) > 1:
            faults.append(f"its bodies have several ticks: {operation}")
    return faults


def _real_time(operations: Iterable[Operation], pchannels: dict[str, str]) -> list[str]:
    """An append that began after another one of its pchannel, or of its client, had ended has a larger tick."""
    faults = []
    appends = [
        (each.began_s, each.ended_s, pchannels.get(vchannel, ""), tick, each)
        for each in operations
        if each.kind in (Kind.APPEND, Kind.TXN) and each.outcome is Outcome.DONE
        for vchannel, tick in each.ticks.items()
    ]
    for scope in ("pchannel", "client"):
        ended: list[tuple[float, str, int, Operation]] = sorted(
            ((end, pchannel if scope == "pchannel" else each.client, tick, each) for _, end, pchannel, tick, each in appends),
            key=lambda one: one[0],
        )
        newest: dict[str, tuple[int, Operation]] = {}
        at = 0
        for began, _, pchannel, tick, operation in sorted(appends, key=lambda one: one[0]):
            while at < len(ended) and ended[at][0] < began:
                _, name, old, before = ended[at]
                if old > newest.get(name, (0, before))[0]:
                    newest[name] = old, before
                at += 1
            name = pchannel if scope == "pchannel" else operation.client
            if name in newest and tick <= newest[name][0]:
                faults.append(f"tick {tick} is not above {newest[name][0]}, of an append that ended before: {operation}; {newest[name][1]}")
    return faults


def _mvcc(
    operations: Iterable[Operation], log: Iterable[LoggedEvent], pchannels: dict[str, str], found: dict[str, dict[bytes, list[int]]]
) -> list[str]:
    """Judges the MVCC answers, whose tick is in `ticks` of their vchannel."""
    faults = []
    answers = [each for each in operations if each.kind is Kind.MVCC and each.outcome is Outcome.DONE]
    writes: dict[str, list[tuple[Operation, int]]] = {}
    for each in operations:
        if each.kind in (Kind.APPEND, Kind.TXN):
            for vchannel in each.vchannels:
                for tick in found.get(vchannel, {}).get(each.payloads[0], [])[:1]:
                    writes.setdefault(pchannels.get(vchannel, ""), []).append((each, tick))
    for answer in answers:
        (vchannel,) = answer.vchannels
        promised = answer.ticks[vchannel]
        for write, tick in writes.get(pchannels.get(vchannel, ""), []):
            if write.ended_s < answer.began_s and write.outcome is Outcome.DONE and tick > promised:
                faults.append(f"the answer {promised} does not cover {tick}, of an append that ended before: {answer}; {write}")
            if write.began_s > answer.ended_s and tick <= promised:
                faults.append(f"tick {tick} was given after {promised} was promised: {answer}; {write}")
    return faults


def _followed(follower: Follower, log: Sequence[LoggedEvent]) -> list[str]:
    """A reader that follows from the beginning saw the log of its vchannel, up to some event."""
    expected = [(event.payload, event.tick) for event in log]
    if follower.seen == expected[: len(follower.seen)]:
        return []
    at = next((number for number, pair in enumerate(follower.seen) if pair != (expected[number] if number < len(expected) else None)), 0)
    name = f"reader {follower.client} of {follower.vchannel}, resumed {follower.resumed} times"
    twice = [payload for payload, count in Counter(payload for payload, _ in follower.seen).items() if count > 1]
    return [
        f"{name}, saw {follower.seen[at]} as event {at}, and the log has {expected[at] if at < len(expected) else 'none'} there"
        + (f"; it saw twice: {twice[:3]}" if twice else "")
    ]


def _read(read: Operation, operations: Iterable[Operation], log: Sequence[LoggedEvent]) -> list[str]:
    """A read to the end saw the log from its beginning, with everything that was acknowledged before it began."""
    payloads = [event.payload for event in log]
    faults = []
    if list(read.payloads) != payloads[: len(read.payloads)]:
        faults.append(f"a read of {read.vchannels[0]} is not the beginning of the log: {read}")
    seen = set(read.payloads)
    for each in operations:
        if each.kind in _WRITES and each.outcome is Outcome.DONE and each.ended_s < read.began_s and read.vchannels[0] in each.ticks:
            for payload in each.payloads:
                if payload not in seen:
                    faults.append(f"{payload!r} was acknowledged before this read began, which misses it: {each}; {read}")
    return faults


def _later_reads(operations: Sequence[Operation], log: Sequence[LoggedEvent]) -> list[str]:
    """A read saw at least what reads that had ended before saw, and all events up to the MVCC answers that were given before."""
    ticks = [event.tick for event in log]
    done = [each for each in operations if each.outcome is Outcome.DONE and each.kind in (Kind.READ, Kind.MVCC)]
    ended = sorted(done, key=lambda each: each.ended_s)
    faults = []
    least, why, at = 0, "", 0
    for read in sorted((each for each in done if each.kind is Kind.READ), key=lambda each: each.began_s):
        while at < len(ended) and ended[at].ended_s < read.began_s:
            before = ended[at]
            count = len(before.payloads) if before.kind is Kind.READ else bisect_right(ticks, before.ticks[before.vchannels[0]])
            if count > least:
                least, why = count, str(before)
            at += 1
        if len(read.payloads) < least:
            faults.append(f"this read saw {len(read.payloads)} events, and {least} were there when it began: {read}; {why}")
    return faults
