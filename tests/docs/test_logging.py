"""The page on logging names exactly the loggers in the code, each with exactly the levels that it uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.docs.snippets import ROOT

PAGE: Final = ROOT / "docs" / "reference" / "logging.md"
LEVELS: Final = {"debug": "DEBUG", "info": "INFO", "warning": "WARNING", "error": "ERROR", "exception": "ERROR"}


Sources = list[tuple[Path, ast.Module]]


@pytest.fixture(scope="module")
def sources() -> Sources:
    """The files of the product, each parsed. They are forgotten after this module: a large heap makes each later collection slow."""
    paths = [path for folder in ("actors", "broadcaster", "wal") for path in (ROOT / folder).rglob("*.py")]
    return [(path, ast.parse(path.read_text())) for path in paths]


def logger_of(node: ast.AST) -> str | None:
    """Returns the name in `logging.getLogger("name")`."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "getLogger":
        (name,) = node.args
        assert isinstance(name, ast.Constant)
        return str(name.value)
    return None


def test_every_logger_with_its_levels(sources: Sources) -> None:
    # The (logger, level) of lines of the Pulsar client.
    from_elsewhere = {("wal.pulsar", "DEBUG"), ("wal.pulsar", "ERROR")}

    def used(tree: ast.Module) -> Iterator[tuple[str, str]]:
        """Returns (logger, level) of each call in a file."""
        variables: dict[str, str] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                name = logger_of(node.value)
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                if name is not None and isinstance(target, ast.Name):
                    variables[target.id] = name
        for call in ast.walk(tree):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            if not (isinstance(call.func.value, ast.Name) and call.func.value.id in variables):
                continue
            logger = variables[call.func.value.id]
            if call.func.attr in LEVELS:
                yield logger, LEVELS[call.func.attr]
            elif call.func.attr == "log":
                named = re.findall(r"logging\.([A-Z]+)", ast.unparse(call.args[0]))
                yield from ((logger, level) for level in named)

    found = {pair for _, tree in sources for pair in used(tree)} | from_elsewhere
    rows = re.findall(r"^\| `((?:wal|actors)[\w.]*)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    groups = [(logger, levels) for logger, cell in rows for levels in re.findall(r"(?:^|; )([A-Z, ]+): ", cell)]
    stated = {(logger, level) for logger, levels in groups for level in levels.split(", ")}
    assert stated == found


def test_no_logger_is_named_in_another_way(sources: Sources) -> None:
    """Each logger is created at the top of its file with a literal name: `wal`, `wal.` and a part, or `actors`."""
    for path, tree in sources:
        names = [name for node in ast.walk(tree) if (name := logger_of(node)) is not None]
        assert len(names) <= 1, path
        for name in names:
            assert re.fullmatch(r"actors|wal(\.[a-z_]+)*", name), f"{path}: {name}"


def test_fields_of_every_event_are_listed(sources: Sources) -> None:
    """The page names each `wal_event` of the code, with exactly its fields."""
    found: dict[str, set[str]] = {}
    for _, tree in sources:
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
        lines = [call for call in calls if getattr(call.func, "attr", "") in {*LEVELS, "log"}]
        for keyword in [keyword for call in lines for keyword in call.keywords if keyword.arg == "extra"]:
            assert isinstance(keyword.value, ast.Dict), "the fields of a line are written where it is"
            fields = {ast.literal_eval(key): value for key, value in zip(keyword.value.keys, keyword.value.values, strict=True) if key}
            found.setdefault(ast.literal_eval(fields.pop("wal_event")), set()).update(fields)
    listed = PAGE.read_text().partition("## Fields for machines")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w ]+)` \| (.*) \| [A-Z, ]+ \|$", listed, re.MULTILINE)
    assert {event: set(re.findall(r"`(wal_\w+)`", fields)) for event, fields in rows} == found
