"""A journal with damaged segments: the lost parts are named, health reports them, and a copy has everything else."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from wal import Message, MessageID, open_wal
from wal.errors import CorruptionError, InvalidArgumentError, LockedError
from wal.operate.cli.main import main
from wal.operate.copying import copy
from wal.storage.journal.layout import HEADER_PAGE_BYTES
from wal.storage.journal.segments import segment_bases

COUNT = 60
NAMES = ("orders", "stock")


async def written(data: Path) -> list[tuple[MessageID, int, str]]:
    """Writes a log of several segments; returns the id, the tick and the vchannel of each message."""
    async with open_wal(data, segment_bytes=1 << 20) as log:
        rows = []
        for number in range(COUNT):
            name = NAMES[number % 3 == 0]
            result = await log.raw_append(Message(name, b"%d " % number + bytes(50_000)), idempotency_key=f"key-{number}")
            assert result.message_id is not None
            assert result.time_tick is not None
            rows.append((result.message_id, result.time_tick, name))
        async with log.read("orders", cursor="billing", follow=False) as scanner:
            await anext(scanner)
            await scanner.save()
    return rows


async def numbers(place: Path) -> list[int]:
    async with open_wal(place, read_only=True) as log, log.read(NAMES, follow=False) as scanner:
        return [int(message.payload.split()[0]) async for message in scanner]


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes((byte ^ 0x10,)))


async def test_lost_messages_are_named_and_others_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def rows_of(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    async def run(*arguments: object) -> int:
        return await asyncio.to_thread(main, [str(each) for each in arguments])

    data = tmp_path / "data"
    messages = await written(data)
    folder = data / "pchannels" / "p0"
    bases = await asyncio.to_thread(segment_bases, folder)
    assert len(bases) >= 3
    lost = messages[4]
    offset = lost[0].position - bases[0]
    assert await run("health", data, "--json") == 0
    assert [row["ok"] for row in rows_of(capsys) if row.get("check") == "segments"] == [True]
    flip(folder / f"{bases[0]:016x}.wal", offset + 2000)
    assert await run("health", data, "--json") == 1
    (health,) = [row for row in rows_of(capsys) if row.get("check") == "segments"]
    assert not health["ok"]
    assert f"{bases[0]:016x}.wal is damaged at offset {offset}" in health["detail"]
    assert await run("repair", data, "--dry-run", "--json") == 1
    printed = capsys.readouterr()
    (row,) = [row for row in map(json.loads, printed.out.splitlines()) if row["row"] == "lost"]
    assert (row["pchannel"], row["vchannels"], row["events"], row["offset"]) == ("p0", [lost[2]], 1, offset)
    assert row["first_id"] == row["last_id"] == str(lost[0])
    assert row["since"] == row["until"]
    assert f"`wal restore TARGET NEW_DIRECTORY --to {row['until'][:19]}" in printed.err
    assert await run("copy", data, tmp_path / "refused") == 4
    assert await run("copy", data, tmp_path / "copy", "--skip-damaged", "--json") == 1
    *parts, copied = (row for row in rows_of(capsys) if row["row"] != "copy_progress")
    assert parts == [row]
    assert (copied["row"], copied["cursors"], copied["events"]) == ("copied", 1, COUNT - 1)
    assert await numbers(tmp_path / "copy") == [number for number in range(COUNT) if number != 4]
    async with open_wal(tmp_path / "copy") as log:
        assert (await log.raw_append(Message("orders", b"again"), idempotency_key="key-59")).duplicate
        async with log.read("orders", cursor="billing", follow=False) as scanner:
            assert int((await anext(scanner)).payload.split()[0]) == 2
    assert await run("verify", tmp_path / "copy") == 0


async def test_copy_has_all_that_is_readable(tmp_path: Path) -> None:
    """Whatever part of a segment is damaged: only the frames with the damage are lost."""
    data = tmp_path / "data"
    messages = await written(data)
    folder = data / "pchannels" / "p0"
    bases = await asyncio.to_thread(segment_bases, folder)
    of_segment = [
        [number for number, row in enumerate(messages) if base < row[0].position < stop]
        for base, stop in zip(bases, [*bases[1:], 1 << 62], strict=True)
    ]

    def at(number: int, offset: int) -> tuple[str, int]:
        position = messages[number][0].position
        base = max(base for base in bases if base < position)
        return f"{base:016x}.wal", position - base + offset

    names = [f"{base:016x}.wal" for base in bases]
    checkpoints = [(path.name, 100) for path in await asyncio.to_thread(list, folder.glob("checkpoint-*[0-9a-f]"))]
    first, last = of_segment[0], of_segment[-1]
    bodies = (7, 8, last[-1])
    several = [at(first[0], 0), at(first[3], 40), *(at(number, 9000) for number in bodies), (names[0], bases[1] - bases[0] + 2)]
    # (files with offsets, -1: removed; the lost messages; whether they are described)
    cases: list[tuple[list[tuple[str, int]], list[int], bool]] = [
        (several, [first[0], first[3], *bodies], True),  # an envelope, a head, bodies, the seal
        ([(names[1], 40), *checkpoints], [], True),  # the first envelope of a segment has what a reader needs of its header
        ([(names[1], 40), (names[1], HEADER_PAGE_BYTES + 9)], of_segment[1], False),
        ([(names[1], -1)], of_segment[1], False),
        ([(f"{bases[0]:016x}.idx", -1), at(2, 500)], [2], False),
    ]
    for turn, (damage, gone, is_described) in enumerate(cases):
        broken, target = tmp_path / "broken", tmp_path / f"copy-{turn}"
        shutil.copytree(data, broken)
        for name, offset in damage:
            path = broken / "pchannels" / "p0" / name
            path.unlink() if offset < 0 else flip(path, offset)
        result = await copy(str(broken), str(target), skip_damaged=True)
        assert result is not None
        assert await numbers(target) == [number for number in range(COUNT) if number not in gone], turn
        ids = [messages[number][0].position for number in gone]
        assert all(any(part.begin <= position < part.end for part in result.lost) for position in ids), turn
        assert sum(part.events or 0 for part in result.lost) == (len(gone) if is_described else 0), turn
        for number in gone:
            part = next(part for part in result.lost if part.begin <= messages[number][0].position < part.end)
            assert part.first_tick <= messages[number][1] <= part.last_tick, turn
        shutil.rmtree(broken)


async def test_copy_around_damage_needs_a_journal_without_writer(tmp_path: Path) -> None:
    data, target = tmp_path / "data", str(tmp_path / "target")
    async with open_wal(data) as log:
        await log.append("orders", b"1")
        with pytest.raises(LockedError, match="open for writing: stop it"):
            await copy(str(data), target, skip_damaged=True)
    with pytest.raises(InvalidArgumentError, match="not a log to follow"):
        await copy(str(data), target, skip_damaged=True, follow=True)
    with pytest.raises(InvalidArgumentError, match="not pulsar://"):
        await copy("pulsar://host:1/public/default", target, skip_damaged=True)
    result = await copy(str(data), target, skip_damaged=True)
    assert result is not None
    assert result.lost == ()
    (data / "pchannels/p0/control").write_bytes(b"")
    with pytest.raises(CorruptionError):
        await copy(str(data), str(tmp_path / "other"), skip_damaged=True)
