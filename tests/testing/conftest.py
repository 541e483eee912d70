"""`service`: the test suite of a service, which runs in a pytest of its own."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import Ended, run_python

Service = Callable[..., Ended]


@pytest.fixture
def service(tmp_path: Path) -> Service:
    """Returns a function that runs pytest on a test file with this text, with the log's plugin and the named `plugins`."""

    def run(text: str, *options: str, plugins: tuple[str, ...] = (), code: int = 0, fresh: bool = False) -> Ended:
        directory = tmp_path / "service"
        directory.mkdir(exist_ok=True)
        file = directory / "test_service.py"
        file.write_text(textwrap.dedent(text))
        (directory / "pytest.ini").write_text("[pytest]\n")
        loaded = [part for plugin in ("wal.testing.plugin", *plugins) for part in ("-p", plugin)]
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        arguments = (
            "-m",
            "pytest",
            "-q",
            "-W",
            "error",
            "-p",
            "no:cacheprovider",
            f"--basetemp={directory / 'temporary'}",
            *loaded,
            *options,
            file,
        )
        return run_python(*arguments, code=code, environment=environment, fresh=fresh)

    return run
