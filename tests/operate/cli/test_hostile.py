"""Wrong numbers, ticks, ids and times on the command line: exit status 2, and a line that names the value and the accepted form."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal import Message, bridge
from wal.operate.cli.main import main


def test_wrong_numbers_of_flags_are_refused(data_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    digits = "9" * 5_000
    numbers = (digits, "-5", "nan", "1.5", "", "x", "\u0663")
    times = (digits, "-5s", "nan", "inf", "1e400", "", "x")
    points = (digits, "-5", "nan", "", "x", "2020-13-01", "0001-01-01", "p0:1:2:" + digits, "p0:" + "f" * 5_000 + ":1:1", "1e20s")

    def status(arguments: list[str]) -> int:
        try:
            return main(arguments)
        except SystemExit as exit_:  # of argparse
            assert isinstance(exit_.code, int)
            return exit_.code

    data, target = str(data_dir), str(tmp_path / "target")
    with bridge.blocking(data) as log:
        log.raw_append(Message("orders", b"x"))
    cases: list[tuple[tuple[str, ...], list[str]]] = [
        *(
            (numbers, arguments)
            for arguments in (
                ["dump", data, "--frames", "--lines="],
                ["tail", data, "orders", "--lines="],
                ["peek", data, "billing", "--lines="],
                ["top", data, "--count="],
                ["bench", data, "--writers="],
                ["copy", data, target, "--pchannels="],
                ["backup", "forget", target, "--keep="],
                ["coordinator", "etcd://127.0.0.1:1/x", "--expected-nodes="],
                ["info", data, "--set=pchannels="],
                ["info", data, "--set=retention_bytes="],
                ["serve", data, "--listen=127.0.0.1:"],
            )
        ),
        *(
            (times, arguments)
            for arguments in (
                ["top", data, "--interval="],
                ["bench", data, "--time="],
                ["backup", data, "--to", target, "--interval="],
                ["cluster", "status", "wal://127.0.0.1:1", "--timeout="],
                ["node", "etcd://127.0.0.1:1/x", "--session-ttl="],
                ["info", data, "--set=retention_s="],
                ["cursors", data, "--max-lag="],
            )
        ),
        *(
            (points, arguments)
            for arguments in (
                ["dump", data, "--frames", "--since="],
                ["tail", data, "orders", "--since="],
                ["cat", data, "orders", "--until="],
                ["cursor", "set", data, "billing", "--vchannel=orders", "--yes", "--to="],
                ["truncate", data, "--yes", "--up-to="],
            )
        ),
        ((digits, "-1", "1.0", "\u0661"), ["broadcast", "abort", data, "--reason=r", "--yes", "--"]),
        ((digits, "-5%", "nan", "inf%", "0", "101%"), ["verify", data, "--sample="]),
        ((str(1 << 64), "nan"), ["truncate", data, "--yes", "--up-to="]),
    ]
    for values, arguments in cases:
        for value in values:
            if value == "\u0663" and "--set=" in arguments[-1]:
                continue  # Python reads it as 3
            words = [*arguments, value] if arguments[-1] == "--" else [*arguments[:-1], arguments[-1] + value]
            assert status(words) == 2, words[-1][:60]
            last = capsys.readouterr().err.splitlines()[-1]
            assert len(last) < 500, words[-1][:60]
            assert value[:20] in last or value[:5].encode("unicode_escape").decode() in last, (words[-1][:60], last)


def test_pattern_may_be_any_bytes(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bridge.blocking(data_dir) as log:
        log.append("orders", b"\xff")
        log.append("orders", b"x")
    assert main(["cat", str(data_dir), "orders", "--grep", "\udcff", "--hex"]) == 0  # as Python decodes an argument that is not UTF-8
    assert capsys.readouterr().out.endswith(" ff\n")
