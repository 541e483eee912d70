"""The interface between the accesser and the engine that serves an open log. Another engine, such as a cluster's client, implements it.

A `ReadableEngine` is read; a `WritableEngine` is also written. `wal/node/local/` has the engines of a log that this process writes, or
reads while another process writes it, and `wal/client/` that of a log on the network; `wal/api/factory.py` chooses. Calls are at the level
of messages and results: which actors, files or connections serve them is up to the engine.

A request to a log is a value of `wal.requests`, which `submit` takes. The accesser checks the types and the values of its arguments,
and `wal/write/checks.py` has the checks of messages that every engine makes before it sends anything. The accesser calls an engine only
between `open` and `close`, and only on the event loop that called `open`, with these exceptions: `place` may be read at any time, and
`abandon`, `released` and `EngineTxn.abandon` may be used from any thread.

Every call may raise a WALError for an engine that failed (the original cause, each time) or that is being closed (ClosedError). The
docstrings name the other errors. Cancelling a caller never undoes a write.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol, TypeVar

import msgspec

from broadcaster.message import BroadcasterStatistics
from wal.message import LogPosition
from wal.read.figures import PChannelStatistics, counter, gauge
from wal.requests.appends import PLAIN, WriteOptions

if TYPE_CHECKING:
    from actors import Actor, ActorRef
    from wal.message import AppendResult, ForgottenResult, Message, TxnContext
    from wal.message.matching import Matching
    from wal.read.cursors.cursor import Cursor, CursorKey
    from wal.read.cursors.service import Cursors
    from wal.read.options import Selection
    from wal.read.pchannel import ReadablePChannel
    from wal.requests.cursors import CursorClaim
    from wal.requests.request import Answer, Request
    from wal.requests.txns import AppendTxn, BeginTxn
    from wal.settings import Settings
    from wal.write.bulk import Piece


R_co = TypeVar("R_co", covariant=True)


class InboxStatistics(msgspec.Struct, frozen=True):
    """The inboxes of the actors of a log.

    `pending` are all unhandled messages, `pending_max` those of the fullest inbox. `stalled` actors have unhandled messages and have made
    no progress for some seconds.
    """

    actors: Annotated[int, gauge("wal_inbox_actors", "Actors and groups of actors that have an inbox")] = 0
    pending: Annotated[int, gauge("wal_inbox_messages", "Unhandled messages in all inboxes")] = 0
    pending_max: Annotated[int, gauge("wal_inbox_messages_max", "Unhandled messages in the fullest inbox")] = 0
    stalled: Annotated[int, gauge("wal_inbox_stalled_actors", "Actors that have unhandled messages and make no progress")] = 0


class ArchiveStatistics(msgspec.Struct, frozen=True):
    """How far the archive at `place` has the log. `failure` is the text of the last round's error, empty after a success."""

    place: str
    lag_bytes: Annotated[int, gauge("wal_archive_lag_bytes", "Bytes of the log that its archive does not have yet")]
    lag_s: Annotated[float, gauge("wal_archive_lag_seconds", "For how long the log has had something that its archive does not have")]
    failing: Annotated[bool, gauge("wal_archive_failing", "1 while the log cannot be archived, else 0")]
    failure: str = ""


class LogStatistics(msgspec.Struct, frozen=True):
    """Counts of an open log: `bytes_in_flight` were accepted and are not durable yet, `appends_waiting` callers wait for room.

    Since the opening, `appends_refused` calls got a WouldBlockError because the bytes in flight had reached their bound, and
    `appends_delayed` calls had to wait for room. `opening_s` is how long the opening took. `broadcasts` is None in a process without the
    broadcaster. `role` is "writer", "client" (of a served log: the counts are this client's own) or "reader" (of another process's log).
    """

    wal_name: str
    vchannels: Annotated[int, gauge("wal_vchannels", "Vchannels that exist", roles=("writer", "reader"))]
    bytes_in_flight: Annotated[
        int,
        gauge("wal_in_flight_bytes", "Bytes of appends that were accepted and are not durable yet"),
        gauge("wal_client_in_flight_bytes", "Bytes of this client's appends that are not answered yet", roles=("client",)),
    ]
    appends_waiting: Annotated[
        int,
        gauge("wal_appends_waiting", "Appends that wait for room in flight"),
        gauge("wal_client_appends_waiting", "Appends of this client that wait for room in flight", roles=("client",)),
    ]
    pchannels: tuple[PChannelStatistics, ...]
    bytes_in_flight_max: Annotated[int, gauge("wal_in_flight_bytes_max", "The bound of these bytes, in_flight_bytes_max")] = 0
    appends_refused: Annotated[
        int,
        counter(
            "wal_would_block", "Calls that got a WouldBlockError, for want of room in flight or in transactions", ("reason", "in_flight")
        ),
        counter("wal_client_would_block", "Calls of this client that got a WouldBlockError for want of room in flight", roles=("client",)),
    ] = 0
    appends_delayed: Annotated[int, counter("wal_appends_delayed", "Appends that had to wait for room in flight")] = 0
    opening_s: Annotated[float, gauge("wal_opening_seconds", "How long the opening of the log took")] = 0.0
    broadcasts: BroadcasterStatistics | None = None
    inboxes: InboxStatistics = InboxStatistics()
    role: str = "writer"
    archive: ArchiveStatistics | None = None


