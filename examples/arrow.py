"""A journal as Arrow batches: columns for counting, joining and plotting, read from the files while another process writes them.

    python -m examples.arrow [directory]          (default: data/arrow/)

Needs pyarrow (the extra `arrow`). Shows `record_batches`, a group-by over a property, and continuing from a position.
"""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.compute as pc

from wal import Message, MessageID, StartAfter, bridge


def main(directory: str = "data/arrow/") -> None:
    write(directory)
    table = pa.Table.from_batches(bridge.record_batches(directory, "flights", follow=False))
    print(f"{table.num_rows} rows: {', '.join(table.schema.names)}")

    carrier = pc.map_lookup(table["properties"], "carrier", "first")
    bytes_each = pc.binary_length(table["payload"])
    counted = pa.table({"carrier": carrier, "bytes": bytes_each}).group_by("carrier").aggregate([("bytes", "count"), ("bytes", "sum")])
    for row in counted.sort_by("carrier").to_pylist():
        print(f"{row['carrier']}: {row['bytes_count']} flights, {row['bytes_sum']} bytes")

    # Ids are bytes that sort in the order of the log; a read can begin at any of them.
    middle = MessageID.from_bytes(table["message_id"][599].as_py())
    rest = bridge.record_batches(directory, "flights", follow=False, deliver_policy=StartAfter(middle))
    print(f"{sum(batch.num_rows for batch in rest)} rows after row 600")


def write(directory: str) -> None:
    with bridge.blocking(directory) as log:
        log.append_bulk(Message("flights", bytes(100), properties={"carrier": "UA" if number % 3 else "AA"}) for number in range(900))


if __name__ == "__main__":
    main(*sys.argv[1:2])
