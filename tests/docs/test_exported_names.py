"""The names that the packages export: pinned for `wal`; sorted and existing for every module."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType

import pytest

import actors
import broadcaster
import wal
import wal.errors


def test_wal_hands_on_these_names() -> None:
    public = """
        WAL All AppendOption AppendResponses AppendResult BroadcastAppendResult BroadcastHeader BroadcastMessage
        BroadcastState BroadcastTask ChannelDescription Consumer ConsumerInfo CursorInfo CursorMember DeliverFilter
        DeliverPolicy Delivery ForgottenResult Histogram ImmutableMessage ImmutableTxnMessage InboxStatistics Last
        Latest Log LogBroadcast LogStatistics Matching Message MessageHandler MessageID MessagePage MessageType MessageTypes
        OwnerDescription PChannelRetention PChannelStatistics PayloadType ProducerInfo ProducerKey ReadPosition Reject
        ResourceKey RetentionHolder Retry Scanner ScannerStatistics Schedule ScheduledMessage ScheduledResult Secret
        Settings SettingsOverrides StartAfter StartAt StartFrom TimeTickGT TimeTickGTE TimeTickMessage Txn TxnContext
        TypedLog TypedScanner TypedTxn VChannelInfo WALAccesser __version__ init open_wal release
    """

    assert wal.__all__ == public.split()


def test_errors_are_these() -> None:
    errors = """
        AuthenticationError BulkAppendError ChannelExistError ChannelFencedError ChannelNotExistError ClosedError ConflictError
        CorruptionError EndOfStreamError FormatError HandlerFailedError IgnoredOperationError InnerError InvalidArgumentError
        InvalidRequestSeqError InvalidTransactionStateError KeyNotExistError LockedError LogWentBackError NoPayloadError
        NoSpaceError NotLeaderError NotLocalError PayloadError ResourceAcquiredError SessionLostError StorageError StreamingCode
        TransactionExpiredError
        TruncatedError UnavailableError UnknownError UnknownOutcomeError UnmatchedChannelTermError UnrecoverableError WALError
        WouldBlockError
    """

    assert wal.errors.__all__ == errors.split()


def test_all_is_sorted_and_true(subtests: pytest.Subtests) -> None:
    modules = sorted(
        info.name
        for package in (wal, actors, broadcaster)
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if not info.name.endswith("_pb2") and not info.name.rpartition(".")[2].startswith("_")
    )

    def order(name: str) -> tuple[int, str]:
        """CONSTANTS, then Classes, then functions, each by name."""
        return (0 if name.isupper() else 1 if name[:1].isupper() else 2, name)

    for name in ("wal", "actors", "broadcaster", *modules):
        with subtests.test(name):
            module: ModuleType = importlib.import_module(name)
            names: list[str] = getattr(module, "__all__", [])
            assert names == sorted(set(names), key=order)
            assert [one for one in names if not hasattr(module, one)] == []


def test_wal_has_no_other_public_names() -> None:
    names = {name for name in dir(wal) if not name.startswith("_") and not isinstance(getattr(wal, name), ModuleType)}
    assert names - set(wal.__all__) == set()


def test_every_name_says_what_it_is() -> None:
    aliases = {"DeliverFilter", "DeliverPolicy", "ForgottenResult", "__version__"}
    assert [name for name in wal.__all__ if name not in aliases and not getattr(wal, name).__doc__] == []
