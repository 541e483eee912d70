"""What stands for a call that the operating system does not have."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from pathlib import Path

import pytest

from wal.read.cursors.cursor import CursorKey
from wal.read.cursors.pins import stem_of
from wal.runtime.system import allocate, direct_flag, file_of, open_descriptors, sync_data, sync_file, warn_of_weaknesses, weaknesses
from wal.storage.files import LockHolder


@pytest.fixture
def descriptor(tmp_path: Path) -> int:
    return os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)


def test_data_is_synced_in_full_without_fdatasync(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[int] = []
    monkeypatch.delattr(os, "fdatasync", raising=False)
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", lambda _, command: commands.append(command))
    sync_data(descriptor)
    sync_file(descriptor)
    assert commands == [51, 51]


@pytest.mark.parametrize("number", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_full_sync_that_a_share_refuses_is_an_fsync(descriptor: int, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    synced: list[int] = []

    def refuse(*_: object) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", synced.append)
    sync_file(descriptor)
    assert synced == [descriptor]


def test_failed_full_sync_is_an_error(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "the disk failed")

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", fail)
    with pytest.raises(OSError, match="the disk failed"):
        sync_file(descriptor)


def test_zeros_are_written_without_fallocate(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    os.pwrite(descriptor, b"kept", 0)
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    allocate(descriptor, 0, 3 << 20)
    data = os.pread(descriptor, 4 << 20, 0)
    assert len(data) == 3 << 20
    assert data[:4] == b"kept"
    assert not data[4:].strip(b"\0")
    assert os.fstat(descriptor).st_blocks * 512 >= 3 << 20  # not a hole
    allocate(descriptor, 0, 1 << 20)
    assert os.fstat(descriptor).st_size == 3 << 20  # nothing shrinks


def test_file_of_bytes_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    with file_of(b"secret") as path:
        assert Path(path).read_bytes() == b"secret"
    monkeypatch.delattr(os, "memfd_create", raising=False)
    with file_of(b"secret") as path:
        assert Path(path).read_bytes() == b"secret"
        assert not os.stat(path).st_mode & 0o077
    assert not os.path.exists(path)


def test_open_descriptors_are_counted() -> None:
    before = open_descriptors()
    held = os.open("/", os.O_RDONLY)
    assert open_descriptors() == before + 1
    os.close(held)


def test_missing_direct_flag_is_an_os_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "O_DIRECT", raising=False)
    with pytest.raises(OSError, match="O_DIRECT"):
        direct_flag()


def test_weaknesses_are_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("fdatasync", "O_DIRECT", "posix_fallocate"):
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr(os.path, "isdir", lambda _: False)
    assert len(weaknesses()) == 5
    warn_of_weaknesses.cache_clear()
    with caplog.at_level(logging.WARNING, logger="wal"):
        warn_of_weaknesses()
        warn_of_weaknesses()
    warn_of_weaknesses.cache_clear()
    (record,) = caplog.records
    assert "F_FULLFSYNC" in record.getMessage()


@pytest.mark.linux
def test_linux_has_no_weakness() -> None:
    assert weaknesses() == []


def test_lock_holder_without_proc_is_the_noted_process(descriptor: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "isdir", lambda _: False)
    LockHolder.note(descriptor)
    assert LockHolder.find(descriptor) == LockHolder(os.getpid(), f"process {os.getpid()}")
    os.pwrite(descriptor, b"%d\n" % (1 << 22), 0)  # above the largest pid
    assert LockHolder.find(descriptor) == LockHolder(None, "another process")


def test_names_differ_where_case_is_folded() -> None:
    keys = [CursorKey.of(name, ("orders",)) for name in ("billing", "Billing", "BILLING")]
    assert len({stem_of(key).casefold() for key in keys}) == 3
