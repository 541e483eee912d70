"""Errors on the wire: every class arrives as itself, with its text and its attributes."""

from __future__ import annotations

import grpc
import grpc.aio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import SOAK
from wal import errors
from wal.message import AppendResult, MessageID, ResourceKey
from wal.rpc.api import error_pb2
from wal.rpc.codes import DETAILS_BYTES_MAX, STATUSES, error_from_proto, error_in, error_to_proto, status_of

# NoPayloadError and PayloadError are raised by what reads a message, and HandlerFailedError by a consumer: they are never an answer.
CLASSES = sorted(
    (
        one
        for one in vars(errors).values()
        if isinstance(one, type)
        and issubclass(one, errors.WALError)
        and one not in (errors.WALError, errors.HandlerFailedError, errors.NoPayloadError, errors.PayloadError)
    ),
    key=lambda kind: kind.__name__,
)
ID = MessageID("p-1", 7, 4096, 3)
EXAMPLES = 20 if not SOAK else 1_000

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
ids = st.builds(MessageID, st.just("p-1"), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
keys = st.builds(ResourceKey, texts.filter(bool), texts.filter(bool), shared=st.booleans())
results = st.lists(
    st.builds(lambda at, tick, duplicate: AppendResult(at, tick, at, duplicate=duplicate), ids, st.integers(0, 9), st.booleans()),
    max_size=5,
)


def made(kind: type[errors.WALError]) -> st.SearchStrategy[errors.WALError]:
    """Returns errors of this class, with any attributes."""
    if kind is errors.KeyNotExistError:
        return st.builds(errors.KeyNotExistError, texts.filter(bool))
    if kind is errors.ResourceAcquiredError:
        return st.builds(errors.ResourceAcquiredError, texts, keys=st.lists(keys, max_size=3), holder=st.integers(0, 2**64 - 1))
    if kind is errors.TruncatedError:
        return st.builds(errors.TruncatedError, texts, earliest=st.none() | ids)
    if kind is errors.ConflictError:
        return st.builds(errors.ConflictError, texts, vchannel=texts, last=st.none() | ids)
    if kind is errors.LogWentBackError:
        return st.builds(errors.LogWentBackError, texts, last_common=st.none() | ids)
    if kind is errors.CorruptionError:
        return st.builds(errors.CorruptionError, texts, path=texts, offset=st.integers(-1, 2**62), expected=texts)
    if kind is errors.StorageError:
        return st.builds(errors.StorageError, texts, outcome_unknown=st.booleans())
    if kind in (errors.ChannelFencedError, errors.UnmatchedChannelTermError):
        return st.builds(kind, texts, term=st.integers(0, 2**63))
    if kind is errors.LockedError:
        return st.builds(errors.LockedError, texts, pid=st.none() | st.integers(0, 2**31))
    if kind is errors.BulkAppendError:
        plain = st.sampled_from([one for one in CLASSES if one is not errors.BulkAppendError])
        # No call of the protocol is a bulk: the results before the cause travel, and not the outcomes after it.
        return st.builds(lambda cause, before: errors.BulkAppendError.of(cause, [*before, cause]), plain.flatmap(made), results)
    return st.builds(kind, texts)


def alike(one: BaseException | None, other: BaseException | None) -> bool:
    """Returns whether two errors say the same to a caller: class, text, attributes, and the cause of a bulk."""
    if isinstance(one, errors.BulkAppendError) and not alike(one.__cause__, other.__cause__ if other else None):
        return False
    same = {"outcome_unknown": 0, "outcomes": ()}
    return (
        type(one) is type(other)
        and str(one) == str(other)
        and getattr(one, "outcome_unknown", None) == getattr(other, "outcome_unknown", None)
        and {**vars(one), **same} == {**vars(other), **same}
    )


def test_every_class_has_a_row_of_its_own() -> None:
    assert [kind.__name__ for kind in CLASSES if kind not in STATUSES] == []


def of_each_class() -> st.SearchStrategy[tuple[errors.WALError, ...]]:
    """Returns tuples with an error of each class."""
    return st.tuples(*map(made, CLASSES))


@settings(max_examples=EXAMPLES)
@given(of_each_class())
def test_every_class_arrives_as_itself(errors_of_classes: tuple[errors.WALError, ...]) -> None:
    for error in errors_of_classes:
        message = error_pb2.StreamingError.FromString(error_to_proto(error).SerializeToString())
        assert int(message.code) == error.code
        arrived = error_from_proto(message)
        assert alike(arrived, error)
        assert arrived.retryable == error.retryable


def test_outcome_that_is_unknown_stays_unknown() -> None:
    error = errors.NoSpaceError("full")
    error.outcome_unknown = True
    assert error_from_proto(error_to_proto(error)).outcome_unknown
    assert not error_from_proto(error_to_proto(errors.NoSpaceError("full"))).outcome_unknown


def test_class_of_a_caller_arrives_as_its_base() -> None:
    class Mine(errors.TruncatedError):
        pass

    error = Mine("gone", earliest=ID)
    arrived = error_from_proto(error_to_proto(error))
    assert (type(arrived), vars(arrived), str(arrived)) == (errors.TruncatedError, {"earliest": ID}, "gone")
    assert status_of(error)[0] is grpc.StatusCode.OUT_OF_RANGE


def test_defect_of_the_server_is_an_unknown_error_that_says_so() -> None:
    arrived = error_from_proto(error_to_proto(ZeroDivisionError("division by zero")))
    assert type(arrived) is errors.UnknownError
    assert "the server failed: ZeroDivisionError('division by zero'); please report it" in str(arrived)


def test_code_of_a_later_version_is_an_unknown_error_that_names_it() -> None:
    message = error_pb2.StreamingError()
    message.MergeFromString(b"\x08\xba\x06")  # field 1, 826
    message.cause = "no such thing yet"
    arrived = error_from_proto(message)
    assert type(arrived) is errors.UnknownError
    assert "826" in str(arrived)
    assert "no such thing yet" in str(arrived)


def as_raised(error: BaseException) -> grpc.aio.AioRpcError:
    """Returns the error that a client of gRPC raises for this status."""
    code, text, trailers = status_of(error)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details=text)


