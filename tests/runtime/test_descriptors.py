"""No file of a log has the number of a standard stream that the process closed: what is written to the stream would be written there."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import wal
from tests.processes import Line, Other
from wal import open_wal

STREAMS = (0, 1, 2)


def close_streams() -> None:
    """Closes the standard streams, as a daemon does."""
    for fd in STREAMS:
        with contextlib.suppress(OSError):
            os.close(fd)


def open_streams() -> list[str]:
    """Returns what the numbers of the standard streams are now."""
    targets = []
    for fd in STREAMS:
        with contextlib.suppress(FileNotFoundError):
            targets.append(os.readlink(f"/proc/self/fd/{fd}"))
    return targets


@pytest.mark.linux
async def test_files_of_a_log_spare_the_standard_streams(data_dir: Path) -> None:
    def use_log_without_streams(line: Line, data: str) -> None:
        async def use() -> None:
            close_streams()
            async with open_wal(data, segment_bytes=1 << 20, pchannels=1) as log:
                line.tell(open_streams())
                close_streams()  # sqlite has opened the null device there
                for _ in range(14):  # the last segments get the first free numbers
                    message_id = (await log.append("orders", bytes(100_000))).message_id
                async with log.read("orders", cursor="billing") as scanner:
                    first = (await anext(scanner)).message_id
                    await scanner.save()
                line.tell(open_streams())
                await log.truncate(up_to=first)
                close_streams()
                async with open_wal(data, read_only=True) as reader:
                    assert await reader.last("orders") == message_id
                    line.tell(open_streams())

        asyncio.run(use())

    async with Other(use_log_without_streams, str(data_dir)) as child:
        for _ in range(3):
            assert set(await child.hear()) <= {"/dev/null"}
        await child.end()


def test_product_opens_files_above_the_standard_streams() -> None:
    # The functions themselves; what runs in tests of users; and the end of the command line, which opens the standard output again.
    exempt = ("wal/runtime/descriptors.py", "wal/testing/", "wal/operate/cli/main.py")
    # What a file has that may open another one: most have nothing, and need no parsing.
    opens = re.compile(r"\bos\.(pipe|dup|eventfd|memfd_create)\b|mmap\.mmap|write_bytes|write_text|copyfile|\bopen\(")

    def calls(tree: ast.Module) -> Iterator[ast.Call]:
        """Yields all calls, but for those whose result `above_streams` takes."""
        raised = {id(call.args[0]) for call in ast.walk(tree) if isinstance(call, ast.Call) and ast.unparse(call.func) == "above_streams"}
        return (call for call in ast.walk(tree) if isinstance(call, ast.Call) and id(call) not in raised)

    def may_be_low(call: ast.Call) -> bool:
        """Returns whether this call may leave a file that can be written under the number of a standard stream."""
        name = ast.unparse(call.func)
        match name:
            case "os.open" | "os.pipe" | "os.dup" | "os.eventfd" | "os.memfd_create":
                return True
            case "mmap.mmap":
                return ast.unparse(call.args[0]) != "-1"
        if name.endswith((".write_bytes", ".write_text", "copyfile")):
            return True
        modes = [arg.value for arg in call.args[:2] if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        writes = any(set(mode) <= set("rwxabt+") and set(mode) & set("wxa+") for mode in modes)
        is_open = bool(call.args) and ast.unparse(call.args[0]).startswith(("fd", "above_streams("))  # opened by these functions
        return (
            name.rpartition(".")[2] == "open" and writes and not is_open and not any(keyword.arg == "opener" for keyword in call.keywords)
        )

    root = Path(wal.__file__).parent
    low = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root.parent).as_posix()
        if not name.startswith(exempt) and opens.search(text := path.read_text()):
            low += [f"{name}:{call.lineno}: {ast.unparse(call.func)}" for call in calls(ast.parse(text)) if may_be_low(call)]
    assert low == []
