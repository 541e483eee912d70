"""The `kv` setting: its accepted forms, its errors, and that no password is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal import open_wal
from wal.errors import InvalidArgumentError
from wal.location import EtcdLocation, parse_kv
from wal.runtime.secret import Secret


def test_accepted_settings(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, EtcdLocation | Path]] = [
        ("meta.sqlite3", Path.cwd() / "meta.sqlite3"),
        ("etcd://a/root", EtcdLocation(("a:2379",), "root")),
        ("etcd://a:1,b.example:2,[::1]:3,[::1]/by-dev/meta/", EtcdLocation(("a:1", "b.example:2", "[::1]:3", "[::1]:2379"), "by-dev/meta")),
        ("etcd://u:p%40%2F@a/r", EtcdLocation(("a:2379",), "r", user="u", password=Secret("p@/"))),
        ("etcd://u@a/r?password_file=/p&timeout_s=2.5", EtcdLocation(("a:2379",), "r", user="u", password_file=Path("/p"), timeout_s=2.5)),
        (
            "etcd+ssl://a/r?ca=/ca.pem&certificate=/c.pem&key=k.pem",
            EtcdLocation(("a:2379",), "r", tls=True, ca=Path("/ca.pem"), certificate=Path("/c.pem"), key=Path.cwd() / "k.pem"),
        ),
    ]
    for text, location in cases:
        with subtests.test(repr(text)):
            assert parse_kv(text) == location


def test_wrong_setting_is_refused_without_showing_a_password(subtests: pytest.Subtests) -> None:
    cases = [
        ("", "names no file"),
        ("a\0b", "names no file"),
        ("http://secret@a/r", r"begins with http://.*etcd://"),
        ("etcd://a", "names no root path"),
        ("etcd://u:secret@a//", "names no root path"),
        ("etcd:///r", "names an invalid host"),
        ("etcd://a,,b/r", "a,,b/r' names an invalid host"),
        ("etcd://a:b/r", "a:b/r' names an invalid host or port"),
        ("etcd://a:0/r", "a:0/r' names an invalid host or port"),
        ("etcd://a:65536/r", "a:65536/r' names an invalid host or port"),
        ("etcd://::1/r", r"::1/r' names an invalid host.*brackets"),
        ("etcd://u:secret@a/r?ca=x", r"\?ca= is not understood.*password_file"),
        ("etcd://u:secret@a/r?password=secret", r"\?password= is not understood"),
        ("etcd+ssl://a/r?ca=", r"\?ca= is not understood"),
        ("etcd://u:secret@a/r?password_file=x", "give one of them"),
        ("etcd://a/r?timeout_s=soon", r"timeout_s=\*\*\* is not a number"),
        ("etcd://a/r?timeout_s=nan", "timeout_s=nan"),
        ("etcd://a/r?timeout_s=-1", "timeout_s=-1"),
    ]
    for text, says in cases:
        with subtests.test(repr(text)):
            with pytest.raises(InvalidArgumentError, match=says) as caught:
                parse_kv(text)
            assert "secret" not in str(caught.value)


def test_no_password_is_shown() -> None:
    location = parse_kv("etcd://u:secret@a,b:1/r")
    assert str(location) == "etcd://u@a:2379,b:1/r"
    assert "secret" not in repr(location)


async def test_files_that_are_not_there_are_named(data_dir: Path, tmp_path: Path) -> None:
    for option, text in (("password_file", "password_file"), ("ca", "TLS file")):
        with pytest.raises(InvalidArgumentError, match=rf"{text}.*no such".replace("no such", "[Nn]o such")):
            async with open_wal(data_dir, kv=f"etcd+ssl://u@127.0.0.1:1/r?{option}={tmp_path}/none"):
                pass
    with pytest.raises(InvalidArgumentError, match="belong together"):
        async with open_wal(data_dir, kv=f"etcd+ssl://127.0.0.1:1/r?certificate={tmp_path}/none"):
            pass
