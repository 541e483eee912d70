"""Opening: takes over a log in a new term.

Owns the order of the steps: the term is claimed in the metadata; a fencing producer evicts the previous writer; a mark is written, after
which no frame of an earlier writer can count; the messages before the mark are read back; the mark is recorded in the metadata. Then the
log is open.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, Final

import msgspec

from wal.errors import ChannelFencedError, CorruptionError, WALError
from wal.storage.base import LogState
from wal.storage.pulsar.admin import Admin
from wal.storage.pulsar.checkpoints import read_state
from wal.storage.pulsar.connection import PulsarConnection, close_quietly, failure, is_one_of, patiently
from wal.storage.pulsar.control import Control, PulsarControlRecord
from wal.storage.pulsar.fencing_floor import FencingFloor
from wal.storage.pulsar.floor_index import FloorIndex
from wal.storage.pulsar.layout import Mark
from wal.storage.pulsar.ledgers import LedgerTable
from wal.storage.pulsar.positions import entry_of, ledger_of, text_of
from wal.storage.pulsar.recovery import end_before, missing_records
from wal.storage.pulsar.topic import move_cursor, send_mark
from wal.storage.pulsar.vchannel_index import VChannelIndex

TRIES: Final = 5
FENCED: Final = ("ProducerFenced", "AlreadyClosed")
_log: Final = logging.getLogger("wal.pulsar")


class Opened(msgspec.Struct):
    """A log that was taken over, for PulsarLog. `producer` is Pulsar's fencing producer."""

    connection: PulsarConnection
    control: Control
    producer: Any
    ledgers: LedgerTable
    floors: FloorIndex
    topic: str
    mark: Mark
    floor: FencingFloor
    state: LogState
    checkpoint: int | None
    index: VChannelIndex


async def open_log(
    connection: PulsarConnection, admin: Admin, control: Control, *, term: int, checkpoint: int | None, before: PulsarControlRecord
) -> Opened:
    """Takes over the log in `term`, which was claimed when the control record was `before`. Its topics exist.

    Raises CorruptionError when Pulsar has lost messages that the log, or its recovery from `checkpoint`, needs; ChannelFencedError when a
    higher term claimed the log meanwhile, or is in the log already.
    """
    topic, run = connection.address.topic(control.pchannel), connection.run
    mark = Mark(term, before.incarnation)
    producer, at = await _take_over(connection, control, topic, mark)
    try:
        floors = _known_floors(control, before)
        listed = await run(lambda: admin.ledgers(topic))
        # A ledger that Pulsar began after `at` is empty, and is counted with its first message.
        ledgers = LedgerTable([ledger for ledger in listed or () if ledger.number <= ledger_of(at)])
        ledgers.describe(control.ledgers)
        ledgers.added(at, 0)
        _check_kept(topic, control, before, ledgers, checkpoint, at)
        look = partial(end_before, connection, topic, incarnation=mark.incarnation, ledgers=ledgers, floors=floors, term_at=control.term_at)
        made = await run(lambda: missing_records(ledgers, look))
        end = await run(lambda: look(at))
        _check_above(control, term, end.floor)
        await control.change(term, terms={term: at}, ledgers=made)
    except BaseException:
        await asyncio.shield(asyncio.ensure_future(run(lambda: close_quietly(producer))))
        raise
    floor = FencingFloor(end.floor.term, end.floor.sequence)
    floor.mark(term)
    floors.add(at + 1, floor, lasting=True)
    last_term, last_sequence = end.last if end.last[1] >= 0 else (0, -1)
    state = LogState(
        at + 1,
        last_term,
        last_sequence,
        max(end.promised_tick, before.promised_tick),
        before.earliest,
        before.clean,
        end.newest or before.newest,
    )
    last = ledgers.last_below(before.kept_from)
    if last is not None:
        await run(lambda: move_cursor(connection, topic, last))
    ledgers.drop_below(before.kept_from)
    index = await _stored_index(connection, control)
    index.drop_below(before.kept_from)
    return Opened(connection, control, producer, ledgers, floors, topic, mark, floor, state, checkpoint, index)


def check_checkpoint(topic: str, record: PulsarControlRecord, checkpoint: int | None) -> None:
    """Raises CorruptionError when the log no longer holds the messages after this checkpoint."""
    if checkpoint is not None and checkpoint < record.kept_from:
        raise _lost_checkpoint(topic, record.kept_from, None, checkpoint)


