"""The errors of the product, and what a caller can do about each.

The errors form one shallow tree. Every error has a numeric `code` (Milvus' `StreamingCode`, which a wire can carry), and `retryable` is
True if the same call may succeed later; a class exists only if a caller would act differently. A log that the caller closed (`ClosedError`)
and a log that broke (`StorageError`, `UnknownOutcomeError`) raise different classes. After an error with `outcome_unknown`, the call may or
may not have taken effect.

    WALError
    ├── BulkAppendError                        append_bulk failed in the middle: .outcomes, .remaining; also of its cause's class
    ├── InvalidArgumentError (ValueError)      a wrong value: the text names the value, the limit and the remedy
    │   └── KeyNotExistError (KeyError)        a KV key that must exist does not
    ├── NoPayloadError (AttributeError)        a transaction has no payload and no properties: read its bodies()
    ├── PayloadError                           a payload has no value of the type that it is read as: .message
    ├── HandlerFailedError                     a message that a consumer without a dead letter tries no more: .message, .attempts
    ├── ClosedError                            closed or released by you
    ├── ChannelExistError / ChannelNotExistError / ChannelFencedError / UnmatchedChannelTermError
    ├── IgnoredOperationError / InvalidRequestSeqError / InnerError / EndOfStreamError / UnknownError
    ├── TransactionExpiredError / InvalidTransactionStateError
    ├── ConflictError                          the last event differs from the append's expected_last: .last, .vchannel
    ├── ResourceAcquiredError                  a resource key is held: .keys, .holder
    ├── UnknownOutcomeError                    sent, but not answered: retry with the same idempotency key
    ├── TruncatedError                         the position is gone: .earliest
    ├── LogWentBackError                       an older copy of the log is there now: .last_common
    ├── CorruptionError                        damage at or below the durable position: .path, .offset
    ├── StorageError                           a write or sync failed, or the directory has gone: final for this opening
    ├── NoSpaceError                           the disk is full: nothing was written, retry later
    ├── LockedError                            another process, or this one, has the log open for writing: .pid
    ├── FormatError                            not a journal, or written by a newer version; or a server has another log now
    ├── WouldBlockError                        a bound is reached: wait, or make room
    ├── NotLocalError                          the pchannel is not served by this process
    ├── UnavailableError                       a server could not be reached or did not answer; nothing was changed
    │   └── NotLeaderError                     a coordinator that does not lead: .leader is the address of the leader
    ├── SessionLostError                       a lease ran out or was revoked: stop the work that it protected
    └── UnrecoverableError
"""

from __future__ import annotations

import contextlib
import enum
import struct
from typing import TYPE_CHECKING, ClassVar, Final, Self, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from wal.message import AppendResult, ImmutableMessage, Message, MessageID

__all__ = [
    "AuthenticationError",
    "BulkAppendError",
    "ChannelExistError",
    "ChannelFencedError",
    "ChannelNotExistError",
    "ClosedError",
    "ConflictError",
    "CorruptionError",
    "EndOfStreamError",
    "FormatError",
    "HandlerFailedError",
    "IgnoredOperationError",
    "InnerError",
    "InvalidArgumentError",
    "InvalidRequestSeqError",
    "InvalidTransactionStateError",
    "KeyNotExistError",
    "LockedError",
    "LogWentBackError",
    "NoPayloadError",
    "NoSpaceError",
    "NotLeaderError",
    "NotLocalError",
    "PayloadError",
    "ResourceAcquiredError",
    "SessionLostError",
    "StorageError",
    "StreamingCode",
    "TransactionExpiredError",
    "TruncatedError",
    "UnavailableError",
    "UnknownError",
    "UnknownOutcomeError",
    "UnmatchedChannelTermError",
    "UnrecoverableError",
    "WALError",
    "WouldBlockError",
]

BULK_CALL: Final = "append_bulk"
"""The call that appends any number of messages without a transaction, as texts of errors name it."""


