"""Another distribution's `broadcaster` or `actors`: the import of `wal` reports it, with the distribution and the remedy."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT
from tests.packaging.environments import Environment

FOREIGN = '"""Broadcasts over a channel."""\n\n\nclass Broadcast:\n    pass\n'
USED = "import wal; from wal import open_wal, BroadcastMessage; import broadcaster; broadcaster.Broadcast; import wal.node.local.log"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = Environment(tmp_path_factory.mktemp("environment") / "venv")
    made.install(str(ROOT))
    return made


@pytest.mark.parametrize("name", ["broadcaster", "actors"])
def test_distribution_installed_over_ours_is_named(environment: Environment, tmp_path: Path, name: str) -> None:
    project = """
        [build-system]
        requires = ["hatchling>=1.27"]
        build-backend = "hatchling.build"

        [project]
        name = "foreign-{name}"
        version = "0.3.1"

        [tool.hatch.build.targets.wheel]
        packages = ["{name}"]
    """

    def foreign(directory: Path, name: str) -> Path:
        """The clone of a distribution that installs a package of this name."""
        (directory / name).mkdir(parents=True)
        (directory / name / "__init__.py").write_text(FOREIGN)
        (directory / "pyproject.toml").write_text(textwrap.dedent(project).format(name=name))
        return directory

    assert environment.run(USED).stderr == ""
    environment.install(str(foreign(tmp_path / "other", name)))
    assert "class Broadcast" in (environment.packages / name / "__init__.py").read_text(), "its files are the later ones"
    said = environment.run(USED).stderr.splitlines()[-1]
    assert said.startswith(f"ImportError: the package '{name}' at {environment.packages}/{name}/__init__.py does not belong to")
    assert f"the distribution foreign-{name}" in said
    assert "a virtual environment of its own" in said
    remedy = re.search(rf"\(pip uninstall foreign-{name}; pip install --force-reinstall --no-deps '(.*?)'\)", said)
    assert remedy is not None
    environment.uninstall(f"foreign-{name}")
    missing = environment.run(USED).stderr.splitlines()[-1]
    assert missing.startswith(f"ImportError: the package '{name}' of wal-runtime is missing beside {environment.packages}/wal")
    assert f"install wal-runtime again: pip install --force-reinstall --no-deps '{remedy[1]}'" in missing
    environment.install("--force-reinstall", "--no-deps", remedy[1])
    assert environment.run(USED).stderr == ""


@pytest.mark.parametrize("name", ["broadcaster", "actors"])
@pytest.mark.parametrize("form", ["package", "module"])
def test_package_that_hides_ours_is_named(environment: Environment, tmp_path: Path, name: str, form: str) -> None:
    other = tmp_path / name / "__init__.py" if form == "package" else tmp_path / f"{name}.py"
    other.parent.mkdir(exist_ok=True)
    other.write_text(FOREIGN)
    said = environment.run("import wal", path=tmp_path).stderr.splitlines()[-1]
    assert said.startswith(f"ImportError: the package '{name}' at {other} does not belong to the wal-runtime at {environment.packages}")
    assert "take its directory off the path" in said


def test_earlier_import_of_a_sibling_is_reported(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "broadcaster.py").write_text(FOREIGN)
    first = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import broadcaster; sys.path.pop(0); import wal"
    assert f"ImportError: the package 'broadcaster' at {tmp_path}/broadcaster.py" in environment.run(first).stderr


@pytest.mark.parametrize("form", ["archive", "without sources", "behind a link"])
def test_our_own_packages_are_ours_wherever_they_lie(tmp_path: Path, form: str) -> None:
    place = tmp_path / "place"
    for name in ("wal", "actors", "broadcaster"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    if form == "archive":
        with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
            for path in place.rglob("*.py"):
                archive.write(path, path.relative_to(place))
        place = tmp_path / "all.zip"
    elif form == "without sources":
        compiled = "import compileall, sys; sys.exit(not compileall.compile_dir(sys.argv[1], quiet=1, legacy=True))"
        subprocess.run([sys.executable, "-c", compiled, str(place)], check=True)
        for path in place.rglob("*.py"):
            path.unlink()
    else:
        (tmp_path / "link").symlink_to(place)
        place = tmp_path / "link"
    code = f"import sys; sys.path.insert(0, {str(place)!r}); {USED}; print(wal.__file__)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.stderr == ""
    assert ran.stdout.startswith(f"{place}/wal/__init__.py")
