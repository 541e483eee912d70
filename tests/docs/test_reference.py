"""The reference pages name everything that exists, and nothing else."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from types import FunctionType
from typing import Any, Final

import griffe
import msgspec
import pytest

import wal
from actors import Clock
from tests.docs.snippets import ROOT
from wal import LogBroadcast, Scanner, Settings, Txn, WALAccesser, errors
from wal.settings import ServerBounds
from wal.testing import plugin

REFERENCE: Final = ROOT / "docs" / "reference"
PUBLIC_MODULES: Final = (
    *(
        "actors",
        "broadcaster",
        "wal",
        "wal.asgi",
        "wal.bridge",
        "wal.errors",
        "wal.streams.flowgraph",
        "wal.streams.flowgraph.nodes",
        "wal.storage.kv.etcd",
        "wal.operate.metrics",
        "wal.operate.status",
        "wal.tracing",
    ),
    *("wal.streams.msgstream", "wal.streams.params", "wal.streams.rocksmq", "wal.spark", "wal.timestamp", "wal.streams.watchdog"),
)
ENTRIES: Final = re.findall(r"^::: ([\w.]+)$", "".join(one.read_text() for one in sorted(REFERENCE.glob("api/*.md"))), re.MULTILINE)
"""The names with an entry in the pages of the API reference."""


def page(name: str) -> str:
    return (REFERENCE / name).read_text()


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


def test_every_setting_with_its_default() -> None:
    units = {"": 1, " MiB": 1 << 20, " GiB": 1 << 30}
    text = page("settings.md")
    stated = {}
    for name, default in re.findall(r"^\| `(\w+)` \| ([^|]+) \|", text, re.MULTILINE):
        number = re.fullmatch(r"([\d,.]+)( MiB| GiB)?", default.strip())
        stated[name] = float(number[1].replace(",", "")) * units[number[2] or ""] if number else None
    later = set(re.findall(r"`(\w+)`", text.partition("without effect in this release:")[2].partition(".")[0]))
    assert set(stated) | later == {*Settings.__struct_fields__, *ServerBounds.__struct_fields__}
    assert set(stated) & later == set()
    defaults = msgspec.structs.asdict(Settings()) | msgspec.structs.asdict(ServerBounds())
    for name, value in stated.items():
        default = defaults[name]
        if not isinstance(default, bool | None | str):
            assert value == default, name


def test_every_error_with_its_code_and_whether_to_retry() -> None:
    text = page("errors.md")
    classes = {name: one for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, errors.WALError)}
    assert set(classes) - names_in(text) == set()
    rows = re.findall(r"^\| (`.*?) \| ([\d, ]+) \| (yes)? *\|", text, re.MULTILINE)
    assert len(rows) > 10
    for row, codes, retryable in rows:
        named = [name for name in re.findall(r"`(\w+)`", row) if name in classes]
        numbers = [int(code) for code in codes.split(",")]
        assert [int(classes[name].code) for name in named] == numbers, row
        assert {classes[name].retryable for name in named} == {bool(retryable)}, row


def test_every_call_by_its_task() -> None:
    text = page("calls-by-task.md")
    for owner in (WALAccesser, Scanner, Txn, LogBroadcast):
        public = {name for name, _ in inspect.getmembers(owner) if not name.startswith("_")}
        assert public - names_in(text) == set(), owner


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_name_of_public_modules(module: str) -> None:
    assert f"`{module}`" in page("api.md").partition("## Public modules")[2]
    entries = {name.rpartition(".")[2] for name in ENTRIES if name.rpartition(".")[0] == module}
    if module == "broadcaster":
        entries |= set(wal.__all__)
    public = set(importlib.import_module(module).__all__)
    assert public - entries <= {"__version__"}
    assert module == "broadcaster" or entries <= public


def test_every_name_has_one_entry() -> None:
    assert sorted(set(ENTRIES)) == sorted(ENTRIES)
    fixtures = {name for name in ENTRIES if name.startswith("wal.testing.")}
    source = (ROOT / "wal" / "testing" / "plugin.py").read_text()
    assert {name.rpartition(".")[2] for name in fixtures} == {
        *re.findall(r"^@pytest.fixture\ndef (\w+)", source, re.MULTILINE),
        "caught_up",
    }
    assert {name.rpartition(".")[0] for name in ENTRIES if name not in fixtures} == set(PUBLIC_MODULES)


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_public_member_has_a_docstring(module: str) -> None:
    room = importlib.import_module(module)
    undocumented = []
    for owner in (one for one in (getattr(room, name) for name in room.__all__) if inspect.isclass(one)):
        calls = [name for name, one in vars(owner).items() if isinstance(one, property | classmethod | staticmethod | FunctionType)]
        for name in calls:
            if not name.startswith("_") and not any(inspect.getdoc(getattr(one, name, None)) for one in (owner, Clock)):
                undocumented.append(f"{owner.__name__}.{name}")
        undocumented += [] if owner.__doc__ else [owner.__name__]
    assert undocumented == []


@pytest.fixture(scope="module")
def package() -> Any:
    """Returns the package `wal` as the site's reference shows it."""
    return griffe.load("wal", search_paths=[ROOT], extensions=griffe.load_extensions(str(ROOT / ".ci" / "docs_api.py")))


