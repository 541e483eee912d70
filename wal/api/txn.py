"""Txn: a transaction as its user holds it.

The engine keeps its bodies until the commit; until then nothing of it is in the log. It ends once, by commit or by rollback.
"""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from threading import get_ident
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic

from wal.api.append_options import explained
from wal.api.lifecycle import Lifecycle
from wal.channels.vchannels import check_vchannel, check_vchannels
from wal.errors import ConflictError, InvalidArgumentError, InvalidTransactionStateError, WouldBlockError
from wal.message import AppendResult, LogPosition, Message, MessageID
from wal.message.matching import Matching
from wal.read.cursors.cursor import Cursor, CursorKey, Mark, after_unsaved, check_cursor
from wal.read.loop import cursor_of
from wal.read.merged import tick_cursor
from wal.read.options import ReadPosition, named
from wal.read.scanner import Scanner
from wal.requests.appends import NOT_EXPECTED
from wal.runtime.async_only import AsyncOnly
from wal.timestamp.checks import number_text
from wal.write.checks import check_body

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # supports defaults; the standard library's does from Python 3.13 on

    from wal.api.typed_scanner import TypedScanner
    from wal.engine import EngineTxn, WritableEngine
    from wal.message import TxnContext

    R_co = TypeVar("R_co", covariant=True, default=AppendResult)
else:
    from typing import TypeVar

    R_co = TypeVar("R_co", covariant=True)


KEEPALIVE_MIN: Final = 0.001
"""The shortest keepalive in seconds, as in Milvus."""


BODIES_A_TURN: Final = 256
"""After this many bodies, about half a millisecond, a transaction yields to the event loop."""


