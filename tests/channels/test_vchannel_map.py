"""The copy of the vchannels: every map is read back unchanged, damage raises, and only a replaced map is read again."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal.channels.owners import OwnerDescription
from wal.channels.vchannel_map import MapPlace, VChannelMap, VChannelMaps, read_changed_map, write_map
from wal.channels.vchannels import VChannelInfo
from wal.errors import CorruptionError, FormatError
from wal.storage.files import MAP_NAME

LIVES = st.integers(0, (1 << 64) - 1)
NAMES = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=40)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
OWNERS = st.builds(OwnerDescription, NAMES, TEXTS, TEXTS)
ENTRIES = st.dictionaries(NAMES, st.tuples(LIVES, st.none() | OWNERS), max_size=20)


def content_of(incarnation: int, following: int, entries: dict[str, tuple[int, OwnerDescription | None]]) -> VChannelMap:
    records = {name: own for name, (own, _) in entries.items()}
    return VChannelMap(incarnation, following, records, {name: owner for name, (_, owner) in entries.items() if owner})


MAPS = st.builds(content_of, LIVES, LIVES, ENTRIES)
HERE = Path("vchannels")


@given(MAPS)
def test_vchannel_map_round_trips(content: VChannelMap) -> None:
    assert VChannelMap.decode(content.encode(), HERE) == content


@given(MAPS, st.data())
def test_damage_is_loud(content: VChannelMap, data: st.DataObject) -> None:
    whole = content.encode()
    at = data.draw(st.integers(0, len(whole) - 1))
    bit = data.draw(st.integers(0, 7))
    flipped = whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]
    for damaged in (flipped, whole[:at], whole + b"\0"):
        with pytest.raises(CorruptionError, match="vchannels") as caught:
            VChannelMap.decode(damaged, HERE)
        assert caught.value.path == str(HERE)


def test_newer_version_is_a_format_error() -> None:
    body = bytearray(VChannelMap(1, 2, {"a": 1}).encode()[:-4])
    struct.pack_into("<I", body, 4, 9)
    with pytest.raises(FormatError, match="version 9"):
        VChannelMap.decode(bytes(body) + struct.pack("<I", google_crc32c.value(bytes(body))), HERE)


def test_owners_are_checked_too() -> None:
    owned = VChannelMap(1, 2, {"a": 1}, {"a": OwnerDescription("r")}).encode()[:-4]
    assert struct.unpack_from("<I", owned, 4) == (2,)
    plain = VChannelMap(1, 2, {"a": 1}).encode()[:-4]
    assert struct.unpack_from("<I", plain, 4) == (1,), "a release that knows no owners reads a map without them"
    for wrong in (b"", b'{"a":{}}', b'{"b":{"role":"r"}}', b'{"a":{"role":""}}', b"[" * 100_000, b"\xff"):
        body = owned[:4] + struct.pack("<I", 2) + plain[8:] + wrong
        whole = body + struct.pack("<I", google_crc32c.value(body))
        if not wrong:
            assert VChannelMap.decode(whole, HERE).owners == {}
            continue
        with pytest.raises(CorruptionError, match="owner"):
            VChannelMap.decode(whole, HERE)


def test_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_changed_map(tmp_path, None)
    first = VChannelMap(5, 3, {"a": 1, "b": 2})
    assert write_map(tmp_path, first)
    mark, shown = read_changed_map(tmp_path, None) or pytest.fail("no map")
    assert shown == first
    assert read_changed_map(tmp_path, mark) is None
    inode = (tmp_path / MAP_NAME).stat().st_ino
    assert not write_map(tmp_path, first), "it is there already"
    assert (tmp_path / MAP_NAME).stat().st_ino == inode
    assert write_map(tmp_path, VChannelMap(5, 4, {}))
    assert [path.name for path in tmp_path.iterdir()] == [MAP_NAME]


def test_views_over_several_maps(tmp_path: Path) -> None:
    places = {}
    for name in ("p0", "p1"):
        (tmp_path / name).mkdir()
        places[name] = MapPlace(tmp_path / name, 7)
    maps = VChannelMaps()
    assert maps.look(places).records == {}
    assert maps.view.floor("p0") == 0
    write_map(places["p0"].folder, VChannelMap(7, 6, {"a": 1, "b": 5}))
    write_map(places["p1"].folder, VChannelMap(7, 9, {"c": 2, "b": 8}))
    view = maps.look(places)
    assert view.records == {"a": VChannelInfo("a", "p0", 1), "b": VChannelInfo("b", "p1", 8), "c": VChannelInfo("c", "p1", 2)}, (
        "of two incarnations the later one counts"
    )
    assert (view.floor("p0"), view.floor("p1")) == (6, 9)
    assert maps.look(places) is view, "nothing was replaced"
    assert not view.is_over("p0", "a", 1)
    assert view.is_over("p0", "a", 3), "another life of the name took its place, or none"
    assert not view.is_over("p0", "new", 6), "the map may just not know it yet"
    write_map(places["p0"].folder, VChannelMap(7, 10, {"b": 5}))
    assert maps.look(places).is_over("p0", "a", 1)
    write_map(places["p0"].folder, VChannelMap(8, 1, {"of another life": 1}))
    assert "of another life" not in maps.look(places).records
    (places["p0"].folder / MAP_NAME).write_bytes(b"?")
    with pytest.raises(CorruptionError):
        maps.look(places)


def test_change_is_noticed_whatever_stat_returns(tmp_path: Path) -> None:
    """The map is replaced in place, so the file may keep its inode, and its time where clocks are coarse: the look finds the change."""
    folder = tmp_path / "p0"
    folder.mkdir()
    places, path = {"p0": MapPlace(folder, 7)}, folder / MAP_NAME
    maps = VChannelMaps()
    write_map(folder, VChannelMap(7, 5, {"a": 4}))
    assert maps.look(places).records == {"a": VChannelInfo("a", "p0", 4)}
    before = path.stat()
    path.write_bytes(VChannelMap(7, 6, {"a": 5}).encode())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_ino, after.st_mtime_ns, after.st_size) == (before.st_ino, before.st_mtime_ns, before.st_size)
    view = maps.look(places)
    assert view.records == {"a": VChannelInfo("a", "p0", 5)}
    assert view.is_over("p0", "a", 4)
