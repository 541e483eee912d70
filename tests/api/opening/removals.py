"""Ways in which the directory of an open log disappears: each really removes the directory, or puts something else in its place."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

GONE: Final = r"removed or replaced under the open log"
Removal = Callable[[Path], object]


def remove_all(directory: Path) -> None:
    """Removes the directory as `rm -rf` does, again until no file is left that the log has just created."""
    while directory.exists():
        subprocess.run(["rm", "-rf", str(directory)], check=False)


def move_away(directory: Path) -> None:
    directory.rename(directory.with_name("moved away"))


def replace_by_an_empty_one(directory: Path) -> None:
    move_away(directory)
    directory.mkdir()


def replace_by_a_copy(directory: Path) -> None:
    """Replaces the directory by a copy, as a restored backup or a newly mounted volume does."""
    move_away(directory)
    # The copy lacks files that disappear meanwhile: the log still uses the moved files.
    subprocess.run(["cp", "-r", str(directory.with_name("moved away")), str(directory)], check=False)


def replace_by_a_file(directory: Path) -> None:
    move_away(directory)
    directory.write_text("something else")


def remove_the_pchannel(directory: Path) -> None:
    remove_all(directory / "pchannels" / "p0")


def remove_the_lock(directory: Path) -> None:
    (directory / "LOCK").unlink()


def remove_the_metadata(directory: Path) -> None:
    (directory / "meta.sqlite3").unlink()


def remove_the_segments(directory: Path) -> None:
    """Removes the large files, as a clean-up job does."""
    for path in (directory / "pchannels" / "p0").glob("*.wal"):
        path.unlink()


def replace_the_control_page(directory: Path) -> None:
    control = directory / "pchannels" / "p0" / "control"
    copy = control.with_name("copy of control")
    shutil.copyfile(control, copy)
    copy.rename(control)


REMOVALS: Final[tuple[Removal, ...]] = (
    remove_all,
    move_away,
    replace_by_an_empty_one,
    replace_by_a_copy,
    replace_by_a_file,
    remove_the_pchannel,
    remove_the_lock,
    remove_the_metadata,
    remove_the_segments,
    replace_the_control_page,
)
READER_REMOVALS: Final[tuple[Removal, ...]] = (
    remove_all,
    move_away,
    replace_by_an_empty_one,
    replace_by_a_copy,
    replace_by_a_file,
    remove_the_pchannel,
    replace_the_control_page,
)
"""The removals that a read-only process can notice: it opens neither the lock nor the metadata."""
BY_DEFAULT: Final = (remove_all, replace_by_a_copy, remove_the_pchannel)


def few(removals: tuple[Removal, ...]) -> list[Any]:
    """Returns these removals as parameters of a test that runs with three of them by default: another test runs with all."""
    soak = pytest.mark.soak("the test of appends after a pause, or of readers that wait, runs with every removal")
    return [removal if removal in BY_DEFAULT else pytest.param(removal, marks=soak) for removal in removals]


def content_of(directory: Path) -> dict[str, Any]:
    """Returns every file in the directory with its bytes and its inode."""
    return {
        str(path.relative_to(directory)): (path.stat().st_ino, path.read_bytes()) for path in sorted(directory.rglob("*")) if path.is_file()
    }


def no_longer_there(path: Path) -> str:
    """Returns a pattern for the error that names this path."""
    return rf"{path} was {GONE}"
