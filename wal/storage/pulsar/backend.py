"""PulsarBackend: the logs of pchannels as topics of one namespace of Pulsar.

Owns the connection, and the preparation of a topic before a log is opened there: its policies, its durable cursor, and the topic of its
checkpoints. `opening.py` takes over a log.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import ClassVar, Final

from wal.errors import ClosedError, CorruptionError, FormatError
from wal.message import FORM_PULSAR
from wal.runtime.tasks import keep_task
from wal.storage.base import LogBackend, other_log
from wal.storage.pulsar.address import LOG_SUBSCRIPTION, PulsarAddress
from wal.storage.pulsar.admin import Admin
from wal.storage.pulsar.broker_settings import Allowances, check_policies, frame_bytes_limit
from wal.storage.pulsar.connection import PulsarConnection, patiently
from wal.storage.pulsar.control import Control, PulsarControlRecord, RecordStore
from wal.storage.pulsar.layout import FRAME_BYTES_LIMIT
from wal.storage.pulsar.ledgers import LedgerTable
from wal.storage.pulsar.log import PulsarLog
from wal.storage.pulsar.opening import check_checkpoint, open_log
from wal.storage.pulsar.topic import TopicReader


class PulsarBackend(LogBackend):
    """The logs at `address`. `records` keeps their metadata outside the topics; nothing else may write to it.

    `start` (or the first `create` or `open`) connects. Raises InvalidArgumentError for a missing token, namespace or topic policy,
    StorageError when Pulsar does not answer.
    """

    name: ClassVar[str] = "pulsar"
    form: ClassVar[int] = FORM_PULSAR

    def __init__(self, address: PulsarAddress, records: RecordStore, *, allowed: Allowances | None = None) -> None:
        self.frame_bytes_limit = FRAME_BYTES_LIMIT
        self._address = address
        self._records = records
        self._allowed = allowed or Allowances()
        self._connection = PulsarConnection(address)
        self._admin = Admin(address)
        self._starting: asyncio.Task[None] | None = None
        self._closed = False

    async def start(self) -> None:
        """Connects and checks the namespace and the token. Idempotent; it can be retried after an error."""
        if self._closed:
            raise ClosedError(f"the backend of {self._address} is closed: make a new PulsarBackend to continue")
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
            raise other_log(pchannel, record.incarnation, incarnation, path=topic)
        check_checkpoint(topic, record, checkpoint)
        await self._connection.run(lambda: self._check_policies(topic))
        before = await control.claim(term)
        opening = asyncio.get_running_loop().create_task(self._open(control, before, term, checkpoint))
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unused)
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

    async def _open(self, control: Control, before: PulsarControlRecord, term: int, checkpoint: int | None) -> PulsarLog:
        await self._connection.run(lambda: self._make_topics(control.pchannel))
        opened = await open_log(self._connection, self._admin, control, term=term, checkpoint=checkpoint, before=before)
        return PulsarLog(opened, frame_bytes_limit=self.frame_bytes_limit)

    async def _start(self) -> None:
        await self._connection.run(self._connection.start)
        await self._connection.run(self._admin.check_namespace)
        said = await self._connection.run(self._admin.message_bytes_max)
        if said is not None:
            self.frame_bytes_limit = frame_bytes_limit(said)
        else:
            largest = await self._connection.run(lambda: self._connection.largest_message(self._address.probe, FRAME_BYTES_LIMIT))
            self.frame_bytes_limit: int = FRAME_BYTES_LIMIT if largest is None else largest
        if self.frame_bytes_limit < FRAME_BYTES_LIMIT:
            now = f"it is {said}" if said is not None else "below Pulsar's default, as was found by trying"
            self.frame_bytes_source: str = f"raise maxMessageSize on the broker ({now})"

    # -- in threads

    def _make_topics(self, pchannel: str) -> None:
        """Creates the topics of a log and of its checkpoints, and the durable cursors that hold their messages."""
        for topic in (self._address.topic(pchannel), self._address.checkpoints(pchannel)):
            self._admin.make_topic(topic)
            patiently(self._connection, partial(self._hold, topic), f"holding {topic}")

    def _hold(self, topic: str) -> None:
        self._connection.consumer(topic, LOG_SUBSCRIPTION).close()

    def _check_policies(self, topic: str) -> None:
        admin = self._admin
        if admin.policy(topic, "deduplicationEnabled"):
            # With deduplication, answers would have no position, and each message would cost a cursor update. Readers detect duplicates
            # themselves.
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

    def _holds_frames(self, topic: str, record: PulsarControlRecord | None) -> bool:
        """Whether the topic has any message except the marks of owners that wrote no frame."""
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


def _close_unused(opening: asyncio.Task[PulsarLog]) -> None:
    """Closes a log whose caller no longer waits for it."""
    if not opening.cancelled() and opening.exception() is None:
        keep_task(_closings, asyncio.ensure_future(opening.result().close()))


_closings: Final[set[asyncio.Future[None]]] = set()
