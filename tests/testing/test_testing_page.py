"""The tests that docs/howto/testing.md shows pass, in a pytest of their own."""

from __future__ import annotations

from tests.docs.snippets import ROOT, blocks
from tests.testing.conftest import Service


def test_tests_of_the_page_pass(service: Service) -> None:
    code = [block.code for block in blocks(ROOT / "docs" / "howto" / "testing.md")]
    shown = "\n".join(code)
    # In this mode no other process finds the test's module by its name, only by its file.
    ended = service(shown, "-o", "asyncio_mode=auto", "--import-mode=importlib", plugins=("pytest_asyncio.plugin",))
    assert f"{shown.count('def test_')} passed" in ended.out
