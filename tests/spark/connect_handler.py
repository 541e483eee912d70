"""The handler of the Connect test's batches, in a module of its own: the server's Python imports it."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

__all__ = ["write_batch"]


def write_batch(folder: str) -> Callable[[DataFrame, int], None]:
    """Writes each batch to a directory of its own, over what an earlier try left there."""

    def write(rows: DataFrame, batch_id: int) -> None:
        rows.drop("properties").write.mode("overwrite").parquet(f"{folder}/batch_id={batch_id}")

    return write
