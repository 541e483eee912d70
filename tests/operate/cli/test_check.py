"""`wal verify` detects every changed byte at or below the durable end, and `wal repair` repairs parts without messages."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from itertools import pairwise
from pathlib import Path

import pytest

from wal import Message, bridge, open_wal
from wal.errors import FormatError
from wal.operate.cli.main import main
from wal.storage.files import MAP_NAME
from wal.storage.journal.control import CONTROL_NAME, FENCE_NAME, ControlView
from wal.storage.journal.verify import VerifyProgress, verify_journal


async def written(directory: Path, *, frames: int = 30) -> None:
    async with open_wal(directory, segment_bytes=1 << 20) as log:
        await log.raw_append(Message("v0", b"keyed"), idempotency_key="first")
        for number in range(frames):
            await log.append_bulk(Message(f"v{at % 5}", bytes([at]) * (at * 40), properties={"number": str(number)}) for at in range(60))
        async with open_wal(directory, read_only=True) as beside, beside.read("v1", cursor="billing", follow=False) as scanner:
            await anext(scanner)
            await scanner.save()


def flipped(file: Path, offset: int) -> None:
    """Changes one bit of the byte at this offset; a second call restores it."""
    with file.open("r+b") as opened:
        opened.seek(offset)
        (byte,) = opened.read(1)
        opened.seek(offset)
        opened.write(bytes([byte ^ 1 << offset % 8]))


def test_verify_finds_every_changed_byte(data_dir: Path, soak: int) -> None:
    def durable_end(directory: Path) -> int:
        view = ControlView(directory / CONTROL_NAME)
        try:
            return view.load().durable
        finally:
            view.close()

    asyncio.run(written(data_dir))
    assert list(verify_journal(data_dir, VerifyProgress())) == []
    pchannel = data_dir / "pchannels" / "p0"
    end = durable_end(pchannel)
    files = sorted(pchannel.glob("*.wal"))
    assert len(files) > 2
    spans = [(int(a.stem, 16), int(b.stem, 16), a) for a, b in pairwise(files)] + [(int(files[-1].stem, 16), end, files[-1])]
    seeded = random.Random(26)
    for _ in range(100 * soak):
        position = seeded.randrange(end)
        base, _, file = next(span for span in spans if span[0] <= position < span[1])
        flipped(file, position - base)
        found = list(verify_journal(data_dir, VerifyProgress()))
        flipped(file, position - base)
        assert [damage.path for damage in found][:1] == [str(file)], f"the byte at {position - base} of {file.name}"


def test_verify_finds_changes_of_other_files(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(written(data_dir))
    pchannel = data_dir / "pchannels" / "p0"
    (cursor,) = (data_dir / "cursors").glob("*.cursor")
    (checkpoint,) = pchannel.glob("checkpoint-*[0-9a-f]")
    for file in (pchannel / CONTROL_NAME, next(pchannel.glob("*.idx")), cursor, checkpoint, pchannel / "vchannels"):
        for offset in (9, file.stat().st_size - 1):
            flipped(file, offset)
            assert main(["verify", str(data_dir), "--json"]) == 1, f"{file.name} at {offset}"
            rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
            flipped(file, offset)
            assert rows[0]["row"] == "damage"
            assert rows[0]["path"] == str(file)
    assert main(["verify", str(data_dir), "--sample", "50%"]) == 0


def test_repair_keeps_every_message(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(written(data_dir))
    pchannel = data_dir / "pchannels" / "p0"
    flipped(next((data_dir / "cursors").glob("*.cursor")), 40)
    flipped(next(pchannel.glob("*.idx")), 40)
    flipped(next(pchannel.glob("checkpoint-*[0-9a-f]")), 40)
    assert main(["repair", str(data_dir), "--dry-run"]) == 1
    assert capsys.readouterr().out.count("\n") == 4, "a head and three files"
    assert main(["repair", str(data_dir)]) == 2, "without a terminal it needs --yes"
    assert main(["repair", str(data_dir), "--yes"]) == 0
    assert main(["repair", str(data_dir), "--dry-run"]) == 0
    assert main(["verify", str(data_dir)]) == 0
    with bridge.blocking(data_dir) as log:
        assert log.cursors() == []
        with log.read("v1", follow=False) as messages:
            assert len(list(messages)) == 30 * 12


@pytest.mark.parametrize("signs", [True, False])
def test_lost_control_page_is_repaired(data_dir: Path, capsys: pytest.CaptureFixture[str], signs: bool) -> None:
    asyncio.run(written(data_dir, frames=3))
    pchannel = data_dir / "pchannels" / "p0"
    for name in (CONTROL_NAME,) if signs else (CONTROL_NAME, FENCE_NAME, MAP_NAME):
        (pchannel / name).unlink()
    assert main(["verify", str(data_dir), "--json"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["kind"], row["path"]) for row in rows[:-1]] == [("control", str(pchannel / CONTROL_NAME))]
    assert main(["repair", str(data_dir), "--yes"]) == 0
    assert main(["verify", str(data_dir)]) == 0
    with bridge.blocking(data_dir) as log, log.read("v1", follow=False) as messages:
        assert len(list(messages)) == 3 * 12


@pytest.mark.parametrize("pchannels", [1, 2])
def test_lost_log_is_a_finding(data_dir: Path, capsys: pytest.CaptureFixture[str], pchannels: int) -> None:
    with bridge.blocking(data_dir, pchannels=pchannels) as log:
        log.raw_append(Message("orders", b"x"))
    shutil.rmtree(data_dir / "pchannels" / "p0")
    assert main(["verify", str(data_dir), "--json"]) == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["kind"], row["path"]) for row in rows[:-1]] == [("log", str(data_dir / "pchannels" / "p0"))]
    assert main(["repair", str(data_dir), "--yes"]) == 1
    assert "cannot be repaired" in capsys.readouterr().err


@pytest.mark.parametrize("opened_since", [False, True])
def test_lost_metadata_are_a_finding(data_dir: Path, capsys: pytest.CaptureFixture[str], opened_since: bool) -> None:
    asyncio.run(written(data_dir, frames=1))
    for file in data_dir.glob("meta.sqlite3*"):
        file.unlink()
    if opened_since:  # the writer has created an empty file, and failed
        with pytest.raises(FormatError, match="they are lost, or elsewhere"):
            asyncio.run(written(data_dir, frames=1))
    for command in (["verify", str(data_dir)], ["repair", str(data_dir), "--dry-run"]):
        assert main([*command, "--json"]) == 1
        (row,) = [row for row in map(json.loads, capsys.readouterr().out.splitlines()) if row["row"] == "damage"]
        assert (row["path"], row["repair"]) == (str(data_dir / "meta.sqlite3"), None)
    assert main(["verify", str(data_dir), "--set", f"kv={data_dir}/elsewhere.sqlite3"]) == 0
    assert "elsewhere" in capsys.readouterr().err
    with bridge.blocking(data_dir, read_only=True) as log, log.read("v0", follow=False) as scanner:
        assert next(scanner).payload == b"keyed"


def test_repair_looks_again_under_the_lock(data_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(written(data_dir, frames=3))
    cursor = next((data_dir / "cursors").glob("*.cursor"))
    flipped(cursor, 40)

    def saved_meanwhile(*_: object) -> bool:
        flipped(cursor, 40)  # as its reader does when it saves the cursor again
        return True

    monkeypatch.setattr("wal.operate.cli.check.confirmed", saved_meanwhile)
    assert main(["repair", str(data_dir)]) == 0
    assert f"left {cursor} as it is" in capsys.readouterr().err
    with bridge.blocking(data_dir) as log:
        assert [info.name for info in log.cursors()] == ["billing"]


def test_damaged_message_is_not_repaired(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asyncio.run(written(data_dir, frames=3))
    flipped(data_dir / "pchannels" / "p0" / f"{0:016x}.wal", 60_000)
    before = sorted((path.name, path.stat().st_mtime_ns) for path in data_dir.rglob("*"))
    assert main(["repair", str(data_dir), "--yes"]) == 1
    assert "cannot be repaired" in capsys.readouterr().err
    assert sorted((path.name, path.stat().st_mtime_ns) for path in data_dir.rglob("*")) == before


def test_repair_of_an_open_log_names_its_writer(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bridge.blocking(data_dir) as log:
        log.raw_append(Message("orders", b"x"))
        assert main(["verify", str(data_dir)]) == 0, "beside the writer"
        assert main(["repair", str(data_dir), "--yes"]) == 3
        assert "is open for writing in process" in capsys.readouterr().err
