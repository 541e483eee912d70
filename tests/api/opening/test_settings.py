"""Settings and locations: their sources, and the errors for wrong ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.locations import open_wal
from tests.probes import payloads
from wal import Message, Settings
from wal.errors import InvalidArgumentError

DEFAULTS = {
    "pchannels": None,
    "create_vchannels": True,
    "vchannels_max": 65_536,
    "message_bytes_max": 1 << 20,
    "txn_bytes_max": 4 << 20,
    "txn_bodies_max": 4096,
    "txn_keepalive": 10.0,
    "open_txn_bytes_max": 256 << 20,
    "in_flight_bytes_max": 64 << 20,
    "segment_bytes": 64 << 20,
    "time_tick_interval_s": 0.2,
    "idempotency_window_count": None,
    "idempotency_window_s": 3600.0,
    "producers_max": 4096,
    "scheduled_max": 65_536,
    "scheduled_bytes_max": 32 << 20,
    "broadcast_tasks_max": 65_536,
    "broadcast_vchannels_max": 16_384,
    "kv": None,
    "retention_bytes": None,
    "retention_s": None,
    "cursor_lag_bytes_max": None,
    "cursor_age_max_s": None,
}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in DEFAULTS:
        monkeypatch.delenv(f"WAL_{name.upper()}", raising=False)


def test_defaults() -> None:
    settings = Settings()
    assert {name: getattr(settings, name) for name in DEFAULTS} == DEFAULTS
    assert Settings.load() == settings
    with pytest.raises(AttributeError):
        settings.pchannels = 4  # type: ignore[misc]


def test_file_then_variables_then_keywords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "wal.toml"
    file.write_text('pchannels = 2\ntxn_keepalive = 5\nkv = "meta.db"\ncreate_vchannels = false\nretention_s = 60.0\n')
    loaded = Settings.load(file)
    assert loaded == Settings(pchannels=2, txn_keepalive=5.0, kv="meta.db", create_vchannels=False, retention_s=60.0)
    assert Settings.load(str(file)) == loaded
    monkeypatch.setenv("WAL_PCHANNELS", "3")
    monkeypatch.setenv("WAL_CREATE_VCHANNELS", "true")
    monkeypatch.setenv("WAL_TIME_TICK_INTERVAL_S", "0.5")
    over = Settings.load(file)
    assert (over.pchannels, over.create_vchannels, over.time_tick_interval_s, over.kv) == (3, True, 0.5, "meta.db")
    assert Settings.load(file, pchannels=4).pchannels == 4
    assert Settings.load(file, pchannels=None).pchannels is None


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("pchannels", 0, "pchannels=0"),
        ("message_bytes_max", -1, "message_bytes_max=-1"),
        ("segment_bytes", 1, "segment_bytes=1"),
        ("txn_keepalive", 0.0, "txn_keepalive=0.0"),
        ("time_tick_interval_s", float("nan"), "time_tick_interval_s=nan"),
        ("txn_keepalive", float("inf"), "txn_keepalive=inf"),
        ("retention_s", -1.0, "retention_s=-1.0"),
    ],
)
def test_wrong_values_name_value_and_limit(name: str, value: Any, text: str) -> None:
    for make in (lambda: Settings(**{name: value}), lambda: Settings.load(**{name: value}), lambda: open_wal("memory:", **{name: value})):
        with pytest.raises(InvalidArgumentError, match=text) as caught:
            make()
        assert "at least" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pchannels", "4"),
        ("pchannels", 4.0),
        ("pchannels", True),
        ("create_vchannels", 1),
        ("txn_keepalive", "10"),
        ("txn_keepalive", None),
        ("kv", 5),
        ("message_bytes_max", None),
    ],
)
def test_wrong_types(name: str, value: Any) -> None:
    for make in (lambda: Settings(**{name: value}), lambda: Settings.load(**{name: value}), lambda: open_wal("memory:", **{name: value})):
        with pytest.raises(TypeError, match=name):
            make()


def test_unknown_names_list_the_accepted_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "wal.toml"
    file.write_text("pchannel = 2\n")
    for make, unknown in (
        (lambda: Settings.load(file), "pchannel"),
        (lambda: Settings.load(chanels=2), "chanels"),  # type: ignore[call-arg]
        (lambda: open_wal("memory:", chanels=2), "chanels"),
        (lambda: open_wal("memory:", settings=Settings(), chanels=2), "chanels"),
    ):
        with pytest.raises(InvalidArgumentError, match=f"'{unknown}'") as caught:
            make()
        assert all(name in str(caught.value) for name in DEFAULTS)
    monkeypatch.setenv("WAL_CHANELS", "2")
    with pytest.raises(InvalidArgumentError, match="WAL_CHANELS") as caught:
        Settings.load()
    assert all(name in str(caught.value) for name in DEFAULTS)


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("WAL_PCHANNELS", "many"),
        ("WAL_PCHANNELS", "1.5"),
        ("WAL_TXN_KEEPALIVE", "soon"),
        ("WAL_CREATE_VCHANNELS", "perhaps"),
        ("WAL_PCHANNELS", "0"),
    ],
)
def test_wrong_variables(monkeypatch: pytest.MonkeyPatch, variable: str, text: str) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(InvalidArgumentError, match=text):
        Settings.load()


def test_wrong_files(tmp_path: Path) -> None:
    file = tmp_path / "wal.toml"
    with pytest.raises(InvalidArgumentError, match=r"wal\.toml"):
        Settings.load(file)
    file.write_text("pchannels = = 2")
    with pytest.raises(InvalidArgumentError, match="TOML"):
        Settings.load(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidArgumentError):
        Settings.load(file)
    file.write_text('pchannels = "2"')
    with pytest.raises((TypeError, InvalidArgumentError), match="pchannels"):
        Settings.load(file)
    file.write_text("[pchannels]\na = 1")
    with pytest.raises((TypeError, InvalidArgumentError), match="pchannels"):
        Settings.load(file)


async def test_settings_and_keywords_over_them() -> None:
    with pytest.raises(TypeError, match="Settings"):
        open_wal("memory:", settings={"pchannels": 2})
    async with open_wal("memory:", settings=Settings(pchannels=2, txn_keepalive=3.0), pchannels=3) as log:
        assert len(log.statistics().pchannels) == 3
        async with log.txn("a") as txn:
            assert txn.context.keepalive == 3.0


async def test_oversized_frames_are_refused_at_opening(location: str) -> None:
    with pytest.raises(InvalidArgumentError, match="txn_bytes_max"):
        await open_wal(location, txn_bytes_max=1 << 40)


async def test_metadata_may_lie_elsewhere(tmp_path: Path) -> None:
    place, kv = tmp_path / "data", tmp_path / "meta.db"
    for number in range(2):
        async with open_wal(place, kv=str(kv)) as log:
            await log.raw_append(Message("orders", b"%d" % number))
    assert kv.exists()
    assert not (place / "meta.sqlite3").exists()
    async with open_wal(place, kv=str(kv)) as log:
        assert await payloads(log, "orders") == [b"0", b"1"]


async def test_forms_of_a_location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    location: Any
    for number, location in enumerate(["data", "data/", "./data", "journal:data", "journal:./data/", Path("data"), str(tmp_path / "data")]):
        async with open_wal(location) as log:
            assert log.wal_name == "journal"
            assert len(await payloads(log, "orders")) == number
            await log.raw_append(Message("orders", b"1"))
    async with open_wal("memory:") as log:
        assert log.wal_name == "memory"


@pytest.mark.parametrize("wrong", ["", "journal:", "memory:x", "memory", "s3://bucket", "mem:", "data\0"])
def test_other_locations_list_the_known_forms(wrong: str) -> None:
    if wrong == "memory":
        assert open_wal(wrong) is not None, "a directory may be called so"
        return
    with pytest.raises(InvalidArgumentError) as caught:
        open_wal(wrong)
    assert repr(wrong) in str(caught.value)
    assert "data/" in str(caught.value)


@pytest.mark.parametrize("odd", [None, 5, b"data", ["data"]])
def test_invalid_locations_are_refused(odd: object) -> None:
    with pytest.raises(TypeError):
        open_wal(odd)


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ('pchannels = "2"', "setting pchannels must be an int, not str"),
        ("pchannels = 0", "setting pchannels=0 is too small: at least 1"),
        ("txn_keepalive = 1979-05-27", "setting txn_keepalive must be a number of seconds, not date"),
        ("create_vchannels = 1", "setting create_vchannels must be a bool, not int"),
        ("kv = 5", "setting kv must be a str, not int"),
        ("pulsar_admin_url = 'localhost'", "setting pulsar_admin_url"),
        ("[pchannels]\na = 1", "setting pchannels must be an int, not dict"),
        ("pchanels = 2", "no setting 'pchanels'"),
    ],
)
def test_wrong_value_in_a_file_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, says: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("wal.toml").write_text(written)
    with pytest.raises(InvalidArgumentError) as caught:
        Settings.load("wal.toml", pchannels=2)
    assert str(caught.value).startswith(f"settings file '{tmp_path}/wal.toml': {says}")


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("WAL_PCHANNELS", "0"),
        ("WAL_PCHANNELS", "many"),
        ("WAL_RETENTION_S", "nan"),
        ("WAL_ALLOW_MESSAGE_TTL", "yes"),
        ("WAL_PULSAR_ADMIN_URL", "localhost:8080"),
        ("WAL_PCHANELS", "2"),
    ],
)
def test_wrong_value_in_a_variable_names_the_variable(monkeypatch: pytest.MonkeyPatch, variable: str, text: str) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(InvalidArgumentError, match=rf"^environment variable {variable}\b"):
        Settings.load()


def test_file_and_variables_may_name_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "wal.toml"
    file.write_text('txn_bytes_max = "2MiB"\nretention_s = "7d"\nmessage_bytes_max = 4096\n')
    monkeypatch.setenv("WAL_RETENTION_BYTES", "1GiB")
    settings = Settings.load(file, in_flight_bytes_max=1 << 20)
    assert (settings.txn_bytes_max, settings.retention_s, settings.message_bytes_max) == (2 << 20, 604_800.0, 4096)
    assert settings.retention_bytes == 1 << 30
    file.write_text('pchannels = "2"')
    with pytest.raises(InvalidArgumentError, match="pchannels must be an int, not str"):
        Settings.load(file)
    with pytest.raises(TypeError, match="retention_s must be a number of seconds, not str"):
        Settings(retention_s="7d")  # type: ignore[arg-type]