class StreamingCode(enum.IntEnum):
    """Numbers 0-10 and 999 are Milvus' `STREAMING_CODE_…` (streaming.proto, its spelling kept); 11 and up are ours."""

    OK = 0
    CHANNEL_EXIST = 1
    CHANNEL_NOT_EXIST = 2
    CHANNEL_FENCED = 3
    ON_SHUTDOWN = 4
    INVALID_REQUEST_SEQ = 5
    UNMATCHED_CHANNEL_TERM = 6
    IGNORED_OPERATION = 7
    INNER = 8
    EOF = 9
    INVAILD_ARGUMENT = 10
    TRANSACTION_EXPIRED = 11
    INVALID_TRANSACTION_STATE = 12
    UNRECOVERABLE = 13
    RESOURCE_ACQUIRED = 14
    UNKNOWN_OUTCOME = 15
    TRUNCATED = 16
    CORRUPTION = 17
    STORAGE = 18
    WOULD_BLOCK = 19
    NO_SPACE = 20
    LOCKED = 21
    FORMAT = 22
    NOT_LOCAL = 23
    UNAVAILABLE = 24
    SESSION_LOST = 25
    CONFLICT = 26
    UNAUTHENTICATED = 27
    LOG_WENT_BACK = 28
    NOT_LEADER = 29
    UNKNOWN = 999


class WALError(Exception):
    """The base of every error the product raises on purpose.

    `code` is its StreamingCode. The same call may succeed later if the error is `retryable`. If it has `outcome_unknown`, the call may have
    taken effect: retry it with the same idempotency key.
    """

    code: ClassVar[StreamingCode] = StreamingCode.UNKNOWN
    retryable: ClassVar[bool] = False
    outcome_unknown: bool = False


class BulkAppendError(WALError):
    """`append_bulk` failed in the middle. `.results` has the results before the first message that is not known to be durable, in order.

    Messages on another pchannel, or sent at the same time, may be durable after that one: `.outcomes` has the result or the error of each
    message, and `.remaining` the messages that have an error, both in input order. A message that was not sent has an
    IgnoredOperationError. `await log.append_bulk(error.remaining)` repeats the messages that are not known to be durable. A message whose
    error has `outcome_unknown` is among them although it may be in the log, where the repetition would write it twice: look before, or
    append messages that must not be written twice with an idempotency key each.

    The error is also of the class of its `__cause__`, the error of the first of these messages, with its `code` and `retryable`: `except
    StorageError` catches it if the cause is a StorageError. Its `outcome_unknown` is True if that of any message is.
    """

    results: Sequence[AppendResult] = ()
    outcomes: Sequence[AppendResult | WALError] = ()
    remaining: Sequence[Message] = ()

    @classmethod
    def of(cls, cause: WALError, outcomes: Sequence[AppendResult | WALError], messages: Sequence[Message] = ()) -> BulkAppendError:
        """Returns the error for a bulk of these messages, which failed for this cause with these outcomes."""
        paired = zip(messages, outcomes, strict=False)
        return cls._of(cause, tuple(outcomes), tuple(message for message, outcome in paired if isinstance(outcome, WALError)))

    @classmethod
    def _of(cls, cause: WALError, outcomes: tuple[AppendResult | WALError, ...], remaining: tuple[Message, ...]) -> BulkAppendError:
        kind = _bulk(type(cause))
        error = kind.__new__(kind)
        results: list[AppendResult] = []
        for outcome in outcomes:
            if isinstance(outcome, WALError):
                break
            results.append(outcome)
        error.args = (
            f"{cause}; the first {len(results)} messages of this bulk are durable (.results); .outcomes has the outcome of each message, "
            "and .remaining those that are not known to be durable",
        )
        error.__dict__.update(cause.__dict__)
        error.results, error.outcomes, error.remaining = tuple(results), outcomes, remaining
        if any(isinstance(outcome, WALError) and outcome.outcome_unknown for outcome in outcomes):
            error.outcome_unknown = True
        error.__cause__ = cause
        return error

    def __reduce__(self) -> tuple[object, ...]:
        return BulkAppendError._of, (self.__cause__, self.outcomes, self.remaining)


class InvalidArgumentError(WALError, ValueError):
    """A wrong value. The text names the value, the limit and what to do."""

    code = StreamingCode.INVAILD_ARGUMENT


class AuthenticationError(InvalidArgumentError):
    """A server refuses this token, or a call without a token, or the token lacks the right that the call needs."""

    code = StreamingCode.UNAUTHENTICATED


