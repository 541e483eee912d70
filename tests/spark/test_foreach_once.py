"""Effects that happen once: the ledger in the user's database, and the directory of a single query. Without a JVM."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.docs.snippets import ROOT
from wal.errors import InvalidArgumentError
from wal.spark.foreach import Batch

QUERY = "023c3c9d-1a4b-44b8-b63f-8197d00f5ab3"


@pytest.fixture(params=["", None], ids=["legacy", "autocommit"])
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "target.db", isolation_level=request.param)
    connection.execute("CREATE TABLE seen (batch INTEGER)")
    connection.commit()
    yield connection
    connection.close()


def seen(connection: sqlite3.Connection) -> list[int]:
    return [batch for (batch,) in connection.execute("SELECT batch FROM seen ORDER BY rowid")]


def run(connection: sqlite3.Connection, batch: Batch) -> bool:
    with batch.once(connection) as first:
        if first:
            connection.execute("INSERT INTO seen VALUES (?)", (batch.batch_id,))
    return first


def test_batch_takes_effect_once(connection: sqlite3.Connection) -> None:
    assert [run(connection, Batch(QUERY, number)) for number in (0, 0, 1, 1, 0, 2)] == [True, False, True, False, False, True]
    assert seen(connection) == [0, 1, 2]
    assert connection.execute("SELECT * FROM wal_batches").fetchall() == [(QUERY, 2)]


def test_queries_have_notes_of_their_own(connection: sqlite3.Connection) -> None:
    assert run(connection, Batch(QUERY, 5))
    assert run(connection, Batch("another", 5))
    assert seen(connection) == [5, 5]


def test_exception_leaves_neither_effect_nor_note(connection: sqlite3.Connection) -> None:
    run(connection, Batch(QUERY, 0))
    with pytest.raises(ZeroDivisionError), Batch(QUERY, 1).once(connection):
        connection.execute("INSERT INTO seen VALUES (1)")
        raise ZeroDivisionError
    assert not connection.in_transaction
    assert seen(connection) == [0]
    assert run(connection, Batch(QUERY, 1))


def test_transaction_under_way_is_refused(connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN")
    connection.execute("INSERT INTO seen VALUES (9)")
    with pytest.raises(InvalidArgumentError, match="commit or roll back"), Batch(QUERY, 0).once(connection):
        pass
    connection.rollback()
    assert seen(connection) == []


def test_killed_process_leaves_neither_effect_nor_note(connection: sqlite3.Connection, tmp_path: Path) -> None:
    code = (
        "import os, signal, sqlite3\n"
        "from wal.spark.foreach import Batch\n"
        f"connection = sqlite3.connect({str(tmp_path / 'target.db')!r})\n"
        f"with Batch({QUERY!r}, 0).once(connection) as first:\n"
        "    connection.execute('INSERT INTO seen VALUES (0)')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=30, check=False)
    assert ran.returncode == -9
    assert seen(connection) == []
    assert run(connection, Batch(QUERY, 0))


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3), st.booleans()), max_size=30))
def test_against_a_set(calls: list[tuple[str, int, bool]]) -> None:
    """Batches of a query come in their order; some are repeated, some fail."""
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE effects (key TEXT PRIMARY KEY)")
    newest: dict[str, int] = {}
    done: list[str] = []
    for query, back, fails in calls:
        batch = Batch(query, max(0, newest.get(query, -1) + 1 - back))
        try:
            with batch.once(connection) as first:
                assert first == (batch.key not in done)
                if first:
                    connection.execute("INSERT INTO effects VALUES (?)", (batch.key,))
                if fails:
                    raise ZeroDivisionError
        except ZeroDivisionError:
            continue
        if first:
            newest[query] = batch.batch_id
            done.append(batch.key)
    assert [key for (key,) in connection.execute("SELECT key FROM effects ORDER BY rowid")] == done
    connection.close()


class Driver:
    """A DB-API driver that is not sqlite3's: `format` placeholders, commit and rollback by calls alone."""

    def __init__(self, *, autocommit: bool = False) -> None:
        self._connection = sqlite3.connect(":memory:")
        self.autocommit = autocommit
        self.ended: list[str] = []

    def cursor(self) -> Any:
        inner = self._connection.cursor()

        def execute(statement: str, values: tuple[object, ...] = ()) -> None:
            inner.execute(statement.replace("%s", "?"), values)

        return types.SimpleNamespace(execute=execute, fetchone=inner.fetchone, close=inner.close)

    def commit(self) -> None:
        self.ended.append("commit")
        self._connection.commit()

    def rollback(self) -> None:
        self.ended.append("rollback")
        self._connection.rollback()

    def close(self) -> None:
        self._connection.close()


def test_another_driver() -> None:
    driver = Driver()
    with pytest.raises(InvalidArgumentError, match="paramstyle"), Batch(QUERY, 0).once(driver):
        pass
    for expected in (True, False):
        with Batch(QUERY, 0).once(driver, "done", paramstyle="format") as first:
            assert first is expected
    with pytest.raises(ZeroDivisionError), Batch(QUERY, 1).once(driver, "done", paramstyle="format"):
        raise ZeroDivisionError
    assert driver.ended == ["commit", "commit", "rollback"]
    driver.close()


def test_connection_that_commits_by_itself_is_refused() -> None:
    driver = Driver(autocommit=True)
    with pytest.raises(InvalidArgumentError, match="autocommit"), Batch(QUERY, 0).once(driver, paramstyle="format"):
        pass
    driver.close()


@pytest.mark.parametrize("table", ["", "a b", "a;b", "1a", "a.b.c", "a'"])
def test_table_is_a_plain_name(table: str, connection: sqlite3.Connection) -> None:
    with pytest.raises(InvalidArgumentError, match="plain name"), Batch(QUERY, 0).once(connection, table):
        pass


class Frame:
    """Records the writes, in place of a DataFrame's writer."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str]] = []

    sparkSession = None

    @property
    def write(self) -> Frame:
        return self

    def mode(self, mode: str) -> Frame:
        self._mode = mode
        return self

    def options(self) -> Frame:
        return self

    def parquet(self, path: str) -> None:
        self.written.append((self._mode, path))


@pytest.mark.parametrize("scheme", ["file:", "file://"])
def test_directory_belongs_to_one_query(tmp_path: Path, scheme: str) -> None:
    frame, target = Frame(), f"{scheme}{tmp_path}/out/"
    for number in (0, 1, 1):
        Batch(QUERY, number).write_parquet(frame, target)  # type: ignore[arg-type]
    assert frame.written == [("overwrite", f"{tmp_path}/out/batch_id={number}") for number in (0, 1, 1)]
    with pytest.raises(InvalidArgumentError, match=f"query {QUERY}.*another directory"):
        Batch("another", 0).write_parquet(frame, target)  # type: ignore[arg-type]
    assert len(frame.written) == 3


def test_other_file_systems_get_no_query_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    frame = Frame()
    for path in ("hdfs://name/out", "out"):  # the second one cannot be resolved through this DataFrame
        Batch(QUERY, 3).write_parquet(frame, path)  # type: ignore[arg-type]
    assert frame.written == [("overwrite", "hdfs://name/out/batch_id=3"), ("overwrite", "out/batch_id=3")]
    assert list(tmp_path.iterdir()) == []


def test_key() -> None:
    assert Batch(QUERY, 7).key == f"{QUERY}:7"
