"""Watch alone, and the order of keys on which prefix scans depend."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

import wal.storage.kv
from wal.errors import ClosedError, TruncatedError
from wal.storage.kv import Watch, WatchEvent, WatchKind
from wal.storage.kv.keys import prefix_end

texts = st.text(st.sampled_from(["a", "b", "\x7f", "\x80", "\ud7ff", "\ue000", "\uffff", "\U0010ffff"]), max_size=4)


@given(prefix=texts, key=texts)
def test_prefix_end_bounds_exactly_the_prefix(prefix: str, key: str) -> None:
    end = prefix_end(prefix)
    assert (prefix <= key and (end is None or key < end)) == key.startswith(prefix)
    if end is not None:
        assert prefix.encode() < end.encode()  # and UTF-8 can carry it


@given(st.lists(texts))
def test_keys_are_ordered_as_their_bytes(keys: list[str]) -> None:
    assert sorted(keys) == sorted(keys, key=str.encode)


async def test_first_end_stands() -> None:
    def event(number: int) -> WatchEvent:
        return WatchEvent(WatchKind.PUT, "a", str(number), number)

    ended: list[Watch] = []
    watch = Watch("key 'a'", buffer_max=2, on_end=ended.append)
    watch.feed([event(1), event(2)])
    watch.feed([event(3)])
    watch.fail(ClosedError("later"))
    watch.feed([event(4)])
    assert isinstance(watch.error, TruncatedError)
    assert watch.ended
    assert ended == [watch]
    assert [(await anext(watch)).revision for _ in range(2)] == [1, 2]


def test_exported_names() -> None:
    assert wal.storage.kv.__all__ == sorted(wal.storage.kv.__all__, key=lambda name: (not name.isupper(), name))
    assert all(hasattr(wal.storage.kv, name) for name in wal.storage.kv.__all__)
