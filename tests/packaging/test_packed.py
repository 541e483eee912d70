"""The package inside an archive, or packed into one file: its modules are there, and no files beside them."""

from __future__ import annotations

import os
import zipfile
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import wal.runtime.installation
from tests.docs.snippets import ROOT
from tests.processes import run_python


def test_log_works_from_a_zip_archive(tmp_path: Path) -> None:
    program = """
        import asyncio, sys
        import wal
        from wal import bridge, open_wal
        from wal.operate.cli.main import main
        from wal.runtime.installation import install_hint

        assert wal.__file__.startswith(sys.argv[1]), wal.__file__
        data = sys.argv[2]

        async def use():
            async with open_wal(data) as log:
                await log.append("orders", b"1")

        asyncio.run(use())
        assert [message.payload for message in bridge.iterate(data, "orders", follow=False)] == [b"1"]
        assert main(["verify", data]) == 0
        print(install_hint("cluster"))
    """

    archive = tmp_path / "app.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for package in ("wal", "actors", "broadcaster"):
            for path in (ROOT / package).rglob("*.py"):
                packed.write(path, path.relative_to(ROOT).as_posix())
    environment = {**os.environ, "PYTHONPATH": str(archive)}
    ended = run_python("-c", program, archive, tmp_path / "data", environment=environment, cwd=tmp_path, fresh=True)
    assert ended.out.splitlines()[-1].startswith("pip install '")


def test_packed_program_needs_no_files_of_the_siblings(monkeypatch: pytest.MonkeyPatch) -> None:
    class PackedLoader(Loader):
        """The loader of a packed program (PyInstaller), which has the code of a module and not its file."""

        def get_data(self, path: str) -> bytes:
            raise FileNotFoundError(path)

    def packed(name: str) -> ModuleSpec:
        return ModuleSpec(name, PackedLoader(), origin=str(ROOT / name / "__init__.py"))

    monkeypatch.setattr(wal.runtime.installation, "_find", packed)
    wal.runtime.installation.check_siblings()
