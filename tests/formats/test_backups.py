"""Backups that each version of the manifest has written are verified, restored and continued; a flipped bit in them is found.

`backups/N.tar.xz` holds three backups of one log with manifests of version N. They are never recreated.
"""

from __future__ import annotations

import json
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import msgspec
import pytest

from tests.archives import extract
from wal import open_wal
from wal.errors import CorruptionError, FormatError
from wal.operate.backup import backup, backups, forget, restore, upgrade, verify
from wal.storage.archive.manifest import NEWEST, Manifest, decode_manifest, manifest_name
from wal.storage.archive.objects import fetch
from wal.storage.archive.store import open_store

VERSIONS = (1, 2, 3)


@pytest.fixture(params=VERSIONS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    extract(Path(__file__).parent / "backups" / f"{request.param}.tar.xz", tmp_path)
    return tmp_path / "backups"


def sealed(body: bytes) -> bytes:
    """Returns the manifest of version 2 or later with these bytes before its checksum."""
    return body + b',"crc32c":"%08x"}' % google_crc32c.value(body)


async def test_backup_of_each_version_is_restored_and_continued(target: Path, tmp_path: Path) -> None:
    payloads = [*(b'{"order": %d}' % number for number in range(20)), b"paid", b"shipped"]

    async def bodies(log: Any) -> Any:
        async with log.read("orders", follow=False) as scanner:
            async for _, body in scanner.bodies():
                yield body.payload

    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file() and path.name != NEWEST}
    made = await backups(str(target))
    assert [manifest.number for manifest in made] == [1, 2, 3]
    assert await verify(str(target)) == []
    for up_to, count in ((made[0].tick, 20), (None, 22)):
        place = tmp_path / f"restored-{count}"
        await restore(str(target), str(place), up_to=up_to)
        async with open_wal(place) as log:
            assert [body async for body in bodies(log)] == payloads[:count]
            assert {info.name for info in await log.cursors()} == ({"billing"} if count == 20 else {"billing", "stage"})
            if up_to is None:
                await log.append("orders", b"new")
                tick = await log.allocate_time_tick()
                while (manifest := await backup(str(place), str(target))).tick < tick:
                    pass
    assert json.loads((target / manifest_name(manifest.number)).read_bytes())["version"] == 3
    assert {path: path.read_bytes() for path in before} == before, "what was there is not changed"
    await restore(str(target), str(tmp_path / "again"))
    async with open_wal(tmp_path / "again", read_only=True) as log:
        assert [body async for body in bodies(log)] == [*payloads, b"new"]
    assert await verify(str(target)) == []


async def test_backup_of_each_version_is_upgraded_once(target: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file() and path.name != NEWEST}
    newest = (await backups(str(target)))[-1]
    made = await upgrade(str(target))
    assert (made is None) == (newest.version == 3)
    assert await upgrade(str(target)) is None
    assert {path: path.read_bytes() for path in before} == before
    upgraded = (await backups(str(target)))[-1]
    assert (upgraded.version, upgraded.tick) == (3, newest.tick)
    assert all(chunk.index is not None for segment in upgraded.pchannels["p0"].segments for chunk in segment.chunks)
    assert await verify(str(target)) == []
    await forget(str(target), keep=1)
    await restore(str(target), str(tmp_path / "restored"))
    async with open_wal(tmp_path / "restored") as log, log.read("orders", follow=False) as scanner:
        assert len([body async for _, body in scanner.bodies()]) == 22


