"""Every command on a log in every state: the status, one sentence on the standard error, no traceback, and no unexpected change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.operate.cli.test_check import flipped
from wal import Message, open_wal
from wal.operate.cli.main import main
from wal.storage.files import FORMAT_NAME
from wal.storage.journal.control import CONTROL_NAME

COMMANDS = {
    "info": ["info", "LOG"],
    "ls": ["ls", "LOG"],
    "tail": ["tail", "LOG", "v0"],
    "cat": ["cat", "LOG", "v0"],
    "peek": ["peek", "LOG", "billing"],
    "dump": ["dump", "LOG", "--frames"],
    "top": ["top", "LOG", "-n", "1"],
    "settings": ["settings", "LOG"],
    "health": ["health", "LOG"],
    "verify": ["verify", "LOG"],
    "cursors": ["cursors", "LOG"],
    "consumers": ["consumers", "LOG"],
    "broadcasts": ["broadcasts", "LOG"],
    "retention": ["retention", "LOG"],
    "scheduled": ["scheduled", "LOG"],
    "create": ["create", "LOG", "created"],
    "drop": ["drop", "LOG", "v0", "--dry-run"],
    "redrive": ["redrive", "LOG", "v0", "--dry-run"],
    "append": ["append", "LOG", "v0", "--lines"],
    "cursor set": ["cursor", "set", "LOG", "billing", "--to", "earliest", "--yes"],
    "cursor rm": ["cursor", "rm", "LOG", "billing", "--yes", "--dry-run"],
    "truncate": ["truncate", "LOG", "--up-to", "0s", "--dry-run"],
    "broadcast": ["broadcast", "abort", "LOG", "1", "--reason", "a test", "--yes"],
    "repair": ["repair", "LOG", "--dry-run"],
    "backup": ["backup", "LOG", "--to", "PLACE/backups"],
    "copy": ["copy", "LOG", "PLACE/copied"],
    "backup status": ["backup", "status", "LOG"],
    "backup verify": ["backup", "verify", "LOG"],
    "backup forget": ["backup", "forget", "LOG", "--keep", "1"],
    "restore": ["restore", "LOG", "PLACE/restored"],
    "mark-restored": ["mark-restored", "LOG"],
    "serve": ["serve", "LOG"],
}
OF_A_TARGET = ("backup status", "backup verify", "backup forget", "restore")
THAT_CHANGE = ("append", "scheduled", "create", "cursor set", "mark-restored", "serve")
FINE = {"truncate": 1, "drop": 1, "redrive": 1, "cursor rm": 1, "broadcast": 2}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed journal. Every command has run on a copy of it, so that their modules are imported."""
    place = tmp_path_factory.mktemp("states")
    place.chmod(0o755)

    async def written() -> None:
        async with open_wal(place / "data") as log:
            await log.raw_append(Message("v0", b"keyed"), idempotency_key="first")
            await log.append_bulk(Message("v0", b"x" * 900) for _ in range(100))
        async with open_wal(place / "data", read_only=True) as log, log.read("v0", cursor="billing", follow=False) as scanner:
            await anext(scanner)
            await scanner.save()

    asyncio.run(written())
    return place / "data"


def frame(data: Path) -> None:
    flipped(data / "pchannels" / "p0" / f"{0:016x}.wal", 60_000)


def control(data: Path) -> None:
    (data / "pchannels" / "p0" / CONTROL_NAME).write_bytes(b"\1" * 4096)


def cursor(data: Path) -> None:
    flipped(next((data / "cursors").glob("*.cursor")), 40)


def checkpoint(data: Path) -> None:
    flipped(next((data / "pchannels" / "p0").glob("checkpoint-*[0-9a-f]")), 40)


def metadata(data: Path) -> None:
    (data / "meta.sqlite3").write_bytes(b"no database" * 1000)


@pytest.mark.parametrize("place", ["missing", "empty", "file", "strange", "newer", "no format"])
def test_place_without_a_log_that_can_be_opened(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str) -> None:
    data = tmp_path / "data"
    if place == "file":
        data.write_text("a file")
    elif place != "missing":
        data.mkdir()
    if place == "strange":
        (data / "notes.txt").write_text("somebody else's")
    if place in ("newer", "no format"):
        shutil.copytree(sound, data, dirs_exist_ok=True)
        (data / FORMAT_NAME).write_text("wal-journal 99\n" if place == "newer" else "what is this")
    statuses = dict.fromkeys(COMMANDS, 4) | {"mark-restored": 1} | (dict.fromkeys(OF_A_TARGET, 2) if place == "file" else {})
    ran_all(data, tmp_path, capsys, statuses)


