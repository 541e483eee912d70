"""PulsarConnection: the client of one Pulsar, and the threads for its blocking calls.

Owns: pulsar.Client, two pools of threads, and the meaning of Pulsar's errors. The only call of the client's library on the loop is
`send_async`, which only queues. A caller that waits for a thread can be cancelled; the thread still finishes its call.

The client answers `send_async` in its own threads, and a C++ thread that enters an interpreter which is about to exit aborts the
process. So a client that was not closed is closed when Python exits, and clients log through `CLIENT_LOG`.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import time
import weakref
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from wal.errors import InvalidArgumentError, StorageError, WALError, caused
from wal.runtime.installation import Needed
from wal.runtime.threads import in_thread
from wal.storage.pulsar.address import PulsarAddress
from wal.storage.pulsar.client_log import CLIENT_LOG
from wal.storage.pulsar.positions import entry_of, ledger_of, position_of

if TYPE_CHECKING:
    import pulsar


_log: Final = logging.getLogger("wal.pulsar")


_T = TypeVar("_T")
OPERATION_TIMEOUT_S: Final = 10
"""The time for one attempt to reach the broker; callers decide how long to retry."""
CONNECT_TIMEOUT_MS: Final = 5_000
SEND_TIMEOUT_MS: Final = 30_000
CLOSE_S: Final = 3.0
CLOSE_SILENT_S: Final = 0.1
"""The time for which closing waits for a broker that does not answer, the first time and afterwards."""
READ_AHEAD: Final = 16
"""Frames that a reader's client fetches ahead."""
READ_AHEAD_MAX: Final = 64
"""The number of frames to fetch ahead where small frames are read one after the other, so that no read waits for the broker."""
PROBE_BYTES_MIN: Final = 16 << 10
REFUSALS: Final = ("MessageTooBig", "InvalidMessage", "CryptoError", "OperationNotSupported", "IncompatibleSchema")
"""Pulsar's answers about one frame alone: sending that frame again would always get the same answer."""
_READERS: Final = 12
_OTHERS: Final = 6
"""Threads for everything except reading: readers that wait for a broker must not stop a writer from reconnecting."""
TRIES: Final = 5
PAUSE_S: Final = 0.3
"""The pause after the first try, then twice and three times as long: another client's durable cursor, or a moving topic, needs a moment."""
PASSING: Final = ("ServiceUnitNotReady", "ConsumerBusy", "ProducerBusy", "NotConnected", "ProducerFenced", "TooManyLookupRequestException")
"""The errors of a broker that is moving the topic."""


def check_requirements(address: PulsarAddress) -> None:
    """Raises ImportError if the client is not installed, InvalidArgumentError if the file of its authorities cannot be read. Blocks."""
    with Needed("a log on Pulsar needs the package", "pulsar"):
        import pulsar  # noqa: F401
    if address.tls_authority is not None:
        try:
            Path(address.tls_authority).read_bytes()
        except OSError as error:
            raise InvalidArgumentError(f"pulsar_tls_authority={address.tls_authority!r} cannot be read: {error.strerror}") from error


