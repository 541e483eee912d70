"""Runs the code in Markdown pages as it is written there.

Every ```python block of a page is run, in order, in one namespace a page (so that a page can tell one story), with top-level
`await` and `async with` as in `python -m asyncio`. A ```text block right after it is the expected output: compared line by line, where `…`
matches anything and a number of 17 digits or more (a tick) any such number.

`python snippets.py PAGE [NAME=REAL …]` runs one page, with each NAME in its code replaced, and exits 1 where the output is not the page's.
It needs nothing but this file and the product, so that it also runs in an environment that has only the extra that the page names.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import io
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")])

_FENCE: Final = re.compile(r"^(?P<indent> *)```(?P<language>[a-z]*)\n(?P<body>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL)
_INSTALL: Final = re.compile(r"pip install '\.\[([a-z,]+)\]'")
_TICK: Final = re.compile(r"\b\d{17,20}\b")


class Block(msgspec.Struct):
    """Code, the line of the page where it begins, and its expected output (None: unspecified)."""

    page: Path
    line: int
    code: str
    output: str | None


def blocks(page: Path) -> Iterator[Block]:
    """Returns the ```python blocks of a page, each with the ```text block right after it."""
    text = page.read_text()
    fences = list(_FENCE.finditer(text))
    for at, fence in enumerate(fences):
        if fence["language"] != "python":
            continue
        output = None
        if at + 1 < len(fences):
            following = fences[at + 1]
            if following["language"] == "text" and not text[fence.end() : following.start()].strip():
                output = following["body"]
        yield Block(page, text.count("\n", 0, fence.start()) + 2, inspect.cleandoc("\n" + fence["body"]) + "\n", output)


def extras(page: Path) -> str:
    """Returns the extras that a page needs, such as `etcd` or `rocksmq,wire`: the page names them in the installation before its first
    code.
    """
    introduction = page.read_text().partition("```python\n")[0]
    return ",".join(sorted({name for names in _INSTALL.findall(introduction) for name in names.split(",")}))


def blocks_before_spark(page: Path) -> list[Block]:
    """Returns the blocks of a page up to the first that needs Spark. tests/spark runs pages with such a block in full, in its session."""
    return list(itertools.takewhile(lambda block: "wal.spark" not in block.code, blocks(page)))


async def run(block: Block, namespace: dict[str, Any]) -> str:
    """Runs the block in this namespace and returns its output. Errors point at the line of the page.

    A block that awaits nothing runs in a thread: like a program before its loop begins, it may wait for a file.
    """
    source = "\n" * (block.line - 1) + block.code
    code = compile(source, str(block.page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if code.co_flags & inspect.CO_COROUTINE:
            await eval(code, namespace)
        else:
            await asyncio.to_thread(eval, code, namespace)
    return printed.getvalue()


def matches(printed: str, expected: str) -> bool:
    """Returns whether the output equals the page's."""
    pattern = re.escape(_TICK.sub("TICK", expected.rstrip())).replace("…", ".*")
    return re.fullmatch(pattern, _TICK.sub("TICK", printed.rstrip())) is not None


async def run_page(blocks: Iterable[Block], replacements: Mapping[str, str]) -> None:
    """Runs these blocks of a page in one namespace; AssertionError where the output differs from the page's."""
    namespace: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks:
        for name, real in replacements.items():
            block = msgspec.structs.replace(block, code=block.code.replace(name, real))
        printed = await run(block, namespace)
        if block.output is not None and not matches(printed, block.output):
            raise AssertionError(f"{block.page}:{block.line} printed\n{printed}\nbut says\n{block.output}")


async def _main(page: str, *replacements: str) -> None:
    import wal

    try:
        await run_page(blocks(Path(page)), dict(replacement.split("=", 1) for replacement in replacements))
    finally:
        await wal.release()


if __name__ == "__main__":
    asyncio.run(_main(*sys.argv[1:]))
