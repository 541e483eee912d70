"""`wal standalone` as a process: its options from file, variables and flags, its errors, and its end."""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
from pathlib import Path

import pytest

from tests.node.servers import Child, child, connected
from wal import Message, open_wal
from wal._version import __version__
from wal.cli.main import main
from wal.cli.options import access_from, add_options, settings_from
from wal.errors import InvalidArgumentError
from wal.network import TlsFiles
from wal.rpc.api.component_pb2 import GetComponentStatesRequest, Healthy
from wal.rpc.methods import NODE_STATES
from wal.secret import Secret


def parsed(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_options(parser)
    return parser.parse_args(flags)


def test_flags_override_variables_and_those_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "wal.toml"
    file.write_text(
        'pchannels = 2\nproducers_max = 7\ntxn_keepalive = 3.5\n[server]\nlisten = "127.0.0.1:1"\ntls_certificate = "c"\ntls_key = "k"\n'
    )
    monkeypatch.setenv("WAL_PRODUCERS_MAX", "8")
    monkeypatch.setenv("WAL_TXN_KEEPALIVE", "4.5")
    monkeypatch.setenv("WAL_SERVER_LISTEN", "127.0.0.1:2")
    monkeypatch.setenv("WAL_SERVER_TLS_CA", "a")
    monkeypatch.setenv("WAL_SERVER_INSECURE", "true")
    monkeypatch.setenv("WAL_SERVER_TOKEN", "open")
    given = parsed("--config", str(file), "--txn-keepalive", "5.5", "--tls-key", "K")
    settings, access = settings_from(given), access_from(given)
    assert (settings.pchannels, settings.producers_max, settings.txn_keepalive) == (2, 8, 5.5)
    assert access.listen == "127.0.0.1:2"
    assert access.tls == TlsFiles(ca="a", certificate="c", key="K")
    assert (access.insecure, access.tokens) == (True, (Secret("open"),))


def test_tokens_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("old\n\nnew\n")
    assert access_from(parsed("--token-file", str(file))).tokens == (Secret("old"), Secret("new"))
    file.write_text("\n")
    with pytest.raises(InvalidArgumentError, match="holds no token"):
        access_from(parsed("--token-file", str(file)))
    with pytest.raises(InvalidArgumentError, match="cannot be read: No such file"):
        access_from(parsed("--token-file", str(tmp_path / "none")))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[server]\nlissen = "a"', "no setting 'lissen' of the server; accepted are: advertise, insecure, listen"),
        ("[server]\nlisten = 5", "listen must be a text"),
        ('[server]\ninsecure = "yes"', "insecure must be true or false"),
        ("server = 5", r"server must be a table: write \[server\]"),
        ('[server]\ntls_ca = "a"', "tls_ca is for a server with TLS"),
        ('[server]\ntls_key = "a"', "belong together"),
    ],
)
def test_a_wrong_option_of_the_server_is_an_error(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "wal.toml"
    file.write_text(text)
    with pytest.raises(InvalidArgumentError, match=words):
        access_from(parsed("--config", str(file)))


def test_a_wrong_setting_names_its_flag(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="--pchannels='x' is not a whole number"):
        settings_from(parsed("--pchannels", "x"))
    with pytest.raises(InvalidArgumentError, match="--producers-max: setting producers_max=0 is too small"):
        settings_from(parsed("--producers-max", "0"))


def test_a_secret_has_no_flag(capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--pulsar-token", "--token"):
        with pytest.raises(SystemExit):
            main(["standalone", "memory:", flag, "hunter2"])
        assert "unrecognized arguments" in capsys.readouterr().err


def test_errors_of_the_command_line_end_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["standalone", "memory:", "--listen", "0.0.0.0:0"]) == 2
    assert "can be reached from other machines" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.strip() == __version__


async def run(*arguments: str) -> tuple[int | None, str]:
    """Runs the command to its end; returns its exit code and its standard error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "wal", *arguments, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    return process.returncode, said.decode()


async def test_a_log_that_is_open_elsewhere_ends_it_with_1(data_dir: Path) -> None:
    async with open_wal(data_dir) as log:
        await log.raw_append(Message("orders", b"x"))
        code, said = await run("standalone", str(data_dir), "--listen", "127.0.0.1:0")
    assert code == 1
    assert "LockedError" in said
    assert "Traceback" not in said


async def test_a_port_that_is_taken_ends_it_with_1_before_a_log_is_created(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = await run("standalone", str(data_dir / "new"), "--listen", address)
    assert code == 1
    assert said == (
        f"wal: StorageError: nothing can listen at '{address}': Address already in use; name a free port on an address of this machine, "
        "or stop the process that has the port\n"
    )
    assert not (data_dir / "new").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("memory:", "--listen", "127.0.0.1:x"), 2, "wal: listen='127.0.0.1:x' is no address: write HOST:PORT"),
        (("memory:", "--pchannels", "0"), 2, "wal: --pchannels: setting pchannels=0"),
        (("memory:", "--config", "/none"), 2, "wal: settings file '/none' cannot be read: No such file"),
        (("wal://127.0.0.1:1",), 2, "wal: the log at wal://127.0.0.1:1 is opened by its server"),
        (("/dev/null",), 1, "wal: FormatError: /dev/null is a file: name a directory"),
        (
            ("memory:", "--listen", "no-such-host.invalid:0", "--insecure"),
            1,
            "wal: StorageError: nothing can listen at",
        ),
    ],
)
async def test_an_error_at_the_start_is_one_line(arguments: tuple[str, ...], code: int, words: str) -> None:
    ended, said = await run("standalone", *(("--listen", "127.0.0.1:0") if code == 1 else ()), *arguments)
    assert (ended, said.count("\n")) == (code, 1)
    assert said.startswith(words)


async def test_without_the_extra_it_says_what_to_install() -> None:
    program = "import sys; sys.modules['grpc'] = None; from wal.cli.main import main; sys.exit(main(['standalone', 'memory:']))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stderr=asyncio.subprocess.PIPE)
    _, said = await process.communicate()
    assert process.returncode == 2
    assert b"is not installed" in said
    assert b"[cluster]" in said
    assert said.count(b"\n") == 1


def test_the_help_names_every_flag_and_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["standalone", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for flag in (
        "--config FILE",
        "--listen HOST:PORT",
        "--token-file FILE",
        "--pchannels VALUE",
        "--retention-s VALUE",
    ):
        assert flag in text
    assert "exit status:" in text
    assert "WAL_SERVER_TOKEN" in text


async def test_a_signal_stops_it_and_leaves_a_log_that_was_closed(data_dir: Path) -> None:
    async with child(data_dir, "--pchannels", "3", WAL_SERVER_TOKEN="open") as server:
        await states(server, Secret("open"))
        assert await server.stop() == 0
    async with open_wal(data_dir) as log:
        assert len(log.statistics().pchannels) == 3


async def states(server: Child, token: Secret) -> None:
    async with connected(server.address, token=token) as connection:
        answer = await connection.read(NODE_STATES, GetComponentStatesRequest(), "asking")
        assert answer.state.state_code == Healthy
