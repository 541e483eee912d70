"""The tests in docs/howto/testing.md pass, in a pytest of their own."""

from __future__ import annotations

from tests.docs.snippets import ROOT, blocks
from tests.testing.conftest import Service


def test_tests_of_the_page_pass(service: Service) -> None:
    code = [block.code for block in blocks(ROOT / "docs" / "howto" / "testing.md")]
    shown = "\n".join(code)
    # In this mode other processes import the test's module only by its file, not by its name.
    ended = service(shown, "-o", "asyncio_mode=auto", "--import-mode=importlib", plugins=("pytest_asyncio.plugin",))
    assert f"{shown.count('def test_')} passed" in ended.out
