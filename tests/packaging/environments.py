"""Virtual environments for tests of installations: created by the clone's own uv, from the clone, as a user would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.docs.snippets import ROOT

TIMEOUT_S: Final = 300


class Environment:
    """A fresh virtual environment in its own directory, with nothing installed."""

    def __init__(self, directory: Path, python: str = sys.executable) -> None:
        self.directory = directory
        ensured = subprocess.run([ROOT / ".ci" / "ensure-uv"], check=True, capture_output=True, text=True)
        self._uv = str(ROOT / ensured.stdout.strip())  # a path on PATH is absolute, one in the clone is not
        self._run_uv("venv", "--quiet", "--python", python, str(directory))

    @property
    def packages(self) -> Path:
        """The directory into which packages are installed."""
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return self.directory / "lib" / version / "site-packages"

    def install(self, *requirements: str) -> None:
        """Installs these, in one call of `pip install`, over existing packages; a clone in its current state."""
        python = str(self.directory / "bin" / "python")
        self._run_uv("pip", "install", "--quiet", "--refresh-package", "wal-runtime", "--python", python, *requirements)

    def install_wheel(self, wheel: Path, extras: Sequence[str]) -> None:
        """Installs this wheel of the clone with the packages that uv.lock names for these extras, and nothing else.

        It takes them from uv's cache if `make setup` left them there: an index that does not let its files be cached would have
        pyspark downloaded and built again for every environment.
        """
        python = str(self.directory / "bin" / "python")
        options = [option for extra in extras for option in ("--extra", extra)]
        locked = ["sync", "--quiet", "--locked", "--no-default-groups", "--no-install-project", "--python", python, *options]
        try:
            self._run_uv(*locked, "--offline")
        except AssertionError:
            self._run_uv(*locked)
        self._run_uv("pip", "install", "--quiet", "--offline", "--no-deps", "--python", python, str(wheel))

    def uninstall(self, *distributions: str) -> None:
        """Uninstalls these, with every file that they installed."""
        self._run_uv("pip", "uninstall", "--quiet", "--python", str(self.directory / "bin" / "python"), *distributions)

    def run(self, code: str, *, path: Path | None = None) -> subprocess.CompletedProcess[str]:
        """Runs this code with nothing of the clone on its path; `path` comes first there."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK_", "WAL_"))}
        if path is not None:
            environment["PYTHONPATH"] = str(path)
        return self.python("-c", code, environment=environment)

    def python(
        self, *arguments: str, environment: dict[str, str], stdin: str = "", directory: Path | None = None, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Runs this environment's Python with these arguments in a directory, its own by default."""
        return subprocess.run(
            [str(self.directory / "bin" / "python"), *arguments],
            cwd=directory or self.directory,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def _run_uv(self, *arguments: str) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
        environment |= {"UV_PROJECT_ENVIRONMENT": str(self.directory), "TMPDIR": str(self.directory.parent)}  # its lock files stay there
        command = [self._uv, *arguments]
        ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert ran.returncode == 0, ran.stderr