class KeyNotExistError(InvalidArgumentError, KeyError):
    """The KV has no value for a key that must exist; `.key` is the key."""

    def __init__(self, key: str, text: str = "") -> None:
        super().__init__(text or f"no value on key {key!r}: save it first, or ask with load_with_prefix()")
        self.key = key

    def __str__(self) -> str:
        return Exception.__str__(self)  # KeyError would print the repr of the text

    def __reduce__(self) -> tuple[object, ...]:
        return KeyNotExistError, (self.key, str(self))


class NoPayloadError(WALError, AttributeError):
    """A transaction has no `payload` and no `properties`: its bodies have them. `hasattr` is False, and `getattr` takes its default."""

    code = StreamingCode.INVAILD_ARGUMENT

    def __init__(self, name: str) -> None:
        super().__init__(
            f"a transaction has no {name} of its own, each of its bodies does: iterate over message.bodies(), which a plain message has as "
            f"well, or over scanner.bodies()"
        )
        self.name: str = name

    def __reduce__(self) -> tuple[type[NoPayloadError], tuple[str]]:
        return type(self), (self.name,)


class PayloadError(WALError):
    """A payload is not a value of the type that it is read as. `.message` is the message, or the body, as it is in the log.

    The read has not passed it. Read on after it with `StartAfter(error.message.message_id)`, or with a scanner without a type.
    """

    code = StreamingCode.INVAILD_ARGUMENT

    def __init__(self, message_text: str, *, message: ImmutableMessage | None = None) -> None:
        super().__init__(message_text)
        self.message = message


class HandlerFailedError(WALError):
    """A message is out of attempts, or was rejected, and its consumer has no dead letter: the consumer has ended, and skipped nothing.
    Or a consumer with a dead letter has tripped at this message (`trip_after`), and pauses until `resume()`.

    `.message` is the message, `.attempts` the number of attempts; the handler's exception is the cause. A consumer that is started again
    begins with the first attempt.
    """

    code = StreamingCode.UNRECOVERABLE

    def __init__(self, message_text: str, *, message: ImmutableMessage | None = None, attempts: int = 0) -> None:
        super().__init__(message_text)
        self.message = message
        self.attempts = attempts


class ClosedError(WALError):
    """The log was closed or released by the caller: open it again to continue."""

    code = StreamingCode.ON_SHUTDOWN


class ChannelExistError(WALError):
    """The vchannel exists already."""

    code = StreamingCode.CHANNEL_EXIST


class ChannelNotExistError(WALError):
    """The vchannel does not exist, or was dropped."""

    code = StreamingCode.CHANNEL_NOT_EXIST


class ChannelFencedError(WALError):
    """A writer with a higher term owns the pchannel now; this handle writes and acknowledges nothing any more.

    `.term` is the highest known term of the pchannel's log, 0 if the refusal has no term: the log opens in terms above it.
    """

    code = StreamingCode.CHANNEL_FENCED

    def __init__(self, message_text: str, *, term: int = 0) -> None:
        super().__init__(message_text)
        self.term = term


class UnmatchedChannelTermError(WALError):
    """A call for a pchannel is of another term than the pchannel. `.term` is that of the newest call for it there, 0 if unknown."""

    code = StreamingCode.UNMATCHED_CHANNEL_TERM

    def __init__(self, message_text: str, *, term: int = 0) -> None:
        super().__init__(message_text)
        self.term = term


class IgnoredOperationError(WALError):
    """In the `.outcomes` of a bulk: the message was not sent."""

    code = StreamingCode.IGNORED_OPERATION


class InvalidRequestSeqError(WALError):
    """A producer's sequence is below one in flight, or follows a failed one. Nothing was written: retry from the failed one."""

    code = StreamingCode.INVALID_REQUEST_SEQ


class InnerError(WALError):
    """Ids could not be allocated."""

    code = StreamingCode.INNER
    retryable = True


class EndOfStreamError(WALError):
    """The end of a stream in Milvus' protocol; no call raises it."""

    code = StreamingCode.EOF


class UnknownError(WALError):
    """A defect of the log; the text asks for a report."""

    code = StreamingCode.UNKNOWN


