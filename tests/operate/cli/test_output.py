"""The output of commands: headings, tables on a narrow terminal, the help, and suggestions for wrong words."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from wal import bridge
from wal.operate.cli.main import main

LISTINGS = ("ls", "cursors", "broadcasts", "consumers")


def test_empty_listing_prints_its_heading(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bridge.blocking(data_dir):
        pass
    for command in LISTINGS:
        assert main([command, str(data_dir)]) == 0
        (heading,) = capsys.readouterr().out.splitlines()
        assert heading.startswith(("VCHANNEL", "CURSOR", "BROADCAST_ID")), command
        assert main([command, str(data_dir), "--json"]) == 0
        assert capsys.readouterr().out == ""


def test_tables_wrap_at_the_width_of_the_terminal(
    data_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["a-vchannel-with-a-name-that-takes-many-columns-of-a-terminal", "orders"]
    with bridge.blocking(data_dir) as log:
        for name in names:
            log.append(name, b"x")
        with log.read(names, cursor="billing", follow=False) as messages:
            next(iter(messages))
            messages.save()
    for command in ("info", *LISTINGS, "retention", "health", "settings", "top"):
        arguments = [command, str(data_dir), *(("-n", "1") if command == "top" else ())]
        monkeypatch.delenv("COLUMNS", raising=False)
        assert main(arguments) == 0
        wide = capsys.readouterr().out
        for columns in (80, 120):
            monkeypatch.setenv("COLUMNS", str(columns))
            assert main(arguments) == 0
            lines = capsys.readouterr().out.splitlines()
            assert max(map(len, lines)) <= columns, (command, columns)
            if command in ("ls", "cursors"):
                assert max(map(len, wide.splitlines())) > 80, "in a pipe a row is a line"
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["ls", str(data_dir)]) == 0
    cells = [line[:12].rstrip() for line in capsys.readouterr().out.splitlines()]
    assert "".join(cells) == "VCHANNEL" + "".join(names), "nothing is cut"


@pytest.mark.parametrize(
    ("words", "meant"),
    [("inof", "info"), ("truncat", "truncate"), ("cluster statsu", "status"), ("cursor ser", "set"), ("completion fsh", "fish")],
)
def test_wrong_command_suggests_the_nearest(words: str, meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(words.split())
    assert exit_.value.code == 2
    assert f"no '{words.split()[-1]}', did you mean {meant!r}?" in capsys.readouterr().err


def test_usage_names_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--help"], ["info", "--help"]):
        with pytest.raises(SystemExit):
            main(arguments)
        usage = capsys.readouterr().out.partition("\n\n")[0]
        assert usage == "usage: wal [-h] [--version] COMMAND ..." or usage.startswith("usage: wal info [-h]")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_before_serving_is_the_exit_status(number: int, data_dir: Path) -> None:
    # A server that gets a signal while it opens its log.
    signalled = """
        import os, sys
        from wal.operate.cli.main import main
        from wal.operate.processes.standalone import ServedLog
        opening = ServedLog.open
        async def opened(*arguments):
            os.kill(os.getpid(), int(sys.argv[1]))
            return await opening(*arguments)
        ServedLog.open = opened
        sys.exit(main(["standalone", sys.argv[2], "--listen", "127.0.0.1:0"]))
    """

    command = [sys.executable, "-c", textwrap.dedent(signalled), str(int(number)), str(data_dir)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (child.returncode, child.stdout) == (128 + number, ""), child.stderr
    assert "it is closed again" in child.stderr
    with bridge.blocking(data_dir):
        pass  # the lock is free, and the log is whole
