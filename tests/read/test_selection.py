"""Selection: a reader is bound to the incarnation of a vchannel that was current when it began."""

from __future__ import annotations

from tests.read.frames import ORIGIN, Row, build
from wal.read.assembly import assemble
from wal.read.options import EventFilter, Selection


def payloads(selection: Selection, *runs: tuple[str, int, bytes]) -> list[bytes]:
    frame, _ = build([("plain", [Row((name, incarnation), payload, 2, {})], ()) for name, incarnation, payload in runs])
    return [message.payload for message in assemble(frame, ORIGIN, selection, EventFilter())]


def test_other_incarnations_and_other_names_are_not_seen() -> None:
    selection = Selection({"a": 2}, floor=10)
    assert payloads(selection, ("a", 1, b"old"), ("a", 2, b"mine"), ("b", 2, b"other")) == [b"mine"]
    assert payloads(selection, ("a", 11, b"new")) == []


def test_unknown_name_binds_to_the_next_incarnation() -> None:
    selection = Selection({"a": None}, floor=5)
    assert payloads(selection, ("a", 3, b"a life that was over before")) == []
    assert payloads(selection, ("a", 6, b"first")) == [b"first"]
    assert payloads(selection, ("a", 8, b"another incarnation"), ("a", 6, b"second")) == [b"second"]


def test_floor_itself_counts_as_created_afterwards() -> None:
    assert payloads(Selection({"a": None}, floor=5), ("a", 5, b"yes")) == [b"yes"]


def test_each_name_is_bound_by_itself() -> None:
    selection = Selection({"a": 1, "b": None}, floor=5)
    assert payloads(selection, ("b", 7, b"b"), ("a", 1, b"a"), ("b", 6, b"no")) == [b"b", b"a"]


def test_messages_for_every_reader_are_seen_by_all() -> None:
    frame, _ = build([("pchannel", [Row(("", 0), b"all", 2, {})], ())])
    for selection in (Selection({"a": 1}, floor=9), Selection({"z": None}, floor=9)):
        (message,) = assemble(frame, ORIGIN, selection, EventFilter())
        assert (message.payload, message.vchannel) == (b"all", "")