@settings(max_examples=EXAMPLES)
@given(of_each_class())
def test_every_class_ends_a_call(errors_of_classes: tuple[errors.WALError, ...]) -> None:
    for error in errors_of_classes:
        raised = as_raised(error)
        assert raised.code() is not grpc.StatusCode.OK
        assert alike(error_in(raised), error)


def test_status_is_bounded_whatever_the_error_says() -> None:
    result = AppendResult(ID, 99, ID)
    many = [ResourceKey("domain" * 50, f"key {number}") for number in range(1000)]
    for error in (
        errors.InvalidArgumentError("é" * 1_000_000),
        errors.ResourceAcquiredError("held", keys=many, holder=5),
        errors.CorruptionError("damage", path="/x" * 100_000, offset=3, expected="y" * 100_000),
        errors.BulkAppendError.of(errors.StorageError("broken", outcome_unknown=True), [result] * 100_000),
    ):
        _, text, trailers = status_of(error)
        assert sum(len(key) + len(value) for key, value in trailers) <= DETAILS_BYTES_MAX + 1024
        assert len(text.encode()) <= DETAILS_BYTES_MAX
        arrived = error_in(as_raised(error))
        assert isinstance(arrived, type(error).__mro__[1] if isinstance(error, errors.BulkAppendError) else type(error))
        assert arrived is not None
        assert arrived.outcome_unknown == error.outcome_unknown


def test_status_of_grpc_itself_or_a_damaged_one_is_no_error_of_ours() -> None:
    lost = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details="lost")
    assert error_in(lost) is None
    damaged = grpc.aio.Metadata(("grpc-status-details-bin", b"\xff\xff\xff"))
    arrived = error_in(grpc.aio.AioRpcError(grpc.StatusCode.UNKNOWN, grpc.aio.Metadata(), damaged, details="?"))
    assert type(arrived) is errors.UnknownError
