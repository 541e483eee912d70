"""The journal that the sink writes to: its options, and whether another process has it open."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import pytest

from tests.api.blocking.bridging import until
from tests.spark.queries import batch
from tests.spark.sink_tasks import Sink, held
from tests.spark.writer import Writer, make_vchannels
from wal import Message, bridge
from wal.errors import InvalidArgumentError, LockedError
from wal.spark.frame_source import LogSource
from wal.spark.options import SourceOptions
from wal.spark.sink.folder import SinkFolder
from wal.spark.sink.locks import check_journal
from wal.storage.journal.directory import DirectoryLock


def test_path_may_be_written_as_spark_writes_it(tmp_path: Path) -> None:
    for number, form in enumerate(("{}", "file:{}", "file://{}", "journal:{}")):
        sink = Sink(tmp_path / str(number))
        sink._options["path"] = form.format(sink.journal)
        sink.run([[("a", b"1")]])
        assert held(sink.journal, ["a"]) == {"a": [[b"1"]]}
        assert len(batch(form.format(sink.journal))) == 1


def test_number_of_any_length_is_out_of_range() -> None:
    for digits in (20, 5000):
        with pytest.raises(InvalidArgumentError, match="out of range"):
            SourceOptions.of({"path": "data", "endingTimeTick": "9" * digits}, streaming=False)


def test_checking_task_excludes_no_writer(data_dir: Path) -> None:
    with bridge.blocking(data_dir) as log:
        log.raw_append(Message("a", b"1"))
    stop = threading.Event()

    def check() -> None:
        while not stop.is_set():
            with contextlib.suppress(LockedError):
                check_journal(SinkFolder(data_dir))

    threads = [threading.Thread(target=check) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(200):
            lock = DirectoryLock.acquire(data_dir)
            with pytest.raises(LockedError):
                DirectoryLock.acquire(data_dir)
            lock.release()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_reused_pid_is_not_the_dead_writer(data_dir: Path) -> None:
    """A writer's lock ends with it; its pid is used again, in containers nearly always. A batch read would wait for its ticks in vain."""
    make_vchannels(data_dir)
    with Writer(data_dir, pause_s=0) as writer:
        logs = LogSource(str(data_dir)).open()
        assert not logs.writer_is_gone()
        writer.kill_now()
    (data_dir / "LOCK").write_text(f"{os.getpid()}\n")
    until(logs.writer_is_gone)  # an answer that was slow is kept for a while
    with bridge.blocking(data_dir):
        until(lambda: not logs.writer_is_gone())
    logs.close()
