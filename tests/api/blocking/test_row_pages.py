"""Pages of rows: frames that are taken as columns give the rows that their messages give, or they are left to the reader of frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.blocking.logs import write_mixture
from tests.read.frames import KINDS, NAMES, ORIGIN, PROPERTIES, STEPS, Row, build
from wal import Message, MessageType, MessageTypes, TimeTickGT, bridge
from wal.api.arrow import record_batch
from wal.api.row_pages import checked_fields
from wal.errors import CorruptionError, WALError
from wal.frame import HEADER_BYTES, FrameView, RunName, rows_head
from wal.message import Origin
from wal.read.columns import COLUMNS, RowColumns
from wal.read.frame_rows import frame_rows
from wal.read.options import WholePChannel
from wal.runtime.system import open_descriptors
from wal.storage.base import RowsFrame, RowsPage, RowsRequest, StoredFrame
from wal.storage.journal.disk import JournalFile
from wal.storage.journal.read_only_journal import ReadOnlyJournalLog
from wal.storage.journal.rows import is_intact

MESSAGES = st.builds(Row, st.sampled_from(NAMES), st.binary(max_size=6), KINDS, PROPERTIES)


def few_names(names: Sequence[RunName], rows: list[Row], *, bare: bool) -> list[Row]:
    """Returns the rows with these names only, and if `bare` with nothing that needs an optional column."""
    return [
        Row(names[at % len(names)], row.payload, int(MessageType.INSERT) if bare else row.kind, {} if bare else row.properties)
        for at, row in enumerate(rows)
    ]


GROUPS = st.builds(
    lambda names, rows, bare: [("plain", few_names(names, rows, bare=bare), ())],
    st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True),
    st.lists(MESSAGES, min_size=1, max_size=40),
    bare=st.booleans(),
)
"""The frames of group commits: messages of one vchannel, or of a few in turn."""
TYPES = st.sampled_from([None, None, frozenset({2}), frozenset({2, 11})])
CHOICES = st.sampled_from([COLUMNS, ("payload", "time_tick"), ("time_tick",), ("properties", "message_id"), ("message_type", "vchannel")])


def encoded(frame: StoredFrame) -> bytes:
    """Returns the bytes of a frame."""
    view = frame.view
    return view.head + (view.stored(0, view.header.body_len) if view.header.body_len else b"")


def as_rows(frames: list[bytes], chosen: Sequence[str], types: frozenset[int] | None) -> pa.RecordBatch | None:
    """Returns the rows of these frames, taken as one page; None if a frame does not fit."""
    taken, size = [], 0
    for number, data in enumerate(frames):
        if (head := rows_head(data, 0, len(data))) is None:
            return None
        taken.append(RowsFrame(number, head, size))
        size += head.body_len
    bodies = pa.py_buffer(b"".join(data[len(data) - each.head.body_len :] for data, each in zip(frames, taken, strict=True)))
    if not all(is_intact(each.head, bodies, each.body_at) for each in taken):
        return None
    page = RowsPage(taken, bodies, len(frames), None, 0, is_cut=False)
    if (fields := checked_fields(pa, page)) is None:
        return None
    columns = RowColumns(chosen)
    columns.add_page(page, fields, origin, types)
    return record_batch(columns)


def as_frames(frames: list[bytes], chosen: Sequence[str], types: frozenset[int] | None) -> pa.RecordBatch:
    """Returns the rows of these frames, each decoded and checked as a whole; raises as every reader of frames does."""
    columns = RowColumns(chosen)
    for number, data in enumerate(frames):
        view = FrameView.decode(data, lambda start, end, data=data: data[len(data) - _body_len(data) :][start:end])  # type: ignore[misc]
        view.check_body()
        columns.add_frame(frame_rows(view, origin(number), WholePChannel().runs(view), types=types))
    return record_batch(columns)


def _body_len(data: bytes) -> int:
    return int.from_bytes(data[76:80], "little")


def origin(position: int) -> Origin:
    return Origin(ORIGIN.pchannel, ORIGIN.incarnation, position)


@given(st.lists(st.one_of(GROUPS, GROUPS, STEPS), min_size=1, max_size=4), CHOICES, TYPES)
def test_page_gives_the_rows_of_its_frames(frames: list[Any], chosen: Sequence[str], types: frozenset[int] | None) -> None:
    data = [encoded(build(steps, first_tick=1000 * number + 1000)[0]) for number, steps in enumerate(frames)]
    found = as_rows(data, chosen, types)
    if found is not None:
        found.validate(full=True)
        assert found.equals(as_frames(data, chosen, types))
    group = all(len(steps) == 1 and steps[0][0] == "plain" for steps in frames)
    assert found is not None or not all(group and len({row.name for row in steps[0][1]}) == 1 for steps in frames)


@given(GROUPS, st.randoms(use_true_random=False), CHOICES)
def test_contradicting_tables_are_never_rows(steps: Any, random: Random, chosen: Sequence[str]) -> None:
    """Of a frame with a changed head, whose CRC is right, the rows are those of the reader of frames, or there are none."""

    def mended(data: bytearray) -> bytes:
        """Returns a frame whose head was changed, with the CRC that it has to have then; the length of its tables is unchanged."""
        end = HEADER_BYTES + int.from_bytes(data[72:76], "little")
        crc = google_crc32c.extend(google_crc32c.value(bytes(data[:92])), bytes(data[HEADER_BYTES:end]))
        data[92:HEADER_BYTES] = crc.to_bytes(4, "little")
        return bytes(data)

    # The bytes of a head that are not changed: the first tick, since ticks ascend in a log, the lengths of the parts, and the CRC.
    kept = frozenset((*range(40, 48), *range(72, 80), *range(92, HEADER_BYTES)))

    def outcome(read: Callable[..., pa.RecordBatch | None], frames: list[bytes], chosen: Sequence[str]) -> Any:
        """Returns the rows, or the text of the error."""
        try:
            batch = read(frames, chosen, None)
        except WALError as error:
            return str(error)
        return None if batch is None else batch.to_pylist()

    before, frame = encoded(build(steps)[0]), encoded(build(steps, first_tick=2000)[0])
    head_bytes = len(frame) - _body_len(frame)
    for _ in range(10):
        data = bytearray(frame)
        at = random.choice([at for at in range(head_bytes) if at not in kept])
        data[at] = random.choice((0, 1, data[at] ^ 1, (data[at] + 1) % 256, random.randrange(256)))
        if random.random() < 0.5 and HEADER_BYTES + 15 <= at < head_bytes - 4:
            data[at + 4] = (data[at + 4] - 1) % 256
        assert outcome(as_rows, [before, mended(data)], chosen) in (None, outcome(as_frames, [before, mended(data)], chosen))


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of frames of each page of rows that was taken."""
    pages: list[int] = []
    take = ReadOnlyJournalLog.rows_page

    def counting(log: ReadOnlyJournalLog, request: RowsRequest) -> RowsPage | None:
        page = take(log, request)
        pages.append(0 if page is None else len(page.frames))
        return page

    monkeypatch.setattr(ReadOnlyJournalLog, "rows_page", counting)
    return pages


