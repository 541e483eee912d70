"""VChannelMap: a copy of one pchannel's vchannels in a file, for processes that only read, and the view of all maps of a log together.

    vchannels   magic "WALV" | version u32 | incarnation u64 | next u64 | vchannels u32 | names_len u32
                a column each: incarnation u64, name_len u16; names UTF-8, joined
                in version 2: the owners by name, JSON
                in version 3: {"removals": number, "owners": the owners by name}, JSON
                crc32c u32 of everything before it

A map without owners has version 1, and the map of a log in which vchannels were removed version 3. The KV is the only source of truth about
vchannels. A map may lag, and is brought up to date whenever the log is opened for writing or closed. A rename replaces the file, so a
reader that opens it sees the whole map of one moment. A map that does not lag proves what the KV must have.

The file's inode and time do not distinguish two versions: the next version but one may get the first one's freed inode, and the same time
where file times are coarse (milliseconds on many systems, seconds on some). So `MapMark` also has the CRC.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

import google_crc32c
import msgspec

from wal.channels.owners import OwnerDescription
from wal.channels.unknown_vchannels import SHOWN_MAX
from wal.channels.vchannels import VChannelBegin, VChannelInfo
from wal.errors import CorruptionError, FormatError, StorageError
from wal.runtime.system import sync_data, sync_path
from wal.storage.files import MAP_NAME, FileAccess

_TEMPORARY: Final = "vchannels.tmp"
_MAGIC: Final = b"WALV"
_VERSION: Final = 1
_VERSION_OWNERS: Final = 2
_VERSION_REMOVALS: Final = 3
_HEAD: Final = struct.Struct("<4sIQQII")
_COLUMNS_BYTES: Final = 10
"""The bytes of each vchannel in the columns."""
_CRC: Final = struct.Struct("<I")


class VChannelMap(msgspec.Struct, frozen=True):
    """`incarnation` is the pchannel's own; `records` has the incarnation of each vchannel on this pchannel, by name, and `owners` the owner
    of each channel among them.

    A vchannel that was created after this moment, on any pchannel, has at least the incarnation `next_incarnation`. `removals` counts the
    removals of records before it, see `wal.channels.directory.Counter`.
    """

    incarnation: int
    next_incarnation: int
    records: dict[str, int]
    owners: dict[str, OwnerDescription] = {}
    removals: int = 0

    def lost_by(self, incarnations: Mapping[str, int], next_incarnation: int, removals: int | None) -> str | None:
        """Returns a description of the loss if the metadata lack a vchannel of this map, else None. The arguments are those of the
        metadata.

        `incarnations` are those of this pchannel's vchannels, `removals` None if they do not count removals. Then, or if the counts differ,
        a vchannel may have been removed after the map was written.
        """
        if self.next_incarnation > next_incarnation or (removals is not None and self.removals > removals):
            return "they are older than the map of the vchannels beside its log"
        if (self.next_incarnation, self.removals) != (next_incarnation, removals):
            return None
        lost = sorted(name for name, incarnation in self.records.items() if incarnations.get(name) != incarnation)
        if not lost:
            return None
        return f"they lack {len(lost)} vchannels of the map beside its log: {', '.join(map(repr, lost[:SHOWN_MAX]))}"

    def encode(self) -> bytes:
        """Returns the bytes of the file."""
        names = [name.encode() for name in self.records]
        count = len(names)
        joined = b"".join(names)
        version, more = _VERSION, b""
        if self.removals:
            version, more = _VERSION_REMOVALS, msgspec.json.encode(_More(self.removals, self.owners))
        elif self.owners:
            version, more = _VERSION_OWNERS, msgspec.json.encode(self.owners)
        data = b"".join(
            (
                _HEAD.pack(_MAGIC, version, self.incarnation, self.next_incarnation, count, len(joined)),
                struct.pack(f"<{count}Q{count}H", *self.records.values(), *map(len, names)),
                joined,
                more,
            )
        )
        return data + _CRC.pack(google_crc32c.value(data))

    @classmethod
    def decode(cls, data: bytes, path: Path) -> VChannelMap:
        """Returns the map in these bytes. Raises CorruptionError if they are damaged, FormatError for a newer version; both name `path`."""
        body = data[: -_CRC.size]
        if len(body) < _HEAD.size:
            raise _damaged(path, f"it has {len(data)} bytes", f"at least {_HEAD.size + _CRC.size}")
        (crc,) = _CRC.unpack_from(data, len(body))
        if (actual := google_crc32c.value(body)) != crc:
            raise _damaged(path, f"it has CRC32C {actual:#010x}", f"{crc:#010x}")
        magic, version, incarnation, following, count, names_len = _HEAD.unpack_from(body)
        if magic != _MAGIC:
            raise _damaged(path, f"it starts with {magic!r}", repr(_MAGIC))
        if version not in (_VERSION, _VERSION_OWNERS, _VERSION_REMOVALS):
            raise FormatError(f"{path} has version {version}, known here is {_VERSION_REMOVALS}: upgrade to read it")
        names_end = _HEAD.size + count * _COLUMNS_BYTES + names_len
        if len(body) < names_end or (version == _VERSION and len(body) > names_end):  # before the count is used
            raise _damaged(path, f"it has {len(data)} bytes", f"{count} vchannels with {names_len} bytes of names")
        values = struct.unpack_from(f"<{count}Q{count}H", body, _HEAD.size)
        joined = body[_HEAD.size + count * _COLUMNS_BYTES : names_end]
        ends = list(accumulate(values[count:], initial=0))
        if ends[-1] != names_len:
            raise _damaged(path, f"its names are {ends[-1]} bytes long", f"{names_len} bytes")
        try:
            names = [joined[start:end].decode() for start, end in pairwise(ends)]
        except UnicodeDecodeError as error:
            raise _damaged(path, f"its names are not UTF-8 ({error})", "UTF-8") from error
        records = dict(zip(names, values[:count], strict=True))
        if len(records) != count or not all(names):
            raise _damaged(path, "a name is there twice, or empty", f"{count} names")
        more = _more(version, body[names_end:], records, path)
        return cls(incarnation, following, records, more.owners, more.removals)


class _More(msgspec.Struct, frozen=True):
    removals: int
    owners: dict[str, OwnerDescription]


_owners_decoder: Final = msgspec.json.Decoder(dict[str, OwnerDescription])
_more_decoder: Final = msgspec.json.Decoder(_More)


class MapMark(msgspec.Struct, frozen=True):
    """The mark of one version of a map. Two versions differ in the `crc`; the other fields detect a file damaged in place."""

    crc: bytes
    inode: int
    mtime_ns: int
    size: int


class MapPlace(msgspec.Struct, frozen=True):
    """The folder of a pchannel's map, and the incarnation of the pchannel, with its incarnations before its restores."""

    folder: Path
    incarnation: int
    parents: frozenset[int] = frozenset()
    """Until the first opening after a restore has written the map again, it is that of the copy, with the same vchannels."""


