"""Names that a newcomer guesses: the error names the right call or setting."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from wal import Settings, bridge, open_wal
from wal.errors import InvalidArgumentError


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("publish", "append(vchannel, payload)"),
        ("subscribe", "read(vchannel)"),
        ("scan", "read(vchannel)"),
        ("transaction", "txn(vchannel)"),
        ("commit", "txn(vchannel)"),
        ("topics", "vchannels()"),
        ("flush", "nothing"),
        ("vchanels", "vchannels"),
        ("append_bulks", "append_bulk"),
    ],
)
async def test_guessed_call_names_the_right_one(name: str, meant: str, data_dir: Path) -> None:
    def blocked() -> str:
        with bridge.blocking(data_dir) as log, pytest.raises(AttributeError) as caught:
            getattr(log, name)
        return str(caught.value)

    async with open_wal("memory:") as log:
        assert not hasattr(log, name)
        with pytest.raises(AttributeError) as caught:
            getattr(log, name)
    assert f"did you mean {meant}" in str(caught.value)
    assert str(caught.value).startswith("'WALAccesser' object has no attribute")
    assert f"did you mean {meant}" in await asyncio.to_thread(blocked)


async def test_other_names_are_plainly_missing() -> None:
    async with open_wal("memory:") as log:
        for name in ("_private", "__len__", "xyzzy"):
            with pytest.raises(AttributeError) as caught:
                getattr(log, name)
            assert str(caught.value) == f"'WALAccesser' object has no attribute {name!r}"


def test_misspelt_setting_names_the_closest(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match="no setting 'retention_seconds'; did you mean 'retention_s'"):
        Settings().replace(retention_seconds=5)  # type: ignore[call-arg]
    monkeypatch.setenv("WAL_PCHANNEL", "3")
    with pytest.raises(InvalidArgumentError, match="did you mean 'pchannels'"):
        Settings.load()
    with pytest.raises(InvalidArgumentError, match="no setting 'zzz'; accepted are: "):
        Settings().replace(zzz=5)  # type: ignore[call-arg]


@pytest.mark.parametrize("location", ["memory", "./memory"])
async def test_directory_called_memory_is_told(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_wal(location):
        assert os.listdir(tmp_path) == ["memory"]
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [f"is the directory {tmp_path / 'memory'}" in text for text in warnings] == ([True] if location == "memory" else [])
