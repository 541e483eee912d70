"""The types that users see are correct: mypy and pyright accept right uses, mypy refuses wrong ones, and the pages pass too."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final, get_type_hints

import pytest

from tests.docs.snippets import PAGES, ROOT, blocks
from tests.typing.snippets import write_modules
from wal import Settings, SettingsOverrides

HERE: Final = Path(__file__).parent


def mypy(*arguments: str | Path) -> str:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", "--no-pretty"]
    command += ["--config-file", str(ROOT / "pyproject.toml"), "--python-executable", sys.executable]
    ran = subprocess.run([*command, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    return ran.stdout


def test_right_and_wrong_uses_are_told_apart() -> None:
    said = mypy(HERE / "right_uses.py", HERE / "wrong_uses.py")
    found = set(re.findall(r"(\w+)\.py:(\d+): error: .*\[([\w-]+)\]", said))
    wrong = (HERE / "wrong_uses.py").read_text().splitlines()
    expected = {
        ("wrong_uses", str(number), code)
        for number, line in enumerate(wrong, 1)
        for codes in re.findall(r"# E: ([\w, -]+)$", line)
        for code in codes.split(", ")
    }
    assert len(expected) > 30
    assert found == expected, said


def test_pyright_agrees_on_what_is_right(tmp_path: Path) -> None:
    (tmp_path / "right_uses.py").write_text((HERE / "right_uses.py").read_text())
    (tmp_path / "pyrightconfig.json").write_text('{"typeCheckingMode": "standard"}')
    command: list[str | Path] = [Path(sys.executable).with_name("basedpyright"), "--pythonpath", sys.executable, "right_uses.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_first_pages_pass_mypy_strict(tmp_path: Path) -> None:
    strict = [ROOT / "README.md", ROOT / "docs" / "tutorial.md"]
    write_modules(strict, tmp_path)
    assert mypy(*tmp_path.glob("*.py")) == ""


def test_how_to_pages_pass_mypy(tmp_path: Path) -> None:
    # Their functions have no annotations, to be short; what they call is checked all the same.
    how_to = [page for page in PAGES if page.parent.name == "howto" and any(blocks(page))]
    write_modules(how_to, tmp_path)
    relaxed = ("--allow-untyped-defs", "--allow-incomplete-defs", "--allow-untyped-calls", "--disable-error-code=no-redef")
    assert len(how_to) > 10
    assert mypy(*relaxed, *tmp_path.glob("*.py")) == ""


def test_overrides_are_the_settings() -> None:
    assert get_type_hints(SettingsOverrides) == get_type_hints(Settings)
    assert not SettingsOverrides.__required_keys__


@pytest.mark.parametrize("checker", ["mypy", "basedpyright"])
def test_checkers_are_installed(checker: str) -> None:
    """They are in the lock: a test above that finds none must not look as if the types were wrong."""
    assert Path(sys.executable).with_name(checker).exists()
