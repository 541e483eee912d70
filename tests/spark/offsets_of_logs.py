"""Offsets of a query over a journal, computed from the journal itself."""

from __future__ import annotations

from pathlib import Path

from wal import MessageID
from wal.read.read_only_core import ReadOnlyCore
from wal.read.sources import ReadOnlyJournalSource
from wal.spark.offsets import PChannelOffset, StreamOffset


def end_of(directory: Path) -> StreamOffset:
    """Returns the offset after all durable events."""
    journal = ReadOnlyCore(ReadOnlyJournalSource(directory))
    journal.open()
    try:
        journal.look()
        places = {}
        for name, log in journal.logs.items():
            state = log.refresh()
            places[name] = PChannelOffset(name, log.incarnation, (state.durable_end, 0), state.promised_tick)
        return StreamOffset(places)
    finally:
        journal.close()


def place_behind(message_id: MessageID | None, directory: Path) -> StreamOffset:
    """Returns the offset after this event of a journal with one pchannel; for None, the beginning."""
    (end,) = end_of(directory).pchannels.values()
    place = (0, 0) if message_id is None else (message_id.position, message_id.index + 1)
    return StreamOffset({end.pchannel: end.moved(place, 0)})


def vchannels_of(directory: Path) -> dict[str, int]:
    """Returns the incarnation of each vchannel in the maps for readers."""
    journal = ReadOnlyCore(ReadOnlyJournalSource(directory))
    journal.open()
    try:
        return {name: info.incarnation for name, info in journal.look().records.items()}
    finally:
        journal.close()