class Txn(Generic[R_co]):
    """An open transaction: call `append` any number of times, then `commit` or `rollback` once.

    `Txn` in an annotation means `Txn[AppendResult]`. A transaction with a `ProducerKey` is a `Txn[AppendResult | ForgottenResult]`.
    """

    __slots__ = ("_before_save", "_chained", "_ending", "_expected", "_lifecycle", "_result", "_saved", "_served", "_vchannels", "context")

    def __init__(
        self,
        lifecycle: Lifecycle,
        served: EngineTxn[R_co],
        vchannels: tuple[str, ...],
        expected: Mapping[str, MessageID | None] = NOT_EXPECTED,
    ) -> None:
        """`served` is the transaction of the engine, whose commit judges `expected`. Holding the lifecycle keeps the log open."""
        self._lifecycle = lifecycle
        self._served = served
        self._vchannels = vchannels
        self._expected = expected
        self._ending = ""
        self._saved: tuple[CursorKey, ReadPosition] | None = None
        self._before_save: Callable[[], Awaitable[None]] | None = None
        self._chained: tuple[Cursor, Scanner] | None = None
        """The position of a scanner to save, and the scanner."""
        self._result: R_co | None = None
        self.context: TxnContext = served.context
        """Its id and keepalive."""

    @property
    def result(self) -> R_co:
        """The result of `commit`. Raises InvalidTransactionStateError before the commit, and if it failed or there was none."""
        if self._result is None:
            raise InvalidTransactionStateError(
                f"transaction {self.context.txn_id} has no result, it is {self._ending or 'open'}: only a commit that succeeded has one"
            )
        return self._result

    async def append(self, message: Message | bytes, *, barrier_time_tick: int = 0) -> None:
        """Adds a message and renews the keepalive. `bytes` mean an INSERT on the transaction's only vchannel.

        The barrier applies to the commit. WouldBlockError (open transactions hold too much) and InvalidArgumentError (an invalid
        message, or the transaction would be too large) leave the transaction open; TransactionExpiredError means that it has ended.
        """
        self._check_open()
        checked = check_body(message, self._vchannels)
        lifecycle = self._lifecycle
        if lifecycle.engine is None or get_ident() != lifecycle.thread or not lifecycle.is_running():
            await lifecycle.ready()
        if self._served.append(checked, barrier_time_tick) % BODIES_A_TURN == 0:
            await asyncio.sleep(0)

    async def append_many(self, messages: Iterable[Message | bytes], *, barrier_time_tick: int = 0) -> None:
        """Adds messages in order, all or none of them, and renews the keepalive. `bytes` mean INSERTs on the transaction's only vchannel.

        The errors are those of `append`. InvalidArgumentError, TypeError and WouldBlockError leave the transaction open and as it was.
        """
        self._check_open()
        bodies = body_list(messages)
        await self._lifecycle.ready()
        self._check_open()
        count = self._served.append_many(bodies, barrier_time_tick)
        if count // BODIES_A_TURN > (count - len(bodies)) // BODIES_A_TURN:
            await asyncio.sleep(0)

    def save(
        self,
        read: Scanner | TypedScanner[Any] | ReadPosition,
        cursor: str | None = None,
        *,
        vchannels: str | Sequence[str] | Matching | None = None,
    ) -> None:
        """Has the commit save a cursor: it moves if and only if the transaction is written, in the same frame.

        `read` is a scanner, whose position is taken at this call, and `cursor` a name for it (None: the name of its own cursor). Or it is a
        position, with the name of the cursor and the vchannels, or the pattern, that were read. A transaction saves one cursor; the last
        call counts. The cursor is kept in the log of the transaction's pchannel from then on, and every transaction that saves it has to be
        on that pchannel (the commit raises InvalidArgumentError otherwise). A transaction without messages writes the cursor alone, and no
        reader sees it; its result has the id of no message of its own.

        With an idempotency key that was seen before, the messages are not written again; the cursor is saved all the same, unless it is at
        this position or later already. Raises InvalidArgumentError for a scanner that has not begun to read, or has no cursor and gets no
        name here. The commit raises TruncatedError, and writes nothing, if the log was truncated past the position or the cursor is stale.

        Several transactions that save positions of a scanner may be committed concurrently, in the order of the positions. If one of them
        fails, all later ones fail with InvalidRequestSeqError and write nothing, until its position is saved: so no save covers an
        unwritten one. A new reader of the cursor begins at the last written save. Commits that save positions of a family's scanner are
        sent one after the other.
        """
        self._check_open()
        scanner = getattr(read, "scanner", read)  # that of a TypedScanner
        if isinstance(scanner, Scanner):
            if vchannels is not None:
                raise InvalidArgumentError("save(scanner, vchannels=…): the vchannels are those of the scanner; leave them out")
            saved, before = scanner._cursor(None if cursor is None else check_cursor(cursor))
            self._served.save(saved)
            self._saved, self._before_save, self._chained = None, before, (saved, scanner)
            return
        if not isinstance(read, ReadPosition):
            raise TypeError(f"save takes a Scanner or a ReadPosition, not {type(read).__name__}: pass the scanner, or scanner.position")
        if cursor is None or vchannels is None:
            raise InvalidArgumentError(
                "save(position): name the cursor and the vchannels that were read, save(position, cursor=…, vchannels=…)"
            )
        takes = "save(vchannels=…) takes the name of a vchannel, or several, or a pattern"
        names = vchannels if isinstance(vchannels, Matching) else check_vchannels(vchannels, takes)
        if not names:
            raise InvalidArgumentError("save(vchannels=[]) names no vchannel: name the vchannels of the read")
        self._saved, self._before_save, self._chained = (CursorKey.of(check_cursor(cursor), names), read), None, None

    async def commit(self) -> R_co:
        """Makes the whole transaction durable as one event, and returns its result.

        With an idempotency key that was seen before, nothing is written, and the first result is returned. WouldBlockError (no
        room for the call, or for one more producer) leaves the transaction open: commit again, or roll back. Any other error ends it; a
        NoSpaceError or an UnavailableError means that nothing of it was written: begin a new one, with the same key if it had one. So
        does a ConflictError, after which the caller reads up to `.last` and decides again.
        Ending it a second time raises InvalidTransactionStateError.
        """
        self._end("committed")
        if self._chained is None or (mark := self._chained[0].mark) is None:
            return await self._commit()
        cursor, scanner = self._chained
        if cursor.key.pattern:
            return await self._commit_in_turn(cursor, mark, scanner)
        chain = scanner._chain(cursor.key)
        after = chain.before(mark)
        chain.sent(mark)
        result = await self._commit(cursor, after)
        chain.written(mark)
        return result

    async def _commit_in_turn(self, cursor: Cursor, mark: Mark, scanner: Scanner) -> R_co:
        """Commits a position on all pchannels once the reader's commits before it are settled. An unwritten one refuses it here, since the
        home of a cursor compares saves by an event of one pchannel.
        """
        chain, is_sent = scanner._chain(cursor.key), False
        try:
            async with scanner._turn:
                if (before := chain.before(mark)) is not None:
                    cursors = (await self._lifecycle.ready()).cursors
                    saved = await cursors.load(cursor.key, pchannel=cursor.pchannel)
                    if saved is None or saved.order < before:
                        raise after_unsaved(cursor.key)
                is_sent = True
                chain.sent(mark)
                result = await self._commit()
                chain.written(mark)
                return result
        except BaseException:
            if not is_sent:
                self._served.abandon()
            raise

    async def _commit(self, cursor: Cursor | None = None, after: LogPosition | None = None) -> R_co:
        """Commits; unless the saved `cursor` has passed the event `after` by then, it is refused."""
        try:
            engine = await self._lifecycle.ready()
            if self._before_save is not None or self._saved is not None:
                try:
                    await self._prepare_save(engine)
                except BaseException:
                    self._served.abandon()
                    raise
            if cursor is not None and after is not None:
                self._served.save(cursor, after)
            result = self._result = await self._served.commit()
        except WouldBlockError:
            self._ending = ""
            raise
        except ConflictError as error:
            raise await explained(engine, error, self._expected) from None
        return result

    async def _prepare_save(self, engine: WritableEngine) -> None:
        """Turns a saved position into a cursor, and acknowledges what a scanner was handed before its position."""
        if (before := self._before_save) is not None:
            await before()
        if (saved := self._saved) is not None:
            key, position = saved
            if key.pattern:
                attached, _ = await engine.attach_matching(Matching(key.pattern))
                self._served.save(tick_cursor(key, position, [pchannel.channel for pchannel, _ in attached]))
                return
            pchannel, selection, _ = await engine.attach(key.vchannels)
            incarnations = {name: selection.incarnation(name) for name in key.vchannels}
            self._served.save(cursor_of(key, pchannel.origin(), incarnations, pchannel.reached_at(position)))

    async def rollback(self) -> None:
        """Forgets the transaction; an expired one is not an error. Ending it a second time raises InvalidTransactionStateError."""
        self._end("rolled back")
        await self._lifecycle.ready()
        await self._served.rollback()

    @property
    def ended(self) -> bool:
        """Whether commit or rollback was called."""
        return bool(self._ending)

    def _check_open(self) -> None:
        if self._ending:
            raise InvalidTransactionStateError(f"transaction {self.context.txn_id} was {self._ending} before this append: begin a new one")

    def _end(self, ending: str) -> None:
        if self._ending:
            raise InvalidTransactionStateError(f"transaction {self.context.txn_id} was {self._ending} already; each transaction ends once")
        self._ending = ending

    def __del__(self) -> None:
        if not self._ending and self._lifecycle.engine is not None and self._served.abandon():
            warnings.warn(
                f"transaction {self.context.txn_id} over {named(self._vchannels)} was garbage-collected while it was open, and is "
                "rolled back: end it with commit() or rollback(), or begin it with `async with`",
                ResourceWarning,
                source=self,
                stacklevel=1,
            )

    def __repr__(self) -> str:
        return f"Txn({self.context.txn_id}, vchannels={self._vchannels}, {self._ending or 'open'})"


