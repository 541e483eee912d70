"""docs/reference/message-streams.md has each name of Milvus, and each of its Python names exists in a file of its section."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import wal.errors
import wal.streams.msgstream
from wal.streams.msgstream import EarlierMsgType, MsgStream, MsgType, TtMsgStream

ROOT: Final = Path(__file__).parents[3]
PAGE: Final = (ROOT / "docs/reference/message-streams.md").read_text()
SEEDS: Final = (ROOT / "tests/golden/message_stream_seeds.md").read_text()


def rows_of(header: str) -> list[tuple[str, ...]]:
    """Returns the rows of all tables with this header."""
    found: list[tuple[str, ...]] = []
    inside = False
    for line in PAGE.splitlines():
        if not line.startswith("|"):
            inside = False
        elif line.startswith(header):
            inside = True
        elif inside and not line.startswith("|---"):
            found.append(tuple(cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")))
    return found


NUMBERS: Final = rows_of("| Milvus | Python | number |")


class Row(NamedTuple):
    """A row or an item of a section. `python` is empty where the names follow the page's rules; `files` are those of the section."""

    milvus: str
    python: str
    files: tuple[str, ...]


def rows_of_sections() -> Iterator[Row]:
    """Returns the items and table rows of each section that has files; private names have the Python name "private"."""
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE):
        if not (line := re.search(r"^Files: (?:.|\n)*?`\.$", section, re.MULTILINE)):
            continue
        files = tuple(re.findall(r"`([^`]+)`", line[0]))
        yield from (Row(item, "", files) for item in re.findall(r"^\* (`.*)$", section, re.MULTILINE))
        yield from (Row(milvus, python, files) for milvus, python in re.findall(r"^\| (.+?) \| (.+?) \|$", section, re.MULTILINE)[1:])
        for private in re.findall(r"^Private: ([^.]+)\.$", section, re.MULTILINE):
            yield from (Row(names, "private", files) for names in private.split("; "))


ROWS: Final = list(rows_of_sections())


def message_types() -> dict[str, int]:
    """Returns Milvus' name and the number of each MsgType, from the rows of consecutive numbers."""
    types: dict[str, int] = {}
    for numbers, names in rows_of("| numbers |"):
        first, _, last = numbers.partition(" to ")
        listed = re.findall(r"`(\w+)`", names)
        assert len(listed) == int(last or first) - int(first) + 1, numbers
        types |= {name: int(first) + at for at, name in enumerate(listed)}
    return types


def python_name(milvus: str) -> str:
    """Returns the Python names that the page's rules give to these names of Milvus."""
    owners, colon, members = milvus.partition("`: `")
    owners = re.sub(r"`(?:New(?=[A-Z]))?(\w)", lambda first: "`" + first[1].upper(), owners)
    return owners + colon + re.sub(r"\w+", lambda name: snake(name[0]), members)


