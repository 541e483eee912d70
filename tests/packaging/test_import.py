"""Importing the package loads no module that only some programs need, and otherwise only modules that the imported names need."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

import wal

ROOT: Final = Path(__file__).parents[2]
RARELY_NEEDED: Final = (
    "wal.storage.pulsar", "wal.storage.kv.etcd", "wal.network", "wal.rpc", "wal.serve", "wal.spark", "wal.streams", "urllib.request",
    "http.client", "email", "google.protobuf", "grpc", "pulsar", "pyarrow", "pyspark", "rocksdict", "uvloop",
)  # fmt: skip
"""The modules that a program which opens a directory never needs."""
ENGINE: Final = (
    "wal.node.local.log",
    "wal.node.local.read_only_log",
    "wal.storage.journal",
    "wal.storage.memory",
    "wal.storage.kv",
    "sqlite3",
    "tomllib",
)
"""The modules that are needed when a log is opened."""
IN_MEMORY: Final = """\
import asyncio
from wal import open_wal

async def open_and_close():
    await (await open_wal("memory:")).close()

asyncio.run(open_and_close())
"""


def loaded(code: str) -> set[str]:
    """Returns the modules of a fresh process after this code."""
    command = [sys.executable, "-c", f"{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(ran.stdout.splitlines()[-1]))


def of(names: tuple[str, ...], modules: set[str]) -> set[str]:
    return {module for module in modules for name in names if module == name or module.startswith(f"{name}.")}


def test_importing_the_package_loads_nothing_else() -> None:
    modules = loaded("import wal")
    assert {module for module in modules if module.startswith("wal")} == {"wal", "wal._version", "wal.runtime", "wal.runtime.installation"}
    assert of(("actors", "broadcaster", "asyncio", "anyio", "msgspec", "google_crc32c", *RARELY_NEEDED, *ENGINE), modules) == set()


def test_names_of_the_first_screen_load_little() -> None:
    DEPENDENCIES = "import asyncio, anyio, msgspec, google_crc32c"
    modules = loaded("from wal import Message, open_wal")
    assert of((*RARELY_NEEDED, *ENGINE), modules) == set()
    dependencies = loaded(DEPENDENCIES)
    own = of(("wal", "actors", "broadcaster"), modules)
    assert len(own) <= 130
    assert len(modules - own - dependencies) <= 40, sorted(modules - own - dependencies)


def test_message_to_broadcast_loads_no_log() -> None:
    modules = loaded("from wal import BroadcastMessage, BroadcastState, ResourceKey")
    assert of(("wal.api", "wal.engine", "wal.write", "actors"), modules) == set()
    assert len(of(("wal", "broadcaster"), modules)) <= 25


@pytest.mark.parametrize("code", [IN_MEMORY, "import wal.bridge"], ids=["a log in memory", "the bridge"])
def test_log_on_files_loads_no_other_backend(code: str) -> None:
    assert of(RARELY_NEEDED, loaded(code)) == set()


def test_public_names_exist_in_their_modules() -> None:
    names = json.dumps(sorted(wal.__all__))
    loaded(f"import wal\nfor name in {names}:\n    assert getattr(wal, name) is not None, name\nassert set({names}) <= set(dir(wal))")
    loaded("import wal\nassert wal.errors.WALError and wal.timestamp.compose and wal.bridge.iterate")
    loaded("from wal import flowgraph, msgstream, params, watchdog\nassert msgstream.MsgStream and watchdog.Watchdog")
    loaded("from wal import *\nassert open_wal and Message and WALAccesser")
    with pytest.raises(AttributeError, match="module 'wal' has no attribute 'nothing'"):
        wal.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_type_checkers_get_the_same_names() -> None:
    tree = ast.parse((ROOT / "wal" / "__init__.py").read_text())
    (checked,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "typing.TYPE_CHECKING"]
    told = {name.name: node.module for node in checked.body if isinstance(node, ast.ImportFrom) for name in node.names}
    rooms = {name: f"{home}.{name}" for name, home in told.items() if home in ("wal", "wal.streams")}
    assert rooms == wal._ROOMS
    assert {name: home for name, home in told.items() if name not in rooms} == wal._HOMES
    assert {*wal._HOMES, "__version__"} == set(wal.__all__)


def test_whichever_package_is_imported_first_finds_the_others() -> None:
    for first in ("actors", "broadcaster", "wal.api.broadcast", "wal.node.local.log", "broadcaster.broadcaster", "wal.write"):
        loaded(f"import {first}\nimport wal.bridge\nfrom broadcaster import Broadcast")