@pytest.mark.parametrize(
    ("damaged", "statuses"),
    [
        (
            frame,
            {
                "verify": 1,
                "health": 1,
                "repair": 1,
                "backup": 1,
                **dict.fromkeys(("tail", "cat", "peek", "dump", "copy", "redrive", "truncate"), 4),
            },
        ),
        (control, {**dict.fromkeys(COMMANDS, 4), "verify": 1, "repair": 1}),
        (cursor, {"verify": 1, "repair": 1, "backup": 1, "cursors": 1, "copy": 4, "peek": 2, "cursor rm": 2}),
        (
            checkpoint,
            {
                "verify": 1,
                "repair": 1,
                "backup": 1,
                "info": 4,
                "top": 4,
                "health": 4,
                "broadcasts": 4,
                "broadcast": 4,
                "copy": 4,
                **dict.fromkeys(("peek", "redrive", "cursors", "cursor rm", "retention", "truncate"), 4),
            },
        ),
        (metadata, {"verify": 1, "repair": 1, "backup": 4, "broadcasts": 4, "broadcast": 4, "copy": 4}),
    ],
)
def test_damaged_log(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damaged: Callable[[Path], None], statuses: dict[str, int]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(sound, data)
    damaged(data)
    slow = ("backup",) if statuses.get("backup") == 4 else ()  # it retries: a writer may be replacing the file
    names = [name for name in COMMANDS if name not in (*OF_A_TARGET, *THAT_CHANGE, *slow)]
    ran_all(data, tmp_path, capsys, {name: (FINE | statuses).get(name, 0) for name in names})


def test_log_of_another_process(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    shutil.copytree(sound, data)

    async def ran() -> None:
        async with open_wal(data) as log:
            await log.raw_append(Message("v0", b"beside it"))
            refused = dict.fromkeys(("append", "scheduled", "create", "broadcast", "repair", "consumers"), 3) | {"mark-restored": 1}
            names = [name for name in COMMANDS if name not in (*OF_A_TARGET, "cursor set", "serve")]
            statuses = {name: (FINE | refused).get(name, 0) for name in names}
            await asyncio.to_thread(ran_all, data, tmp_path, capsys, statuses, in_use=True)

    asyncio.run(ran())


def test_log_of_another_user(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, place = tmp_path / "data", tmp_path / "place"
    shutil.copytree(sound, data)
    place.mkdir()
    ran_all(data, place, capsys, {name: FINE.get(name, 0) for name in COMMANDS if name not in (*OF_A_TARGET, *THAT_CHANGE)})
    shutil.rmtree(place)
    place.mkdir()
    statuses = dict.fromkeys(COMMANDS, 4) | {"mark-restored": 1}
    for name, status in statuses.items():
        ran(name, data, place, capsys, status, as_another=True)


def test_file_of_a_failed_cat_is_not_there(sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    shutil.copytree(sound, data)
    (tmp_path / "old.csv").write_text("of yesterday")
    flipped(data / "pchannels" / "p0" / f"{0:016x}.wal", 60_000)
    for flag, file in (("--to-csv", "old.csv"), ("--to-jsonl", "new.jsonl")):
        assert main(["cat", str(data), "v0", flag, str(tmp_path / file)]) == 4
        assert capsys.readouterr().err.startswith("wal: CorruptionError: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "old.csv"]
    assert (tmp_path / "old.csv").read_text() == "of yesterday"
    assert main(["cat", str(sound), "v0", "--to-csv", str(tmp_path / "old.csv")]) == 0
    assert len((tmp_path / "old.csv").read_text().splitlines()) == 102


def ran_all(data: Path, place: Path, capsys: pytest.CaptureFixture[str], statuses: dict[str, int], *, in_use: bool = False) -> None:
    before = content(data)
    for name, status in statuses.items():
        ran(name, data, place, capsys, status)
        assert in_use or content(data) == before, f"{name} has changed the log"


def ran(name: str, data: Path, place: Path, capsys: pytest.CaptureFixture[str], status: int, *, as_another: bool = False) -> None:
    """Runs a command, and checks its end."""
    arguments = [word.replace("LOG", str(data)).replace("PLACE", str(place)) for word in COMMANDS[name]]
    with quiet(), unreadable(data) if as_another else contextlib.nullcontext():
        found = main(arguments)
    output = capsys.readouterr()
    errors = output.err.splitlines()
    assert found == status, (name, errors)
    if status > 1 or (name, status) == ("mark-restored", 1):
        assert len(errors) == 1, (name, errors)
        assert errors[0].startswith("wal: "), name
        assert len(errors[0]) > 30, (name, errors)
    assert "Traceback" not in output.err
    if status == 4:
        assert not any((place / made).exists() for made in ("restored", "copied")), name


def content(data: Path) -> object:
    """Returns the content of this location, and the times of its last changes."""
    if not data.is_dir():
        return data.stat().st_mtime_ns if data.exists() else None
    return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns if path.is_file() else 0) for path in data.rglob("*"))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Filters warnings of the log from the output of a command, and undoes the logging setup of `wal mark-restored`."""
    handlers = logging.root.handlers[:]
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
        logging.root.handlers[:] = handlers


@contextlib.contextmanager
def unreadable(data: Path) -> Iterator[None]:
    """Makes a directory unreadable to this process; root becomes another user meanwhile."""
    data.chmod(0)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        data.chmod(0o700)