class TxnOpening(AsyncOnly, Generic[R_co]):
    """The result of `log.txn(…)`: await it to get a `Txn`, or use it in `async with`, which commits at the end or rolls back."""

    __slots__ = ("_begin", "_txn")
    _with_form = "'async with log.txn(…) as txn', or 'txn = await log.txn(…)'"

    def __init__(self, begin: Callable[[], Awaitable[Txn[R_co]]]) -> None:
        self._begin = begin
        self._txn: Txn[R_co] | None = None

    def __await__(self) -> Generator[Any, None, Txn[R_co]]:
        return self._begin().__await__()

    async def __aenter__(self) -> Txn[R_co]:
        self._txn = txn = await self._begin()
        return txn

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        txn = self._txn
        assert txn is not None
        if txn.ended:
            return
        if kind is None:
            await txn.commit()
        else:
            await txn.rollback()


def body_list(messages: Iterable[Message | bytes]) -> list[Message | bytes]:
    """Returns the bodies that a caller gave at once. Raises TypeError for one message instead of several, or for no iterable."""
    if messages.__class__ is not list and (isinstance(messages, bytes | str | Message) or not isinstance(messages, Iterable)):
        raise TypeError(f"messages must be an iterable of bytes or Messages, not {type(messages).__name__}: pass a list")
    return list(messages)


def txn_vchannels(vchannel: object, vchannels: object) -> tuple[str, ...]:
    """Returns the names passed to `txn(…)`. Raises TypeError or InvalidArgumentError if they are invalid."""
    if (vchannel is None) == (vchannels is None):
        raise InvalidArgumentError("txn() takes either vchannel=… or vchannels=[…]")
    if vchannels is None:
        return (check_vchannel(vchannel),)
    if isinstance(vchannels, str):
        raise TypeError(f"vchannels must be a sequence of names, not the str {vchannels!r}: use vchannel=…")
    names = check_vchannels(vchannels, "txn(vchannels=…) takes several names")
    if not names:
        raise InvalidArgumentError("txn(vchannels=[]) names no vchannel: name at least one")
    return names


def check_keepalive(keepalive: object) -> None:
    """Raises TypeError or InvalidArgumentError for an invalid keepalive."""
    if not isinstance(keepalive, int | float) or isinstance(keepalive, bool):
        raise TypeError(f"keepalive must be a number of seconds, not {keepalive!r}")
    if keepalive != 0 and not KEEPALIVE_MIN <= keepalive <= sys.float_info.max:
        raise InvalidArgumentError(
            f"keepalive={number_text(keepalive)} is out of range: 0 for the default, otherwise at least {KEEPALIVE_MIN} s"
        )
