"""No secret is shown in a repr, an error or its causes, a traceback, a log line, a name or statistics."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import secrets
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import wal
from tests.processes import run_python
from tests.servers.process import free_ports
from wal import Settings, bridge, open_wal
from wal.errors import InvalidArgumentError, StorageError, UnavailableError, WALError
from wal.location import parse_kv, parse_location
from wal.storage.kv.etcd import EtcdKV

HIDDEN: Final = f"hunter2{secrets.token_hex(8)}"
"""The text that must not appear anywhere. It differs from run to run, so that no page and no source file contains it."""

PASSWORDS: Final = [HIDDEN, f"a/{HIDDEN}", f"{HIDDEN}/b", f"a@{HIDDEN}", f"a?{HIDDEN}", f"a?timeout_s={HIDDEN}", f"a:{HIDDEN}"]
"""A correct password, and one with characters that should have been percent-encoded."""
URLS: Final = [
    *(f"etcd://root:{password}@127.0.0.1:1/by-dev" for password in PASSWORDS),
    *(f"pulsar://root:{password}@127.0.0.1/public/default" for password in PASSWORDS),
    *(f"root:{password}@127.0.0.1/public" for password in PASSWORDS),
    *(f"etcd+ssl://root:{password}@127.0.0.1/r?ca=/none" for password in PASSWORDS),
    f"etcd://:{HIDDEN}@127.0.0.1/r",
    f"etcd://root:{HIDDEN}@/r",
    f"etcd://root:{HIDDEN}@a:b/r",
    f"etcd://root:{HIDDEN}@a",
    f"etcd://root:{HIDDEN}",
    f"etcd://root:{HIDDEN}/r",
    f"etcd://root:{HIDDEN}@a/r?timeout_s=soon",
    f"etcd://a/r?timeout_s={HIDDEN}",
    f"etcd://a/r?timeout_s=5;password={HIDDEN}",
    f"etcd://a/r?password={HIDDEN}",
    f"etcd://a/r?{HIDDEN}",
    f"etcd://root:{HIDDEN}@a/r?password_file=/none",
    f"pulsar://{HIDDEN}@127.0.0.1/public/default",
    f"pulsar://127.0.0.1/public/default?token={HIDDEN}",
    f"pulsar://127.0.0.1/public/default#token={HIDDEN}",
    f"pulsar://127.0.0.1:{HIDDEN}/public/default",
    f"pulsar+ssl://127.0.0.1/public?token={HIDDEN}",
    f"https://{HIDDEN}@127.0.0.1/public/default",
    f"s3://key:{HIDDEN}@bucket",
]
"""Locations of logs and of metadata that contain a secret; few of them have a form that is accepted."""


@pytest.fixture(autouse=True)
def nothing_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Captures log lines of any level and any logger."""
    caplog.set_level(logging.DEBUG)
    yield
    for when in ("setup", "call"):
        for record in caplog.get_records(when):
            check_hidden(record.getMessage(), record.exc_text or "", *map(repr, record.__dict__.values()))


def check_hidden(*shown: object) -> None:
    for text in shown:
        assert HIDDEN not in str(text)
        assert HIDDEN not in repr(text)
        assert HIDDEN not in f"{text}"


