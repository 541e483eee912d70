"""PulsarBackend: pchannels' logs as topics of one namespace of Pulsar.

Owns the connection, and the order in which a log is taken over: the term is claimed in the metadata, a fencing producer throws out the
writer before, a mark is written, which settles what was on its way, what lies before it is read back, and the mark is noted in the
metadata. Then it serves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Final

from wal.backends.base import LogBackend, LogState
from wal.backends.pulsar.address import Allowances, PulsarAddress
from wal.backends.pulsar.admin import Admin
from wal.backends.pulsar.connection import Connection, failure
from wal.backends.pulsar.control import Control, ControlRecord, RecordStore
from wal.backends.pulsar.floor import Floor
from wal.backends.pulsar.floors import FloorIndex
from wal.backends.pulsar.layout import FRAME_BYTES_LIMIT, Mark, entry_of, ledger_of, text_of
from wal.backends.pulsar.ledgers import LedgerTable
from wal.backends.pulsar.limits import frame_bytes_limit, probed_limit
from wal.backends.pulsar.log import Opened, PulsarLog
from wal.backends.pulsar.policies import check_policies
from wal.backends.pulsar.recovery import end_before, missing_records
from wal.backends.pulsar.topic import TopicReader
from wal.backends.pulsar.truncation import SUBSCRIPTION, move_cursor
from wal.backends.pulsar.writer import close_producer, send_mark
from wal.errors import ClosedError, CorruptionError, FormatError
from wal.message import FORM_PULSAR

__all__ = ["PulsarBackend"]

PRODUCER_TRIES: Final = 5
PRODUCER_PAUSE_S: Final = 0.3
"""After the first try, then twice and three times as long: another one's durable cursor, or a topic that moves, takes a moment."""


