"""Each how-to page runs in an environment with only the extra that it names, and the tutorial in the REPL that it recommends.

So a page cannot use a package that the development environment has by chance.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.docs import snippets
from tests.docs.snippets import ROOT, blocks, extras, matches
from tests.docs.test_pages import ALONE, real_names
from tests.packaging.environments import Environment
from tests.pythons import find_python
from tests.spark.java import require_java

IN_TESTS_OF_SPARK: Final = pytest.mark.soak("tests/spark/test_examples.py runs the page, and spark.md needs the same extra")
PAGES: Final = [pytest.param(page, marks=IN_TESTS_OF_SPARK if page.name == "spark-sink.md" else ()) for page in ALONE if list(blocks(page))]
REPL_PYTHONS: Final = ("3.11", pytest.param("3.12", marks=pytest.mark.soak("3.11 shows the same")))
TIMEOUT_S: Final = 240


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the clone in its current state."""
    directory = tmp_path_factory.mktemp("wheel")
    ensured = subprocess.run([ROOT / ".ci" / "ensure-uv"], check=True, capture_output=True, text=True)
    command = [str(ROOT / ensured.stdout.strip()), "build", "--quiet", "--wheel", "--out-dir", str(directory), str(ROOT)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert built.returncode == 0, built.stderr
    (wheel,) = directory.glob("*.whl")
    return wheel


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Callable[..., Environment]:
    """Returns the environment with these extras and nothing else, which is created at its first use."""
    environments: dict[tuple[str, str], Environment] = {}

    def with_extras(extras: str, python: str = sys.executable) -> Environment:
        if (extras, python) not in environments:
            created = Environment(tmp_path_factory.mktemp("environment") / "venv", python)
            created.install_wheel(wheel, extras.split(",") if extras else [])
            environments[extras, python] = created
        return environments[extras, python]

    return with_extras


def variables(**more: str) -> dict[str, str]:
    """Returns this process's environment without what would bring the clone, or settings, into a child."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "SPARK_", "WAL_"))} | more


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_needs_only_its_extra(
    page: Path, environment: Callable[..., Environment], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    names = [f"{name}={real}" for name, real in real_names(page, request).items()]
    spark = "spark" in extras(page)
    if spark:
        require_java()
    ran = environment(extras(page)).python(
        str(Path(snippets.__file__).resolve()),
        str(page),
        *names,
        environment=variables(**({} if spark else {"PYTHONWARNINGS": "error"})),
        directory=tmp_path,
        timeout_s=TIMEOUT_S,
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"


@pytest.mark.parametrize("version", REPL_PYTHONS)
def test_tutorial_runs_in_the_repl(version: str, environment: Callable[..., Environment], tmp_path: Path) -> None:
    tutorial = ROOT / "docs" / "tutorial.md"
    python = find_python(version)
    if python is None:
        pytest.skip(f"NOT TESTED: there is no python{version} on this machine")
    pasted, expected = [], []
    for number, block in enumerate(blocks(tutorial)):
        # A person pastes a block, sees its output, and presses Enter once more, which ends a compound statement.
        pasted.append(f"{block.code}\nprint('end of block', {number})\n")
        expected.append(block.output or "")
    ran = environment("", str(python)).python(
        "-m", "asyncio", environment=variables(), stdin="".join(pasted), directory=tmp_path, timeout_s=TIMEOUT_S
    )
    assert "Error" not in ran.stderr, ran.stderr
    printed = re.split(r"end of block \d+\n", re.sub(r"^(?:(?:>>>|\.\.\.) )+", "", ran.stdout, flags=re.MULTILINE))
    assert len(printed) == len(expected) + 1, ran.stdout
    for output, says in zip(printed, expected, strict=False):
        assert matches(output, says), f"{output[:500]!r} where the page says {says!r}"
