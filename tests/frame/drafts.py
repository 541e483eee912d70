"""Drafts for the tests: a plan is a list of calls on a FrameDraft, and a naive model predicts the content for a reader.

The model keeps a list of rows for each run, in Python's own objects, without tables, blocks or bytes.
"""

from __future__ import annotations

import struct
from typing import Any

import msgspec
from hypothesis import strategies as st

from wal import frame

Row = tuple[int, bytes, int, int, bytes, bytes]
"""index, payload, type, flags, properties, ext"""

HEADER: dict[str, Any] = {"incarnation": 0xA1, "term": 7, "sequence": 42, "first_tick": 1 << 40}


class Call(msgspec.Struct, frozen=True):
    """One call of a draft: the method, its vchannels, and its records, each with its vchannel if the method needs it."""

    method: str
    names: tuple[frame.RunName, ...]
    records: tuple[tuple[frame.RunName, tuple[bytes, int, bytes, bytes]], ...]


class Model:
    """The expected contents of a frame: the rows of each run, in the order in which the runs were begun, and the copies."""

    def __init__(self) -> None:
        self.indices = 0
        self.runs: dict[Any, list[Row]] = {}
        self.copies: list[tuple[frame.RunName, int, Row]] = []

    def apply(self, call: Call) -> None:
        for name, (payload, message_type, properties, ext) in call.records:
            if call.method == "append":
                self._add(name, (self._next(), payload, message_type, 0, properties, ext))
            elif call.method == "commit":
                self._add(name, (self._next(), payload, message_type, frame.FLAG_BODY, properties, ext))
            elif call.method == "pchannel":
                self._add(frame.RunKind.PCHANNEL, (self._next(), payload, message_type, 0, properties, ext))
            elif call.method == "system":
                self._add(frame.RunKind.SYSTEM, (0, payload, int(frame.SystemRecord.CHECKPOINT_CHUNK), 0, b"", b""))
            else:
                header = struct.pack("<HI", frame.ExtTag.BROADCAST, 3) + b"hdr"
                row = (self.indices, payload, message_type, frame.FLAG_COPY, properties, header)
                self._add(("shared", self.indices), row)
                self.copies += [(copy, self._next(), row) for copy in call.names]
        if call.method == "commit":
            index = self._next()
            for name in call.names:
                count = sum(1 for other, _ in call.records if other == name)
                ext = struct.pack("<HIQQII", frame.ExtTag.TXN, 24, 5, 1500, count, len(call.records))
                self._add(name, (index, b"", 2, frame.FLAG_COMMIT, b"", ext))

    def _next(self) -> int:
        self.indices += 1
        return self.indices - 1

    def _add(self, run: Any, row: Row) -> None:
        self.runs.setdefault(run, []).append(row)


def build(plan: list[Call]) -> tuple[frame.FrameDraft, Model]:
    """Returns the draft of these calls, and its model."""
    draft, model = frame.FrameDraft(), Model()
    for call in plan:
        before = draft.indices
        records = [(name, frame.Record(payload, kind, 0, stored, ext)) for name, (payload, kind, stored, ext) in call.records]
        if call.method == "append":
            assert draft.append(call.names[0], [record for _, record in records]) == before
        elif call.method == "commit":
            index = draft.commit(records, names=call.names, txn_id=5, keepalive_ms=1500)
            assert index == before + len(records)
        elif call.method == "broadcast":
            assert draft.broadcast(call.names, records[0][1], header=b"hdr") == before
        elif call.method == "pchannel":
            assert draft.pchannel(records[0][1]) == before
        else:
            draft.system(frame.SystemRecord.CHECKPOINT_CHUNK, records[0][1].payload)
        model.apply(call)
        assert draft.indices == model.indices
    return draft, model


def encode(draft: frame.FrameDraft) -> frame.EncodedFrame:
    return frame.encode_frame(draft, **HEADER, promised_tick=None if draft.indices else 99)


def view_of(data: bytes) -> frame.FrameView:
    """Returns the view of a frame whose bytes are contiguous."""
    base = frame.FrameView.decode(data, lambda start, end: b"").header.head_bytes
    return frame.FrameView.decode(data, lambda start, end: data[base + start : base + end])


def contents(view: frame.FrameView) -> tuple[dict[Any, list[Row]], list[tuple[frame.RunName, int, Row]]]:
    """Returns everything in a frame, as the model has it."""
    runs: dict[Any, list[Row]] = {}
    copies: list[tuple[frame.RunName, int, Row]] = []
    for run in view.runs:
        if run.kind == frame.RunKind.COPY:
            shared = view.runs[run.shared]
            copies.append(((run.name, run.incarnation), run.index, runs["shared", shared.index][0]))
            continue
        columns = view.columns(run)
        count = len(columns.payloads)
        rows = list(
            zip(
                columns.indices,
                columns.payloads,
                columns.types or [2] * count,
                columns.flags or [0] * count,
                columns.properties or [b""] * count,
                columns.exts or [b""] * count,
                strict=True,
            )
        )
        if run.kind == frame.RunKind.VCHANNEL:
            key: Any = (run.name, run.incarnation)
        elif run.kind == frame.RunKind.SHARED:
            key = ("shared", run.index)
        else:
            key = frame.RunKind(run.kind)
        if run.kind == frame.RunKind.SYSTEM:
            rows = [(0, *row[1:]) for row in rows]  # system records take no index; the value in the column has no meaning
        assert key not in runs
        runs[key] = rows
    return runs, copies


names = st.sampled_from([("a", 1), ("a", 2), ("orders", 1), ("zwölf", 3), ("by-dev-rootcoord-dml_0_4v1", 9)])
sizes = st.one_of(
    st.integers(0, 40), st.sampled_from([0, 1, 1024, frame.BLOCK_BYTES_MIN - 1, frame.BLOCK_BYTES_MIN, frame.BLOCK_BYTES_MIN + 1, 40_000])
)
payloads = st.builds(lambda size, fill: bytes([fill]) * size, sizes, st.integers(0, 255))
fields = st.tuples(
    payloads,
    st.sampled_from([2, 2, 2, 3, 37, 910]),
    st.sampled_from([b"", b"", b"\x81\xa1a\xa1b", b"p" * 5000]),
    st.sampled_from([b"", b"", frame.encode_ext({frame.ExtTag.IDEMPOTENCY_KEY: b"key", frame.ExtTag.TRACE: b"t"})]),
)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    method = draw(st.sampled_from(["append", "append", "commit", "broadcast", "pchannel", "system"]))
    if method == "append":
        name = draw(names)
        return Call(method, (name,), tuple((name, draw(fields)) for _ in range(draw(st.integers(0, 4)))))
    if method in ("pchannel", "system"):
        return Call(method, (), ((("", 0), draw(fields)),))
    chosen = tuple(draw(st.lists(names, min_size=1, max_size=4, unique=True)))
    if method == "broadcast":
        return Call(method, chosen, ((("", 0), draw(fields)),))
    return Call(method, chosen, tuple((draw(st.sampled_from(chosen)), draw(fields)) for _ in range(draw(st.integers(0, 4)))))


plans = st.lists(calls(), max_size=7)
