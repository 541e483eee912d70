"""Spark over an archive that cannot be read: the error has its type, and names what is wrong and where.

An archive of another log and of a restored one is refused in `test_moves.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from tests.formats.test_backups import sealed
from tests.operate.backup.refusing_store import RefusingStore
from tests.operate.backup.test_archive import damaged_object
from tests.spark.queries import StreamQuery, batch, plan, read_all
from tests.spark.test_archive import archived
from wal import Message, bridge
from wal.errors import CorruptionError, FormatError, InvalidArgumentError, StorageError
from wal.spark import frame_source
from wal.storage.archive.manifest import PREFIX


def read_stream(place: str) -> list[object]:
    query = StreamQuery(place, startingOffsets="earliest")
    return [row for rows in query.run() for row in rows]


PAYLOADS = [Random(number).randbytes(1000) for number in range(30)]
"""Objects are compressed, and random bytes lie in them as they are."""
READS = pytest.mark.parametrize("read", [batch, read_stream])


@pytest.fixture
def target(data_dir: Path, tmp_path: Path) -> Path:
    """An archive with some objects."""
    with bridge.blocking(data_dir) as log:
        for payload in PAYLOADS:
            log.raw_append(Message("a", payload))
    archived(data_dir, tmp_path / "target")
    return tmp_path / "target"


@READS
def test_url_without_an_archive(read: Callable[[str], object], tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=f"{tmp_path}/nothing holds no backup: name where"):
        read(f"archive:{tmp_path}/nothing")
    for place, text in (
        ("archive:", "names no archive"),
        ("archive:s3://key:secret@bucket/path", "credentials come from the environment"),
        ("archive:nothing://bucket/path", "is not known"),
    ):
        with pytest.raises(InvalidArgumentError, match=text) as raised:
            read(place)
        assert "secret" not in str(raised.value)


@READS
def test_newer_and_cut_manifest(read: Callable[[str], object], target: Path) -> None:
    path = max((target / PREFIX).iterdir())
    content = path.read_bytes()
    path.write_bytes(sealed(b'{"version":4,"anything":[]'))
    with pytest.raises(FormatError, match=f"{path} has version 4, known here is 3"):
        read(f"archive:{target}")
    path.write_bytes(content[:-9])
    with pytest.raises(CorruptionError, match=path.name) as raised:
        read(f"archive:{target}")
    assert raised.value.path == str(path)


@READS
@pytest.mark.parametrize("kind", ["missing", "cut", "changed", "no index", "changed index"])
def test_object_that_lies(read: Callable[[str], object], kind: str, target: Path) -> None:
    path = damaged_object(target, kind, payload=PAYLOADS[-1])
    with pytest.raises(CorruptionError, match=path.name) as raised:
        read(f"archive:{target}")
    assert raised.value.path == str(path)


@READS
def test_refused_credentials(read: Callable[[str], object], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    with RefusingStore(403, "InvalidAccessKeyId") as store:
        for name, value in store.client_environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(StorageError, match=r"s3://bucket/path/.*403.*: InvalidAccessKeyId: No\.$") as raised:
            read("archive:s3://bucket/path")
        assert store.secret not in str(raised.value)


def test_archive_that_changes_between_plan_and_task(data_dir: Path, tmp_path: Path, target: Path) -> None:
    """The task of another process finds an older copy of the archive, or nothing."""
    reader, partitions = plan(f"archive:{target}")
    target.rename(tmp_path / "away")
    frame_source._logs.clear()
    with pytest.raises(FormatError, match=f"{target} holds no backup"):
        read_all(reader, partitions)


def test_errors_reach_the_caller_of_spark(spark: SparkSession, target: Path, tmp_path: Path) -> None:
    """The driver plans, and a task reads: both errors come with their type and place."""
    with pytest.raises(PySparkException, match=rf"(?s)EmptyArchiveError.*{tmp_path}/nothing holds no backup"):
        spark.read.format("wal").load(f"archive:{tmp_path}/nothing").collect()
    path = damaged_object(target, "changed", payload=PAYLOADS[-1])
    with pytest.raises(PySparkException, match=rf"(?s)CorruptionError.*{path}"):
        spark.read.format("wal").load(f"archive:{target}").collect()
    stream = spark.readStream.format("wal").option("startingOffsets", "earliest").load(f"archive:{target}")
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    with pytest.raises(PySparkException, match=rf"(?s)CorruptionError.*{path}"):
        query.awaitTermination()
