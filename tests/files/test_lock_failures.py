"""A file system that refuses a lock: every public call that needs one says so in an error of the log."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.contract.other import Line, Other
from tests.files.denied import deny_flock
from wal import Message, bridge, open_wal
from wal.errors import StorageError
from wal.spark.sink.folder import SinkFolder
from wal.spark.sink.locks import PublishingLock, check_journal

ERRORS = [errno.ENOLCK, errno.EIO, errno.EACCES, errno.ENOTSUP]


async def meet_it(line: Line, directory: str, number: int) -> None:
    """Prepares what needs no lock, then tells what each call raises."""
    async with open_wal(directory) as log:
        await log.raw_append(Message("orders", b"1"))
        async with log.read("orders", cursor="billing") as scanner:
            await anext(scanner)
            await scanner.save()
    deny_flock(number)
    async with open_wal(directory, read_only=True) as log:
        async with log.read("orders", cursor="other") as scanner:
            await anext(scanner)
            line.tell(await _error(scanner.save()))
        line.tell(await _error(log.delete_cursor("billing")))
    line.tell(await _error(open_wal(directory).__aenter__()))
    sink = SinkFolder(Path(directory))
    for call in (
        lambda: PublishingLock(sink, timeout_s=1).__enter__(),
        lambda: check_journal(sink),
        lambda: _save(directory),
    ):
        try:
            call()
        except Exception as error:
            line.tell((isinstance(error, StorageError), repr(error)))
        else:
            line.tell((False, "nothing was raised"))


def _save(directory: str) -> None:
    with bridge.iterate(directory, "orders", cursor="other") as messages:
        next(messages)
        messages.save()


async def _error(call: object) -> tuple[bool, str]:
    try:
        await call  # type: ignore[misc]
    except Exception as error:
        return isinstance(error, StorageError), repr(error)
    return False, "nothing was raised"


@pytest.mark.parametrize("number", ERRORS)
async def test_a_lock_that_the_file_system_refuses_is_a_storage_error(data_dir: Path, number: int) -> None:
    async with Other(meet_it, str(data_dir), number) as other:
        for call in ("save", "delete_cursor", "open_wal", "publishing", "check_journal", "iterate.save"):
            is_ours, text = await other.hear()
            assert is_ours, (call, text)
            assert "flock" in text, call
        await other.end()
