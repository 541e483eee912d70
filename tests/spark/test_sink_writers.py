"""The writers as Spark drives them, without a JVM: the visible rows at each step, the remaining files, and the effect of a replay."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.processes import Child
from tests.spark.sink_tasks import QUERY, Sink, batch, files_below, held, planned, producers, rows_of, schema
from wal import ProducerKey
from wal.bridge import blocking
from wal.errors import CorruptionError, FormatError, InvalidArgumentError, LockedError, StorageError
from wal.message import Message
from wal.settings import Settings
from wal.spark.sink import discard, pending, recover
from wal.spark.sink import publishing as publishing_module
from wal.spark.sink.folder import SinkFolder
from wal.spark.sink.writer import BatchWriter, StreamWriter

KINDS = pytest.mark.parametrize("query_id", [QUERY, None], ids=["stream", "batch"])


def flat(found: dict[str, list[list[bytes]]]) -> dict[str, list[bytes]]:
    return {name: [row for event in events for row in event] for name, events in found.items()}


def expected(*writes: Sequence[Sequence[tuple[str, bytes]]]) -> dict[str, list[bytes]]:
    """Rows by vchannel: writes in their order, in each the tasks in theirs."""
    found: dict[str, list[bytes]] = {}
    for tasks in writes:
        for rows in tasks:
            for name, payload in rows:
                found.setdefault(name, []).append(payload)
    return found


def nothing_left(sink: Sink) -> None:
    assert files_below(sink.journal) == []
    assert not any(path.is_dir() for path in (sink.journal / "spark" / "staged").glob("*"))
    assert pending(str(sink.journal)) == []
    assert producers(sink.journal) == []


@KINDS
def test_rows_keep_task_order_and_chunks_whole(tmp_path: Path, query_id: str | None) -> None:
    (tmp_path / "settings.toml").write_text("txn_bodies_max = 16\npchannels = 2\nproducers_max = 4\n")
    sink = Sink(tmp_path / "log", query_id=query_id, settings=str(tmp_path / "settings.toml"))
    first, second = rows_of("first", count=200), rows_of("second", count=50)
    sink.run(first, batch_id=0)
    sink.run(second, batch_id=1)
    found = held(sink.journal)
    assert flat(found) == expected(first, second)
    assert max(len(event) for events in found.values() for event in events) > 1
    assert sum(map(len, rows_of("x", count=200)[0])) > 16
    nothing_left(sink)


def test_batch_is_published_once_whatever_a_replay_offers(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "log")
    first = rows_of("first")
    sink.run(first, batch_id=3)
    sink.run(rows_of("other"), batch_id=3, attempt=9)
    sink.run(rows_of("older"), batch_id=1, attempt=20)
    assert flat(held(sink.journal)) == expected(first)
    nothing_left(sink)


def test_many_new_vchannels_take_several_etcd_operations(tmp_path: Path, etcd_address: str) -> None:
    kv = f"etcd://{etcd_address}/wal-test-{tmp_path.name}"
    (tmp_path / "settings.toml").write_text(f'pchannels = 2\nkv = "{kv}"\n')
    sink = Sink(tmp_path / "log", settings=str(tmp_path / "settings.toml"))
    rows = [(f"v{number}", b"x") for number in range(300)]
    sink.run([rows])
    with blocking(str(sink.journal), kv=kv) as log:
        assert {info.name for info in log.vchannels()} == {name for name, _ in rows}
        assert log.producers() == []
    assert files_below(sink.journal) == []


def test_two_queries_and_batch_jobs_share_a_journal(tmp_path: Path) -> None:
    one, other = Sink(tmp_path / "log"), Sink(tmp_path / "log", query_id=QUERY.replace("1", "2"))
    job = Sink(tmp_path / "log", query_id=None)
    writes = []
    for number in range(3):
        for label, sink in (("one", one), ("other", other), ("job", job)):
            writes.append(rows_of(f"{label}{number}", count=10))
            sink.run(writes[-1], batch_id=number)
    assert flat(held(one.journal)) == expected(*writes)
    nothing_left(one)


@KINDS
def test_abort_leaves_nothing(tmp_path: Path, query_id: str | None) -> None:
    sink = Sink(tmp_path / "log", query_id=query_id)
    writer = sink.writer()
    messages = sink.stage(writer, rows_of("first"))
    assert len(files_below(sink.journal)) == 2
    sink.abort(writer, [*messages, None])
    assert files_below(sink.journal) == []
    assert not (sink.journal / "FORMAT").exists()
    second = rows_of("second")
    sink.run(second)  # an aborted batch does not prevent the write
    assert flat(held(sink.journal)) == expected(second)
    nothing_left(sink)


@KINDS
def test_tasks_without_rows_write_nothing(tmp_path: Path, query_id: str | None) -> None:
    sink = Sink(tmp_path / "log", query_id=query_id)
    sink.run([[], []])
    assert not (sink.journal / "FORMAT").exists()
    rows = [[], *rows_of("first", tasks=1), []]
    sink.run(rows)
    assert flat(held(sink.journal)) == expected(rows)


def test_late_duplicate_of_a_task_counts_for_nothing(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "log")
    writer = sink.writer()
    first = rows_of("first")
    won = sink.stage(writer, first, batch_id=0)
    sink.stage(writer, rows_of("beside"), batch_id=0, attempt=50)
    sink.commit(writer, won, batch_id=0)
    assert files_below(sink.journal) == []
    sink.stage(writer, rows_of("late"), batch_id=0, attempt=70)
    assert len(files_below(sink.journal)) == 2
    second = rows_of("second")
    sink.run(second, batch_id=1)
    assert flat(held(sink.journal)) == expected(first, second)
    nothing_left(sink)


def test_orphans_are_removed_by_age(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "log", query_id=None)
    sink.stage(sink.writer(), rows_of("old"))
    old = [sink.journal / "spark" / name for name in files_below(sink.journal)]
    sink.stage(sink.writer(), rows_of("running"))
    day_ago = time.time() - 25 * 3600
    for path in (*old, old[0].parent):
        os.utime(path, (day_ago, day_ago))
    sink.run(rows_of("first"))
    left = files_below(sink.journal)
    assert len(left) == 2
    assert all(not path.exists() for path in old)
    Sink(sink.journal, query_id=None, orphanAgeMs="0").run(rows_of("second"))
    assert files_below(sink.journal) == []


@KINDS
def test_failed_write_continues_from_its_manifest(tmp_path: Path, query_id: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "settings.toml").write_text("txn_bodies_max = 8\n")
    sink = Sink(tmp_path / "log", query_id=query_id, settings=str(tmp_path / "settings.toml"))
    writer = sink.writer()
    first = rows_of("first")
    messages = sink.stage(writer, first)
    commit, calls = publishing_module._committed, []

    async def failing(txns: list[object]) -> None:
        calls.append(txns)
        if len(calls) == 4:
            raise StorageError("the disk is gone")
        await commit(txns)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(publishing_module, "_committed", failing)
        with pytest.raises(StorageError) as caught:
            sink.commit(writer, messages)
    if query_id is None:
        assert "do not run the job again" in caught.value.__notes__[0]
    sink.abort(writer, messages)  # as Spark does; no part of it may be removed
    (waiting,) = pending(str(sink.journal))
    chunks = sum(message.file.chunks for message in messages)
    assert (waiting.rows, waiting.chunks, waiting.published, waiting.error) == (80, chunks, 0, "")
    assert sum(len(rows) for rows in flat(held(sink.journal)).values()) == 24
    if query_id is None:
        assert recover(str(sink.journal)) == [waiting]
    else:
        sink.run(rows_of("other", count=3), attempt=40)
    assert flat(held(sink.journal)) == expected(first)
    assert recover(str(sink.journal)) == []
    nothing_left(sink)


def test_next_write_finishes_pending_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(self: object, manifest: object) -> None:
        raise StorageError("not now")

    journal = tmp_path / "log"
    left = [Sink(journal, query_id=None), Sink(journal, query_id=None)]
    with monkeypatch.context() as patched:
        patched.setattr(publishing_module.Publisher, "publish", refuse)
        for number, sink in enumerate(left):
            with pytest.raises(StorageError):
                sink.run(rows_of(f"left{number}"))
    whole, broken = pending(str(journal))
    for path in (journal / "spark" / "staged" / broken.write_id).rglob("*.staged"):
        path.unlink()
        break
    assert [bool(write.error) for write in pending(str(journal))] == [False, True]
    new = rows_of("new")
    Sink(journal).run(new)
    labels = [row.split(b"/")[0] for rows in flat(held(journal)).values() for row in rows]
    assert sorted(set(labels), key=labels.index)[1:] == [b"new"]  # of the remaining writes, the whole one, and nothing of the other
    assert len(labels) == 2 * 80
    assert [write.write_id for write in pending(str(journal))] == [broken.write_id]
    assert "cannot be finished" in caplog.text
    with pytest.raises(CorruptionError, match="gone"):
        recover(str(journal))
    discard(str(journal), broken.write_id)
    assert recover(str(journal)) == []
    with pytest.raises(InvalidArgumentError, match="no pending write"):
        discard(str(journal), broken.write_id)
    assert whole.write_id not in str(files_below(journal))
    nothing_left(Sink(journal))


def test_foreign_producers_stay_and_own_leftovers_go(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "log")
    with blocking(sink.journal) as log:
        log.raw_append(Message("v0", b"theirs"), idempotency_key=ProducerKey("theirs", 1))
        log.raw_append(Message("v0", b"ours"), idempotency_key=ProducerKey("wal.spark/some-query/7/0123/0", 1))
    sink.run(rows_of("first"))
    assert producers(sink.journal) == ["theirs"]


def test_batch_with_many_vchannel_sets_fits_the_producers(tmp_path: Path) -> None:
    (tmp_path / "settings.toml").write_text("txn_bodies_max = 2\nproducers_max = 6\n")
    sink = Sink(tmp_path / "log", settings=str(tmp_path / "settings.toml"))
    rows = [[(f"v{number}", b"%d" % number) for number in range(60)]]
    sink.run(rows)
    assert flat(held(sink.journal, [f"v{number}" for number in range(60)])) == expected(rows)
    nothing_left(sink)


# -- refusals


@KINDS
def test_open_journal_is_noticed_before_staging(tmp_path: Path, query_id: str | None) -> None:
    sink = Sink(tmp_path / "log", query_id=query_id)
    sink.run(rows_of("first"))
    program = f"import time; from wal.bridge import blocking\nwith blocking({str(sink.journal)!r}): print('open', flush=True); input()"
    with Child("-c", program) as holder:
        holder.line_now()
        try:
            with pytest.raises(LockedError, match=f"process {holder.pid}.*close it there") as caught:
                sink.stage(sink.writer(), rows_of("second"))
            assert caught.value.pid == holder.pid
            assert files_below(sink.journal) == []
        finally:
            holder.tell()
            holder.end_now()
    second = rows_of("second")
    sink.run(second, batch_id=1)
    assert flat(held(sink.journal)) == expected(rows_of("first"), second)


@KINDS
def test_journal_opened_meanwhile_fails_the_commit(tmp_path: Path, query_id: str | None) -> None:
    sink = Sink(tmp_path / "log", query_id=query_id)
    writer = sink.writer()
    messages = sink.stage(writer, rows_of("first"))
    with blocking(sink.journal), pytest.raises(LockedError) as caught:
        sink.commit(writer, messages)
    assert caught.value.pid == os.getpid()
    assert pending(str(sink.journal)) == []
    assert len(files_below(sink.journal, "staged")) == 2
    sink.commit(writer, messages)
    assert flat(held(sink.journal)) == expected(rows_of("first"))


def test_writers_wait_for_each_other_within_limits(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "log", lockTimeoutMs="20")
    sink.run(rows_of("first"))
    program = (
        "from pathlib import Path; from wal.spark.sink.folder import SinkFolder; from wal.spark.sink.locks import PublishingLock\n"
        f"with PublishingLock(SinkFolder(Path({str(sink.journal)!r})), timeout_s=1): print('held', flush=True); input()"
    )
    with Child("-c", program) as holder:
        holder.line_now()
        writer = sink.writer()
        messages = sink.stage(writer, rows_of("second"), batch_id=1)  # a task stages while another writer publishes
        with pytest.raises(LockedError, match=f"process {holder.pid} .*lockTimeoutMs"):
            sink.commit(writer, messages, batch_id=1)
        holder.tell()
        holder.end_now()
    sink.commit(writer, messages, batch_id=1)
    assert flat(held(sink.journal)) == expected(rows_of("first"), rows_of("second"))


@pytest.mark.parametrize("kind", [BatchWriter, StreamWriter])
def test_wrong_plans_are_refused(tmp_path: Path, kind: type) -> None:
    path = str(tmp_path / "log")
    from wal.spark.sink import batch_writer, stream_writer

    make = batch_writer if kind is BatchWriter else stream_writer
    with pytest.raises(InvalidArgumentError, match=r"only appended to.*append"):
        make({"path": path}, schema("vchannel", "payload"), True)
    with pytest.raises(
        InvalidArgumentError, match=r"no option 'colour'.*lockTimeoutMs, orphanAgeMs, path, .*settings, staging, .*vchannel"
    ):
        planned(kind, {"path": path, "colour": "red"})
    with pytest.raises(InvalidArgumentError, match="no log is named: give path"):
        planned(kind, {})
    with pytest.raises(InvalidArgumentError, match="names no directory: memory:"):
        planned(kind, {"path": "memory:"})
    with pytest.raises(InvalidArgumentError, match="whole number of milliseconds"):
        planned(kind, {"path": path, "LOCKTIMEOUTMS": "soon"})
    with pytest.raises(InvalidArgumentError, match="neither a column"):
        planned(kind, {"path": path}, schema("payload"))
    assert planned(kind, {"PATH": path, "vchannel": "a", "checkpointLocation": "c"}, schema("payload")) is not None
    assert not (tmp_path / "log").exists()


def test_directory_of_something_else_is_refused_when_planned(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(FormatError, match=r"is not a journal.*notes\.txt"):
        planned(BatchWriter, {"path": str(tmp_path)})
    with pytest.raises(FormatError, match="is a file"):
        planned(BatchWriter, {"path": str(tmp_path / "notes.txt")})


def test_forbidden_vchannel_fails_the_batch_until_retried(tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("create_vchannels = false\n")
    sink = Sink(tmp_path / "log", settings=str(settings))
    writer = sink.writer()
    first = rows_of("first")
    messages = sink.stage(writer, first)
    with pytest.raises(Exception, match="create_vchannels is off"):
        sink.commit(writer, messages)
    with blocking(sink.journal, settings=Settings()) as log:
        for name in ("v0", "v1", "v2"):
            log.create_vchannel(name)
    sink.run(rows_of("second"), attempt=9)
    assert flat(held(sink.journal)) == expected(first)


def test_missing_staged_files_fail_the_commit(tmp_path: Path) -> None:
    sink = Sink(tmp_path / "log", query_id=None)
    writer = sink.writer()
    messages = sink.stage(writer, rows_of("first"))
    for name in files_below(sink.journal):
        (sink.journal / "spark" / name).unlink()
    with pytest.raises(StorageError, match=r"nothing was written.*see the same files"):
        sink.commit(writer, messages)
    assert held(sink.journal) == {}
    sink.abort(writer, messages)
    nothing_left(sink)


def test_write_outside_of_a_task_is_refused(tmp_path: Path) -> None:
    writer = planned(BatchWriter, {"path": str(tmp_path / "log")})
    with pytest.raises(InvalidArgumentError, match=r"df\.write"):
        writer.write(iter([batch([("v0", b"")])]))


def test_marks_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wal.spark.sink.folder.MARKS_MAX", 3)
    for number in range(6):
        Sink(tmp_path / "log", query_id=f"query-{number}").run(rows_of(f"q{number}", count=1, tasks=1))
    marks = sorted(path.name for path in (tmp_path / "log" / "spark" / "published").iterdir())
    assert marks == ["query-3", "query-4", "query-5"]
    assert SinkFolder(tmp_path / "log").decided() == []
