"""Spark shows no secret of a read: not in a plan, a description, the progress of a stream or the error of a query that failed."""

from __future__ import annotations

import json
import secrets
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.servers.process import free_ports
from tests.spark.served_place import served
from wal import Message

HIDDEN: Final = f"hunter2{secrets.token_hex(8)}"
PLANS: Final = ("simple", "extended", "formatted", "cost", "codegen")


def check_hidden(*shown: object) -> None:
    for text in shown:
        assert HIDDEN not in str(text)


def check_error(error: BaseException) -> None:
    check_hidden(error, repr(error), "".join(traceback.format_exception(error)))


def plans(spark: SparkSession, frame: DataFrame) -> Iterator[str]:
    """Yields Spark's views of a query: as text, in its UI (the plans as it draws them), and as JSON."""
    execution: Any = frame._jdf.queryExecution()
    yield repr(frame)
    for call in (execution.toString, execution.logical().toString, execution.analyzed().toString, execution.analyzed().toJSON):
        yield call()
    for form in () if frame.isStreaming else PLANS:
        yield spark._jvm.PythonSQLUtils.explainString(execution, form)  # type: ignore[union-attr]


def outcome(call: Callable[[], object]) -> object:
    """Returns the result of the call, or its error, which is checked."""
    try:
        return call()
    except Exception as error:
        check_error(error)
        return error


def told(query: StreamingQuery) -> Iterator[object]:
    yield from (query, query.status, query.exception(), query._jsq.toString(), query._jsq.explainInternal(True))
    for progress in query.recentProgress:
        yield progress.json if hasattr(progress, "json") else json.dumps(progress)


@pytest.fixture(params=["served", pytest.param("pulsar", marks=pytest.mark.soak("its options are those of test_log_that_does_not_answer"))])
def log_options(request: pytest.FixtureRequest, data_dir: Path) -> Iterator[dict[str, str]]:
    """Yields the options that name a log with one message. The etcd accepts any password, and a Pulsar without tokens any token."""
    if request.param == "served":
        with served(data_dir, token=HIDDEN) as place:
            with place.open() as log:
                log.raw_append(Message("a", b"x"))
            yield place.options
        return
    place = request.getfixturevalue("pulsar_place")
    with place.open() as log:
        log.raw_append(Message("a", b"x"))
    yield {"token": HIDDEN, **place.options, "kv": place.kv.replace("etcd://", "etcd://root@"), "kv.password": HIDDEN}


def test_log_that_is_read(spark: SparkSession, log_options: dict[str, str], checkpoint: str, capfd: pytest.CaptureFixture[str]) -> None:
    frame = spark.read.format("wal").options(**log_options).load()
    assert frame.count() == 1
    check_hidden(*plans(spark, frame))
    frame.createOrReplaceTempView("secret_log")
    check_hidden(spark.sql("DESCRIBE EXTENDED secret_log").collect(), spark.sql("EXPLAIN EXTENDED SELECT * FROM secret_log").collect())
    stream = spark.readStream.format("wal").options(**log_options, startingOffsets="earliest").load()
    check_hidden(*plans(spark, stream))
    query = stream.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    assert sum(progress["numInputRows"] for progress in query.recentProgress) == 1
    check_hidden(*told(query))
    assert not any(HIDDEN in text for text in capfd.readouterr())


@pytest.mark.parametrize("where", ["kv", "service.url", "admin.url", "token"])
def test_log_that_is_named_wrongly(spark: SparkSession, where: str) -> None:
    options = {
        "service.url": "pulsar://127.0.0.1:1/public/default",
        "kv": "etcd://root@127.0.0.1:1/r?timeout_s=0.2",
        "admin.url": "http://127.0.0.1:1",
        "kv.password": HIDDEN,
        "token": HIDDEN,
    }
    wrong = {
        "kv": f"etcd://root:{HIDDEN}@127.0.0.1:1/r",
        "service.url": f"pulsar://root:{HIDDEN}@127.0.0.1:1/public/default",
        "admin.url": f"http://root:{HIDDEN}@127.0.0.1:1",
        "token": f"{HIDDEN}\n{HIDDEN}",
    }
    frame = outcome(lambda: spark.read.format("wal").options(**{**options, where: wrong[where]}).load())
    if isinstance(frame, DataFrame):
        assert isinstance(outcome(frame.collect), Exception)
        for _ in plans(spark, frame):  # an error here is Spark's, of the same text as above
            break


def test_log_that_does_not_answer(spark: SparkSession, checkpoint: str) -> None:
    (port,) = free_ports(1)
    options = {
        "service.url": f"pulsar://127.0.0.1:{port}/public/default",
        "kv": f"etcd://root@127.0.0.1:{port}/r?timeout_s=0.2",
        "kv.password": HIDDEN,
        "token": HIDDEN,
    }
    frame = spark.read.format("wal").options(**options).load()
    assert isinstance(outcome(frame.collect), Exception)
    check_hidden(*plans(spark, frame))
    stream = spark.readStream.format("wal").options(**options).load()
    query = stream.writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    assert isinstance(outcome(lambda: query.awaitTermination(120)), Exception)
    check_hidden(*told(query))
