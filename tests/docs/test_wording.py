"""The check of wording: each rule finds its bad example and accepts its good one, in every kind of place that it reads."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
RULES: Final[dict[str, Any]] = tomllib.loads((ROOT / ".ci/wording.toml").read_text())["rules"]
KINDS: Final = {
    "prose": '"""{0}"""\n\n# {0}\nraise ValueError("{0}")\n',
    "test": "def {0}() -> None: ...\n",
    "variable": "{0} = 1\n",
    "subject": "",
}
PLACES: Final = {"prose": 4, "test": 1, "variable": 1, "subject": 1}


def test_every_rule_states_a_reason() -> None:
    for name, rule in RULES.items():
        assert rule["in"] in KINDS, name
        assert rule["reason"].endswith("."), name


@pytest.mark.parametrize("name", RULES)
def test_rule_finds_its_bad_example(tmp_path: Path, name: str) -> None:
    rule = RULES[name]
    project = checked_project(tmp_path, rule["in"], rule["bad"])
    set_limits(project, PLACES[rule["in"]] - 1)
    code, output = run(project)
    assert f"{name}={PLACES[rule['in']]}" in output.split("\n")[0].split()
    assert (code, rule["reason"] in output) == (1, True)


@pytest.mark.parametrize("name", RULES)
def test_rule_accepts_its_good_example(tmp_path: Path, name: str) -> None:
    project = checked_project(tmp_path, RULES[name]["in"], RULES[name]["good"])
    set_limits(project, 0)
    code, output = run(project)
    assert (code, output.split()) == (0, [f"{other}=0" for other in RULES])


def test_tightened_limits_only_fall(tmp_path: Path) -> None:
    project = checked_project(tmp_path, "prose", RULES["behind"]["bad"])
    set_limits(project, 7)
    run(project, "--tighten")
    assert limits(project) == dict.fromkeys(RULES, 0) | {"behind": PLACES["prose"]}
    set_limits(project, 2)
    assert run(project, "--tighten")[0] == 1
    assert limits(project)["behind"] == 2


def test_allowed_place_is_not_counted(tmp_path: Path) -> None:
    project = checked_project(tmp_path, "prose", RULES["behind"]["bad"])
    set_limits(project, 0)
    with (project / ".ci/wording.toml").open("a") as file:
        file.write('\n[[allowed]]\nrule = "behind"\ntext = "The frames behind"\nreason = "It is an example."\n')
    assert run(project)[0] == 0


def test_code_block_of_a_page_is_not_read(tmp_path: Path) -> None:
    project = checked_project(tmp_path, "variable", "pages")
    (project / "page.md").write_text("1. A step:\n\n   ```python\n   # behind\n   ```\n")
    commit(project, "Add a page")
    set_limits(project, 0)
    assert run(project)[0] == 0


def checked_project(root: Path, kind: str, text: str) -> Path:
    """Creates a repository with the check and, in a second commit, the text in each place of its kind."""
    (root / ".ci").mkdir()
    for name in ("wording", "wording.toml"):
        shutil.copy(ROOT / ".ci" / name, root / ".ci" / name)
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    commit(root, "Let the first commit pass")
    for directory in ("wal", "tests"):
        (root / directory).mkdir()
    (root / ("tests" if kind == "test" else "wal") / "module.py").write_text(KINDS[kind].format(text))
    if kind == "prose":
        (root / "page.md").write_text(f"# Page\n\n{text}\n")
    commit(root, text if kind == "subject" else "Add a module")
    return root


def commit(project: Path, subject: str) -> None:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.org")
    subprocess.run(["git", "add", "--all"], cwd=project, check=True)
    subprocess.run(["git", *identity, "commit", "--quiet", "--no-verify", "--message", subject], cwd=project, check=True)


def set_limits(project: Path, limit: int) -> None:
    path = project / ".ci/wording.toml"
    lines = [f"limit = {limit}" if line.startswith("limit = ") else line for line in path.read_text().split("\n")]
    text, _, _ = "\n".join(lines).partition("[[allowed]]")
    path.write_text(text)


def limits(project: Path) -> dict[str, int]:
    return {name: rule["limit"] for name, rule in tomllib.loads((project / ".ci/wording.toml").read_text())["rules"].items()}


def run(project: Path, *arguments: str) -> tuple[int, str]:
    """Runs the check in the project; returns its exit code and what it prints."""
    ran = subprocess.run([sys.executable, ".ci/wording", *arguments], cwd=project, capture_output=True, text=True, check=False)
    assert not ran.stderr, ran.stderr
    return ran.returncode, ran.stdout