class ReadableEngine(Protocol):
    """An engine that serves the reading half of the API."""

    place: str
    """Where the log is: its directory, or another location as text."""

    @property
    def cursors(self) -> Cursors:
        """The saved positions of readers."""

    @property
    def name(self) -> str:
        """The name of the backend, as `log.wal_name` shows it."""

    @property
    def writable(self) -> WritableEngine | None:
        """This engine, if it also serves the writing half of the API, else None."""

    @property
    def is_waiting(self) -> bool:
        """Whether the opening waits for another writer, and may be cancelled."""

    @property
    def released(self) -> bool:
        """Whether the engine holds no file, thread, lock or connection any more."""

    async def open(self) -> None:
        """Opens the log. A failure releases everything and raises.

        Raises LockedError, FormatError, CorruptionError, StorageError, ChannelFencedError if another writer takes the log over meanwhile,
        or InvalidArgumentError for settings that do not fit the log.
        """

    async def close(self) -> None:
        """Drains what is in flight, ends every reader and releases everything. Raises the first failure after everything is released."""

    def abandon(self) -> None:
        """Releases everything once the event loop has ended; what was in flight has an unknown outcome. Blocks; idempotent."""

    async def attach(self, names: tuple[str, ...]) -> tuple[ReadablePChannel, Selection, Callable[[Actor, str], ActorRef]]:
        """Returns the pchannel to read these vchannels on, the vchannels as they are now, and a function that starts the scanner's actor.

        Raises ChannelNotExistError for a vchannel that does not exist and must not be created; InvalidArgumentError for vchannels on
        several pchannels.
        """

    async def attach_matching(
        self, pattern: Matching
    ) -> tuple[Sequence[tuple[ReadablePChannel, Selection]], Callable[[Actor, str], ActorRef]]:
        """Returns all pchannels of the log, each with the vchannels on it that match, and a function that starts the scanner's actor.

        Raises InvalidArgumentError where the log cannot be read by a pattern.
        """

    async def submit(self, request: Request[Answer]) -> Answer:
        """Returns the answer to a request (`wal.requests`), and raises the errors that it documents.

        Raises NotLocalError for a request that only the log's writer executes, in another process that cannot or may not be asked
        (`local_only`); ChannelNotExistError for a vchannel that does not exist and must not be created.
        """

    def statistics(self) -> LogStatistics:
        """Returns the counts since opening; those of writing are 0 in an engine that only reads."""


class WritableEngine(ReadableEngine, Protocol):
    """An engine that serves both halves of the API."""

    settings: Settings
    """The settings of the log."""
    frame_bytes_max: int
    """The largest frame that the log takes."""

    @property
    def appends(self) -> Appends: ...

    async def cursor_home(self, key: CursorKey, *, pchannel: str | None = None) -> CursorHome:
        """Returns the home of a cursor, which is named durably if the cursor has none: this pchannel, or (None) that of its vchannels.

        A cursor that has a home keeps it, whatever `pchannel` is. Raises InvalidArgumentError if a cursor of this name is saved for
        other vchannels and none for these, ChannelNotExistError if a vchannel does not exist and must not be created, UnavailableError if
        the home cannot be named now.
        """


