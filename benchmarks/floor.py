"""The raw floor: the minimum cost of a durable frame, or of a read and checked one, on this disk, without a loop.

Writing: one frame of all appends of a round of writers (cut where the log cuts, at `FRAME_BYTES_MAX`), its CRCs, one `pwritev` of it with
its envelope into space that was written before (64 MiB, repeatedly), one `fdatasync`. The bytes are in the log's own format, created before
the clock starts; creating messages, waking writers and answering them costs it nothing. Reading: the same bytes from a plain file, in reads
of a megabyte, with their CRC. No engine that does more can be faster.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import google_crc32c

from benchmarks.cell import Cell, Measured, Row, payload
from benchmarks.gauge import Gauge, percentile
from benchmarks.stores import properties_of, vchannel_name
from wal.frame import EncodedFrame, FrameDraft, Record, encode_frame
from wal.message import encode_properties
from wal.storage.journal.layout import ENVELOPE_BYTES, pack_envelope, padding, slot_bytes

SPACE_BYTES: Final = 64 << 20
READ_BYTES: Final = 1 << 20
FRAME_BYTES_MAX: Final = 4 << 20


def write_floor(cell: Cell, *, messages: int, txn_bodies: int = 0) -> Measured:
    """Writes rounds of `messages` for the time of the cell. With `txn_bodies`, each run of this many messages is a transaction."""
    row = cell.row
    each_max = max(1, FRAME_BYTES_MAX // (row.payload_bytes + 256))
    if txn_bodies:
        each_max = max(txn_bodies, each_max // txn_bodies * txn_bodies)
    pieces = [min(each_max, messages - at) for at in range(0, messages, each_max)]
    frames = [make_frame(row, number, count, txn_bodies=txn_bodies) for number, count in enumerate(pieces)]
    file = _Space(Path(cell.directory) / "floor")
    try:
        _rounds(file, frames, cell.warm_up_s, array("d"))
        latencies = array("d")
        gauge = Gauge(cell.directory)
        _rounds(file, frames, cell.seconds, latencies)
        cost = gauge.stop()
    finally:
        file.close()
    rounds, ordered = len(latencies), sorted(latencies)
    return Measured(
        messages=rounds * messages,
        seconds=cost.seconds,
        rate=rounds * messages / cost.seconds,
        p50_s=percentile(ordered, 0.5),
        p99_s=percentile(ordered, 0.99),
        cpu_s=cost.cpu_s,
        syncs=rounds * len(frames),
        device_bytes=cost.device_bytes,
        payload_bytes=rounds * messages * row.payload_bytes,
    )


def make_frame(row: Row, sequence: int, messages: int, *, txn_bodies: int = 0) -> EncodedFrame:
    """Returns a frame of this many messages of this row, over its vchannels in turn."""
    stored = encode_properties(properties_of(row)) if row.properties else b""
    record = Record(payload(row), properties=stored)
    draft = FrameDraft()
    if txn_bodies:
        for number in range(messages // txn_bodies):
            bodies = [((vchannel_name(0), 1), record)] * txn_bodies
            draft.commit(bodies, names=((vchannel_name(0), 1),), txn_id=number + 1, keepalive_ms=10_000)
    else:
        count = min(row.vchannels, messages)
        for at in range(count):
            draft.append((vchannel_name(at), 1), [record] * len(range(at, messages, count)))
    return encode_frame(draft, incarnation=1, term=1, sequence=sequence, first_tick=1 + sequence * messages)


def write_raw(path: Path, frame: EncodedFrame, count: int) -> None:
    """Writes a plain file of this many copies of this frame."""
    data = b"".join(frame.buffers)
    with path.open("wb") as file:
        for _ in range(count):
            file.write(data)


def read_floor(path: Path) -> int:
    """Reads and checks the whole file; returns its number of bytes."""
    total = crc = 0
    fd = os.open(path, os.O_RDONLY)
    try:
        while data := os.pread(fd, READ_BYTES, total):
            crc = google_crc32c.extend(crc, data)
            total += len(data)
    finally:
        os.close(fd)
    return total


class _Space:
    """A file that was written once, and is repeatedly overwritten from its beginning."""

    def __init__(self, path: Path) -> None:
        self._at = 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)
        zeros = bytes(1 << 20)
        for offset in range(0, SPACE_BYTES, len(zeros)):
            os.pwrite(self._fd, zeros, offset)
        os.fdatasync(self._fd)

    def append(self, frame: EncodedFrame) -> None:
        for block in frame.buffers[1:]:
            google_crc32c.value(block)
        size = slot_bytes(frame.length)
        if self._at + size > SPACE_BYTES:
            self._at = 0
        envelope = pack_envelope(frame.length, 1, self._at)
        buffers: Sequence[bytes | memoryview] = [envelope, *frame.buffers, padding(frame.length)]
        written = os.pwritev(self._fd, buffers, self._at)
        if written != size or len(envelope) != ENVELOPE_BYTES:
            raise OSError(f"the floor wrote {written} of {size} bytes")
        os.fdatasync(self._fd)
        self._at += size

    def close(self) -> None:
        os.close(self._fd)


def _rounds(file: _Space, frames: list[EncodedFrame], seconds: float, latencies: array[float]) -> None:
    """Writes one frame after the other until the time has passed, at least once."""
    clock = time.perf_counter
    until = clock() + seconds
    began = clock()
    while True:
        for frame in frames:
            file.append(frame)
        ended = clock()
        latencies.append(ended - began)
        began = ended
        if ended >= until:
            return
