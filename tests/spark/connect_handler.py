"""The handler of the Connect test's batches, in a separate module, because the server's Python imports it."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame


def write_batch(folder: str) -> Callable[[DataFrame, int], None]:
    """Writes each batch to its own directory, over the files of an earlier attempt."""

    def write(rows: DataFrame, batch_id: int) -> None:
        rows.drop("properties").write.mode("overwrite").parquet(f"{folder}/batch_id={batch_id}")

    return write
