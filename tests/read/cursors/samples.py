"""Cursors for tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from wal.errors import InvalidArgumentError
from wal.message.matching import Matching
from wal.read.cursors.cursor import Cursor, CursorKey, check_cursor
from wal.read.read_only_core import ReadOnlyCore
from wal.read.sources import ReadOnlyJournalSource


def cursor(name: str = "billing", vchannels: Iterable[str] = ("orders",), **fields: Any) -> Cursor:
    key = CursorKey.of(name, vchannels)
    values: dict[str, Any] = {
        "incarnations": tuple(range(1, len(key.vchannels) + 1)),
        "pchannel": "p0",
        "incarnation": 77,
        "start": (4096, 3),
        "event": (4096, 2),
        "time_tick": 123_456_789,
        "saved_at": 1_700_000_000.25,
    }
    return Cursor(key, **(values | fields))


def saved_in(directory: Path, key: CursorKey) -> Cursor | None:
    """Returns a cursor of a journal as a process beside its writer has it."""
    source = ReadOnlyJournalSource(directory)
    core = ReadOnlyCore(source)
    core.open()
    try:
        return source.cursors.load(key)
    finally:
        core.close()


def _allowed(name: str) -> bool:
    try:
        check_cursor(name)
    except InvalidArgumentError:
        return False
    return True


names = st.text(min_size=1, max_size=70).filter(_allowed)
_places = st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
events = st.lists(st.builds(lambda name, place: (name, *place), names, _places), max_size=3).map(tuple)
"""An event of each of some pchannels."""


@st.composite
def cursors(draw: st.DrawFn) -> Cursor:
    vchannels = st.lists(st.text(min_size=1, max_size=20).filter(_allowed), min_size=1)
    key = CursorKey.of(draw(names), draw(vchannels | st.builds(Matching, names)))
    return Cursor(
        key,
        tuple(draw(st.none() | st.integers(1, 2**32)) for _ in key.vchannels),
        draw(names),
        draw(st.integers(1, 2**63)),
        draw(_places),
        draw(st.none() | _places),
        draw(st.integers(0, 2**64 - 1)),
        draw(st.floats(0, 1e12)),
        draw(st.sampled_from([1, 2])),
        draw(st.text(max_size=20).filter(lambda text: text.isprintable())),
        begun=draw(events) if key.pattern else (),
    )