def snake(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def names_in(cell: str) -> set[str]:
    """Returns the names of a cell: `A` `B`: `c` `d` are A, B, A.c, A.d, B.c and B.d."""
    owners, colon, members = cell.partition("`: `")
    found = set(re.findall(r"`([\w.]+)`", f"{owners}`" if colon else owners))
    return found | {f"{owner}.{member}" for owner in found for member in re.findall(r"`(\w+)`", f"`{members}") if colon}


def names_of_seeds(text: str) -> set[str]:
    """Returns each type, field, method, function and constant that the Go code declares."""
    found: set[str] = set()
    for block in re.findall(r"```go\n(.*?)```", text, re.DOTALL):
        owner = ""
        for line in block.splitlines():
            line = line.partition("//")[0].strip()
            if declared := re.match(r"type (\w+)(?: (?:struct|interface) *(\{\}?)|\b)", line):
                found.add(declared[1])
                owner = declared[1] if declared[2] == "{" else ""
            elif method := re.match(r"func \(([^)]*)\) (\w+)\(", line):
                receiver = max(re.findall(r"\w+", method[1]), key=is_type)  # some receivers are written the wrong way round
                found.add(f"{receiver}.{method[2]}")
            elif function := re.match(r"func (\w+)\(", line) or re.match(r"(\w+)\s+MsgType\s+=", line):
                found.add(function[1])
            elif line == "}":
                owner = ""
            elif owner and (member := re.match(r"\w+", line)):
                found.add(f"{owner}.{member[0]}")
    return found


def is_type(word: str) -> bool:
    """Returns whether Milvus declares this type, or only methods of it, as of MarshalDispatcher."""
    return re.search(rf"type {word}\b", SEEDS) is not None or word == "MarshalDispatcher"


def test_seeds_are_read_whole() -> None:
    """Guards the extraction: some names of each form, and their number."""
    found = names_of_seeds(SEEDS)
    assert {
        "MsgType_TimeTick",
        "kTimeSync",
        "RepackFunc",
        "MsgPack.EndPositions",
        "TsMsg.SetTs",
        "PulsarTtMsgStream.inputBuf",
        "RmqTtMsgStream.Broadcast",
        "MarshalDispatcher.addDefaultMsgTemplates",
        "TimeTickedFlowGraph.SetEdges",
        "baseNode.SetMaxParallelism",
        "SkipTickMsg.SkipThisTick",
        "timestampOracle.saveTimestamp",
        "KVBase.WatchWithPrefix",
        "NewEtcdKV",
    } <= found
    assert len(found) == 356


def test_each_name_of_the_seeds_has_a_row() -> None:
    missing = names_of_seeds(SEEDS) - {name for row in ROWS for name in names_in(row.milvus)}
    missing -= {*message_types(), "MsgType", *(milvus.strip("`") for milvus, _, _ in NUMBERS)}
    assert sorted(missing) == []


def test_each_python_name_is_in_its_section(subtests: pytest.Subtests) -> None:
    def check_row(row: Row) -> None:
        python = row.python or python_name(row.milvus)
        if python.startswith(("none", "private")):
            return
        names = names_in(python)
        assert names
        assert all((ROOT / "wal" / path).is_file() for path in row.files)
        modules = [importlib.import_module("wal." + path.removesuffix(".py").replace("/", ".")) for path in row.files]
        for name in names:
            owner, _, member = name.partition(".")
            values = [vars(module)[owner] for module in modules if owner in vars(module)]
            assert values, name
            assert not member or any(hasattr(value, member) or member in getattr(value, "__annotations__", {}) for value in values), name

    assert len(ROWS) > 70
    for row in ROWS:
        with subtests.test(repr(row.milvus)):
            check_row(row)


def test_each_number_is_that_of_the_seeds() -> None:
    declared = {name: int(number) for name, number in re.findall(r"(\w+)\s+MsgType\s+= (\d+)", SEEDS)}
    types, earlier = message_types(), {milvus.strip("`"): (python, int(number)) for milvus, python, number in NUMBERS}
    assert types | {name: number for name, (_, number) in earlier.items()} == declared
    assert {snake(name.removeprefix("MsgType_")).upper(): number for name, number in types.items()} == {one.name: one for one in MsgType}
    assert {python.strip("`").removeprefix("EarlierMsgType."): number for python, number in earlier.values()} == {
        one.name: one for one in EarlierMsgType
    }


@pytest.mark.parametrize("stream", [MsgStream, TtMsgStream])
def test_each_parameter_with_its_default(stream: type[MsgStream]) -> None:
    stated = {row[0].strip("`"): row[1] for row in rows_of("| keyword |")}
    parameters = inspect.signature(stream).parameters.values()
    real = {one.name: str(one.default) for one in parameters if one.kind is inspect.Parameter.KEYWORD_ONLY}
    if stream is MsgStream:
        assert stated.pop("tick_bytes_max")
    assert stated == real


def test_each_error_of_a_stream_exists() -> None:
    named = [row[0].strip("`") for row in rows_of("| error |")]
    assert len(named) >= 5
    for name in named:
        assert issubclass(getattr(wal.streams.msgstream, name, None) or getattr(wal.errors, name), wal.errors.WALError)
