"""Cell: one measurement, of one engine on one row of the table, by default in its own process.

Owns the definitions of a row, a cell and a measurement, and the running of a cell: `run_cell` starts `python -m benchmarks.cell '<json>'`,
which prints the json of a `Measured`; `run_cell_here` starts no process. Nothing is tuned for the measurement: the garbage collector and
the interpreter's switch interval have their defaults. It never removes files: the directory belongs to its caller.
"""

from __future__ import annotations

import asyncio
import importlib
import random
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from benchmarks import engines

CELL_TIMEOUT_S: Final = 300.0
FRAME_MESSAGES: Final = 256
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
    "w10": "keyed",
    "w11": "serving",
    "w12": "consuming",
}
"""The module of this package that has `measure` for a workload."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table: the task of all its engines. Fields that a workload does not use keep their defaults."""

    workload: str
    engines: tuple[str, ...]
    writers: int = 1
    clients: int = 1
    """The number of client processes, each with all writers of the row."""
    readers: int = 0
    payload_bytes: int = 1024
    properties: int = 0
    vchannels: int = 1
    messages: int = 0
    """For a log that is read: its number of messages. For a call that appends many: the number per call."""
    frame_messages: int = FRAME_MESSAGES
    """For a log that is read: the number of messages that were committed together."""
    longer: int = 1
    """A factor for the plan's seconds: device bytes come in steps of a zero-filled segment, so their rate shows only over many steps."""
    recycling: bool = False
    """The log is truncated while it is written, so that its segments are recycled."""

    @property
    def name(self) -> str:
        """The row in a few words, unique in its workload; targets and the JSON use this name."""
        words = []
        if self.workload in ("w1", "w5", "w6", "w9", "w10") or (self.workload == "w11" and not self.readers):
            words.append(f"{self.writers:,} writer{'s' * (self.writers != 1)}")
        if self.clients > 1:
            words.append(f"{self.clients} clients")
        if self.readers:
            words.append(f"{self.readers} scanner{'s' * (self.readers != 1)}")
        if self.workload in ("w6", "w7", "w9"):
            words.append(f"{self.vchannels:,} vchannel{'s' * (self.vchannels != 1)}")
        words.append(f"{self.payload_bytes} B")
        if self.workload == "w3" and self.frame_messages != FRAME_MESSAGES:
            words.append(f"frames of {self.frame_messages:,}")
        if self.properties:
            words.append(f"{self.properties} properties")
        if self.recycling:
            words.append("recycling")
        return ", ".join(words)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """A measurement to make. `directory` is on a real disk: empty or, for a workload that reads, with the files that `prepare` created
    there.
    """

    row: Row
    engine: str
    """The engine's name; `prepare` creates the files that the other engines of a row read."""
    seconds: float
    warm_up_s: float
    directory: str


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """The results of a cell; None where a value does not exist or was not measured.

    Latencies are of one await (for the floor: of one round of syncs), `loop_lag_p99_s` is that of a callback that is due now. `syncs` are
    frames of the log or commits of SQLite. `device_bytes` is the number of bytes written to the block device, `payload_bytes` the number of
    bytes to store.
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
    """The reason why this cell could not be measured here."""


class CellError(Exception):
    """A cell ended with an error, or took too long; the text holds its output."""


def payload(row: Row) -> bytes:
    """Returns the payload of every message of this row, which is incompressible."""
    return random.Random(1).randbytes(row.payload_bytes)


def run_cell(cell: Cell) -> Measured:
    """Runs the cell in its own process."""
    command = [sys.executable, "-m", "benchmarks.cell", msgspec.json.encode(cell).decode()]
    try:
        run = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, timeout=CELL_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise CellError(f"{_words(cell)}: no result after {CELL_TIMEOUT_S:g} s") from error
    if run.returncode:
        raise CellError(f"{_words(cell)}:\n{run.stderr.decode(errors='replace')}")
    return msgspec.json.decode(run.stdout, type=Measured)


def run_cell_here(cell: Cell) -> Measured:
    """Runs the cell in this process, on the event loop of its engine."""
    try:
        return _measure(cell)
    except Exception as error:
        raise CellError(f"{_words(cell)}:\n{traceback.format_exc()}") from error


def _words(cell: Cell) -> str:
    return f"{cell.row.workload}, {cell.row.name}, {cell.engine}"


def _measure(cell: Cell) -> Measured:
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if cell.engine != engines.ASYNCIO:
        import uvloop

        factory = uvloop.new_event_loop
    module = importlib.import_module(f"benchmarks.{_MODULES[cell.row.workload]}")
    with asyncio.Runner(loop_factory=factory) as runner:
        measured: Measured = runner.run(module.measure(cell))
    return measured


def main() -> None:
    measured = _measure(msgspec.json.decode(sys.argv[1], type=Cell))
    sys.stdout.buffer.write(msgspec.json.encode(measured) + b"\n")


if __name__ == "__main__":
    main()