def check_error(error: BaseException) -> None:
    """Checks that neither the error nor any of its causes shows the secret."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or one in seen:
            continue
        seen.append(one)
        waiting += [one.__cause__, one.__context__]
        # We cannot shorten a library's own text, but we give none of these libraries the secret.
        check_hidden(str(one), repr(one), one.args, *getattr(one, "__notes__", ()))
    check_hidden(*traceback.format_exception(error))


def check_raises(call: Callable[[], object], *errors: type[BaseException]) -> None:
    with pytest.raises(errors or (WALError, TypeError)) as caught:
        call()
    check_error(caught.value)


@pytest.mark.parametrize("url", URLS, ids=map(str, range(len(URLS))))
def test_settings_show_none(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "wal.toml"
    file.write_text(f'kv = "{url}"\npulsar_token = "{HIDDEN}"\n')
    made = Settings(kv=url, pulsar_token=HIDDEN)
    loaded = Settings.load(file)
    monkeypatch.setenv("WAL_KV", url)
    monkeypatch.setenv("WAL_PULSAR_TOKEN", HIDDEN)
    for settings in (made, loaded, Settings.load(), Settings().replace(kv=url, pulsar_token=HIDDEN)):
        check_hidden(settings, settings.kv, settings.pulsar_token, f"{settings.kv:>9}", "%s" % settings.kv)  # noqa: UP031
        assert settings == made
        assert pickle.loads(pickle.dumps(settings)) == made
        check_raises(lambda settings=settings: settings.replace(kvs=url))  # type: ignore[misc]
        check_raises(lambda settings=settings: settings.replace(pchannels=0))  # type: ignore[misc]
    assert made != Settings(kv=url, pulsar_token=HIDDEN + "x")
    assert made != Settings(kv=url + "x", pulsar_token=HIDDEN)


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_setting_of_a_wrong_type_is_not_shown(name: str) -> None:
    for wrong in ([HIDDEN], {HIDDEN: HIDDEN}, HIDDEN.encode(), Path(f"etcd:/root:{HIDDEN}@a/r")):
        check_raises(lambda wrong=wrong: Settings(**{name: wrong}), TypeError)  # type: ignore[misc]
        check_raises(lambda wrong=wrong: open_wal("memory:", **{name: wrong}), TypeError)  # type: ignore[misc]
        check_raises(lambda wrong=wrong: Settings.load(**{name: wrong}), TypeError)  # type: ignore[misc]


@pytest.mark.parametrize(
    "written", ["pulsar_token = ['{}']", "kv = ['{}']", "pulsar_token = {{ jwt = '{}' }}", "kv = '{}", "pulsar_tokens = '{}'"]
)
def test_wrong_file_is_not_shown(written: str, tmp_path: Path) -> None:
    file = tmp_path / "wal.toml"
    file.write_text(written.format(HIDDEN))
    check_raises(lambda: Settings.load(file), InvalidArgumentError)


@pytest.mark.parametrize("url", URLS, ids=map(str, range(len(URLS))))
async def test_location_with_one_is_refused_without_showing_it(url: str) -> None:
    for call in (
        lambda: parse_location(url),
        lambda: open_wal(url),
        lambda: open_wal(url, read_only=True),
        lambda: wal.init(url),
        lambda: bridge.blocking(url),
        lambda: bridge.iterate(url, "orders").__enter__(),
        lambda: bridge.iterate(url, "orders", timeout_s="soon"),  # type: ignore[arg-type]
        lambda: next(bridge.record_batches(url, "orders")),
    ):
        check_raises(call)


@pytest.mark.parametrize("url", URLS, ids=map(str, range(len(URLS))))
async def test_metadata_error_hides_the_password(url: str, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def shortened(url: str) -> str:
        """Returns the URL with a short timeout, if its scheme takes one."""
        return f"{url}?timeout_s=0.3" if url.startswith("etcd://") and "?" not in url else url

    monkeypatch.chdir(data_dir.parent)
    with contextlib.suppress(InvalidArgumentError):
        check_hidden(parse_kv(url))
    for location in (str(data_dir), "memory:", "pulsar://127.0.0.1:1/public/default"):
        if "?" not in url and url.startswith("etcd"):
            monkeypatch.setattr("wal.storage.kv.etcd.kv.TIMEOUT_S", 0.2)
        with pytest.raises(WALError) as caught:
            opening = open_wal(location, kv=shortened(url), pulsar_token=HIDDEN)
            check_hidden(opening)
            await opening
        check_error(caught.value)
    assert [path for path in data_dir.parent.rglob("*") if HIDDEN in str(path)] == []


@pytest.mark.parametrize("file", ["missing", "damaged"])
async def test_file_of_a_password_is_not_shown(file: str, data_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "password"
    if file == "damaged":
        path.write_bytes(HIDDEN.encode() + b"\xff")
    with pytest.raises(InvalidArgumentError, match="password_file") as caught:
        await open_wal(data_dir, kv=f"etcd://root@127.0.0.1:1/r?password_file={path}")
    check_error(caught.value)


async def test_etcd_error_hides_the_password(etcd_address: str, data_dir: Path) -> None:
    """This etcd has no users: a log opens, and none of its output contains the password."""
    kv = f"etcd://root:{HIDDEN}@{etcd_address}/wal-test-{secrets.token_hex(6)}"
    async with open_wal(data_dir, kv=kv, pulsar_token=HIDDEN) as log:
        check_hidden(log, log.wal_name, log.statistics(), await log.retention(), vars(log))
    with pytest.raises(InvalidArgumentError) as caught:
        await EtcdKV.open([f"root:{HIDDEN}@{etcd_address}"])
    check_error(caught.value)
    with pytest.raises(InvalidArgumentError) as caught:
        await EtcdKV.open(f"root:{HIDDEN}@{etcd_address}")
    check_error(caught.value)
    (port,) = free_ports(1)
    with pytest.raises(UnavailableError) as away:
        await EtcdKV.open([f"127.0.0.1:{port}"], user=("root", HIDDEN), timeout_s=0.2)
    check_error(away.value)


@pytest.mark.parametrize(
    "admin", ["http://root:{}@127.0.0.1:1", "http://{}@127.0.0.1:1", "http://127.0.0.1:1?token={}", "{}", "http://127.0.0.1:{}", None]
)
async def test_pulsar_error_hides_the_token(admin: str | None, data_dir: Path) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}" if admin is None else admin.format(HIDDEN)

    async def opened() -> Any:
        kv = str(data_dir.parent / "meta.sqlite3")
        location = f"pulsar://127.0.0.1:{port}/public/default"
        return await open_wal(location, kv=kv, pulsar_admin_url=url, pulsar_token=HIDDEN)

    with pytest.raises(StorageError if admin is None else InvalidArgumentError) as caught:
        await opened()
    check_error(caught.value)


@pytest.mark.parametrize("ending", ["\n", "\r\n", " ", "\u2026"])
def test_token_that_no_header_takes_is_not_shown(ending: str, tmp_path: Path) -> None:
    """The token ends as `$(cat token)` and `read_text()` leave it. Python's own client shows the whole header in its error."""
    check_raises(lambda: Settings(pulsar_token=HIDDEN + ending), InvalidArgumentError)
    file = tmp_path / "wal.toml"
    file.write_text(f'pulsar_token = """{HIDDEN}{ending}"""')
    check_raises(lambda: Settings.load(file), InvalidArgumentError)


def test_process_that_fails_to_open_prints_none(tmp_path: Path) -> None:
    """The check covers all that a supervisor would log: everything that Python prints, with the loop's tasks in debug mode."""
    program = tmp_path / "service.py"
    program.write_text(
        "import asyncio, os\n"
        "from wal import Settings, open_wal\n"
        "async def main():\n"
        "    settings = Settings.load()\n"
        "    print(settings)\n"
        "    async with open_wal('memory:', settings=settings):\n"
        "        pass\n"
        "asyncio.run(main(), debug=True)\n"
    )
    environment = {
        **os.environ,
        "WAL_KV": f"etcd://root:{HIDDEN}@127.0.0.1:1/r?timeout_s=0.2",
        "WAL_PULSAR_TOKEN": HIDDEN,
        "PYTHONPATH": str(Path(wal.__file__).parents[1]),
    }

    done = run_python(program, environment=environment, code=None)
    assert "UnavailableError" in done.err
    assert "Settings(" in done.out
    check_hidden(done.out, done.err)
