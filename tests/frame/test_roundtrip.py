"""Encode and decode are inverse for any mix of calls, and the frame keeps the laws of blocks and indices."""

from itertools import pairwise
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from tests.frame.drafts import HEADER, Call, build, contents, encode, plans, view_of
from wal.frame import BLOCK_BYTES_MIN, BROADCAST, FLAG_COMMIT, CopyNames, FrameDraft, FrameView, Record, RunKind, RunName, encode_frame


@given(plans)
def test_decode_finds_what_the_model_says(plan: list[Call]) -> None:
    draft, model = build(plan)
    frame = encode(draft)
    data = b"".join(frame.buffers)
    assert len(data) == frame.length == frame.header.frame_bytes
    view = view_of(data)
    view.check_body()
    assert view.header == frame.header
    assert contents(view) == (model.runs, model.copies)
    assert [(name, run.index + at) for _, run, names in view.runs.copies() for at, name in enumerate(names)] == [
        (name, index) for name, index, _ in model.copies
    ]
    assert bool(frame.header.compatible & BROADCAST) == bool(model.copies)
    assert view.header.indices == model.indices
    assert view.header.promised_tick == (HEADER["first_tick"] + model.indices - 1 if model.indices else 99)
    seen = [(run.name, run.incarnation) for run in view.runs if run.name]
    assert frame.vchannels == tuple(dict.fromkeys(seen))
    assert frame.pchannel_wide == (RunKind.PCHANNEL in model.runs)


@given(plans)
def test_find_returns_named_and_common_runs(plan: list[Call]) -> None:
    view = view_of(b"".join(encode(build(plan)[0]).buffers))
    everyone = [run for run in view.runs if run.kind == RunKind.PCHANNEL]
    for wanted in (set(), {"a"}, {"a", "orders", "zwölf"}, {"nobody"}, {""}):
        expected = [run for run in view.runs if run in everyone or (run.name and run.name in wanted)]
        assert view.runs.find(wanted) == expected


@given(plans)
def test_exts_are_those_of_the_vchannels_records(plan: list[Call]) -> None:
    view = view_of(b"".join(encode(build(plan)[0]).buffers))
    expected = []
    for run in view.runs:
        columns = view.columns(run) if run.kind == RunKind.VCHANNEL else None
        if columns is not None and columns.exts is not None:
            flags = columns.flags or [0] * len(columns.exts)
            expected += [
                (run.name, run.incarnation, index, flag, ext)
                for index, flag, ext in zip(columns.indices, flags, columns.exts, strict=True)
                if ext
            ]
    assert view_of(b"".join(encode(build(plan)[0]).buffers)).exts() == expected


@given(plans)
def test_blocks_are_large_and_hold_whole_fields(plan: list[Call]) -> None:
    draft, model = build(plan)
    frame = encode(draft)
    blocks = frame.buffers[1:]
    assert all(len(block) >= BLOCK_BYTES_MIN for block in blocks[:-1])
    assert all(blocks)
    block_ends = {0}
    for block in blocks:
        block_ends.add(max(block_ends) + len(block))
    field_ends = {0}
    for rows in model.runs.values():
        for field in (1, 4, 5):
            for row in rows:
                field_ends.add(max(field_ends) + len(cast("bytes", row[field])))
    assert block_ends <= field_ends


@given(plans)
def test_indices_are_dense_and_ascend_with_the_calls(plan: list[Call]) -> None:
    view = view_of(b"".join(encode(build(plan)[0]).buffers))
    runs, copies = contents(view)
    taken: list[int] = [index for _, index, _ in copies]
    commits: set[int] = set()
    for key, rows in runs.items():
        if key == RunKind.SYSTEM or (isinstance(key, tuple) and key[0] == "shared"):
            continue
        assert all(one[0] < other[0] for one, other in pairwise(rows))
        commits.update(row[0] for row in rows if row[3] == FLAG_COMMIT)
        taken += [row[0] for row in rows if row[3] != FLAG_COMMIT]
    assert sorted([*taken, *commits]) == list(range(view.header.indices))


