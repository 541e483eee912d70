"""The code of the pages as modules that a type checker can read: the blocks of a page one after the other, in one coroutine."""

from __future__ import annotations

import textwrap
from pathlib import Path

from tests.docs.snippets import ROOT, blocks


def write_modules(pages: list[Path], folder: Path) -> None:
    """Writes a module for each page into a folder."""
    for page in pages:
        name = "_".join(page.relative_to(ROOT).with_suffix("").parts).replace("-", "_").lower()
        code = "\n".join(f"# {page.name}:{block.line}\n{block.code}" for block in blocks(page))
        (folder / f"{name}.py").write_text(f"async def page() -> None:\n{textwrap.indent(code, '    ')}\n")
