"""The last act: Spark reads the new log, and adds up each carrier's flights from each airport."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from examples.flights.place import Place
from examples.flights.table import Totals
from wal.spark import decoded, session, why_no_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


Carriers = dict[tuple[str, str], Totals]
"""Maps (airport, carrier) to totals."""


def spark_problem() -> str | None:
    """Returns the reason why Spark cannot run here, or None. In CI that is an error, because everything has to run there."""
    reason = why_no_session()
    if reason is not None and os.environ.get("CI"):
        raise SystemExit(f"the part of the demo that needs Spark cannot run: {reason}")
    return reason


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Yields a session for the block, without log lines that do not concern the demo."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
        spark = session("flights")
        spark.sparkContext.setLogLevel("ERROR")
        try:
            yield spark
        finally:
            spark.stop()


def carriers_in_log(spark: SparkSession, place: Place) -> Carriers:
    """Adds up the flights of each carrier from each airport: payloads are JSON, the carrier is a property."""
    from pyspark.sql import functions as f

    columns = "vchannel string, payload binary, properties map<string,string>"  # other columns are not decoded
    rows_of_log = spark.read.format("wal").schema(columns).options(**place.spark_options).load()
    flights = decoded(rows_of_log, "dep_delay int, arr_delay int")
    delays = (f.coalesce(f.sum(f"value.{name}"), f.lit(0)) for name in ("dep_delay", "arr_delay"))
    rows = (
        flights.groupBy("vchannel", f.col("properties")["carrier"])
        .agg(f.count("*"), f.count_if(f.col("value.dep_delay").isNull()), *delays)
        .collect()
    )
    return {(airport, carrier): Totals(*totals) for airport, carrier, *totals in rows}


def show(found: Carriers, count: int = 3) -> None:
    """Returns the largest totals."""
    for (airport, carrier), totals in sorted(found.items(), key=lambda item: -item[1].flights)[:count]:
        print(f"  {airport} {carrier}: {totals.flights:,} flights, {totals.cancelled:,} cancelled, {totals.dep_delay:,} min")