def read_changed_map(folder: Path, seen: MapMark | None) -> tuple[MapMark, VChannelMap] | None:
    """Returns the map and its mark; None if it is still the one `seen` (then only its CRC is read). Blocks; raises OSErrors unchanged."""
    path = folder / MAP_NAME
    with path.open("rb", buffering=0) as file:
        fd = file.fileno()
        status = os.fstat(fd)
        crc = os.pread(fd, _CRC.size, max(0, status.st_size - _CRC.size))
        mark = MapMark(crc, status.st_ino, status.st_mtime_ns, status.st_size)
        if mark == seen:
            return None
        data = file.readall()
    return mark, VChannelMap.decode(data, path)


def load_map(folder: Path) -> VChannelMap | None:
    """Returns the map in this folder, None if it is missing or damaged: the next opening writes it again. Blocks."""
    try:
        return VChannelMap.decode((folder / MAP_NAME).read_bytes(), folder / MAP_NAME)
    except (OSError, CorruptionError):
        return None


def write_map(folder: Path, content: VChannelMap, *, durably: bool = False) -> bool:
    """Writes the map into the folder, unless the same one is there; returns whether it was written. Blocks; raises OSErrors unchanged.

    Readers see the map from then on. With `durably`, a power cut does not bring back the former map.
    """
    path, temporary = folder / MAP_NAME, folder / _TEMPORARY
    data = content.encode()
    try:
        if path.read_bytes() == data:
            if durably:
                sync_path(folder)  # the previous write may have failed here
            return False
    except FileNotFoundError:
        pass
    fd = FileAccess.like(folder).create(temporary, os.O_WRONLY | os.O_TRUNC)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        sync_data(fd)  # a power cut leaves the old map or the new one, never a name without its bytes
    finally:
        os.close(fd)
    os.rename(temporary, path)
    if durably:
        sync_path(folder)
    return True


