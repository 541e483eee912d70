"""Backups in a real S3 server, in a soak: an object is created once, one of two writers gets an error, and a restore returns the log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.conftest import SOAK
from tests.operate.backup.test_archive import rows
from tests.operate.backup.test_backup import check_restored, fill
from tests.servers.cache import MissingServerError
from tests.servers.s3 import BUCKET, S3Server
from wal import open_wal
from wal.errors import CorruptionError, LockedError, StorageError
from wal.operate.backup import Manifest, backup, backups, forget, verify, verify_whole
from wal.storage.archive.manifest import OBJECTS, PREFIX
from wal.storage.archive.store import ObjectExistsError, open_store

pytestmark = pytest.mark.skipif(not SOAK, reason="building an S3 server takes minutes: SOAK=1 does")


async def test_backups_lie_in_an_s3_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    try:
        server = await asyncio.to_thread(S3Server)
    except MissingServerError as error:
        pytest.skip(str(error))
    for name, value in server.client_environment.items():
        monkeypatch.setenv(name, value)
    await asyncio.to_thread(server.start)
    try:
        store = await asyncio.to_thread(open_store, f"{server.url}-conformance")
        await asyncio.to_thread(store.create, f"{PREFIX}1", b"first")
        with pytest.raises(ObjectExistsError):
            await asyncio.to_thread(store.create, f"{PREFIX}1", b"second")
        assert await asyncio.to_thread(store.get, f"{PREFIX}1", 5) == b"first"
        assert list(await asyncio.to_thread(store.names, PREFIX)) == [f"{PREFIX}1"]
        for _ in range(2):
            await asyncio.to_thread(store.delete, f"{PREFIX}1")
        with pytest.raises(FileNotFoundError):
            await asyncio.to_thread(store.get, f"{PREFIX}1", 5)

        data = tmp_path / "data"
        async with open_wal(data) as log:
            await fill(log)
            results = await asyncio.gather(*(backup(str(data), server.url) for _ in range(8)), return_exceptions=True)
            made = [result.number for result in results if isinstance(result, Manifest)]
            assert made
            assert len(set(made)) == len(made)
            assert all(isinstance(result, Manifest | LockedError) for result in results), results
            await fill(log)
            await backup(str(data), server.url)
        assert await verify(server.url) == []
        assert await verify_whole(server.url) == []
        count = len(await backups(server.url))
        assert len(await forget(server.url, keep=1)) == count - 1
        await check_restored(data, server.url, tmp_path / "restored")
        await check_damaged_objects(data, server)
        for name, value, code in (
            ("AWS_SECRET_ACCESS_KEY", "another", "SignatureDoesNotMatch"),
            ("AWS_ACCESS_KEY_ID", "another", "access key ID"),
        ):
            with monkeypatch.context() as patch:
                patch.setenv(name, value)
                with pytest.raises(StorageError, match=code):
                    await open_wal(f"archive:{server.url}")
        with pytest.raises(StorageError, match="NoSuchBucket"):
            await open_wal("archive:s3://nothing/orders")
        await asyncio.to_thread(server.kill)
        with pytest.raises(StorageError, match="cannot be"):
            await backup(str(data), server.url)
    finally:
        await asyncio.to_thread(server.__exit__)


async def check_damaged_objects(data: Path, server: S3Server) -> None:
    """Reads the archive with an object that is missing, cut, empty or changed, of each kind in turn: the error names the object."""
    async with open_wal(f"archive:{server.url}") as log:
        expected = await rows(log, "v0")
    assert expected
    copies = server.folder / "data" / BUCKET / "orders"
    sound = {path: path.read_bytes() for path in (copies / OBJECTS).iterdir() if path.name.startswith(("p0-0", "index-"))}
    for path, content in sound.items():
        for damaged in (None, content[: len(content) // 2], b"", content[:-9] + bytes((content[-9] ^ 1,)) + content[-8:]):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            async with open_wal(f"archive:{server.url}") as log:
                with pytest.raises(CorruptionError) as raised:
                    await rows(log, "v0")
            assert raised.value.path == f"{server.url}/{OBJECTS}{path.name}"
            path.write_bytes(content)
    async with open_wal(f"archive:{server.url}") as log:
        assert await rows(log, "v0") == expected
