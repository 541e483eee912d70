"""A name belongs to one class of the product: a search for the name finds that class."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from tests.docs.snippets import ROOT

PRODUCT = ("wal", "actors", "broadcaster")


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(path for package in PRODUCT for path in (ROOT / package).rglob("*.py") if "_pb2" not in path.name):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(path.relative_to(ROOT))
    assert len(places) > 500
    assert not {name: found for name, found in places.items() if len(found) > 1}