async def _take_over(connection: PulsarConnection, control: Control, topic: str, mark: Mark) -> tuple[Any, int]:
    """Returns the producer, the only one from now on, and the position of its mark.

    A writer of a lower term may fence after this one. That writer then finds that it is too late, but it has fenced this producer as well,
    so another one fences again.
    """
    run = connection.run
    for attempt in range(1, TRIES + 1):
        producer = await run(lambda: patiently(connection, lambda: connection.producer(topic, fencing=True), f"taking over {topic}"))
        try:
            # After the fence: an owner that claims the log from now on fences this producer; an earlier claim is seen here.
            await control.check_owner(mark.term)
            return producer, await run(partial(send_mark, producer, mark))
        except BaseException as error:
            await asyncio.shield(asyncio.ensure_future(run(partial(close_quietly, producer))))
            if not isinstance(error, Exception):
                raise
            await control.check_owner(mark.term)
            if attempt == TRIES or not is_one_of(error, *FENCED):
                raise failure(error, f"taking over {topic}", connection.address) from error
    raise AssertionError


async def _stored_index(connection: PulsarConnection, control: Control) -> VChannelIndex:
    """Returns the index of vchannels as it was last stored. Without a readable index, reads fetch all frames before its start."""
    saved = control.record.index
    if saved is None:
        return VChannelIndex()
    topic = connection.address.checkpoints(control.pchannel)
    try:
        return VChannelIndex.decode(await connection.run(lambda: read_state(connection, topic, saved)))
    except WALError as error:
        _log.warning("the index of vchannels of pchannel %s is made anew from here on: %s", control.pchannel, error)
        return VChannelIndex()


def _check_above(control: Control, term: int, floor: FencingFloor) -> None:
    """Raises ChannelFencedError unless this term is above those in the log: readers would skip its frames, or take them for duplicates.

    The claim was above the terms in the metadata, so the metadata is older than the log: it was restored from a copy.
    """
    # A mark of this term without a frame is of an attempt of this opening.
    if floor.term > term or (floor.term == term and floor.sequence >= 0):
        raise ChannelFencedError(
            f"the log of pchannel {control.pchannel!r} was written in term {floor.term}, and its metadata, probably restored from "
            f"an older copy, is at term {term}: open it again until its term is above {floor.term} (a cluster does so by itself)",
            term=floor.term,
        )


def _known_floors(control: Control, record: PulsarControlRecord) -> FloorIndex:
    """Returns the fencing floors in the metadata."""
    floors = FloorIndex()
    floors.add(record.kept_from, FencingFloor(*record.floor), lasting=True)
    for term, position in control.terms.items():
        if position >= record.kept_from:
            floors.add(position + 1, FencingFloor(term, -1), lasting=True)
    return floors


def _check_kept(topic: str, control: Control, record: PulsarControlRecord, ledgers: LedgerTable, checkpoint: int | None, mark: int) -> None:
    """Raises CorruptionError when Pulsar has lost messages that were not released."""
    kept_from = record.kept_from
    if checkpoint is not None and checkpoint > mark:
        raise _lost_checkpoint(topic, kept_from, mark, checkpoint)
    there = {ledger.number: ledger.entries for ledger in ledgers.ledgers}
    known = {number: one.entries for number, one in control.ledgers.items()}
    for position in control.terms.values():
        known[ledger_of(position)] = max(known.get(ledger_of(position), 0), entry_of(position) + 1)
    for number, entries in sorted(known.items()):
        needed = number > ledger_of(kept_from) or (number == ledger_of(kept_from) and entries > entry_of(kept_from))
        if needed and there.get(number, 0) < entries:
            raise CorruptionError(
                f"Pulsar has {there.get(number, 0)} entries of ledger {number} of {topic}: it lost or deleted what the log still held",
                path=topic,
                offset=ledger_of(kept_from),
                expected=f"{entries} entries",
            )


def _lost_checkpoint(topic: str, kept: int, end: int | None, checkpoint: int) -> CorruptionError:
    extent = f"begins at {text_of(kept)}" if end is None else f"goes from {text_of(kept)} to {text_of(end)}"
    return CorruptionError(f"what {topic} holds {extent}", path=topic, expected=f"what follows its checkpoint at {text_of(checkpoint)}")
