"""Settings of retention, cursors and idempotency: each is checked, is read from everywhere, and has its effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.locations import open_wal
from tests.probes import payloads
from wal import Message, ProducerKey, Settings
from wal.errors import InvalidArgumentError, WouldBlockError

DEFAULTS = {
    "idempotency_window_count": None,
    "idempotency_window_s": 3600.0,
    "producers_max": 4096,
    "retention_bytes": None,
    "retention_s": None,
    "cursor_lag_bytes_max": None,
    "cursor_age_max_s": None,
}


@pytest.mark.parametrize(("name", "value"), DEFAULTS.items())
def test_retention_is_off_by_default(name: str, value: object) -> None:
    assert getattr(Settings(), name) == value


@pytest.mark.parametrize("name", DEFAULTS)
def test_retention_is_read_from_every_source(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "wal.toml"
    file.write_text(f"{name} = 70\n")
    assert getattr(Settings.load(file), name) == 70
    monkeypatch.setenv(f"WAL_{name.upper()}", "80")
    assert getattr(Settings.load(file), name) == 80
    assert getattr(Settings.load(file, **{name: 90}), name) == 90  # type: ignore[arg-type]


def test_wrong_values(subtests: pytest.Subtests) -> None:
    for name in DEFAULTS:
        with subtests.test(name):
            for wrong in ("1", True, b"1", [1]):
                with pytest.raises(TypeError, match=name):
                    Settings(**{name: wrong})  # type: ignore[arg-type]
            with pytest.raises(InvalidArgumentError, match=name):
                Settings(**{name: -1})  # type: ignore[arg-type]
            if name.endswith("_s"):
                for value in (float("nan"), float("inf")):
                    with pytest.raises(InvalidArgumentError, match=name):
                        Settings(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("window", [{"idempotency_window_count": 0}, {"idempotency_window_s": 0.0}])
async def test_window_of_nothing_takes_no_key(location: str, window: dict[str, Any]) -> None:
    """A key that would be forgotten at once guarantees nothing, so it is refused. Producers are remembered for good."""
    (name,) = window
    async with open_wal(location, **window) as log:
        with pytest.raises(InvalidArgumentError, match=name):
            await log.raw_append(Message("orders", b"1"), idempotency_key="k")
        assert not (await log.raw_append(Message("orders", b"2"), idempotency_key=ProducerKey("p", 1))).duplicate
        assert (await log.raw_append(Message("orders", b"3"), idempotency_key=ProducerKey("p", 1))).duplicate
        assert await payloads(log, "orders") == [b"2"]


async def test_bound_that_was_lowered_takes_nobody_s_memory(data: str) -> None:
    async with open_wal(data) as log:
        for number in range(5):
            await log.raw_append(Message("orders", b"1"), idempotency_key=ProducerKey(f"p{number}", 1))
    async with open_wal(data, producers_max=2) as log:
        assert len(await log.producers()) == 5
        for number in range(5):
            assert (await log.raw_append(Message("orders", b"1"), idempotency_key=ProducerKey(f"p{number}", 1))).duplicate
        with pytest.raises(WouldBlockError):
            await log.raw_append(Message("orders", b"1"), idempotency_key=ProducerKey("p5", 1))


async def test_window_that_was_lowered_and_raised(data: str) -> None:
    for count in (8, 2, 8):
        async with open_wal(data, idempotency_window_count=count) as log:
            for number in range(8):
                await log.raw_append(Message("orders", b"1"), idempotency_key=f"{count} {number}")
            again = await log.raw_append(Message("orders", b"1"), idempotency_key=f"{count} 7")
            assert again.duplicate
