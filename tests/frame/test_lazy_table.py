"""A table that is checked run by run returns what a table checked as a whole returns, and refuses runs that would be read wrong."""

from __future__ import annotations

import random
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.frame.damage import break_cleverly, sealed
from tests.frame.drafts import Call, build, encode, fields, plans
from tests.frame.test_laws import HEADER_AT, columns_of
from wal.errors import CorruptionError, FormatError
from wal.frame import FrameHeader, FrameView, RunKind, RunName, tables
from wal.frame.tables import LazyRunTable

NAMES: list[RunName] = [("a", 1), ("aa", 1), ("aaa", 1), ("a", 2), ("b", 1), ("bo", 3), ("ü", 1), ("zwölf", 1), ("by-dev-1", 7)]
WANTED = [set(), {"a"}, {"aa", "ü"}, {"nobody"}, {""}, {"a", "aa", "b", "bo", "zwölf"}, {"y-dev", "-"}]


@st.composite
def wide_plans(draw: st.DrawFn) -> list[Call]:
    """Draws messages on each of NAMES, in any order, and some transactions."""
    plan = [Call("append", (name,), ((name, draw(fields)),)) for name in draw(st.permutations(NAMES))]
    for _ in range(draw(st.integers(0, 3))):
        names = tuple(draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True)))
        bodies = tuple((draw(st.sampled_from(names)), draw(fields)) for _ in range(draw(st.integers(0, 3))))
        plan.append(Call(draw(st.sampled_from(["append", "commit"])), names, bodies))
    return [call if call.method == "commit" else Call("append", call.names[:1], call.records) for call in plan]


def view_of(data: bytes, *, lazy: bool) -> FrameView:
    head = FrameHeader.unpack(data).head_bytes
    return FrameView.decode(data, lambda start, end: data[head + start : head + end], lazy=lazy)


def read(view: FrameView, names: set[str] | frozenset[str]) -> list[tuple[Any, ...]]:
    """Returns everything that a reader can ask for of these vchannels."""
    return [(run, view.columns(run), bytes(view.body(run)), view.runs.columns()) for run in view.runs.find(names)]


@given(wide_plans())
def test_lazy_table_gives_what_the_whole_table_gives(plan: list[Call]) -> None:
    data = b"".join(encode(build(plan)[0]).buffers)
    whole = view_of(data, lazy=False)
    for names in WANTED:
        view = view_of(data, lazy=True)
        assert type(view.runs) is LazyRunTable
        assert read(view, names) == read(whole, names)
        assert read(view, names) == read(whole, names), "once more, from what was kept"
    view = view_of(data, lazy=True)
    assert list(view.runs) == list(whole.runs)
    assert view.runs[-1] == whole.runs[-1]
    assert view.runs[1:3] == whole.runs[1:3]
    with pytest.raises(IndexError):
        view.runs[len(whole.runs)]


@given(plans)
def test_any_other_frame_is_checked_as_a_whole(plan: list[Call]) -> None:
    data = b"".join(encode(build(plan)[0]).buffers)
    view = view_of(data, lazy=True)
    assert type(view.runs) is not LazyRunTable
    for names in ({"a"}, {"orders", "zwölf"}):
        assert view.runs.find(names) == view_of(data, lazy=False).runs.find(names)


@given(st.one_of(plans, wide_plans()))
def test_few_names_are_found_like_many(plan: list[Call]) -> None:
    """In frames of every kind of run, and of a vchannel with several."""
    runs = view_of(b"".join(encode(build(plan)[0]).buffers), lazy=False).runs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "_SEARCHED_RUNS_MIN", 0)
        every = sorted({run.name for run in runs})
        for names in ({"nobody"}, *({name} for name in every), set(every[:4])):
            looked_at = [run for run in runs if (run.name in names if run.name else run.kind == RunKind.PCHANNEL)]
            assert runs.find(names) == runs.find(dict.fromkeys(names)) == looked_at


@given(wide_plans(), st.randoms(use_true_random=False))
def test_damage_under_a_right_crc_is_consistent(plan: list[Call], dice: random.Random) -> None:
    data = break_cleverly(b"".join(encode(build(plan)[0]).buffers), dice)
    for names in WANTED:
        try:
            whole = read(view_of(data, lazy=False), names)
        except (CorruptionError, FormatError):
            whole = None
        try:
            found = read(view_of(data, lazy=True), names)
        except (CorruptionError, FormatError):
            assert whole is None
            continue
        assert whole is None or found == whole
        for run, columns, *_ in found:
            assert run.name in names
            assert sum(map(len, columns.payloads + (columns.properties or []) + (columns.exts or []))) == (run.body_end - run.body_start)
            assert columns.indices == sorted(set(columns.indices))


def changed(*changes: tuple[str, int, int]) -> bytes:
    """Returns a frame of two messages on each of NAMES, its runs in that order, with changed entries of its tables or header."""
    plan = [Call("append", (name,), ((name, (b"payload", 2, b"", b"")),)) for name in [*NAMES, *NAMES]]
    plan.append(Call("commit", (NAMES[0],), ((NAMES[0], (b"body", 2, b"", b"")),)))
    data = bytearray(b"".join(encode(build(plan)[0]).buffers))
    places = columns_of(bytes(data)) | HEADER_AT
    for column, row, value in changes:
        at, form = places[column]
        struct.pack_into(f"<{form}", data, at + row * struct.calcsize(form), value)
    return sealed(bytes(data))


def test_run_that_is_asked_for_keeps_the_laws(subtests: pytest.Subtests) -> None:
    # Changes of run 0 (rows 0 to 3), or of the frame.
    broken = [
        ([("index", 1, 0)], "ascend"),
        ([("index", 3, 99)], "ascend"),
        ([("payload_len", 1, 8)], "body offsets"),
        ([("offset", 1, 1)], "body offsets"),
        ([("count", 0, 3)], "runs hold"),
        ([("name_len", 0, 0)], "no name"),
        ([("name_len", 0, 2)], "names are"),
        ([("flags", 3, 1)], "no commit"),
        ([("flags", 1, 4)], "no commit"),
        ([("block_end", 0, 1)], "block ends"),
        ([("first_tick", 0, (1 << 64) - 1)], "ticks from"),
        ([("incarnation", 3, 1)], "two runs"),
    ]

    for changes, text in broken:
        with subtests.test(repr(changes)):
            assert len(read(view_of(changed(), lazy=True), {"a"})) == 2
            with pytest.raises(CorruptionError, match=text):
                view_of(changed(*changes), lazy=True).runs.find({"a"})


def test_unknown_flag_is_a_newer_format() -> None:
    with pytest.raises(FormatError, match="flags"):
        view_of(changed(("flags", 0, 8)), lazy=True).runs.find({"a"})


def test_undecodable_name_is_refused_when_read() -> None:
    place, _ = columns_of(changed())["names"]
    data = bytearray(changed())
    data[place] = 0xFF
    view = view_of(sealed(bytes(data)), lazy=True)
    assert [run.name for run in view.runs.find({"b"})] == ["b"]
    with pytest.raises(CorruptionError, match="UTF-8"):
        view.runs[0]
    with pytest.raises(CorruptionError, match="UTF-8"):
        view.runs.find({"b", "bo", "c", "d", "e"})


def test_other_runs_are_not_checked() -> None:
    data = changed(("index", 5, 0))
    with pytest.raises(CorruptionError):
        view_of(data, lazy=False)
    view = view_of(data, lazy=True)
    assert len(view.runs.find({"b"})) == 1
    with pytest.raises(CorruptionError, match="ascend"):
        view.runs.find({"aa"})