class PulsarConnection:
    """The connection to one Pulsar. Call `start` in a thread before anything else; `close` ends everything created with it.

    `readers`: the number of concurrent calls of `read`; each has a thread, created when it is first needed.
    """

    def __init__(self, address: PulsarAddress, *, readers: int = _READERS) -> None:
        self.address = address
        self._client: pulsar.Client | None = None
        self._pid = os.getpid()
        self._silent = False
        self._readers = concurrent.futures.ThreadPoolExecutor(readers, thread_name_prefix="wal-pulsar-read")
        self._others = concurrent.futures.ThreadPoolExecutor(_OTHERS, thread_name_prefix="wal-pulsar")

    async def run(self, call: Callable[[], _T]) -> _T:
        """Runs a blocking call in a thread and returns its result."""
        return await asyncio.wrap_future(self._others.submit(call))

    async def read(self, call: Callable[[], _T]) -> _T:
        """Runs a call that reads and may block for long, in a thread for readers, and returns its result."""
        return await asyncio.wrap_future(self._readers.submit(call))

    def start(self) -> None:
        """Creates the client, which connects when it is first used. Raises InvalidArgumentError for an address that it does not accept."""
        check_requirements(self.address)
        import pulsar

        address = self.address
        authentication = None if address.token is None else pulsar.AuthenticationToken(address.token.reveal())
        try:
            self._client = pulsar.Client(
                address.service_url,
                authentication=authentication,
                operation_timeout_seconds=OPERATION_TIMEOUT_S,
                connection_timeout_ms=CONNECT_TIMEOUT_MS,
                tls_trust_certs_file_path=address.tls_authority,
                tls_validate_hostname=True,
                logger=CLIENT_LOG.logger(),
            )
        except (pulsar.PulsarException, ValueError, RuntimeError) as error:
            raise InvalidArgumentError(f"Pulsar's client does not accept {address}: {error}") from error
        _started.add(self)

    def producer(self, topic: str, *, fencing: bool) -> pulsar.Producer:
        """Creates a producer; with `fencing` it becomes the only one, and every other producer is fenced. Blocks."""
        import pulsar

        mode = pulsar.ProducerAccessMode.ExclusiveWithFencing if fencing else pulsar.ProducerAccessMode.Shared
        return self.client.create_producer(
            topic,
            batching_enabled=False,
            block_if_queue_full=False,
            max_pending_messages=0,
            send_timeout_millis=SEND_TIMEOUT_MS,
            access_mode=mode,
        )

    def reader(self, topic: str, position: int, *, inclusive: bool, ahead: int) -> pulsar.Reader:
        """Creates a reader that begins at this position of the topic, or (unless `inclusive`) after it, and fetches `ahead` messages ahead.
        Blocks.
        """
        import pulsar

        start = pulsar.MessageId(-1, ledger_of(position), entry_of(position), -1)
        return self.client.create_reader(topic, start, receiver_queue_size=ahead, start_message_id_inclusive=inclusive)

    def first_reader(self, topic: str) -> pulsar.Reader:
        """Creates a reader that begins at the start of the topic. Blocks."""
        import pulsar

        return self.client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=READ_AHEAD)

    def consumer(self, topic: str, subscription: str) -> pulsar.Consumer:
        """Creates a consumer of a durable subscription; a new one begins at the start of the topic. It fetches one message at most.
        Blocks."""
        import pulsar

        return self.client.subscribe(topic, subscription, receiver_queue_size=1, initial_position=pulsar.InitialPosition.Earliest)

    def largest_message(self, topic: str, bytes_max: int) -> int | None:
        """Returns the largest of some sizes, from `bytes_max` downwards, at which a message is accepted; None if that fails.

        The client gets the broker's limit when it connects but does not expose it; this is for an admin REST that does not return it
        either. `topic`: a non-persistent one, which drops its messages. Blocks.
        """
        import pulsar

        size = bytes_max
        try:
            producer = self.producer(topic, fencing=False)
            try:
                while size >= PROBE_BYTES_MIN:
                    try:
                        producer.send(bytes(size))
                        return size
                    except pulsar.exceptions.MessageTooBig:  # raised by the client: nothing was sent
                        size = size * 3 // 4
            finally:
                producer.close()
        except pulsar.PulsarException as error:
            _log.warning(
                "cannot find out how large a message the broker takes (%s): Pulsar's default is assumed; should its maxMessageSize be "
                "lower, writing fails at the first frame above it, and nothing is lost",
                error,
            )
        return None

    async def ended(self, closing: Collection[asyncio.Future[Any]]) -> None:
        """Waits for these calls, which close something at the broker. A broker that does not answer is waited for CLOSE_S, and once.

        The calls continue in their threads.
        """
        _, late = await asyncio.wait(closing, timeout=CLOSE_SILENT_S if self._silent else CLOSE_S)
        self._silent = bool(late)

    async def close(self) -> None:
        """Ends the client and the threads. Idempotent."""
        await in_thread(self.abandon)

    def abandon(self) -> None:
        """Ends the client and the threads. Blocks; idempotent."""
        self._end_client()
        self._readers.shutdown(wait=True)
        self._others.shutdown(wait=True)

    def _end_client(self) -> None:
        """Closes the client; it answers all unanswered sends before this returns. Blocks."""
        client, self._client = self._client, None
        if client is not None and self._pid != os.getpid():
            _inherited.append(client)
        elif client is not None:
            import pulsar  # imported only here: without the package no client exists that needs closing

            try:
                client.close()
            except pulsar.PulsarException as error:
                _log.info("closing the client: %s", error)

    @property
    def client(self) -> pulsar.Client:
        """The client. Raises StorageError after `close`, InvalidArgumentError in a forked child, which lacks the client's threads."""
        if self._client is None:
            raise StorageError("the connection to Pulsar is closed")
        if self._pid != os.getpid():
            raise InvalidArgumentError(
                f"the connection to {self.address.service_url} was opened by process {self._pid}, and this process was forked from it "
                "without the threads of Pulsar's client: open a connection of its own after the fork"
            )
        return self._client