def read(data: str, **options: Any) -> pa.Table:
    with bridge.record_batches(data, options.pop("names", "orders"), follow=False, **options) as batches:
        return pa.Table.from_batches(batches, schema=batches.schema)


def as_before(data: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> pa.Table:
    """Returns what a read gives that takes every frame by itself."""
    with monkeypatch.context() as patch:
        patch.setattr(ReadOnlyJournalLog, "rows_page", lambda *_: None)
        return read(data, **options)


def write_groups(data: str, groups: int, *, size: int = 100, messages: int = 100) -> list[int]:
    """Writes groups of messages, each in a frame of its own; returns the tick of the last message of each."""
    with bridge.blocking(data, segment_bytes=1 << 20) as log:
        return [log.append_bulk([Message("orders", bytes([at % 251]) * size)] * messages)[-1].time_tick for at in range(groups)]


@pytest.mark.parametrize(
    "options", [{}, {"rows_max": 250}, {"bytes_max": 20_000}, {"columns": ["time_tick"]}, {"columns": ["payload"], "rows_max": 7}]
)
def test_groups_are_taken_as_pages(data: str, options: dict[str, Any], counted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The groups span several segments here, with frames of ticks and term starts between them."""
    for _ in range(3):
        write_groups(data, 60)
    found = read(data, **options)
    assert found.num_rows == 18_000
    assert sum(counted) >= 175
    assert found.equals(as_before(data, monkeypatch, **options))


@pytest.mark.parametrize("seed", range(3))
def test_mixture_gives_the_same_rows_either_way(data: str, seed: int, monkeypatch: pytest.MonkeyPatch, counted: list[int]) -> None:
    random = Random(f"rows/{seed}")
    write_mixture(data, random)
    for _ in range(8):
        options: dict[str, Any] = {"names": random.choice(("orders", ["orders", "payments", "ü"], ["payments", "ü"]))}
        if random.random() < 0.5:
            options["columns"] = random.sample(COLUMNS, random.randrange(1, len(COLUMNS)))
        if random.random() < 0.5:
            options["rows_max"] = random.choice((1, 50, 400))
        if random.random() < 0.5:
            options["filters"] = MessageTypes(
                *random.choice(([MessageType.INSERT], [MessageType.DELETE], [MessageType.DELETE, MessageType.INSERT]))
            )
        assert read(data, **options).equals(as_before(data, monkeypatch, **options)), options
    assert any(counted)


def test_ticks_are_filtered_before_frames_are_read(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = write_groups(data, 40, size=2000)
    sizes: list[int] = []
    _count_reads(monkeypatch, sizes)
    for tick, rows in ((ticks[29], 1000), (ticks[29] - 1, 1001), (ticks[-1], 0)):
        assert read(data, filters=TimeTickGT(tick)).num_rows == rows
    sizes.clear()
    assert read(data, until_time_tick=ticks[9] - 1).num_rows == 999
    few = sum(sizes)
    sizes.clear()
    assert read(data).num_rows == 4000
    assert few < sum(sizes) / 2


def test_payloads_not_asked_for_are_not_fetched(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_groups(data, 40, size=2000)
    sizes: list[int] = []
    _count_reads(monkeypatch, sizes)
    assert read(data, columns=["time_tick", "message_id", "vchannel"]).num_rows == 4000
    few = sum(sizes)
    sizes.clear()
    assert read(data, columns=["payload"])["payload"].nbytes > 8_000_000
    assert few < sum(sizes) / 10


def _count_reads(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    """Notes the bytes of each read of a file from now on."""
    read_bytes, read_into = JournalFile.read, JournalFile.read_into

    def reading(file: JournalFile, length: int, offset: int) -> bytes:
        sizes.append(length)
        return read_bytes(file, length, offset)

    def reading_into(file: JournalFile, buffers: Sequence[memoryview], offset: int) -> bool:
        sizes.append(sum(map(len, buffers)))
        return read_into(file, buffers, offset)

    monkeypatch.setattr(JournalFile, "read", reading)
    monkeypatch.setattr(JournalFile, "read_into", reading_into)


def test_damage_raises_the_error_of_every_reader(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flipped bit anywhere in the frames is the same error as for a reader of frames, after rows that come before the damage."""
    write_groups(data, 6, size=300)
    whole = read(data)
    (segment,) = sorted(Path(data).glob("pchannels/*/*.wal"))[:1]
    content = segment.read_bytes()
    random = Random(5)
    errors = 0
    places = [at for at in range(4096, len(content.rstrip(b"\0"))) if content[at]]
    for at in random.sample(places, 60):
        damaged = bytearray(content)
        damaged[at] ^= 1 << random.randrange(8)
        segment.write_bytes(damaged)
        outcomes: list[Any] = []
        for patched in (False, True):
            with monkeypatch.context() as patch:
                if patched:
                    patch.setattr(ReadOnlyJournalLog, "rows_page", lambda *_: None)
                try:
                    batches: list[pa.RecordBatch] = []
                    with bridge.record_batches(data, "orders", follow=False, rows_max=100) as reading:
                        batches.extend(reading)
                    outcomes.append(pa.Table.from_batches(batches))
                except WALError as error:
                    outcomes.append((type(error), str(error)))
                    table = pa.Table.from_batches(batches, schema=whole.schema)
                    assert table.equals(whole.slice(0, table.num_rows))
        assert outcomes[0] == outcomes[1]
        errors += outcomes[0][0] is CorruptionError if isinstance(outcomes[0], tuple) else 0
    segment.write_bytes(content)
    assert errors > 40
    assert read(data).equals(whole)


def test_position_is_after_the_rows_of_a_page(data: str) -> None:
    write_groups(data, 30)
    whole = read(data)
    with bridge.record_batches(data, "orders", follow=False, rows_max=700) as batches:
        count, descriptors = 0, open_descriptors()
        for batch in batches:
            count += batch.num_rows
            position = batches.position
            rest = read(data, resume=position) if position is not None else whole
            assert rest.equals(whole.slice(whole.num_rows - rest.num_rows))
            assert whole.num_rows - rest.num_rows <= count
        assert open_descriptors() <= descriptors
    assert count == 3000


@pytest.mark.parametrize("columns", [None, ["payload"], ["time_tick"]])
def test_memory_is_that_of_one_batch(data: str, columns: list[str] | None) -> None:
    """A read of 20 MB in batches of 512 KiB has in memory the delivered batch, the next batch, and the frame that exceeds it."""
    write_groups(data, 100, size=2000)
    bytes_max, frame_bytes = 512 * 1024, 200 * 1024
    assert read(data, columns=columns).num_rows == 10_000  # columns that all batches share are made
    before = pa.total_allocated_bytes()
    highest = 0
    with bridge.record_batches(data, "orders", follow=False, bytes_max=bytes_max, columns=columns) as batches:
        for batch in batches:
            highest = max(highest, pa.total_allocated_bytes() - before)
            assert batch.num_rows
    assert highest < 3 * (bytes_max + frame_bytes)
    del batch, batches
    assert pa.total_allocated_bytes() - before < frame_bytes
