"""A name in backticks exists: in docstrings, comments and pages, as an identifier of the code, a member of its class, or a file."""

from __future__ import annotations

import builtins
import errno
import functools
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.docs.snippets import PAGES, ROOT

OURS: Final = ("wal", "actors", "broadcaster", "examples", "benchmarks", "tests")
"""The packages whose docstrings and comments are read. Names that only tests define do not count outside of tests."""
ELSEWHERE: Final = {
    # Spark
    *(
        "AvailableNow",
        "Trigger",
        "addListener",
        "foreachBatch",
        "lastProgress",
        "mapInArrow",
        "maxRecordsPerBatch",
        "outputMode",
        "pandas_udf",
        "processingTime",
        "readStream",
        "recentProgress",
        "redaction",
        "regex",
        "startOffset",
        "endOffset",
        "writeStream",
        "checkpointLocation",
        "fillna",
        "toPandas",
        "to_pandas",
    ),
    # systemd, Prometheus, databases, other servers
    *(
        "AUTOINCREMENT",
        "MultiProcessCollector",
        "PROMETHEUS_MULTIPROC_DIR",
        "multiprocess",
        "MULTI",
        "ReadWritePaths",
        "StateDirectory",
        "TimeoutStopSec",
        "EnvironmentFile",
        "everysec",
        "readwrite",
        "rule_files",
        "walimplstest",
        "mount",
        "FastAPI",
        "TRY_CAST",
    ),
    # the system and its libraries
    *(
        "AWS_PROXY_URL",
        "chdir",
        "monkey",
        "patch_all",
        "http_proxy",
        "dmesg",
        "exit_aio",
        "iotop",
        "libcrc32c",
        "preexec_fn",
        "run_delay",
        "FALLOC_FL_WRITE_ZEROES",
        "write_zeroes",
    ),
    # made up, as examples
    *("AppendAsync", "Billing", "billing", "Etcd", "Address", "a1", "ab", "mid", "mono", "p0", "p1", "rootPath", "rootpath", "v0"),
}
REMEDY: Final = "mend these names; if one belongs to another system, add it to ELSEWHERE"
MENTION: Final = re.compile(r"(?<!`)`([A-Za-z_][\w.]*(?:/[\w./-]*)?)(?:\([^`\n]*\))?`(?!`)")
BLOCK: Final = re.compile(r"```.*?```", re.DOTALL)
DOCSTRING: Final = re.compile(r'''"""(?!\n).+?"""''', re.DOTALL)
COMMENT: Final = re.compile(r"(?<!\S)# .*")
SENTENCE: Final = re.compile(r'''"[^"\n]* [^"\n]*"''')
CLASS: Final = re.compile(r"^ *class (\w+)", re.MULTILINE)
WORD: Final = re.compile(r"\w+")


class Source:
    """A file of Python: the names in its code, the words in code and strings, and its docstrings and comments, each with its first line."""

    def __init__(self, path: Path) -> None:
        text = path.read_text()
        self.texts = [(text.count("\n", 0, docstring.start()) + 1, docstring[0]) for docstring in DOCSTRING.finditer(text)]
        code = DOCSTRING.sub(lambda docstring: "\n" * docstring[0].count("\n"), text)
        self.texts += [(code.count("\n", 0, comment.start()) + 1, comment[0]) for comment in COMMENT.finditer(code) if "`" in comment[0]]
        self.words = set(WORD.findall(code))
        code = SENTENCE.sub("", COMMENT.sub("", code))
        self.names = set(WORD.findall(code))
        self.classes = CLASS.findall(code)


class Names:
    """The names that exist for a text: of the product, of a test, or of a page, which may also name what only a string has."""

    def __init__(self, sources: dict[str, Source], paths: list[str], *, tests: bool = False, strings: bool = False) -> None:
        mine = [source for path, source in sources.items() if tests or not path.startswith("tests/")]
        others = [path for path in paths if path.endswith((".proto", ".toml", ".yml", ".yaml", "Makefile"))]
        self._names = {*dir(builtins), *dir(errno), *dir(os), *sys.stdlib_module_names, *ELSEWHERE}
        self._names.update(*(source.words if strings else source.names for source in mine))
        self._names.update(*(WORD.findall((ROOT / path).read_text()) for path in others))
        self._names.update(*(WORD.findall(path) for path in paths))
        self._members: dict[str, set[str]] = {}
        for source in mine:
            for name in source.classes:
                self._members.setdefault(name, set()).update(source.names)
        self._prefixes = tuple(name for name in self._names if name.endswith("_") and len(name) > 3)

    def missing(self, mention: str) -> bool:
        """Returns whether this file, or a part of this dotted name, does not exist."""
        if "/" in mention:
            return mention.startswith(tuple(f"{top}/" for top in (*OURS, "docs"))) and not (ROOT / mention).exists()
        words = mention.split(".")
        if not all(self._exists(word) for word in words):
            return True
        return any(member not in self._members.get(owner, {member}) for owner, member in itertools.pairwise(words))

    def _exists(self, word: str) -> bool:
        """Composed names count: a prefix that the code has (`WAL_SERVER_`) with a name, a counter with its `_total`, a family (`wal_`)."""
        if word in self._names or word.removesuffix("_total") in self._names:
            return True
        if word.endswith("_"):
            return any(name.startswith(word) for name in self._names)
        return any(word.startswith(prefix) and word.removeprefix(prefix).lower() in self._names for prefix in self._prefixes)


@functools.cache
def tree() -> tuple[dict[str, Source], list[str]]:
    """Returns the sources by their path, and the paths of all files of the clone."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    paths = [path for path in listed if (ROOT / path).is_file()]
    return {path: Source(ROOT / path) for path in paths if path.endswith((".py", ".pyi")) and path.startswith(OURS)}, paths


def stale(text: str, names: Names) -> Iterator[tuple[int, str]]:
    """Returns the mentions in this text that name nothing, not even in a code block of the text, with their lines from 0 on."""
    shown = {word for block in BLOCK.findall(text) for word in WORD.findall(block)}
    text = BLOCK.sub(lambda block: "\n" * block[0].count("\n"), text)
    for mention in MENTION.finditer(text):
        if names.missing(mention[1].rstrip(".")) and mention[1] not in shown:
            yield text.count("\n", 0, mention.start()), mention[1]


def test_docstrings_and_comments_name_what_exists() -> None:
    sources, paths = tree()
    names = {tests: Names(sources, paths, tests=tests) for tests in (False, True)}
    gone = [
        f"{path}:{first + line}: `{mention}`"
        for path, source in sources.items()
        for first, text in source.texts
        for line, mention in stale(text, names[path.startswith("tests/")])
    ]
    assert not gone, "\n".join([REMEDY, *gone])


def test_pages_name_what_exists() -> None:
    # Pages of names that are gone, or of another language.
    translated = {"CHANGELOG.md", "message-streams.md"}
    names = Names(*tree(), tests=True, strings=True)
    pages = [page for page in PAGES if page.name not in translated]
    gone = [f"{page.relative_to(ROOT)}:{line + 1}: `{mention}`" for page in pages for line, mention in stale(page.read_text(), names)]
    assert not gone, "\n".join([REMEDY, *gone])
