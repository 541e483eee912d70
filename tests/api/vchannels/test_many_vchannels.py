"""More new vchannels in one turn than one metadata transaction can hold: etcd's limit is 128 operations and 1.5 MiB."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path
from typing import Any

import pytest

from wal import BroadcastMessage, Message, open_wal
from wal.errors import InvalidArgumentError

ETCD = "a journal with its metadata in etcd"
MEMORY = "memory"


@pytest.fixture(params=[ETCD, MEMORY])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, dict[str, Any]]:
    """Yields a location, and the setting `kv` if the metadata is elsewhere."""
    if request.param == MEMORY:
        return "memory:", {}
    address = request.getfixturevalue("etcd_address")
    return str(tmp_path / "data"), {"kv": f"etcd://{address}/wal-test-{secrets.token_hex(6)}"}


@pytest.mark.parametrize("count", [128, 200, 1_000])
async def test_broadcast_to_new_vchannels_reaches_all_of_them(place: tuple[str, dict[str, Any]], count: int) -> None:
    location, metadata = place
    names = [f"v{number}" for number in range(count)]
    async with open_wal(location, pchannels=2, **metadata) as log:
        sent = await log.broadcast().append(BroadcastMessage(vchannels=names, payload=b"x", needs_ack=False))
        assert set(sent.append_results) == set(names)
        assert {info.name for info in await log.vchannels()} == set(names)
        incarnations = {info.name: info.incarnation for info in await log.vchannels()}
        assert len(set(incarnations.values())) == count
        async with log.read(names[-1], follow=False) as scanner:
            assert [message.payload async for message in scanner] == [b"x"]
    if location != "memory:":
        async with open_wal(location, **metadata) as log:
            assert {info.name: info.incarnation for info in await log.vchannels()} == incarnations
            fresh = await log.create_vchannel("one more")
            assert fresh.incarnation > max(incarnations.values())


async def test_turns_create_and_remove_vchannels_at_once(place: tuple[str, dict[str, Any]]) -> None:
    location, metadata = place
    names = [f"v{number}" for number in range(300)]
    async with open_wal(location, pchannels=2, **metadata) as log:
        await asyncio.gather(*(log.raw_append(Message(name, b"x")) for name in names))
        await asyncio.gather(*map(log.drop_vchannel, names[1:]))
        assert [info.name for info in await log.vchannels()] == names[:1]
    if location != "memory:":
        async with open_wal(location, **metadata) as log:
            assert [info.name for info in await log.vchannels()] == names[:1]


async def test_large_broadcast_records_are_saved_separately(place: tuple[str, dict[str, Any]]) -> None:
    location, metadata = place
    async with open_wal(location, pchannels=2, **metadata) as log:
        for name in ("a", "b"):
            await log.create_vchannel(name, pchannel="p0" if name == "a" else "p1")
        message = BroadcastMessage(vchannels=["a", "b"], payload=b"x" * 600_000, needs_ack=False)
        sent = await asyncio.gather(*(log.broadcast().append(message) for _ in range(5)))
        assert len({one.broadcast_id for one in sent}) == 5


async def test_broadcast_beyond_an_etcd_request_is_refused(tmp_path: Path, etcd_address: str) -> None:
    kv = f"etcd://{etcd_address}/wal-test-{secrets.token_hex(6)}"
    async with open_wal(tmp_path / "data", pchannels=2, kv=kv) as log:
        wide = [f"{number:0>200}" for number in range(6_000)]
        with pytest.raises(InvalidArgumentError, match=r"6000 vchannels.*1\.5 MiB.*fewer vchannels"):
            await log.broadcast().append(BroadcastMessage(vchannels=wide, payload=b"x"))
        assert await log.broadcast().tasks() == []
        narrow = BroadcastMessage(vchannels=wide[:10], payload=b"x", needs_ack=False)
        assert len((await log.broadcast().append(narrow)).append_results) == 10
