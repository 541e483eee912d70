"""The JSON of every command equals its golden file: fields, their order and their types, and the version of the form."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.operate.cli.golden import GOLDEN, commands, golden, rows_of
from wal.operate.cli.cluster import _as_json
from wal.operate.cli.commands import COMMANDS
from wal.operate.cli.main import make_parser
from wal.requests.cluster import ClusterStatus, NodeStatus, PlacedPChannel


def test_json_of_the_commands_is_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WAL_TOKEN", "WAL_KV", "WAL_PCHANNELS"):
        monkeypatch.delenv(name, raising=False)
    names = []
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        for name, arguments, text, status in commands(Path(folder)):
            names.append(name)
            rows = rows_of(arguments, text, status)
            expected = golden(name)
            assert rows == expected, name
            assert [list(row) for row in rows] == [list(row) for row in expected], f"{name}: the order of the fields"
    assert sorted(path.stem for path in GOLDEN.glob("*.jsonl")) == sorted(names)


def test_every_command_with_json_is_pinned() -> None:
    pinned = {path.stem.partition("-")[0] for path in GOLDEN.glob("*.jsonl")}
    parsers = next(
        action for action in make_parser(whole=True)._actions if action.dest == "==SUPPRESS==" or hasattr(action, "_choices_actions")
    )
    assert isinstance(parsers.choices, dict)
    with_json = {command.name for command in COMMANDS if "--json" in parsers.choices[command.name].format_help() and command.operates}
    assert with_json - pinned == set()


def test_json_of_a_cluster_is_pinned() -> None:
    trouble = NodeStatus(server_id=0xB2, address="10.0.0.2:8810", drains=True, trouble="it has not answered for 3 s")
    status = ClusterStatus(
        leader="10.0.0.9:8820",
        nodes=(NodeStatus(server_id=0xA1, address="10.0.0.1:8810", healthy=True, pchannels=2), trouble),
        pchannels=(
            PlacedPChannel(name="p0", term=4, state=3, server_id=0xA1, address="10.0.0.1:8810"),
            PlacedPChannel(name="p1", term=7, state=2, histories=1, trouble="its node has not answered"),
        ),
    )
    text = _as_json(status)
    assert text.count("\n") == 1
    assert text == (GOLDEN / "cluster-status.json").read_text()