def test_flipped_bit_in_a_manifest_is_found(target: Path) -> None:
    # What a flipped bit may change in a manifest of version 1, since nothing else there has these numbers. The objects have the sizes.
    unchecked = {"tick", "at_s", "incarnation", "term", "earliest", "limit", "size"}

    def checked_content(manifest: Manifest) -> Any:
        """Returns what is in a manifest, without what version 1 does not check in a manifest alone: some numbers, and how a file of a
        cursor begins."""

        def without(value: Any) -> Any:
            if isinstance(value, dict):
                return {key[-48:]: without(part) for key, part in value.items() if key not in unchecked}
            return [without(part) for part in value] if isinstance(value, list | tuple) else value

        return without(msgspec.to_builtins(manifest))

    path = target / manifest_name(2)
    data, missed = path.read_bytes(), 0
    whole = decode_manifest("target", manifest_name(2), data)
    for at in range(len(data)):
        for bit in range(8):
            flipped = data[:at] + bytes((data[at] ^ 1 << bit,)) + data[at + 1 :]
            try:
                manifest = decode_manifest("target", manifest_name(2), flipped)
            except CorruptionError as error:
                assert error.path == f"target/{manifest_name(2)}"
                continue
            missed += 1
            assert whole.version == 1, f"bit {bit} of byte {at}"
            assert checked_content(manifest) == checked_content(whole), flipped
    assert missed < len(data) if whole.version == 1 else missed == 0
    for count in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_manifest("target", manifest_name(2), data[:count])
    with pytest.raises(CorruptionError, match="it is backup 2"):
        decode_manifest("target", manifest_name(3), data)


