"""The reference pages name everything that exists, and nothing else."""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Final

import msgspec
import pytest

import wal
from tests.docs.snippets import ROOT
from wal import LogBroadcast, Scanner, Settings, Txn, WALAccesser, bridge, errors
from wal.settings import ServerBounds

REFERENCE: Final = ROOT / "docs" / "reference"
PUBLIC_MODULES: Final = (
    *(
        "actors",
        "broadcaster",
        "wal",
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


def test_every_public_call() -> None:
    text = names_in(page("api.md"))
    assert set(wal.__all__) - text == {"__version__"}
    for owner in (WALAccesser, LogBroadcast, Scanner, Txn):
        public = {name for name, _ in inspect.getmembers(owner) if not name.startswith("_")}
        assert public - text == {"txn_append", "txn_commit", "txn_rollback"} & public, owner


def test_every_call_by_its_task() -> None:
    text = page("calls-by-task.md")
    for owner in (WALAccesser, Scanner, Txn, LogBroadcast):
        public = {name for name, _ in inspect.getmembers(owner) if not name.startswith("_")}
        assert public - names_in(text) == set(), owner


@pytest.mark.parametrize("module", PUBLIC_MODULES)
def test_every_name_of_public_modules(module: str) -> None:
    text = page("api.md")
    assert f"`{module}`" in text.partition("## Public modules")[2]
    described = names_in(text) | (names_in(page("errors.md")) if module == "wal.errors" else set())
    assert set(importlib.import_module(module).__all__) - described <= {"__version__"}


def test_errors_that_are_never_raised_are_named_as_such() -> None:
    table, _, listed = page("errors.md").partition("raised by no call on a log in this release:")
    source = "".join(path.read_text() for path in (ROOT / "wal").rglob("*.py") if path.name != "errors.py")
    for name in re.findall(r"`(\w+Error)`", listed.partition("```")[0]):
        # InnerError is the range allocator's, which no log uses yet.
        assert name == "InnerError" or not re.search(rf"\b{name}\(", source), f"{name} is raised now: give it its row"
        assert f"| `{name}`" not in table


def test_every_keyword_of_read_and_txn() -> None:
    text = names_in(page("api.md"))
    assert set(bridge.__all__) - text == set()
    for call in (
        wal.open_wal,
        wal.init,
        bridge.blocking,
        bridge.iterate,
        bridge.record_batches,
        WALAccesser.read,
        WALAccesser.txn,
        WALAccesser.append,
        WALAccesser.raw_append,
        WALAccesser.create_vchannel,
        WALAccesser.truncate,
    ):
        assert set(inspect.signature(call).parameters) - {"self"} - text == set(), call