class CursorHome(Protocol):
    """The home of one cursor: where a consumer claims it, and saves its position together with what its handlers put out."""

    @property
    def pchannel(self) -> str:
        """The pchannel in whose log the cursor is saved."""

    async def claim(self, *, exclusive: Literal["wait", "error"] = "wait") -> CursorClaim:
        """Gives the cursor to the caller, durably, with a number above all before; the caller releases it.

        While another consumer has it, waits, or raises ResourceAcquiredError with `exclusive="error"`.
        """

    def commit(self, bodies: Sequence[Message], *, position: Cursor | None, state: bytes, fence: int) -> Awaitable[object]:
        """Writes these messages as one transaction, the position (None leaves it) and the state, all or nothing; durable when awaited.

        A plain call: commits are carried out in the order of the calls, and several may be in flight. The messages are for vchannels on
        `pchannel`; without messages the position alone is written. The awaited call raises SessionLostError if another consumer, a seek or
        a deletion has taken the cursor, and InvalidRequestSeqError after a commit that failed: then claim the cursor again. A message that
        cannot be in a transaction raises at the call, TypeError or InvalidArgumentError, and counts for no failure.
        """

    async def release(self, fence: int) -> None:
        """Ends the claim with this number; does nothing if it has ended already."""


class Appends(Protocol):
    """The writing calls. Calls for one pchannel are executed in the order they were made, also across its vchannels.

    A call that is refused before anything is sent (TypeError, InvalidArgumentError, WouldBlockError) changes nothing, and creates no
    vchannel. A result is durable. A failed write is a StorageError, a lost connection an UnknownOutcomeError, both with
    `outcome_unknown`.
    """

    message_bytes_max: int
    """The most bytes that the payload and the properties of a message may have."""

    def append(self, message: Message, options: WriteOptions = PLAIN) -> asyncio.Future[Any] | None:
        """Sends a message; returns None if it has to wait for room in flight. The hot path: no coroutine, one future per message.

        The future has an AppendResult, or a ForgottenResult for a producer's key; it raises a ConflictError if the last event is not the
        expected one. Raises InvalidRequestSeqError if a producer's sequence is below one in flight, or follows a failed one;
        InvalidArgumentError for an expected id of another pchannel, or of another incarnation of its log. A message for a vchannel that
        does not exist creates it, or raises ChannelNotExistError where the settings forbid that.
        """

    def no_room(self, message: Message) -> BaseException:
        """Returns why a message has no room in flight: a WouldBlockError, or the ClosedError of an engine that is being closed."""

    async def append_waiting(self, message: Message, options: WriteOptions = PLAIN) -> Any:
        """Appends a message, as `append` does, when there is room in flight; callers are served in order."""

    def append_txn(self, request: AppendTxn) -> Awaitable[AppendResult | ForgottenResult]:
        """Appends a whole transaction when the bytes in flight have room. Raises ConflictError if a vchannel has another last event.

        Raises TypeError or InvalidArgumentError for a message that cannot be in it, InvalidArgumentError if it is over the bounds of
        transactions, and as `begin_txn` and `append` do.
        """

    def pieces(self, messages: Sequence[Message]) -> AsyncGenerator[Piece, None]:
        """Sends checked messages in their order, without a transaction, and yields each piece of them when it is sent.

        A piece waits for room in flight. If a vchannel is dropped meanwhile, the rest of its messages raises ChannelNotExistError.
        """

    async def begin_txn(self, request: BeginTxn) -> EngineTxn[AppendResult | ForgottenResult]:
        """Opens a transaction.

        Raises InvalidArgumentError if they are on several pchannels; errors of `append` for vchannels that do not exist.
        """


class EngineTxn(Protocol[R_co]):
    """An open transaction. Its bodies are kept outside of the log until the commit."""

    context: TxnContext

    def append(self, message: Message, barrier_time_tick: int) -> int:
        """Adds a body and refreshes the lease; returns how many bodies there are.

        WouldBlockError and InvalidArgumentError leave the transaction open; TransactionExpiredError and ChannelNotExistError end it.
        """

    def append_many(self, messages: Sequence[Message | bytes], barrier_time_tick: int) -> int:
        """Adds bodies, all or none, and refreshes the lease; returns how many bodies there are. Raises as `append` does.

        `bytes` are an INSERT on the transaction's only vchannel.
        """

    def save(self, cursor: Cursor, after: LogPosition | None = None) -> None:
        """Has the commit save this cursor too; a later call replaces an earlier one. Raises InvalidArgumentError for another cursor.

        Unless the saved cursor has passed the event `after` by then, the commit raises InvalidRequestSeqError and writes nothing.
        """

    async def commit(self) -> R_co:
        """Writes all bodies as one event. WouldBlockError leaves the transaction open; TransactionExpiredError means that it has ended."""

    async def rollback(self) -> None:
        """Forgets the transaction; does nothing if it has ended already."""

    def abandon(self) -> bool:
        """Rolls back a transaction that no caller holds any more, without waiting; returns False if it has ended. From any thread."""