def position_of_id(message_id: Any) -> int:
    """Returns the position in a message id of Pulsar."""
    return position_of(message_id.ledger_id(), message_id.entry_id())


def failure(error: Exception, doing: str, address: PulsarAddress) -> WALError:
    """Returns the error to raise for an error of Pulsar's client during `doing`."""
    import pulsar

    if isinstance(error, WALError):
        return error
    text = f"{doing} at {address.service_url} failed: {error or type(error).__name__}"
    if isinstance(error, pulsar.exceptions.Timeout):
        text += (
            "; the client reports a missing or a wrong token, or a certificate that it does not trust, as a timeout too: is the "
            "broker running, and are pulsar_token and pulsar_tls_authority right?"
        )
    return caused(StorageError(text), error)


def close_quietly(handle: pulsar.Producer | pulsar.Consumer | pulsar.Reader) -> None:
    """Closes the handle, unless it is closed or fenced already, or its broker is gone. Blocks."""
    import pulsar

    try:
        handle.close()
    except pulsar.PulsarException:
        pass


def patiently(connection: PulsarConnection, call: Callable[[], _T], doing: str) -> _T:
    """Returns the result of a call, retrying while the broker moves the topic. Blocks."""
    for attempt in range(1, TRIES + 1):
        try:
            return call()
        except Exception as error:
            if attempt == TRIES or not is_one_of(error, *PASSING):
                raise failure(error, doing, connection.address) from error
            time.sleep(PAUSE_S * attempt)
    raise AssertionError


def is_refusal(result: Any) -> bool:
    """Whether this answer, or error, of a send is about the frame alone."""
    import _pulsar

    return any(result == getattr(_pulsar.Result, name) for name in REFUSALS) or type(result).__name__ in REFUSALS


def is_one_of(error: Exception, *names: str) -> bool:
    """Whether this is one of Pulsar's errors with these names; a name unknown to the installed client matches nothing."""
    import pulsar

    return isinstance(error, tuple(getattr(pulsar.exceptions, name) for name in names if hasattr(pulsar.exceptions, name)))


_started: Final[weakref.WeakSet[PulsarConnection]] = weakref.WeakSet()


def _end_all() -> None:
    """Runs when Python exits: all other non-daemon threads have ended, so no thread uses a client any more."""
    unclosed = [connection for connection in _started if connection._client is not None]
    if unclosed:
        CLIENT_LOG.hush()  # it would report, for example, late answers
    for connection in unclosed:
        connection._end_client()


_inherited: Final[list[pulsar.Client]] = []
"""Clients of the process that this one was forked from. They are kept: the end of a client waits for its threads, which are not here."""

atexit.register(_end_all)
os.register_at_fork(after_in_child=_started.clear)  # the child does not have the client's threads
