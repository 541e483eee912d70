"""Builds the programs of servers that are Go modules."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from tests.servers.cache import MissingServerError

__all__ = ["build", "run"]

_TIMEOUT_S: Final = 900


def build(module: str, version: str, program: Path) -> None:
    """Builds the program of this version of a module. MissingServerError if it cannot be built."""
    with tempfile.TemporaryDirectory(prefix="wal-go-build-") as work:
        for arguments in (
            ("mod", "init", "build"),
            ("get", f"{module}@v{version}"),
            ("build", "-trimpath", "-o", str(program), module),
        ):
            run(["go", *arguments], Path(work))


def run(command: list[str], folder: Path) -> None:
    """Runs a command that installs something. MissingServerError with the end of its output if it fails."""
    try:
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "GOFLAGS": "-mod=mod"}, timeout=_TIMEOUT_S,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MissingServerError(f"{' '.join(command)}: {error}") from error
    if done.returncode != 0:
        raise MissingServerError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}")
