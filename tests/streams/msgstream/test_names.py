"""docs/reference/message-streams.md has each name of Milvus, and each of its Python names exists in the file of its row."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Final

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


ROWS: Final = rows_of("| Milvus | Python |")
NAMES: Final = [row for row in ROWS if not row[2].isdigit()]
NUMBERS: Final = [row for row in ROWS if row[2].isdigit()]


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
    """Returns the Python cell that the page's rules give to this cell of Milvus' names, where the page leaves it empty."""
    owners, colon, members = milvus.partition("`: `")
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
    missing = names_of_seeds(SEEDS) - {name for row in ROWS for name in names_in(row[0])} - {*message_types(), "MsgType"}
    assert sorted(missing) == []


def test_each_python_name_is_in_its_file(subtests: pytest.Subtests) -> None:
    def check_row(row: tuple[str, ...]) -> None:
        milvus, python, file = row
        python = python or python_name(milvus)
        if python.startswith(("none", "private")):
            assert file == ""
            return
        names = names_in(python)
        assert names
        path = file.strip("`") or "streams/msgstream/types.py"
        module = importlib.import_module("wal." + path.removesuffix(".py").replace("/", "."))
        assert (ROOT / "wal" / path).is_file()
        for name in names:
            owner, _, member = name.partition(".")
            assert owner in vars(module)
            found = getattr(module, owner)
            assert not member or hasattr(found, member) or member in getattr(found, "__annotations__", {}), name

    for row in NAMES:
        with subtests.test(repr(row[0])):
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
