"""The guarantees of `tests/conftest.py` for every test: blocking calls are found, and both loops are used."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from blockbuster import BlockingError

import actors
import wal
from tests import conftest


def as_if_in(package: Any, source: str) -> Callable[..., object]:
    """Returns a function `call` compiled as if it were in a file of this package."""
    namespace: dict[str, Any] = {}
    exec(compile(source, str(Path(package.__path__[0]) / "pretend.py"), "exec"), namespace)
    call: Callable[..., object] = namespace["call"]
    return call


@pytest.mark.parametrize("package", [wal, actors])
@pytest.mark.parametrize("name", ["fdatasync", "fsync"])
async def test_sync_on_the_loop_is_an_error(package: Any, name: str, tmp_path: Path) -> None:
    call = as_if_in(package, f"import os\ndef call(fd): os.{name}(fd)")
    with (tmp_path / "file").open("wb") as file:
        with pytest.raises(BlockingError, match=name):
            call(file.fileno())
        await asyncio.to_thread(call, file.fileno())


async def test_so_are_writes_and_waits(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file, pytest.raises(BlockingError, match="pwritev"):
        as_if_in(wal, "import os\ndef call(fd): os.pwritev(fd, [b'x'], 0)")(file.fileno())
    with pytest.raises(BlockingError, match=r"time\.sleep"):
        as_if_in(wal, "import time\ndef call(): time.sleep(0)")()


async def test_test_itself_may_touch_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    assert (tmp_path / "file").read_text() == "mine"


async def test_loop_is_the_one_that_was_chosen(request: pytest.FixtureRequest) -> None:
    chosen = conftest.pytest_asyncio_loop_factories(request.config, request.node)
    wanted = [name for name in chosen if len(chosen) == 1 or name in request.node.name]
    assert ["uvloop" if isinstance(asyncio.get_running_loop(), uvloop.Loop) else "asyncio"] == wanted


@pytest.mark.one_loop
async def test_marked_test_runs_on_one_loop() -> None:
    assert conftest.SOAK or not isinstance(asyncio.get_running_loop(), uvloop.Loop)


def test_processes_share_what_they_compile(tmp_path: Path) -> None:
    (tmp_path / "shared_module.py").write_text("import sys; print(__cached__, sys.dont_write_bytecode)")
    command = [sys.executable, "-c", "import shared_module"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    cached, unwritten = said.split()
    assert unwritten == "False"
    assert Path(cached).exists()


def test_long_form_needs_a_soak(soak: int) -> None:
    assert soak == (conftest.SOAK_FACTOR if conftest.SOAK else 1)