class VChannelView(msgspec.Struct, frozen=True):
    """The known vchannels at one moment: by name in `records`, and the map of each pchannel that has one in `maps`.

    `begins`: where vchannels begin, by name, if that is known.
    """

    records: Mapping[str, VChannelInfo]
    maps: Mapping[str, VChannelMap]
    begins: Mapping[str, VChannelBegin] = {}

    def current(self, name: str) -> int | None:
        """Returns the current incarnation of this vchannel, or None if the vchannel is unknown."""
        info = self.records.get(name)
        return None if info is None else info.incarnation

    def on(self, pchannel: str) -> dict[str, int]:
        """Returns the known existing vchannels of this pchannel, with their incarnations."""
        return {name: info.incarnation for name, info in self.records.items() if info.pchannel == pchannel}

    def floor(self, pchannel: str) -> int:
        """Returns the smallest incarnation that an unknown vchannel of this pchannel can have."""
        pchannel_map = self.maps.get(pchannel)
        return 0 if pchannel_map is None else pchannel_map.next_incarnation

    def is_over(self, pchannel: str, name: str, incarnation: int) -> bool:
        """Returns whether this incarnation of a vchannel on this pchannel is known to have ended."""
        pchannel_map = self.maps.get(pchannel)
        return pchannel_map is not None and pchannel_map.records.get(name) != incarnation and incarnation < pchannel_map.next_incarnation


class VChannelMaps:
    """The maps of a log's pchannels. `view` is the result of the last `look`, which only a single thread may call."""

    def __init__(self) -> None:
        self.view: VChannelView = VChannelView({}, {})
        self.missing: set[str] = set()
        """The pchannels without a map at the last look: new ones, those of an old version, and damaged ones."""
        self.foreign: set[str] = set()
        """The pchannels that had the map of another log then."""
        self._seen: dict[str, MapMark] = {}

    def look(self, places: Mapping[str, MapPlace]) -> VChannelView:
        """Reads the maps that changed since the last look. Raises CorruptionError for a damaged map, StorageError for an unreadable one."""
        maps = dict(self.view.maps)
        marks = dict(self._seen)
        self.missing.clear()
        self.foreign.clear()
        for pchannel, place in places.items():
            try:
                changed = read_changed_map(place.folder, marks.get(pchannel))
            except FileNotFoundError:
                self.missing.add(pchannel)
                continue
            except OSError as error:
                raise StorageError(f"{error.filename or place.folder} cannot be read: {error.strerror or error}") from error
            if changed is None:
                continue
            mark, vchannels = changed
            if vchannels.incarnation != place.incarnation and vchannels.incarnation not in place.parents:
                self.foreign.add(pchannel)
                continue
            marks[pchannel], maps[pchannel] = mark, vchannels
        if marks != self._seen:
            self._seen = marks
            self.view = VChannelView(_records(maps), maps)
        return self.view


def _more(version: int, data: bytes, records: Mapping[str, int], path: Path) -> _More:
    if not data:
        return _More(0, {})
    try:
        more = _more_decoder.decode(data) if version == _VERSION_REMOVALS else _More(0, _owners_decoder.decode(data))
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise _damaged(path, f"its owners cannot be read ({error})", "the owners by name, JSON") from error
    if unknown := more.owners.keys() - records.keys():
        raise _damaged(path, f"it has an owner of {min(unknown)!r}", "owners of its vchannels only")
    return more


def _records(maps: Mapping[str, VChannelMap]) -> dict[str, VChannelInfo]:
    """Returns all vchannels. If two maps have the same name, because one lags, the later incarnation counts."""
    records: dict[str, VChannelInfo] = {}
    for pchannel, pchannel_map in maps.items():
        for name, incarnation in pchannel_map.records.items():
            other = records.get(name)
            if other is None or other.incarnation < incarnation:
                records[name] = VChannelInfo(name, pchannel, incarnation, pchannel_map.owners.get(name))
    return records


def _damaged(path: Path, actual: str, expected: str) -> CorruptionError:
    text = f"{path} is damaged: {actual}; expected {expected}; it is written again when the log is opened for writing"
    return CorruptionError(text, path=str(path), offset=0, expected=expected)