@given(plans)
def test_only_the_blocks_of_the_run_are_fetched(plan: list[Call]) -> None:
    data = b"".join(encode(build(plan)[0]).buffers)
    head = view_of(data).header.head_bytes
    ends = [0, *view_of(data).runs.block_ends]
    asked: list[tuple[int, int]] = []

    def body(start: int, end: int) -> bytes:
        asked.append((start, end))
        return data[head + start : head + end]

    for run in view_of(data).runs:
        asked.clear()
        FrameView.decode(data[:head], body).columns(run)
        if run.body_start == run.body_end:
            assert asked == []
        else:
            ((start, end),) = asked
            assert {start, end} <= set(ends)
            assert start <= run.body_start
            assert end >= run.body_end
            assert not [at for at in ends if start < at <= run.body_start or run.body_end <= at < end]


@given(plans)
def test_frame_is_decoded_at_an_offset(plan: list[Call]) -> None:
    draft, model = build(plan)
    data = b"".join(encode(draft).buffers)
    buffer = b"before" + data + b"after"
    head = 6 + view_of(data).header.head_bytes
    view = FrameView.decode(buffer, lambda start, end: buffer[head + start : head + end], offset=6)
    assert contents(view) == (model.runs, model.copies)


def test_columns_without_information_are_left_out() -> None:
    draft = FrameDraft()
    draft.append(("a", 1), [Record(b"x")])
    draft.append(("b", 1), [Record(b"y"), Record(b"z")])
    frame = encode_frame(draft, **HEADER)
    assert frame.header.incompatible == 0
    columns = view_of(b"".join(frame.buffers)).columns(view_of(b"".join(frame.buffers)).runs[1])
    assert (columns.types, columns.flags, columns.properties, columns.exts) == (None, None, None, None)
    assert columns.indices == [1, 2]


def test_runs_are_a_sequence() -> None:
    draft = FrameDraft()
    for at in range(5):
        draft.append((f"v{at}", at), [Record(b"x")])
    runs = view_of(b"".join(encode(draft).buffers)).runs
    assert [run.name for run in runs] == ["v0", "v1", "v2", "v3", "v4"]
    assert runs[-1] == runs[4]
    assert [run.incarnation for run in runs[1:3]] == [1, 2]
    assert next(iter(reversed(runs))) == runs[4]


@given(
    names=st.lists(st.sampled_from([("a", 1), ("bb", 7), ("ü", 3), ("a", 2)]), min_size=1, unique=True),
    records=st.lists(
        st.tuples(st.sampled_from([0, 3, 16 * 1024, 40_000]), st.sampled_from([1, 2]), st.sampled_from([b"", b"properties"])),
        min_size=2,
        max_size=6,
    ),
)
def test_broadcast_bytes_do_not_depend_on_shared_names(names: list[RunName], records: list[tuple[int, int, bytes]]) -> None:
    frames = []
    for given_names in (CopyNames(names), names):
        draft = FrameDraft()
        for number, (length, kind, properties) in enumerate(records):
            draft.broadcast(given_names, Record(bytes(length), kind, 0, properties), header=bytes(number))
        frames.append(encode(draft))
    shared, apart = frames
    assert b"".join(shared.buffers) == b"".join(apart.buffers)
    assert (shared.header, shared.length, shared.vchannels) == (apart.header, apart.length, apart.vchannels)
    assert not shared.pchannel_wide


_SIZES = st.sampled_from([0, 1, 100, BLOCK_BYTES_MIN - 1, BLOCK_BYTES_MIN, BLOCK_BYTES_MIN + 1])


@given(_SIZES, _SIZES, _SIZES, st.sampled_from([2, 3]))
def test_frame_of_one_message_has_general_bytes(payload: int, properties: int, ext: int, message_type: int) -> None:
    record = Record(bytes(payload), message_type, 0, b"p" * properties, b"e" * ext)
    draft = FrameDraft()
    draft.append(("orders", 7), [record])
    quick = encode(draft)
    draft.in_order = False  # so that its tables are built column by column
    assert encode(draft) == quick
