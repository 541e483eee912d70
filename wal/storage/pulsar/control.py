"""Control: a log's records in the metadata, and their changes by its owner.

Owns: the records below `<pchannel>/` in a `RecordStore` (the metadata of the WAL): `control`, one `terms/…` for each term that owned
the log (the position of its mark) and one `ledgers/…` for each full ledger. Every change is one compare-and-swap on `control`, which has
the term of the owner: a fenced writer changes nothing, and gets ChannelFencedError.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Final, Protocol

import msgspec

from wal.errors import ChannelFencedError, CorruptionError, corruption
from wal.storage.base import not_above, other_term
from wal.storage.pulsar.ledgers import LedgerRecord

CHANGES_MAX: Final = 100
"""The most records in one swap, below the 128 operations that every KV accepts."""
VERSION: Final = 1


class RecordStore(Protocol):
    """The metadata calls that a log needs: a KV of the WAL, under its own root path."""

    async def find(self, key: str) -> str | None:
        """Returns the value of `key`; raises KeyNotExistError."""

    async def load_with_prefix(self, prefix: str) -> tuple[list[str], list[str]]:
        """Returns the keys that start with `prefix`, and their values."""

    async def compare_and_swap(
        self, key: str, expected: str | None, value: str, *, saves: Mapping[str, str] | None = None, removals: Sequence[str] = ()
    ) -> bool:
        """Sets `key` to `value` if its value is `expected`, with `saves` and `removals`; returns whether it did."""


class StoredState(msgspec.Struct, frozen=True, gc=False):
    """The location of a checkpoint's state in the topic of checkpoints: positions `first` to `last`, its `save`, and its CRC32C."""

    first: int
    last: int
    save: str
    size: int
    crc: int


class PulsarControlRecord(msgspec.Struct, frozen=True):
    """The control record of a log. `term`: that of the owner, 0 before the first. `earliest`: the first event that is not truncated.

    `floor`: the (term, sequence) of the last frame before `kept_from`, below which messages may be gone. `clean`, `promised_tick`,
    `newest`, `end`: as the last writer stored them when it closed the log. `last_truncated`: the newest event below `earliest`, if known;
    `truncated_tick`: as `ReadableLog.truncated_tick`. `states`: the checkpoints, by position. `index`: the index of vchannels, see
    `vchannel_index.py`. `intent`: how far the log may be truncated next, see `PChannelLog.intend`.
    """

    version: int
    incarnation: int
    term: int = 0
    clean: bool = True
    promised_tick: int = msgspec.field(default=0, name="promise")
    end: int = 0
    newest: tuple[int, int] | None = None
    earliest: tuple[int, int] = (0, 0)
    floor: tuple[int, int] = (0, -1)
    kept_from: int = 0
    last_truncated: tuple[int, int] | None = None
    states: dict[str, StoredState] = {}
    index: StoredState | None = None
    intent: tuple[int, int] | None = None
    truncated_tick: int | None = None


