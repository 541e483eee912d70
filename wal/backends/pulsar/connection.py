"""Connection: the client of one Pulsar, and the threads that its blocking calls run in.

Owns: pulsar.Client, a pool of threads, and what Pulsar's errors mean here. Nothing of the client's library is called on the loop but
`send_async`, which only hands over. Whoever waits for a thread can be cancelled; what the thread does goes on to its end.

The client answers `send_async` in threads of its own, and a thread of C++ that comes into an interpreter which is about to exit aborts
the process. So a client that nobody closed is closed when Python exits, and it logs through `client_log`.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from wal.backends.pulsar.address import PulsarAddress
from wal.backends.pulsar.client_log import CLIENT_LOG
from wal.backends.pulsar.layout import entry_of, ledger_of, position_of
from wal.errors import InvalidArgumentError, StorageError, WALError
from wal.installation import install_hint

if TYPE_CHECKING:
    import pulsar

__all__ = ["Connection", "failure", "position_of_id"]

_T = TypeVar("_T")
OPERATION_TIMEOUT_S: Final = 10
"""Of one attempt to reach the broker; callers try again for as long as they want."""
CONNECT_TIMEOUT_MS: Final = 5_000
SEND_TIMEOUT_MS: Final = 30_000
READ_AHEAD: Final = 16
"""Frames that a reader's client fetches ahead."""
_READERS: Final = 12
_OTHERS: Final = 6
"""Threads of their own for all that is not reading: readers that wait for a broker must not keep a writer from finding back to it."""
_log: Final = logging.getLogger("wal.pulsar")


class Connection:
    """To one Pulsar. `start` in a thread before anything else; `close` ends what was made with it."""

    def __init__(self, address: PulsarAddress) -> None:
        self.address = address
        self._client: pulsar.Client | None = None
        self._readers = concurrent.futures.ThreadPoolExecutor(_READERS, thread_name_prefix="wal-pulsar-read")
        self._others = concurrent.futures.ThreadPoolExecutor(_OTHERS, thread_name_prefix="wal-pulsar")

    async def run(self, call: Callable[[], _T]) -> _T:
        """The answer of a blocking call, made in a thread."""
        return await asyncio.wrap_future(self._others.submit(call))

    async def read(self, call: Callable[[], _T]) -> _T:
        """The same of one that reads, and may wait for long."""
        return await asyncio.wrap_future(self._readers.submit(call))

    def start(self) -> None:
        """Makes the client. It connects when it is used first. InvalidArgumentError for what it does not accept."""
        try:
            import pulsar
        except ModuleNotFoundError as error:
            raise InvalidArgumentError(
                f"a log on Pulsar needs the package pulsar-client, which is not installed: {install_hint('pulsar')}"
            ) from error
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
        """A producer; with `fencing` the only one, all others are thrown out. Blocks."""
        import pulsar

        mode = pulsar.ProducerAccessMode.ExclusiveWithFencing if fencing else pulsar.ProducerAccessMode.Shared
        return self._live.create_producer(
            topic,
            batching_enabled=False,
            block_if_queue_full=False,
            max_pending_messages=0,
            send_timeout_millis=SEND_TIMEOUT_MS,
            access_mode=mode,
        )

    def reader(self, topic: str, position: int, *, inclusive: bool) -> pulsar.Reader:
        """A reader from this position on (which must be one of the topic), or behind it. Blocks."""
        import pulsar

        start = pulsar.MessageId(-1, ledger_of(position), entry_of(position), -1)
        return self._live.create_reader(
            topic, start, receiver_queue_size=READ_AHEAD, start_message_id_inclusive=inclusive
        )

    def first_reader(self, topic: str) -> pulsar.Reader:
        """A reader from the beginning of the topic on. Blocks."""
        import pulsar

        return self._live.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=READ_AHEAD)

    def consumer(self, topic: str, subscription: str) -> pulsar.Consumer:
        """A consumer of a durable subscription, made at the beginning of the topic where it is new. It fetches one message at most.
        Blocks."""
        import pulsar

        return self._live.subscribe(
            topic, subscription, receiver_queue_size=1, initial_position=pulsar.InitialPosition.Earliest
        )

    async def close(self) -> None:
        """Ends the client and the threads. Idempotent."""
        await asyncio.get_running_loop().run_in_executor(None, self.abandon)

    def abandon(self) -> None:
        """Does what `close` waits for. Blocks."""
        self._end_client()
        self._readers.shutdown(wait=True)
        self._others.shutdown(wait=True)

    def _end_client(self) -> None:
        """Closes the client; what was sent and not answered is answered so before this returns. Blocks."""
        client, self._client = self._client, None
        if client is not None:
            import pulsar  # only here: where it is not installed there is no client

            try:
                client.close()
            except pulsar.PulsarException as error:
                _log.info("closing the client: %s", error)

    @property
    def _live(self) -> pulsar.Client:
        if self._client is None:
            raise StorageError("the connection to Pulsar is closed")
        return self._client


def position_of_id(message_id: Any) -> int:
    """The position that a message id of Pulsar names."""
    return position_of(message_id.ledger_id(), message_id.entry_id())


def failure(error: Exception, doing: str, address: PulsarAddress) -> WALError:
    """What an error of Pulsar's client means to who asked for `doing`."""
    import pulsar

    if isinstance(error, WALError):
        return error
    text = f"{doing} at {address.service_url} failed: {error or type(error).__name__}"
    if isinstance(error, pulsar.exceptions.Timeout):
        text += (
            "; the client reports a missing or a wrong token, or a certificate that it does not trust, as a timeout too: is the "
            "broker running, and are pulsar_token and pulsar_tls_authority right?"
        )
    found = StorageError(text)
    found.__cause__ = error
    return found


_started: Final[weakref.WeakSet[Connection]] = weakref.WeakSet()


def _end_all() -> None:
    """When Python exits: all other threads but daemons have ended, so nobody uses a client any more."""
    left = [connection for connection in _started if connection._client is not None]
    if left:
        CLIENT_LOG.hush()  # that answers come too late, say
    for connection in left:
        connection._end_client()


atexit.register(_end_all)
os.register_at_fork(after_in_child=_started.clear)  # the client's threads are not in the child