def test_flipped_bit_in_an_object_is_found_or_harmless(target: Path) -> None:
    store = open_store(target)
    chunks = {chunk.name: chunk for chunk in decode_manifest("target", manifest_name(3), (target / manifest_name(3)).read_bytes()).chunks()}
    harmless = 0
    for name, chunk in chunks.items():
        path = target / name
        data, content = path.read_bytes(), fetch(store, chunk)
        for at in range(0, len(data), 1 + len(data) // 100):
            path.write_bytes(data[:at] + bytes((data[at] ^ 1 << at % 8,)) + data[at + 1 :])
            try:
                assert fetch(store, chunk) == content, f"{name}, byte {at}"
                harmless += 1
            except CorruptionError as error:
                assert error.path == str(path)
        path.write_bytes(data + b"x")
        with pytest.raises(CorruptionError):
            fetch(store, chunk)
        path.write_bytes(data)
    assert harmless < 3 * len(chunks), "bits of the frame of zstd that change nothing"


async def test_manifest_is_compared_with_its_objects(target: Path, tmp_path: Path) -> None:
    path = target / manifest_name(3)
    whole = path.read_bytes().removesuffix(b"}").partition(b',"crc32c"')[0]
    for before, after, text in (
        (b'"size":4', b'"size":5', "another segment than the manifest names"),
        (b"/billing", b"/cilling", "names cursors/c"),
    ):
        data = whole.replace(before, after)
        path.write_bytes(sealed(data) if b'"version":1' not in data else data + b"}")
        (finding,) = await verify(str(target))
        assert finding.startswith("backup 3: ")
        assert text in finding
        with pytest.raises(CorruptionError, match=text):
            await restore(str(target), str(tmp_path / "restored"))


async def test_manifest_of_a_newer_version_is_refused(target: Path, tmp_path: Path) -> None:
    path = target / manifest_name(3)
    path.write_bytes(sealed(b'{"version":4,"anything":[]'))
    for call in (backups(str(target)), verify(str(target)), restore(str(target), str(tmp_path / "new"))):
        with pytest.raises(FormatError, match=r"0000000003\.json has version 4, known here is 3: upgrade"):
            await call
    path.write_bytes(b'{"version":4,"anything":[]}')
    assert len(await verify(str(target))) == 1, "without its checksum it is damaged"


async def test_manifest_writes_nowhere_but_in_the_log(target: Path, tmp_path: Path) -> None:
    """Names, counts and bytes that a store makes up end in a CorruptionError that names the manifest, and nothing is made."""
    path = target / manifest_name(3)
    content = json.loads(path.read_bytes())
    is_sealed = content.pop("crc32c", None) is not None
    (cursor, *_), (chunk, *_) = content["files"], content["files"].values()
    names = ["/etc/x", f"{tmp_path}/x.cursor", "../x.cursor", "cursors/../../x.cursor", "cursors/a\0.cursor", "cursors\\x.cursor", "FORMAT"]
    names += ["cursors/.cursor", "cursors/" + "x" * 300 + ".cursor", "", ".", "cursors/x.cursor\n"]
    p0 = content["pchannels"]["p0"]
    segment = p0["segments"][0]
    changes: list[Callable[[Any], Any]] = [
        *(lambda it, name=name: it["files"].update({name: chunk}) for name in names),
        *(
            lambda it, name=name: it["pchannels"].update({name: p0})
            for name in ("../p0", "/p0", "p0/../../x", "p00", "p-1", "", "p0\n", "P0")
        ),
        *(lambda it, name=name: it["pchannels"]["p0"]["files"].update({name: chunk}) for name in (*names, "../../../x", "control")),
        *(
            lambda it, name=name: it["files"][cursor].update(name=name)
            for name in (
                "objects/../../x-a3-00000000",
                "/objects/x",
                chunk["name"][:-5],
                chunk["name"] + "\0",
                chunk["name"].replace("-", "/"),
            )
        ),
        *(
            lambda it, name=name: it["pchannels"]["p0"].update(name)
            for name in ({"end": -1}, {"term": 1 << 70}, {"earliest": [0, 1 << 40]})
        ),
        *(
            lambda it, name=name: it["pchannels"]["p0"]["segments"][0].update(name)
            for name in ({"base": -1}, {"size": 1}, {"size": 1 << 80})
        ),
        lambda it: it["pchannels"]["p0"]["segments"][0].update(chunks=segment["chunks"][::-1]),
        lambda it: it["pchannels"].clear(),
        lambda it: it["metadata"].update(end=1 << 50),
        lambda it: it.update(number=10**30),
        lambda it: it.update(tick="now"),
        lambda it: it.pop("metadata"),
    ]
    made = []
    for change in changes:
        copy = json.loads(json.dumps(content))
        change(copy)
        made.append(json.dumps(copy, separators=(",", ":"), ensure_ascii=False).encode())
    made += [b"", b"[]", b"null", b"\xff" * 9, b'{"version":"\xff"}', b"[" * 100_000, b'{"version":1}', b"{}", b'{"version":1e999}']
    before = sorted(tmp_path.rglob("*"))
    for data in made:
        path.write_bytes(sealed(data[:-1]) if is_sealed else data)
        with pytest.raises(CorruptionError, match=r"0000000003\.json is damaged"):
            await restore(str(target), str(tmp_path / "restored"))
        assert len(await verify(str(target))) == 1
        assert len(await backups(str(target))) == 2
    assert sorted(tmp_path.rglob("*")) == before


def test_object_that_expands_without_bound_is_damaged(target: Path) -> None:
    def bomb(blocks: int) -> bytes:
        """Returns a frame of zstd with this many blocks, each of 4 bytes that become 128 KiB."""
        block = (1 << 1 | 128 * 1024 << 3).to_bytes(3, "little") + b"0"
        last = (1 | 1 << 1 | 128 * 1024 << 3).to_bytes(3, "little") + b"0"
        return b"\x28\xb5\x2f\xfd\x00\x38" + block * (blocks - 1) + last

    zstd = pytest.importorskip("backports.zstd")
    assert zstd.decompress(bomb(2)) == b"0" * (256 * 1024)
    manifest = decode_manifest("target", manifest_name(3), (target / manifest_name(3)).read_bytes())
    tracemalloc.start()
    try:
        for chunk in manifest.chunks():
            (target / chunk.name).write_bytes(bomb(240))
            with pytest.raises(CorruptionError, match=re.escape(chunk.name)):
                fetch(open_store(target), chunk)
        (target / manifest.metadata.name).write_bytes(bomb(100_000))
        with pytest.raises(CorruptionError, match="has 400006 bytes"):
            fetch(open_store(target), manifest.metadata)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
