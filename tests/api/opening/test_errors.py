"""The error tree: one base class, its error numbers, and what a caller may do about each error."""

from __future__ import annotations

import copy
import pickle

import pytest

from wal import AppendResult, Message, MessageID, errors
from wal.errors import StreamingCode, WALError

CODES = {
    "InvalidArgumentError": 10,
    "ClosedError": 4,
    "ChannelExistError": 1,
    "ChannelNotExistError": 2,
    "ChannelFencedError": 3,
    "InvalidRequestSeqError": 5,
    "UnmatchedChannelTermError": 6,
    "IgnoredOperationError": 7,
    "InnerError": 8,
    "EndOfStreamError": 9,
    "UnknownError": 999,
    "TransactionExpiredError": 11,
    "InvalidTransactionStateError": 12,
    "UnrecoverableError": 13,
    "ResourceAcquiredError": 14,
    "UnknownOutcomeError": 15,
    "TruncatedError": 16,
    "CorruptionError": 17,
    "StorageError": 18,
    "WouldBlockError": 19,
    "NoSpaceError": 20,
    "LockedError": 21,
    "FormatError": 22,
    "NotLocalError": 23,
    "UnavailableError": 24,
    "SessionLostError": 25,
    "ConflictError": 26,
    "AuthenticationError": 27,
    "LogWentBackError": 28,
    "NotLeaderError": 29,
}


def test_error_classes_have_their_numbers(subtests: pytest.Subtests) -> None:
    for name in CODES:
        with subtests.test(name):
            arguments = {"ResourceAcquiredError": {"keys": ("k",), "holder": 7}}
            kind = getattr(errors, name)
            assert issubclass(kind, WALError)
            assert kind.code is StreamingCode(CODES[name])
            assert isinstance(kind.retryable, bool)
            error = kind("text", **arguments.get(name, {}))
            assert str(error) == "text"
            assert isinstance(error.outcome_unknown, bool)
            twin = copy.copy(error)
            assert (type(twin), str(twin), vars(twin)) == (kind, "text", vars(error))


def test_bulk_error_has_its_causes_class(subtests: pytest.Subtests) -> None:
    cases: list[WALError] = [
        errors.StorageError("the disk is gone", outcome_unknown=True),
        errors.NoSpaceError("full"),
        errors.TruncatedError("gone", earliest="e"),
        errors.ResourceAcquiredError("held", keys=("k",), holder=7),
    ]
    for cause in cases:
        with subtests.test(type(cause).__name__):
            origin = MessageID("p0", 1, 0, 0, 1)
            durable, late = AppendResult(origin, 5, origin), AppendResult(origin, 7, origin)
            messages = [Message("orders", b"%d" % number) for number in range(3)]
            error = errors.BulkAppendError.of(cause, [durable, cause, late], messages)
            for same in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
                assert isinstance(same, errors.BulkAppendError)
                assert isinstance(same, type(cause))
                assert (same.code, same.retryable, same.outcome_unknown) == (cause.code, cause.retryable, cause.outcome_unknown)
                assert [result.time_tick for result in same.results] == [5]
                assert str(same).startswith(f"{cause}; the first 1 messages of this bulk are durable")
                assert [str(outcome) for outcome in same.outcomes] == [str(durable), str(cause), str(late)]
                assert [message.payload for message in same.remaining] == [b"1"]
                own = {"results", "outcomes", "remaining"}
                assert vars(cause) == {name: value for name, value in vars(same).items() if name not in own}
                assert str(same.__cause__) == str(cause)
            assert type(errors.BulkAppendError.of(cause, [])) is type(error)


def test_numbers_are_the_seeds_and_each_once() -> None:
    assert sorted(CODES.values()) == sorted(set(CODES.values()))
    assert set(map(int, StreamingCode)) == {0, *CODES.values()}


def test_which_errors_are_retryable() -> None:
    retryable = {name for name in CODES if getattr(errors, name).retryable}
    assert retryable >= {"WouldBlockError", "NoSpaceError", "LockedError", "UnknownOutcomeError", "ResourceAcquiredError"}
    assert not retryable & {
        "InvalidArgumentError",
        "ClosedError",
        "CorruptionError",
        "FormatError",
        "TruncatedError",
        "ChannelFencedError",
        "StorageError",
        "UnrecoverableError",
    }


def test_wrong_value_is_a_value_error_too() -> None:
    assert issubclass(errors.InvalidArgumentError, ValueError)
    assert not issubclass(errors.ClosedError, ValueError)


def test_error_can_leave_its_process(subtests: pytest.Subtests) -> None:
    """Worker processes send their errors by pickle."""
    cases: list[WALError] = [
        errors.TruncatedError("gone", earliest=5),
        errors.LockedError("locked", pid=7),
        errors.StorageError("disk", outcome_unknown=True),
        errors.CorruptionError("damage", path="a", offset=5, expected="b"),
        errors.ResourceAcquiredError("held", keys=("k",), holder=7),
        errors.UnknownOutcomeError("lost"),
        errors.KeyNotExistError("k", "no k"),
    ]
    for error in cases:
        with subtests.test(type(error).__name__):
            found = pickle.loads(pickle.dumps(error))
            assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))
            assert found.outcome_unknown == error.outcome_unknown
