"""A location names one directory, whatever the current directory is later: errors show its full path, and `~` is a home."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.probes import payloads
from wal import Message, Settings, bridge, open_wal
from wal.errors import ClosedError, FormatError, InvalidArgumentError, LockedError
from wal.location import parse_kv, parse_location
from wal.streams.rocksmq import RocksMQ


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the current directory, which has a home next to it."""
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)
    return here


def iterated(location: str | Path) -> list[bytes]:
    with bridge.iterate(location, "a", follow=False) as messages:
        return [message.payload for message in messages]


async def test_errors_show_the_absolute_path(here: Path) -> None:
    with pytest.raises(FormatError, match=f"^{here}/none "):
        await open_wal("none", read_only=True)
    with pytest.raises(FormatError, match=f"^{here}/none "):
        await asyncio.to_thread(iterated, "none/")
    Path("file").touch()
    with pytest.raises(FormatError, match=f"^{here}/file is a file"):
        await open_wal("file")
    log = await open_wal("data/")
    with pytest.raises(LockedError, match=f"{here}/data "):
        await open_wal("journal:data")
    await log.close()
    with pytest.raises(ClosedError, match=f"journal:{here}/data "):
        await log.raw_append(Message("a", b""))
    with pytest.raises(InvalidArgumentError, match=f"journal:{here}/data "):
        async with open_wal("data", read_only=True) as beside:
            await beside.raw_append(Message("a", b""))


async def test_changing_the_directory_after_the_call_changes_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = open_wal("data", kv="meta.sqlite3")
    elsewhere = here / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    async with opening as log:
        await log.raw_append(Message("a", b"one"))
    assert sorted(os.listdir(here)) == ["data", "elsewhere", "meta.sqlite3", "meta.sqlite3-reserve"]
    assert os.listdir(elsewhere) == []


def test_links_and_parents_are_resolved_by_the_system(here: Path) -> None:
    (here / "far" / "deep").mkdir(parents=True)
    (here / "link").symlink_to(here / "far" / "deep")
    with bridge.blocking("link/../data"):
        pass
    assert (here / "far" / "data").is_dir()
    assert not (here / "data").exists()


@pytest.mark.parametrize("form", [str, "journal:{}".format, Path])
async def test_tilde_is_always_the_home(here: Path, form: Callable[[str], str | Path]) -> None:
    async with open_wal(form("~/data"), kv="~/meta.sqlite3") as log:
        await log.raw_append(Message("a", b"one"))
        assert await payloads(log, "a") == [b"one"]
    home = here.parent / "home"
    assert await asyncio.to_thread(iterated, form("~/data")) == [b"one"]
    assert sorted(os.listdir(home)) == ["data", "meta.sqlite3", "meta.sqlite3-reserve"]
    assert os.listdir(here) == []


def test_tilde_is_the_home_for_files(here: Path) -> None:
    home = here.parent / "home"
    assert parse_location("~").path == home
    assert parse_location("./~/data").path == here / "~" / "data"  # a directory of that name can still be given
    location = parse_kv("etcd://a/root?password_file=~/secret")
    assert location.password_file == home / "secret"  # type: ignore[union-attr]
    home.mkdir(exist_ok=True)
    (home / "wal.toml").write_text("pchannels = 3\n")
    assert Settings.load("~/wal.toml").pchannels == 3


async def test_tilde_is_the_home_for_a_rocksmq(here: Path) -> None:
    pytest.importorskip("rocksdict")
    async with await RocksMQ.open("~/mq"):
        assert (here.parent / "home" / "mq").is_dir()
    assert os.listdir(here) == []


@pytest.mark.parametrize("text", ["~nobody-of-that-name/data", "~nobody-of-that-name"])
def test_tilde_of_an_unknown_user_is_refused(here: Path, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="~nobody-of-that-name"):
        open_wal(text)
    with pytest.raises(InvalidArgumentError, match="~nobody-of-that-name"):
        open_wal("data", kv=text)
    with pytest.raises(InvalidArgumentError, match="~nobody-of-that-name"):
        open_wal("pulsar://localhost:6650/public/default", kv="memory.sqlite3", pulsar_tls_authority=text)
    with pytest.raises(InvalidArgumentError, match="~nobody-of-that-name"):
        Settings.load(text)
    assert os.listdir(here) == []


def test_relative_location_without_a_directory_is_refused(here: Path) -> None:
    here.rmdir()
    with pytest.raises(InvalidArgumentError, match="absolute path"):
        open_wal("data")
