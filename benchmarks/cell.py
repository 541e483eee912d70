"""Cell: one measurement, of one engine on one row of the table, in a process of its own.

Owns what a row and a cell are, what a measurement holds, and how a cell is run: `run_cell` starts `python -m benchmarks.cell '<json>'`,
which prints the json of a `Measured`. Nothing is tuned for the measurement: the garbage collector and the interpreter's switch interval
are as they come. It never removes files: the directory is its caller's.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

__all__ = ["Cell", "CellError", "Measured", "Row", "payload", "run_cell"]

CELL_TIMEOUT_S: Final = 300.0
_MODULES: Final = {
    "w1": "writing",
    "w2": "writing",
    "w3": "reading",
    "w4": "tailing",
    "w5": "writing",
    "w6": "writing",
    "w7": "reading",
    "w8": "tailing",
    "w9": "broadcast",
}
"""The module of this package that has `measure` for a workload."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table: what all its engines are asked to do. Fields that a workload has no use for stay as they are."""

    workload: str
    engines: tuple[str, ...]
    writers: int = 1
    readers: int = 0
    payload_bytes: int = 1024
    properties: int = 0
    vchannels: int = 1
    messages: int = 0
    """Of a log that is read: how many it holds. Of a call that appends many: how many a call."""
    frame_messages: int = 256
    """Of a log that is read: how many messages were committed together."""
    uvloop: bool = True
    longer: int = 1
    """How many times the plan's seconds: device bytes come in steps of a segment of zeros, so it takes many of them to see their rate."""
    recycling: bool = False
    """The log is truncated while it is written, so that its segments are used again."""

    @property
    def name(self) -> str:
        """The row in a few words, unique in its workload; targets and the JSON name it so."""
        words = []
        if self.workload in ("w1", "w5", "w6", "w9"):
            words.append(f"{self.writers:,} writer{'s' * (self.writers != 1)}")
        if self.readers:
            words.append(f"{self.readers} scanner{'s' * (self.readers != 1)}")
        if self.workload in ("w6", "w7", "w9"):
            words.append(f"{self.vchannels:,} vchannel{'s' * (self.vchannels != 1)}")
        words.append(f"{self.payload_bytes} B")
        if self.properties:
            words.append(f"{self.properties} properties")
        if self.recycling:
            words.append("recycling")
        if not self.uvloop:
            words.append("asyncio")
        return ", ".join(words)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure. `directory` is on a real disk: empty, or of a workload that reads what `prepare` made there."""

    row: Row
    engine: str
    """`prepare` makes what the other engines of a row read."""
    seconds: float
    warm_up_s: float
    directory: str


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured; None where there is no such thing, or where it was not scanned at.

    Latencies are of one await (of the floor: of one round of syncs), `loop_lag_p99_s` of a callback that is due now. `syncs` are frames of
    the log or commits of SQLite. `device_bytes` are what the process wrote to its block device, `payload_bytes` what it was asked to store.
    """

    messages: int = 0
    seconds: float = 0.0
    rate: float | None = None
    p50_s: float | None = None
    p99_s: float | None = None
    cpu_s: float | None = None
    syncs: int | None = None
    loop_lag_p99_s: float | None = None
    device_bytes: int | None = None
    payload_bytes: int | None = None
    skipped: str | None = None
    """Why this cell could not be measured here."""


class CellError(Exception):
    """A cell ended with an error, or took too long; the text holds what it printed."""


def payload(row: Row) -> bytes:
    """The bytes of every message of this row: nothing that could be compressed."""
    return random.Random(1).randbytes(row.payload_bytes)


def run_cell(cell: Cell) -> Measured:
    """Runs the cell in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.cell", msgspec.json.encode(cell).decode()]
    try:
        run = subprocess.run(
            command, cwd=Path(__file__).parents[1], capture_output=True, timeout=CELL_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise CellError(f"{cell.row.workload}, {cell.engine}: no result after {CELL_TIMEOUT_S:g} s") from error
    if run.returncode:
        raise CellError(f"{cell.row.workload}, {cell.row.name}, {cell.engine}:\n{run.stderr.decode(errors='replace')}")
    return msgspec.json.decode(run.stdout, type=Measured)


def main() -> None:
    cell = msgspec.json.decode(sys.argv[1], type=Cell)
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if cell.row.uvloop:
        import uvloop

        factory = uvloop.new_event_loop
    module = importlib.import_module(f"benchmarks.{_MODULES[cell.row.workload]}")
    with asyncio.Runner(loop_factory=factory) as runner:
        measured: Measured = runner.run(module.measure(cell))
    sys.stdout.buffer.write(msgspec.json.encode(measured) + b"\n")


if __name__ == "__main__":
    main()
