"""docs/README.md links to every page, the pages to every example; ARCHITECTURE.md draws every room, in the order of the layers."""

from __future__ import annotations

import ast
import itertools
import re
import tomllib

import pytest

from tests.docs.snippets import PAGES, ROOT

DRAWING = (ROOT / "ARCHITECTURE.md").read_text().partition("```\n")[2].partition("```")[0].splitlines()
DRAWN = [re.findall(r"(?:^|  )wal/(\w+(?:\.py)?)(?:/| )", line) for line in DRAWING]
"""The rooms that have their entry on each line of the map."""


def test_index_leads_to_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    assert "](docs/README.md)" in (ROOT / "README.md").read_text()
    linked = set(re.findall(r"\]\(([\w./-]+)\)", index.read_text()))
    pages = {str(page.relative_to(index.parent)) for page in PAGES if page.is_relative_to(index.parent)}
    assert pages - linked == {"README.md"}


@pytest.mark.parametrize("word", ["retry", "ttl", "priority", "gunicorn", "websocket", "dead letter queue", "consumer group"])
def test_glossary_has_words_of_other_systems(word: str) -> None:
    sections = (ROOT / "docs" / "reference" / "glossary.md").read_text().split("\n### ")
    texts = [text for heading, _, text in (section.partition("\n") for section in sections) if word in heading.lower()]
    assert len(texts) == 1
    assert "](" in texts[0], "it leads to a page"


def test_every_example_is_named_by_a_page_and_run_by_a_test() -> None:
    examples = {path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__"}
    pages = "".join(page.read_text() for page in PAGES)
    assert {name for name in examples if f"examples/{name}.py" not in pages} == set()
    tests = "".join((ROOT / f"tests/{room}/test_examples.py").read_text() for room in ("docs", "spark"))
    assert {name for name in examples if not re.search(rf"\b{name}\b", tests)} == set()


def test_every_room_is_on_the_map() -> None:
    rooms = sorted(
        path.name if path.is_dir() else f"{path.stem}.py"
        for path in (ROOT / "wal").iterdir()
        if (path.is_dir() and (path / "__init__.py").exists()) or (path.suffix == ".py" and not path.name.startswith("_"))
    )

    assert sorted(room for line in DRAWN for room in line) == rooms


def test_map_draws_rooms_in_order_of_layers() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["id"] == "rooms")
    depth = {room: number for number, layer in enumerate(layers) for room in re.findall(r"\w+", layer)}
    lines = [[depth[room.removesuffix(".py")] for room in line] for line in DRAWN]
    assert all(len(set(line)) <= 1 for line in lines), "rooms on one line are of one layer"
    drawn = list(itertools.chain.from_iterable(lines))
    assert drawn == sorted(drawn), "a room stands above those that it may import"


def test_room_says_how_its_parts_work_together(subtests: pytest.Subtests) -> None:
    files_seen_at_a_glance = 5
    # The rooms with more files than a reader sees at a glance.
    packages = sorted(
        str(path.parent.relative_to(ROOT))
        for top in ("wal", "actors", "broadcaster")
        for path in (ROOT / top).rglob("__init__.py")
        if len(list(path.parent.glob("*.py"))) > files_seen_at_a_glance and path.parent.name not in ("wal", "api")
    )

    for room in packages:
        with subtests.test(room):
            described = ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text())) or ""
            sentences = re.findall(r"[.:](?=\s|$)", described)
            assert 2 <= len(sentences) <= 9, f"{room}/__init__.py says it in about five sentences"
            assert "\n* " not in described, f"{room}/__init__.py is no list of files: each file says itself what it does"