class TransactionExpiredError(WALError):
    """The transaction's keepalive ran out, or an exclusive message failed it. Nothing of it is in the log: begin a new one."""

    code = StreamingCode.TRANSACTION_EXPIRED


class InvalidTransactionStateError(WALError):
    """The transaction was committed or rolled back already: each transaction ends once."""

    code = StreamingCode.INVALID_TRANSACTION_STATE


class ConflictError(WALError):
    """The last event of a vchannel differs from `expected_last` of the append. Nothing of the append was written.

    `.last` is the id of the vchannel's last event, which is durable, or None without one; `.vchannel` is the vchannel. The same call would
    fail again: read the vchannel up to `.last`, decide again, and append with `expected_last=error.last`.
    """

    code = StreamingCode.CONFLICT

    def __init__(self, message: str, *, vchannel: str = "", last: MessageID | None = None) -> None:
        super().__init__(message)
        self.vchannel = vchannel
        self.last = last

    @classmethod
    def of(cls, vchannel: str, expected: MessageID | None, last: MessageID | None) -> Self:
        """Returns the error of an append or a transaction that expected another last event of this vchannel."""
        there = "it never had an event" if last is None else f"its last event is {last}"
        should = "no event" if expected is None else str(expected)
        return cls(
            f"nothing was written to vchannel {vchannel!r}: expected_last says {should}, but {there}: read up to it, decide again, and "
            "append with expected_last=error.last",
            vchannel=vchannel,
            last=last,
        )


class ResourceAcquiredError(WALError):
    """An unfinished broadcast holds a resource key."""

    code = StreamingCode.RESOURCE_ACQUIRED
    retryable = True

    def __init__(self, message: str, *, keys: Sequence[object] = (), holder: int = 0) -> None:
        super().__init__(message)
        self.keys: tuple[object, ...] = tuple(keys)
        self.holder = holder


class UnknownOutcomeError(WALError):
    """A request was sent and not answered: retry an append with the same idempotency key.

    A broadcast with this error is not complete yet and will be completed, so it must not be sent again.
    """

    code = StreamingCode.UNKNOWN_OUTCOME
    retryable = True
    outcome_unknown = True


class TruncatedError(WALError):
    """The position to read from has been truncated. `.earliest` is the id of the first event that still exists, or None."""

    code = StreamingCode.TRUNCATED

    def __init__(self, message: str, *, earliest: object | None = None) -> None:
        super().__init__(message)
        self.earliest = earliest


class LogWentBackError(WALError):
    """The log no longer has what its reader or writer has seen: an older copy of it was restored.

    `.last_common` is the id of the newest event that is certainly the same in both, or None if no such event exists or is known. Later
    events that were seen are gone, and others may have their positions: check their effects before you continue after `.last_common`.
    """

    code = StreamingCode.LOG_WENT_BACK

    def __init__(self, message: str, *, last_common: MessageID | None = None, commons: Sequence[MessageID] = ()) -> None:
        """`commons` are the last common events in all pchannels, of an error that is about a whole log."""
        super().__init__(message)
        self.commons: tuple[MessageID, ...] = tuple(commons) or (() if last_common is None else (last_common,))
        self.last_common: MessageID | None = self.commons[0] if last_common is None and self.commons else last_common

    def of(self, pchannel: str) -> LogWentBackError:
        """Returns the error with the last common event of this pchannel, None if it is unknown."""
        common = next((one for one in self.commons if one.pchannel == pchannel), None)
        if common == self.last_common:
            return self
        return LogWentBackError(str(self), last_common=common)


class CorruptionError(WALError):
    """Data at or below the durable position is damaged. It is never skipped and never delivered.

    `path` and `offset` (in bytes from the start of that file) are the location of the damage, `expected` describes the sound content.
    """

    code = StreamingCode.CORRUPTION

    def __init__(self, message: str, *, path: str = "", offset: int = -1, expected: str = "") -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset
        self.expected = expected


class StorageError(WALError):
    """A write or a sync failed, or the directory was removed or replaced: nothing more is written until the log is reopened.

    `outcome_unknown` is True for a call that was in flight: reopen the log and retry with the same idempotency key.
    """

    code = StreamingCode.STORAGE

    def __init__(self, message: str, *, outcome_unknown: bool = False) -> None:
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


