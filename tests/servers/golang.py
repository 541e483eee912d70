"""GoProgram: the program of a server that is a Go module: on PATH, or built with Go into the cache, once."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from tests.servers.cache import MissingServerError, installed, say

_TIMEOUT_S: Final = 900


class Addressed(Protocol):
    """A server that runs; `address` is `host:port`."""

    address: str


class GoProgram(NamedTuple):
    """A server's program. The environment may name a server that already runs, by `host:port` in `address_variable`."""

    name: str
    module: str
    version: str
    address_variable: str

    def find(self) -> Path:
        """Returns the program on PATH, or the one in the cache, built first if missing. MissingServerError without Go."""
        on_path = shutil.which(self.name)
        if on_path is not None:
            return Path(on_path)
        return installed(f"{self.name}-{self.version}", self._build) / self.name

    def install(self) -> None:
        """Makes sure that `started` finds its program."""
        if self.address_variable not in os.environ:
            self.find()

    @contextlib.contextmanager
    def started(self, server: Callable[[], AbstractContextManager[Addressed]]) -> Iterator[Mapping[str, str]]:
        """Runs a server during the block and yields the variable that names it; uses the environment's server if it names one."""
        named = os.environ.get(self.address_variable)
        if named is not None:
            yield {self.address_variable: named}
            return
        with server() as one:
            yield {self.address_variable: one.address}

    def _build(self, folder: Path) -> None:
        if shutil.which("go") is None:
            raise MissingServerError(
                f"{self.name} is not on PATH and Go is missing to build it: install either, or name a running one in "
                f"{self.address_variable}"
            )
        say(f"building {self.name} {self.version} with Go; this takes about a minute, once")
        _build(self.module, self.version, folder / self.name)


def _build(module: str, version: str, program: Path) -> None:
    """Builds the program of this version of a module. MissingServerError if it cannot be built."""
    with tempfile.TemporaryDirectory(prefix="wal-go-build-") as work:
        for arguments in (("mod", "init", "build"), ("get", f"{module}@v{version}"), ("build", "-trimpath", "-o", str(program), module)):
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
