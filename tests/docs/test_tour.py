"""The tours in the docs: their python and console blocks run in order, in one directory, and print the output of the page.

A console block has commands after `$`, each with its output. `wal …` runs in this process, `echo -n TEXT | wal …` gives it an input,
`echo $?` prints the status of the command before it, and `export NAME=VALUE` sets a variable. Standard output and error are one.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

import wal
import wal.operate.status
from tests.docs.snippets import ROOT, blocks, matches, run
from tests.processes import eventually
from wal.operate.cli.main import main

TOURS: Final = ("docs/howto/operate.md", "docs/howto/after-a-crash.md")


@pytest.mark.parametrize("name", TOURS)
async def test_tour_prints_what_it_says(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    console = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    _COMMAND = re.compile(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)

    class Shell:
        """Runs the commands of a page."""

        def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
            self.status = 0
            self._monkeypatch = monkeypatch

        def run(self, command: str) -> str:
            """Runs a command; returns what it printed."""
            if command == "echo $?":
                return f"{self.status}\n"
            if command.startswith("export "):
                self._monkeypatch.setenv(*command.removeprefix("export ").split("=", 1))
                return ""
            given, _, piped = command.rpartition(" | ")
            words = shlex.split(piped)
            assert words[0] == "wal", f"{command!r} is no command of a tour"
            text = "" if not given else shlex.split(given)[2]
            printed = io.StringIO()
            self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(text.encode()))))
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                self.status = main(words[1:])
            return printed.getvalue()

    async def shows_all(log: wal.WALAccesser | None) -> bool:
        """Returns whether other processes see all vchannels of an open log: they do a moment later."""
        if log is None or not repr(log).endswith("open)"):
            return True
        async with wal.open_wal(log.location, read_only=True) as beside:
            return len(await beside.vchannels()) == len(await log.vchannels())

    monkeypatch.chdir(tmp_path)
    page = ROOT / name
    text = page.read_text()
    parts: list[tuple[int, Any]] = [(block.line, block) for block in blocks(page)]
    parts += [(text.count("\n", 0, found.start()) + 2, found[1]) for found in console.finditer(text)]
    namespace: dict[str, Any] = {"__name__": "__page__"}
    shell = Shell(monkeypatch)
    try:
        for line, part in sorted(parts, key=lambda each: each[0]):
            if not isinstance(part, str):
                await run(part, namespace)
                await eventually(partial(shows_all, namespace.get("log")))
                continue
            for command, expected in _COMMAND.findall(part):
                printed = await asyncio.to_thread(shell.run, command)
                assert matches(printed, expected), f"{page}:{line}: {command!r} printed\n{printed}\nbut the page says\n{expected}"
    finally:
        await wal.release()
