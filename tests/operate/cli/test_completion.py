"""`wal completion`: the script of bash is run by bash, and those of the other shells by them where they are installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from wal.operate.cli.commands import COMMANDS
from wal.operate.cli.main import main


def script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["completion", shell]) == 0
    file = tmp_path / f"wal.{shell}"
    file.write_text(capsys.readouterr().out)
    return file


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout


def test_bash_completes_words(tmp_path: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, list[str]]] = [
        ("wal ver", ["verify"]),
        ("wal cursor ", ["set", "reset", "rm", "-h", "--help"]),
        ("wal cursor set --t", ["--to"]),
        ("wal truncate /data --up", ["--up-to"]),
        ("wal completion z", ["zsh"]),
        ("wal append /data verify --li", ["--lines"]),
    ]
    for line, words in cases:
        with subtests.test(repr(line)):
            file = script("bash", tmp_path, capsys)
            typed = " ".join(f"'{word}'" for word in line.split(" "))
            ask = f'source {file}; COMP_WORDS=({typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _wal; printf "%s\\n" "${{COMPREPLY[@]}}"'
            assert run("bash", "--norc", "-c", ask).split() == words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_has_every_command(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = script(shell, tmp_path, capsys)
    text = file.read_text()
    assert [command.name for command in COMMANDS if command.name not in text] == []
    if shutil.which(shell) is not None:
        run(shell, "-n", str(file))


def test_unknown_shell_is_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["completion", "tcsh"])
    assert ended.value.code == 2
    assert "no 'tcsh': choose from bash, zsh, fish" in capsys.readouterr().err
