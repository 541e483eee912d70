"""A file system that refuses a lock: every public call that needs one raises an error of the log with that reason."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.processes import Line, Other
from tests.storage.files.denied import deny_flock
from wal import Message, bridge, open_wal
from wal.errors import StorageError
from wal.spark.sink.folder import SinkFolder
from wal.spark.sink.locks import PublishingLock, check_journal

ERRORS = [errno.ENOLCK, errno.EIO, errno.EACCES, errno.ENOTSUP]


def raised_by(call: Callable[[], object]) -> tuple[bool, str]:
    """Returns whether a call raises a StorageError, and the error that it raises."""
    try:
        call()
    except (StorageError, OSError) as error:
        return isinstance(error, StorageError), repr(error)
    return False, "nothing was raised"


@pytest.mark.parametrize("number", ERRORS)
async def test_refused_lock_is_a_storage_error(data_dir: Path, number: int) -> None:
    async def use_without_locks(line: Line, directory: str, number: int) -> None:
        """Saves and deletes cursors beside the writer, which needs no lock, then reports the error of each call that needs one."""

        async def raised_awaiting(call: Awaitable[Any]) -> tuple[bool, str]:
            try:
                await call
            except (StorageError, OSError) as error:
                return isinstance(error, StorageError), repr(error)
            return False, "nothing was raised"

        async with open_wal(directory) as log:
            for payload in (b"1", b"2"):
                await log.raw_append(Message("orders", payload))
            async with log.read("orders", cursor="billing") as scanner:
                await anext(scanner)
                await scanner.save()
        with bridge.iterate(directory, "orders", cursor="other") as messages:
            next(messages)
            deny_flock(number)
            messages.save()
        async with open_wal(directory, read_only=True) as log:
            async with log.read("orders", cursor="other") as scanner:
                await anext(scanner)
                await scanner.save()
            await log.delete_cursor("billing")
        line.tell(await raised_awaiting(open_wal(directory).__aenter__()))
        sink = SinkFolder(Path(directory))
        line.tell(raised_by(PublishingLock(sink, timeout_s=1).__enter__))
        line.tell(raised_by(lambda: check_journal(sink)))

    async with Other(use_without_locks, str(data_dir), number) as other:
        for call in ("open_wal", "publishing", "check_journal"):
            is_ours, text = await other.hear()
            assert is_ours, (call, text)
            assert "flock" in text, call
        await other.end()
