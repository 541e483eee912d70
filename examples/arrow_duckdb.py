"""SQL over a journal: DuckDB reads its Arrow batches one by one, while another process may write it.

    python -m examples.arrow_duckdb [directory]          (default: data/arrow_duckdb/)

Needs duckdb and pyarrow (the extra `examples`). Nothing is imported into a database, and memory stays flat however long the log is.
"""

from __future__ import annotations

import sys

import duckdb
import pyarrow as pa

from wal import Message, bridge


def main(directory: str = "data/arrow_duckdb/") -> None:
    write(directory)
    # Only the columns that the query needs; the others cost nothing.
    with bridge.record_batches(directory, "flights", follow=False, columns=["properties", "payload"]) as batches:
        flights = pa.RecordBatchReader.from_batches(batches.schema, batches)
        connection = duckdb.connect()
        connection.register("flights", flights)
        rows = connection.execute(
            """
            SELECT properties['carrier'] AS carrier, count(*), sum(octet_length(payload))
            FROM flights GROUP BY carrier ORDER BY carrier
            """
        ).fetchall()
    for carrier, count, size in rows:
        print(f"{carrier}: {count} flights, {size} bytes")


def write(directory: str) -> None:
    with bridge.blocking(directory) as log:
        log.append_bulk(Message("flights", bytes(100), properties={"carrier": "UA" if number % 3 else "AA"}) for number in range(900))


if __name__ == "__main__":
    main(*sys.argv[1:2])
