"""Several broadcasts in one frame: each is read separately, and only the readers of a damaged one see the damage."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.probes import read_all
from wal import BroadcastMessage, bridge, open_wal
from wal.errors import CorruptionError

SIZE = 20_000
"""More than the minimum size of a block, so that the first payload of a frame has its own block, which is the one to damage. The headers of
the others are in the block of the payload after them."""
NAMES = ["a", "b", "c"]


async def written(place: Path) -> None:
    """Returns a journal as a crash left it, with broadcasts to a, b and c in one frame, in this order."""
    made = place.with_name("made")
    async with open_wal(str(made)) as log:
        for name in NAMES:
            await log.create_vchannel(name)
        await log.broadcast().append(BroadcastMessage(vchannels=NAMES, payload=b"first"))
        results = await asyncio.gather(
            *(log.broadcast().append(BroadcastMessage(vchannels=[name], payload=name.encode() * SIZE, needs_ack=False)) for name in NAMES)
        )
        ids = [result.append_results[name].message_id for name, result in zip(NAMES, results, strict=True)]
        assert len({each.position for each in ids}) == 1, "what was appended in one turn shares a frame"
        assert [each.index for each in ids] == [0, 1, 2]
    shutil.copytree(made, place)


def damage(place: Path, payload: bytes) -> None:
    """Flips a bit in the middle of this payload as it is stored."""
    (path,) = [path for path in place.rglob("*.wal") if payload in path.read_bytes()]
    data = bytearray(path.read_bytes())
    data[data.index(payload) + len(payload) // 2] ^= 1
    path.write_bytes(data)


async def test_broadcasts_of_a_frame_are_read_separately(tmp_path: Path) -> None:
    place = tmp_path / "data"
    await written(place)
    async with open_wal(str(place)) as log:
        for name in NAMES:
            read = await read_all(log, name)
            assert [message.payload for message in read] == [b"first", name.encode() * SIZE]
            assert read[1].broadcast is not None
            assert read[1].broadcast.vchannels == (name,)
        both = await read_all(log, ["c", "a"])
        assert [message.payload[:5] for message in both if message.payload != b"first"] == [b"aaaaa", b"ccccc"]


async def test_damaged_broadcast_fails_its_readers_only(tmp_path: Path) -> None:
    place = tmp_path / "data"
    await written(place)
    async with open_wal(str(place)) as log:
        damage(place, b"a" * SIZE)  # now: an opening that still had to read the frame would itself raise
        for name in ("b", "c"):
            assert [message.payload for message in await read_all(log, name)] == [b"first", name.encode() * SIZE]
        assert len(await read_all(log, ["b", "c"])) == 4
        for names in (["a"], ["a", "b"]):
            with pytest.raises(CorruptionError, match="block"):
                await read_all(log, names)


async def test_damage_is_found_without_an_event_loop(tmp_path: Path) -> None:
    place = tmp_path / "data"
    await written(place)
    damage(place, b"a" * SIZE)

    def read(name: str) -> list[bytes]:
        with bridge.iterate(str(place), name, follow=False) as messages:
            return [message.payload for message in messages]

    assert await asyncio.to_thread(read, "b") == [b"first", b"b" * SIZE]
    with pytest.raises(CorruptionError, match="block"):
        await asyncio.to_thread(read, "a")
