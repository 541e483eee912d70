"""Data frames of a journal: Polars reads its Arrow batches, part by part, and the next run continues at a cursor.

    python -m examples.arrow_polars [directory]          (default: data/arrow_polars/)

Needs polars and pyarrow (the extra `examples`).
"""

from __future__ import annotations

import sys

import polars as pl

from wal import Message, bridge


def main(directory: str = "data/arrow_polars/") -> None:
    for first in (0, 600):
        write(directory, first)
        columns = ["time_tick", "append_time", "payload"]
        with bridge.record_batches(directory, "delays", cursor="mean", follow=False, columns=columns) as batches:
            frame = pl.DataFrame(batches)
            batches.save()  # the position after the rows of the frame: the next run begins there
        minutes: list[int] = frame.get_column("payload").cast(pl.String).cast(pl.Int64).to_list()
        print(f"{frame.height} rows, {sum(minutes) / len(minutes):.1f} minutes late on average")


def write(directory: str, first: int) -> None:
    with bridge.blocking(directory) as log:
        log.append_bulk(Message("delays", b"%d" % (number % 60 + first // 60)) for number in range(first, first + 600))


if __name__ == "__main__":
    main(*sys.argv[1:2])