class PulsarBackend(LogBackend):
    """Logs at `address`; what is known of them beside their topics is in `records`, which nobody else may write to.

    `start` (or the first `create` or `open`) connects. InvalidArgumentError for a missing token, namespace or topic policy,
    StorageError when Pulsar does not answer.
    """

    name: ClassVar[str] = "pulsar"
    form: ClassVar[int] = FORM_PULSAR

    def __init__(self, address: PulsarAddress, records: RecordStore, *, allowed: Allowances | None = None) -> None:
        self.frame_bytes_limit = FRAME_BYTES_LIMIT
        self._address = address
        self._records = records
        self._allowed = allowed or Allowances()
        self._connection = Connection(address)
        self._admin = Admin(address)
        self._starting: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Connects, and looks whether the namespace is there and lets us in. Idempotent; after an error it can be tried again."""
        if self._closed:
            raise ClosedError(f"the backend of {self._address} is closed: make a new PulsarBackend to go on")
        if self._starting is None or (self._starting.done() and self._starting.exception() is not None):
            self._starting = asyncio.get_running_loop().create_task(self._start())
        await asyncio.shield(self._starting)

    async def create(self, pchannel: str, *, incarnation: int) -> None:
        topic = self._address.topic(pchannel)
        await self.start()
        control = Control(self._records, pchannel)
        record = await control.load()
        if await self._connection.run(lambda: self._holds_frames(topic, record)):
            whose = (
                "already holds a log: open it, or choose another name"
                if record is not None
                else "holds messages of which the metadata knows nothing: open the log with the metadata that it was made with (setting "
                "kv), or choose another namespace"
            )
            raise FormatError(f"{topic} {whose}")
        await self._connection.run(lambda: self._make_topics(pchannel))
        await control.create(incarnation)

    async def open(self, pchannel: str, *, incarnation: int, term: int, checkpoint: int | None = None) -> PulsarLog:
        topic = self._address.topic(pchannel)
        await self.start()
        control = Control(self._records, pchannel)
        record = await control.load()
        if record is None:
            raise CorruptionError(f"pchannel {pchannel!r} has no log", path=topic, expected="one made by create()")
        if record.incarnation != incarnation:
            raise CorruptionError(
                f"the log of pchannel {pchannel!r} is of incarnation {record.incarnation:#x}",
                path=topic,
                expected=f"incarnation {incarnation:#x}",
            )
        if checkpoint is not None and checkpoint < record.kept_from:
            raise _lost_checkpoint(topic, record.kept_from, None, checkpoint)
        await self._connection.run(lambda: self._check_policies(topic))
        before = await control.claim(term)
        opening = asyncio.get_running_loop().create_task(self._open(control, before, pchannel, topic, term, checkpoint))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_let_go)
            raise

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._starting is not None:
            await asyncio.wait([self._starting])
        await self._connection.close()

    def abandon(self) -> None:
        self._closed = True
        self._connection.abandon()

    async def _open(
        self, control: Control, before: ControlRecord, pchannel: str, topic: str, term: int, checkpoint: int | None
    ) -> PulsarLog:
        mark = Mark(term, before.incarnation)
        run = self._connection.run
        await run(lambda: self._make_topics(pchannel))
        producer, at = await self._take_over(control, topic, mark)
        try:
            floors = _floors(control, before)
            ledgers = await run(lambda: self._ledgers(topic, control, before, at))
            _check_kept(topic, control, before, ledgers, checkpoint, at)
            made = await run(
                lambda: missing_records(
                    self._connection,
                    topic,
                    incarnation=mark.incarnation,
                    ledgers=ledgers,
                    floors=floors,
                    term_at=control.term_at,
                )
            )
            end = await run(
                lambda: end_before(
                    self._connection,
                    topic,
                    at,
                    incarnation=mark.incarnation,
                    ledgers=ledgers,
                    floors=floors,
                    term_at=control.term_at,
                )
            )
            await control.change(term, terms={term: at}, ledgers=made)
        except BaseException:
            await asyncio.shield(asyncio.ensure_future(run(lambda: close_producer(producer))))
            raise
        floor = Floor(end.floor.term, end.floor.sequence)
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
            await run(lambda: move_cursor(self._connection, topic, last))
        ledgers.drop_below(before.kept_from)
        return PulsarLog(
            Opened(
                self._connection,
                control,
                producer,
                ledgers,
                floors,
                topic,
                self._address.checkpoints(pchannel),
                mark,
                floor,
                state,
                checkpoint,
                self.frame_bytes_limit,
            ),
            pchannel=pchannel,
        )

    async def _take_over(self, control: Control, topic: str, mark: Mark) -> tuple[Any, int]:
        """The producer that is the only one from now on, and the position of its mark.

        One of a lower term that claimed the log before us may fence behind us. It hears then that it is too late, but we are thrown out,
        and fence again.
        """
        run = self._connection.run
        for attempt in range(1, PRODUCER_TRIES + 1):
            producer = await run(lambda: self._fencing_producer(topic))
            try:
                # After the fence: whoever claims the log from now on fences us, and who did before is seen here.
                await control.check_owner(mark.term)
                return producer, await run(partial(send_mark, producer, mark))
            except BaseException as error:
                await asyncio.shield(asyncio.ensure_future(run(partial(close_producer, producer))))
                if not isinstance(error, Exception):
                    raise
                await control.check_owner(mark.term)
                if attempt == PRODUCER_TRIES or not _thrown_out(error):
                    raise failure(error, f"taking over {topic}", self._address) from error
        raise AssertionError

    async def _start(self) -> None:
        await self._connection.run(self._connection.start)
        await self._connection.run(self._admin.check_namespace)
        said = await self._connection.run(self._admin.message_bytes_max)
        if said is not None:
            self.frame_bytes_limit = frame_bytes_limit(said)
        else:
            found = await self._connection.run(lambda: probed_limit(self._connection, self._address.probe))
            self.frame_bytes_limit: int = FRAME_BYTES_LIMIT if found is None else found
        if self.frame_bytes_limit < FRAME_BYTES_LIMIT:
            now = f"it is {said}" if said is not None else "below Pulsar's default, as was found by trying"
            self.frame_bytes_source: str = f"raise maxMessageSize on the broker ({now})"

    # -- in threads

    def _make_topics(self, pchannel: str) -> None:
        """The topics of a log and of its checkpoints, and the durable cursors that hold what is in them."""
        for topic in (self._address.topic(pchannel), self._address.checkpoints(pchannel)):
            self._admin.make_topic(topic)
            self._patiently(partial(self._hold, topic), f"holding {topic}")

    def _hold(self, topic: str) -> None:
        self._connection.consumer(topic, SUBSCRIPTION).close()

    def _check_policies(self, topic: str) -> None:
        admin = self._admin
        if admin.policy(topic, "deduplicationEnabled"):
            # Answers without a place, and a cursor's worth of work for each message: repeats are ours to see.
            admin.disable_deduplication(topic)
        check_policies(
            topic,
            self._address.path,
            ttl_s=admin.policy(topic, "messageTTL"),
            quotas=admin.policy(topic, "backlogQuotaMap"),
            subscription_expiry_min=admin.namespace_policy("subscriptionExpirationTime"),
            inactive=admin.policy(topic, "inactiveTopicPolicies"),
            allowed=self._allowed,
        )

    def _fencing_producer(self, topic: str) -> Any:
        return self._patiently(lambda: self._connection.producer(topic, fencing=True), f"taking over {topic}")

    def _patiently(self, call: Callable[[], Any], doing: str) -> Any:
        """A call that may meet a broker which is just moving the topic."""
        for attempt in range(1, PRODUCER_TRIES + 1):
            try:
                return call()
            except Exception as error:
                if attempt == PRODUCER_TRIES or not _passing(error):
                    raise failure(error, doing, self._address) from error
                time.sleep(PRODUCER_PAUSE_S * attempt)
        raise AssertionError

    def _ledgers(self, topic: str, control: Control, before: ControlRecord, mark: int) -> LedgerTable:
        found = self._admin.ledgers(topic) or []
        for ledger in found:
            record = control.ledgers.get(ledger.number)
            if record is not None and ledger is not found[-1]:
                ledger.record, ledger.size = record, record.size
        table = LedgerTable(found)
        table.added(mark, 0)
        return table

    def _holds_frames(self, topic: str, record: ControlRecord | None) -> bool:
        """Whether there is anything in the topic that is not a mark of an owner that wrote nothing."""
        ledgers = self._admin.ledgers(topic)
        if not ledgers:
            return False
        table = LedgerTable(ledgers)
        at = table.first_at(0)
        if at is None:
            return False
        if record is None or record.kept_from:
            return True
        reader = TopicReader(self._connection, topic, at)
        try:
            while at is not None:
                entry = reader.next(record.incarnation)
                if entry.header is not None:
                    return True
                at = table.first_at(entry.position + 1)
        finally:
            reader.close()
        return False


def _passing(error: Exception) -> bool:
    return _is_one_of(
        error,
        "ServiceUnitNotReady",
        "ConsumerBusy",
        "ProducerBusy",
        "NotConnected",
        "ProducerFenced",
        "TooManyLookupRequestException",
    )


def _thrown_out(error: Exception) -> bool:
    return _is_one_of(error, "ProducerFenced", "AlreadyClosed")


def _is_one_of(error: Exception, *names: str) -> bool:
    import pulsar

    return isinstance(
        error, tuple(getattr(pulsar.exceptions, name) for name in names if hasattr(pulsar.exceptions, name))
    )


def _floors(control: Control, record: ControlRecord) -> FloorIndex:
    """Where the floor is known from the metadata."""
    floors = FloorIndex()
    floors.add(record.kept_from, Floor(*record.floor), lasting=True)
    for term, place in control.terms.items():
        if place >= record.kept_from:
            floors.add(place + 1, Floor(term, -1), lasting=True)
    return floors


def _check_kept(
    topic: str, control: Control, record: ControlRecord, ledgers: LedgerTable, checkpoint: int | None, mark: int
) -> None:
    """CorruptionError when Pulsar has lost something that was not given back."""
    kept = record.kept_from
    if checkpoint is not None and checkpoint > mark:
        raise _lost_checkpoint(topic, kept, mark, checkpoint)
    there = {ledger.number: ledger.entries for ledger in ledgers.ledgers}
    known = {number: one.entries for number, one in control.ledgers.items()}
    for place in control.terms.values():
        known[ledger_of(place)] = max(known.get(ledger_of(place), 0), entry_of(place) + 1)
    for number, entries in sorted(known.items()):
        needed = number > ledger_of(kept) or (number == ledger_of(kept) and entries > entry_of(kept))
        if needed and there.get(number, 0) < entries:
            raise CorruptionError(
                f"Pulsar has {there.get(number, 0)} entries of ledger {number} of {topic}: it lost or deleted what the log still held",
                path=topic,
                offset=ledger_of(kept),
                expected=f"{entries} entries",
            )


def _lost_checkpoint(topic: str, kept: int, end: int | None, checkpoint: int) -> CorruptionError:
    held = f"begins at {text_of(kept)}" if end is None else f"goes from {text_of(kept)} to {text_of(end)}"
    return CorruptionError(
        f"what {topic} holds {held}",
        path=topic,
        expected=f"what follows its checkpoint at {text_of(checkpoint)}",
    )


def _let_go(opening: asyncio.Task[PulsarLog]) -> None:
    """Nobody waits for this opening any more."""
    if not opening.cancelled() and opening.exception() is None:
        log = opening.result()
        closing = asyncio.ensure_future(log.close())
        _closings.add(closing)
        closing.add_done_callback(_closings.discard)


_closings: Final[set[asyncio.Future[None]]] = set()