class NoSpaceError(WALError):
    """The disk is full. Nothing was written: free space and retry."""

    code = StreamingCode.NO_SPACE
    retryable = True


class LockedError(WALError):
    """Another process, or this one, has the journal open for writing: close it there first.

    `.pid` is that process, or None if it cannot be seen from here, for example in another container.
    """

    code = StreamingCode.LOCKED
    retryable = True

    def __init__(self, message: str, *, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class FormatError(WALError):
    """The files are not a journal, or a newer version wrote them; or the log does not exist, and the call must not create it.

    Also the error of a client whose server now has another log than the opened one: the call had no effect, and the client has ended.
    """

    code = StreamingCode.FORMAT


class WouldBlockError(WALError):
    """A bound is reached, and this call does not wait: wait a little, or make room. The text names the bound."""

    code = StreamingCode.WOULD_BLOCK
    retryable = True


class NotLocalError(WALError):
    """The pchannel is not served by this process."""

    code = StreamingCode.NOT_LOCAL


class UnavailableError(WALError):
    """A server could not be reached or did not answer, or the process has no file descriptor left. Nothing was changed: retry."""

    code = StreamingCode.UNAVAILABLE
    retryable = True


class NotLeaderError(UnavailableError):
    """This coordinator does not lead: ask the one at the address `leader`, which is empty while the leader is unknown. Nothing was
    changed.
    """

    code = StreamingCode.NOT_LEADER

    def __init__(self, text: str, *, leader: str = "") -> None:
        super().__init__(text)
        self.leader: str = leader


class SessionLostError(WALError):
    """A session's lease ran out, was revoked or could not be renewed in time: stop the work that it protected, and open a new one.

    A server of a log also refuses a change of the session that arrives after its client has abandoned it.
    """

    code = StreamingCode.SESSION_LOST


class UnrecoverableError(WALError):
    """A broadcast is stuck or was aborted while its caller waited, or the broadcaster failed: then open the log again."""

    code = StreamingCode.UNRECOVERABLE


_BULK: Final[dict[type[WALError], type[BulkAppendError]]] = {}


def _bulk(cause: type[WALError]) -> type[BulkAppendError]:
    """Returns the class of a bulk's error for this class of causes."""
    if cause not in _BULK:
        names = {"__module__": __name__, "__doc__": BulkAppendError.__doc__}
        _BULK[cause] = type(BulkAppendError.__name__, (BulkAppendError, cause), names)
    return _BULK[cause]


_SHOWN_MAX: Final = 100
"""The characters of a wrong text that an error shows."""


def shortened(text: str) -> str:
    """Returns the repr of a wrong text for an error: of a long one its beginning and its length."""
    if len(text) <= _SHOWN_MAX:
        return repr(text)
    return f"{text[:_SHOWN_MAX]!r}… ({len(text)} characters)"


@contextlib.contextmanager
def corruption(text: str, *, expected: str = "") -> Iterator[None]:
    """Raises CorruptionError, with this text and the reason, for whatever decoding damaged bytes raises inside.

    A ValueError is damage too: a check inside raises it. Other errors of the log pass.
    """
    try:
        yield
    except (struct.error, msgspec.MsgspecError, RecursionError, ValueError, LookupError, TypeError) as error:
        raise CorruptionError(f"{text}: {error}", expected=expected) from error


_E = TypeVar("_E", bound=BaseException)


def caused(error: _E, cause: BaseException | None) -> _E:
    """Returns the error with this cause, for an error that is raised later or elsewhere."""
    error.__cause__ = cause
    return error


def defect(text: str, cause: BaseException) -> UnknownError:
    """Returns the error for a defect of this code; the text names the failed call, or the work that ended with it."""
    return caused(UnknownError(f"{text}: {cause!r}; please report it"), cause)


def closed_log(what: str = "") -> ClosedError:
    """Returns the error of a call that the closing of the log ended, or of one on a log that is closed, if `what` names that."""
    return ClosedError(f"the log {what} is closed: open it again to continue" if what else "the log was closed: open it again to continue")