@pytest.mark.parametrize(
    "call", ["open_wal", "init", "WALAccesser.read", "WALAccesser.txn", "WALAccesser.append", "WALAccesser.raw_append"]
)
def test_signature_has_every_keyword(package: Any, call: str) -> None:
    signature = package[call]
    owner: Any = wal
    parameters = inspect.signature(functools.reduce(getattr, call.split("."), owner)).parameters
    assert [one.name for one in signature.parameters] == [name for name in parameters if name != "wrong"]
    assert all(one.annotation is not None for one in signature.parameters if one.name != "self")


def test_constructor_shows_fields_of_a_struct(package: Any) -> None:
    assert [one.name for one in package["Message"].parameters] == ["self", "vchannel", "payload", "message_type", "properties"]
    assert "__init__" not in package["WALAccesser"].members  # `open_wal` returns it
    assert "__init__" not in package["ImmutableMessage"].members
    assert "kv" in package["timestamp.TimestampOracle"].parameters
    assert "__init__" not in package["errors.AuthenticationError"].members  # not a struct
    assert "`time_tick: int`" in package["ImmutableMessage"].docstring.value
    assert not {"headers", "offset"} & set(package["ImmutableMessage"].members)


def test_default_shows_the_value_of_a_constant(package: Any) -> None:
    assert str(package["testing.plugin.caught_up"].parameters["timeout_s"].default) == str(plugin.CAUGHT_UP_TIMEOUT_S)


def test_enumeration_lists_its_values(package: Any) -> None:
    assert f"`INSERT` {wal.MessageType.INSERT.value}, " in package["MessageType"].docstring.value


def test_names_in_docstrings_become_links(package: Any) -> None:
    described = package["WALAccesser.raw_append"].docstring.value
    assert "[ConflictError][wal.errors.ConflictError]" in described
    assert "[docs/howto/idempotent-retries.md](site:docs/howto/idempotent-retries.md)" in described
    assert "[`open_wal`][wal.open_wal]" in package["WALAccesser"].docstring.value
    assert "[All]" not in package["Settings"].docstring.value  # a word, and no name


def test_errors_that_are_never_raised_are_named_as_such() -> None:
    table, _, listed = page("errors.md").partition("raised by no call on a log in this release:")
    source = "".join(path.read_text() for path in (ROOT / "wal").rglob("*.py") if path.name != "errors.py")
    for name in re.findall(r"`(\w+Error)`", listed.partition("```")[0]):
        # InnerError is the range allocator's, which no log uses yet.
        assert name == "InnerError" or not re.search(rf"\b{name}\(", source), f"{name} is raised now: give it its row"
        assert f"| `{name}`" not in table