class Control:
    """The records of one pchannel, which one owner changes. Call `load` before anything else; changes run one after the other."""

    def __init__(self, store: RecordStore, pchannel: str) -> None:
        self.pchannel = pchannel
        self.record: PulsarControlRecord
        self.terms: dict[int, int] = {}
        """The position of the mark of each term."""
        self.ledgers: dict[int, LedgerRecord] = {}
        self._store = store
        self._key = f"{pchannel}/control"
        self._text: str | None = None
        self._turn = asyncio.Lock()

    async def load(self) -> PulsarControlRecord | None:
        """Loads all records and returns the control record; None without one."""
        text = await self._store.find(self._key)
        if text is None:
            return None
        self._text, self.record = text, self._decode(text)
        await self._load_others()
        return self.record

    async def look(self) -> PulsarControlRecord | None:
        """Loads the control record and `terms`, but not `ledgers`, for a process that only reads; None without a record."""
        text = await self._store.find(self._key)
        if text is None:
            return None
        fresh = text != self._text
        if fresh:
            self._text, self.record = text, self._decode(text)
        if fresh or self.record.term not in self.terms:  # a mark is recorded without a change of the control record
            self.terms = await self._load_terms()
        return self.record

    async def create(self, incarnation: int) -> None:
        """Stores the record of a log that was never opened; it may replace a log without a frame."""
        record = PulsarControlRecord(VERSION, incarnation)
        text = _encode(record)
        removals = [self._terms + str(term) for term in self.terms] + [self._ledgers + str(one) for one in self.ledgers]
        while not await self._store.compare_and_swap(self._key, self._text, text, removals=removals[:CHANGES_MAX]):
            raise ChannelFencedError(f"pchannel {self.pchannel!r} was created or opened by another writer meanwhile: try again")
        self._text, self.record, self.terms, self.ledgers = text, record, {}, {}

    async def claim(self, term: int) -> PulsarControlRecord:
        """Makes this the owner's term and returns the previous record. Raises ChannelFencedError unless it is above every earlier term."""
        async with self._turn:
            while True:
                before = self.record
                if term <= before.term:
                    raise not_above(self.pchannel, before.term, term)
                changed = msgspec.structs.replace(before, term=term, clean=False)
                if await self._swap(changed):
                    await self._load_others()  # the previous owner may have changed them until now
                    return before
                await self._reload()

    async def change(
        self,
        term: int,
        *,
        terms: Mapping[int, int] | None = None,
        ledgers: Mapping[int, LedgerRecord] | None = None,
        dropped_terms: Sequence[int] = (),
        dropped_ledgers: Sequence[int] = (),
        **fields: object,
    ) -> None:
        """Changes these fields of the record, and these other records, if `term` still owns the log; else raises ChannelFencedError."""
        terms, ledgers = terms or {}, ledgers or {}
        saves = {self._terms + str(one): str(position) for one, position in terms.items()}
        saves |= {self._ledgers + str(one): _encoder.encode(record).decode() for one, record in ledgers.items()}
        removals = [self._terms + str(one) for one in dropped_terms] + [self._ledgers + str(one) for one in dropped_ledgers]
        async with self._turn:
            if self.record.term != term:
                raise self.fenced(term)
            while True:
                now = dict(islice(saves.items(), CHANGES_MAX))
                dropped = removals[: CHANGES_MAX - len(now)]
                changed = msgspec.structs.replace(self.record, **fields)
                if await self._swap(changed, saves=now, removals=dropped):
                    saves = {key: value for key, value in saves.items() if key not in now}
                    removals = removals[len(dropped) :]
                    if not saves and not removals:
                        break
                    continue
                # Another writer changed the record, or the answer to this writer's change was lost.
                await self._reload()
                if self.record.term != term:
                    raise self.fenced(term)
        self.terms.update(terms)
        self.ledgers.update(ledgers)
        for one in dropped_terms:
            self.terms.pop(one, None)
        for one in dropped_ledgers:
            self.ledgers.pop(one, None)

    async def check_owner(self, term: int) -> None:
        """Raises ChannelFencedError when another term owns the log by now."""
        async with self._turn:
            await self._reload()
            if self.record.term != term:
                raise self.fenced(term)

    def term_at(self, position: int) -> int:
        """Returns the last term whose mark is below this position; 0 without one."""
        return max((term for term, mark in self.terms.items() if mark < position), default=0)

    def fenced(self, term: int) -> ChannelFencedError:
        """Returns the error for a writer of this term, when another term owns the log."""
        return other_term(self.pchannel, self.record.term, term)

    @property
    def _terms(self) -> str:
        return f"{self.pchannel}/terms/"

    @property
    def _ledgers(self) -> str:
        return f"{self.pchannel}/ledgers/"

    async def _load_others(self) -> None:
        self.terms = await self._load_terms()
        numbers, records = await self._store.load_with_prefix(self._ledgers)
        with corruption("a record of a ledger cannot be read", expected=self._ledgers):
            self.ledgers = {int(key[len(self._ledgers) :]): _ledgers.decode(record) for key, record in zip(numbers, records, strict=True)}

    async def _load_terms(self) -> dict[int, int]:
        terms, marks = await self._store.load_with_prefix(self._terms)
        try:
            return {int(key[len(self._terms) :]): int(mark) for key, mark in zip(terms, marks, strict=True)}
        except ValueError as error:
            raise CorruptionError(f"a record of a term cannot be read: {error}", expected=self._terms) from error

    async def _reload(self) -> None:
        text = await self._store.find(self._key)
        if text is None:
            raise CorruptionError(f"the control record of pchannel {self.pchannel!r} is missing", expected=self._key)
        if text != self._text:
            self._text, self.record = text, self._decode(text)

    async def _swap(self, changed: PulsarControlRecord, *, saves: Mapping[str, str] | None = None, removals: Sequence[str] = ()) -> bool:
        text = _encode(changed)
        if not await self._store.compare_and_swap(self._key, self._text, text, saves=saves, removals=removals):
            return False
        self._text, self.record = text, changed
        return True

    def _decode(self, text: str) -> PulsarControlRecord:
        with corruption(f"the control record of pchannel {self.pchannel!r} cannot be read", expected=self._key):
            record = _decoder.decode(text)
        if record.version != VERSION:
            raise CorruptionError(f"the control record of pchannel {self.pchannel!r} has version {record.version}", expected=str(VERSION))
        return record


def _encode(record: PulsarControlRecord) -> str:
    return _encoder.encode(record).decode()


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(PulsarControlRecord)
_ledgers: Final = msgspec.json.Decoder(LedgerRecord)
