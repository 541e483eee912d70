"""Runs the quick tests on every other Python that the project supports, each in its own environment: `python -m tests.pythons`.

It creates `.venv-3.12/` and the like from uv.lock. The classifiers in pyproject.toml name the supported versions. It looks for interpreters
on the PATH and where pyenv keeps them, and never downloads one; it warns loudly of a missing one, but does not fail. The exit status is 1
when a test failed.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
WITHOUT: Final = "not pulsar and not cluster"
"""These environments have no client of Pulsar."""
QUICK: Final = (
    "tests/api/appends/test_append.py",
    "tests/api/appends/test_cancellation.py",
    "tests/api/opening/test_first_screen.py",
    "tests/read/test_read.py",
    "tests/api/opening/test_reopening.py",
    "tests/api/txns/test_txn.py",
    "tests/actors",
    "tests/storage/journal/test_journal.py",
    "tests/storage/test_memory.py",
    "tests/api/blocking/test_blocking.py",
    "tests/channels",
    "tests/frame/test_golden.py",
    "tests/storage/kv/test_conformance.py",
    "tests/storage/kv/test_watch.py",
    "tests/message",
    "tests/packaging/test_import.py",
    "tests/write/test_tick_frames.py",
    "tests/client/test_exit.py",
    "tests/timestamp/test_oracle.py",
)
"""Tests that depend on the interpreter: the loop, threads, files, bytes, processes, imports. They take half a minute on two idle cores.
Its environment has no client of Pulsar."""


def main() -> int:
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    failed = []
    for version in _claimed():
        if version == own:
            continue
        python = find_python(version)
        if python is None:
            print(
                f"NOT TESTED ON PYTHON {version}: no python{version} on the PATH, and none of pyenv; install one and run this again",
                flush=True,
            )
        elif not _passes(version, python):
            failed.append(version)
    for version in failed:
        print(f"FAILED ON PYTHON {version}", flush=True)
    return 1 if failed else 0


def _claimed() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))


def find_python(version: str) -> Path | None:
    """Returns a working interpreter of this version: a shim of pyenv exists but does not work when its version is not selected."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    on_path = shutil.which(f"python{version}")
    candidates = [Path(on_path)] if on_path else []
    if os.access(pyenv, os.R_OK | os.X_OK):  # it may be another user's
        candidates += [found / "bin" / f"python{version}" for found in sorted(pyenv.glob(f"{version}.*"), reverse=True)]
    asked = "import sys; print('%d.%d' % sys.version_info[:2])"
    for python in candidates:
        if not python.exists():
            continue
        told = subprocess.run([python, "-c", asked], capture_output=True, text=True, timeout=60, check=False)
        if told.stdout.strip() == version:
            return python
    return None


def _passes(version: str, python: Path) -> bool:
    environment = {name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"}
    place = ROOT / f".venv-{version}"
    ensured = subprocess.run([ROOT / ".ci" / "ensure-uv"], check=True, capture_output=True, text=True)
    uv = str(ROOT / ensured.stdout.strip())  # a path on PATH is absolute, one in the clone is not
    wanted = ["--no-default-groups", "--group", "quick", "--extra", "cluster"]
    subprocess.run(
        [uv, "sync", "--quiet", "--locked", "--no-python-downloads", "--python", str(python), *wanted],
        cwd=ROOT,
        env=environment | {"UV_PROJECT_ENVIRONMENT": str(place), "TMPDIR": str(ROOT / ".uv" / "tmp")},  # made by `make setup`
        check=True,
    )
    print(f"==> Python {version}, {python}", flush=True)
    began = time.monotonic()
    tests = [str(place / "bin" / "python"), "-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-k", WITHOUT, *QUICK]
    passed = subprocess.run(tests, cwd=ROOT, env=environment, check=False).returncode == 0
    print(f"==> Python {version} took {time.monotonic() - began:.0f} s", flush=True)
    return passed


if __name__ == "__main__":
    sys.exit(main())
