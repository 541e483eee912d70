"""Programs that end with a log still open: the exit closes it, and prints nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.serve.servers import ServerProcess
from wal import Message, bridge

ROOT: Final = Path(__file__).parents[2]
OWN: Final = f"{sys.version_info.major}.{sys.version_info.minor}"
WAIT_S: Final = 60.0
PROGRAMS: Final = {
    "iterate": "messages = bridge.iterate(location, 'orders'); print(next(messages).payload)",
    "record_batches": "rows = bridge.record_batches(location, 'orders'); print(next(rows)['payload'][0].as_py())",
    "blocking": "log = bridge.blocking(location).__enter__(); scanner = log.read('orders'); print(next(scanner).payload)",
}

IN_SOAK: Final = pytest.mark.soak("iterate leaves its log to the same exit by default, and blocking a log of its own")


def interpreters() -> dict[str, Path]:
    """Returns this interpreter, and those of the environments that `make pythons` has made for other versions."""
    others = {path.parents[1].name.removeprefix(".venv-"): path for path in ROOT.glob(".venv-3.*/bin/python")}
    return {OWN: Path(sys.executable)} | {version: path for version, path in others.items() if version != OWN}


@pytest.fixture(scope="module")
def location(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A log with a message, which a process serves over TLS."""
    flags = ("--tls-certificate", str(certificates / "server.pem"), "--tls-key", str(certificates / "server.key"))
    with ServerProcess(tmp_path_factory.mktemp("served") / "data", *flags) as server:
        place = f"wal+ssl://{server.address}?ca={certificates / 'ca.pem'}"
        with bridge.blocking(place) as log:
            log.raw_append(Message("orders", b"1"))
        yield place


@pytest.mark.parametrize("python", interpreters().values(), ids=interpreters().keys())
@pytest.mark.parametrize("program", ["iterate", *(pytest.param(name, marks=IN_SOAK) for name in ("record_batches", "blocking"))])
def test_exit_with_tls_log_open_is_quiet(program: str, python: Path, location: str) -> None:
    """A thread of the loop's pool has read the files of TLS; Python 3.12.0 and 3.12.1 start no thread to end the pool during the exit."""

    def has_arrow(python: Path) -> bool:
        return any(python.parents[1].glob("lib/python3.*/site-packages/pyarrow"))

    if program == "record_batches" and not has_arrow(python):
        pytest.skip(f"pyarrow is not installed for {python}")
    assert ended(python, program, location) == (0, "b'1'\n", "")


@pytest.mark.linux
@pytest.mark.parametrize("python", interpreters().values(), ids=interpreters().keys())
def test_exit_with_own_log_open_is_quiet(python: Path, data_dir: Path) -> None:
    with bridge.blocking(data_dir) as log:
        log.raw_append(Message("orders", b"1"))
    assert ended(python, "blocking", str(data_dir)) == (0, "b'1'\n", "")


def ended(python: Path, program: str, location: str) -> tuple[int, str, str]:
    """Runs a program to its end; returns its exit status and what it printed."""
    text = f"import sys\nfrom wal import bridge\nlocation = sys.argv[1]\n{PROGRAMS[program]}\n"
    ran = subprocess.run(
        [python, "-c", text, location],
        cwd=ROOT, env={**os.environ, "GRPC_VERBOSITY": "NONE"}, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    return ran.returncode, ran.stdout, ran.stderr
