"""`wal standalone` as a process: its options from file, variables and flags, its errors, and its end."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.processes import run_python
from tests.serve.servers import Child, child, connected
from wal import Message, open_wal
from wal._version import __version__
from wal.errors import InvalidArgumentError, StorageError
from wal.network import TlsFiles
from wal.operate.cli.main import main
from wal.operate.cli.options import access_from, add_options, settings_from
from wal.requests.rights import Right
from wal.rpc.api.component_pb2 import GetComponentStatesRequest, Healthy
from wal.rpc.auth import Token
from wal.rpc.methods import NODE_STATES
from wal.runtime.secret import Secret
from wal.settings import MEANINGS, Settings


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
    assert (access.insecure, access.tokens) == (True, (Token(Secret("open")),))


def test_tokens_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("old\n\nnew\n")
    assert access_from(parsed("--token-file", str(file))).tokens == (Token(Secret("old")), Token(Secret("new")))
    file.write_text("# who may do what\nreport read 1a\nshop  read,write\t2b\nread,write 3c\n")
    assert access_from(parsed("--token-file", str(file))).tokens == (
        Token(Secret("1a"), "report", frozenset([Right.READ])),
        Token(Secret("2b"), "shop", frozenset([Right.READ, Right.WRITE])),
        Token(Secret("read,write 3c")),
    )
    for text, words in (("a read 1\na write 2\n", "'a' is there twice"), ("\n", "holds no token"), ("a read \xe4\n", "printable ASCII")):
        file.write_text(text)
        with pytest.raises(InvalidArgumentError, match=words):
            access_from(parsed("--token-file", str(file)))
    file.write_text("\n")
    with pytest.raises(InvalidArgumentError, match="holds no token"):
        access_from(parsed("--token-file", str(file)))
    with pytest.raises(InvalidArgumentError, match="cannot be read: No such file"):
        access_from(parsed("--token-file", str(tmp_path / "none")))


def test_wrong_option_of_the_server_is_an_error(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases = [
        ('[server]\nlissen = "a"', "no setting 'lissen' of the server; accepted are: advertise, answer_bytes_max, .*, insecure, listen"),
        ("[server]\nlisten = 5", "listen must be a text"),
        ('[server]\ninsecure = "yes"', "insecure must be true or false"),
        ("server = 5", r"server must be a table: write \[server\]"),
        ('[server]\ntls_ca = "a"', "tls_ca is for a server with TLS"),
        ('[server]\ntls_key = "a"', "belong together"),
    ]
    for text, words in cases:
        with subtests.test(repr(text)):
            file = tmp_path / "wal.toml"
            file.write_text(text)
            with pytest.raises(InvalidArgumentError, match=words):
                access_from(parsed("--config", str(file)))


def test_wrong_setting_names_its_flag(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="--pchannels='x' is not a whole number"):
        settings_from(parsed("--pchannels", "x"))
    with pytest.raises(InvalidArgumentError, match="--producers-max: setting producers_max=0 is too small"):
        settings_from(parsed("--producers-max", "0"))


def test_sizes_and_times_have_units(subtests: pytest.Subtests) -> None:
    cases = [
        ("--txn-bytes-max", "8MiB", 8 << 20),
        ("--retention-bytes", "64KiB", 64 << 10),
        ("--retention-bytes", "3 GiB", 3 << 30),
        ("--retention-bytes", "5", 5),
        ("--retention-s", "7d", 604_800.0),
        ("--retention-s", "12h", 43_200.0),
        ("--retention-s", "15m", 900.0),
        ("--txn-keepalive", "30s", 30.0),
        ("--txn-keepalive", "500ms", 0.5),
        ("--txn-keepalive", "1.5", 1.5),
    ]
    for flag, text, value in cases:
        with subtests.test(flag):
            name = flag.removeprefix("--").replace("-", "_")
            assert getattr(settings_from(parsed(flag, text)), name) == value


def test_wrong_units_name_the_right_ones(subtests: pytest.Subtests) -> None:
    cases = [
        ("--txn-bytes-max", "8MB", "'8MB' is not a size: write bytes, or a whole number and one of KiB, MiB, GiB, TiB"),
        ("--txn-bytes-max", "1.5GiB", "is not a size"),
        ("--retention-s", "7w", "'7w' is not a time: write seconds, or a number and one of ms, s, m, h, d, for example 7d"),
        ("--retention-s", f"{'9' * 400}d", "out of range"),
        ("--pchannels", "1KiB", "is not a whole number"),
    ]
    for flag, text, words in cases:
        with subtests.test(flag), pytest.raises(InvalidArgumentError, match=words):
            settings_from(parsed(flag, text))


def test_client_token_is_refused_with_the_servers_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "wal.toml"
    file.write_text('token = "open"')
    with pytest.raises(InvalidArgumentError, match=r"token is what a client shows: .* in the table \[server\]"):
        settings_from(parsed("--config", str(file)))
    monkeypatch.setenv("WAL_TOKEN", "hunter2")
    with pytest.raises(InvalidArgumentError, match=r"WAL_TOKEN is the token that a client shows: .* WAL_SERVER_TOKEN") as raised:
        settings_from(parsed())
    assert "hunter2" not in str(raised.value)


def test_secret_has_no_flag(capsys: pytest.CaptureFixture[str]) -> None:
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
    done = await asyncio.to_thread(run_python, "-m", "wal", *arguments, code=None)
    return done.code, done.err


async def test_locked_log_exits_with_1(data_dir: Path) -> None:
    async with open_wal(data_dir) as log:
        await log.raw_append(Message("orders", b"x"))
        code, said = await run("standalone", str(data_dir), "--listen", "127.0.0.1:0")
    assert code == 1
    assert "LockedError" in said
    assert "Traceback" not in said


async def test_taken_port_exits_with_1_without_a_log(data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = await run("standalone", str(data_dir / "new"), "--listen", address)
    assert code == 1
    assert said == (
        f"wal: StorageError: nothing can listen at '{address}': Address already in use; name a free port on an address of this machine, "
        "or stop the process that has the port\n"
    )
    assert not (data_dir / "new").exists()


async def test_error_at_the_start_is_one_line(subtests: pytest.Subtests) -> None:
    cases: list[tuple[tuple[str, ...], int, str]] = [
        (("memory:", "--listen", "127.0.0.1:x"), 2, "wal: listen='127.0.0.1:x' is not an address: write HOST:PORT"),
        (("memory:", "--pchannels", "0"), 2, "wal: --pchannels: setting pchannels=0"),
        (("memory:", "--config", "/none"), 2, "wal: settings file '/none' cannot be read: No such file"),
        (("wal://127.0.0.1:1",), 2, "wal: the log at wal://127.0.0.1:1 is opened by its server"),
        (("/dev/null",), 1, "wal: FormatError: /dev/null is a file: name a directory"),
        (("memory:", "--listen", "no-such-host.invalid:0", "--insecure"), 1, "wal: StorageError: nothing can listen at"),
    ]
    for arguments, code, words in cases:
        with subtests.test(repr(arguments)):
            ended, said = await run("standalone", *(("--listen", "127.0.0.1:0") if code == 1 else ()), *arguments)
            assert (ended, said.count("\n")) == (code, 1)
            assert said.startswith(words)


async def without(package: str, *arguments: str) -> tuple[int | None, str, str]:
    """Runs the command in a process that cannot import a package; returns its exit code, its output and its standard error."""
    block = f"sys.modules['{package}'] = None"
    program = f"import sys; {block}; from wal.operate.cli.main import main; sys.exit(main(sys.argv[1:]))"
    return await asyncio.to_thread(run_python, "-c", program, *arguments, code=None, fresh=True)


@pytest.mark.parametrize("package", ["grpc", "google"])
async def test_base_installation_has_help_and_version(package: str) -> None:
    assert await without(package, "--version") == (0, f"{__version__}\n", "")
    code, written, _ = await without(package, "--help")
    assert code == 0
    assert "standalone" in written
    code, written, _ = await without(package, "standalone", "--help")
    assert code == 0
    assert "--retention-s" in written


@pytest.mark.parametrize(
    ("package", "extra", "location"),
    [
        ("grpc", "cluster", "{data}"),
        ("google.protobuf", "cluster", "{data}"),
        ("grpc_health", "cluster", "{data}"),
        ("pulsar", "pulsar", "pulsar://127.0.0.1:1/a/b"),
    ],
)
async def test_missing_package_is_named_before_a_file_exists(package: str, extra: str, location: str, tmp_path: Path) -> None:
    place = location.format(data=tmp_path / "new")
    kv = ("--kv", str(tmp_path / "kv.sqlite3")) if extra == "pulsar" else ()
    code, _, said = await without(package, "standalone", place, "--listen", "127.0.0.1:0", *kv)
    assert code == 2
    assert f"[{extra}]'" in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


async def test_wrong_tls_files_are_reported_before_creation(tmp_path: Path, certificates: Path) -> None:
    good, key = str(certificates / "server.pem"), str(certificates / "server.key")
    noise = tmp_path / "noise.pem"
    noise.write_text("no certificate")
    for flags, words in (
        (("--tls-certificate", str(tmp_path / "none.pem"), "--tls-key", key), "none.pem' cannot be read: No such file"),
        (("--tls-certificate", str(noise), "--tls-key", key), "are not a PEM certificate with its unencrypted key"),
        (("--tls-certificate", good, "--tls-key", str(certificates / "client.key")), "KEY_VALUES_MISMATCH"),
        (("--tls-certificate", good, "--tls-key", key, "--tls-ca", str(noise)), "holds no PEM certificate"),
    ):
        code, said = await run("standalone", str(tmp_path / "new"), "--listen", "127.0.0.1:0", *flags)
        assert (code, said.count("\n")) == (2, 1), said
        assert words in said
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("token", ["", "\xe4", "two\nlines", " open"])
def test_wrong_token_is_named_before_a_log_exists(
    token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WAL_SERVER_TOKEN", token)
    assert main(["standalone", str(tmp_path / "new"), "--listen", "127.0.0.1:0"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("wal: WAL_SERVER_TOKEN, or token in [server]: a token must have 1 or more printable ASCII")
    assert not (tmp_path / "new").exists()


def test_errors_of_a_command_show_its_own_usage(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in (("standalone", "memory:", "--bogus"), ("standalone",), ("standalone", "memory:", "--listen")):
        with pytest.raises(SystemExit) as ended:
            main(wrong)
        assert ended.value.code == 2
        assert capsys.readouterr().err.startswith("usage: wal standalone [OPTION]... LOCATION\n")


def test_help_says_what_each_setting_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert MEANINGS.keys() == set(Settings.__struct_fields__)
    with pytest.raises(SystemExit):
        main(["standalone", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    for name in MEANINGS.keys() - {"token", "pulsar_token"}:
        assert f"--{name.replace('_', '-')} VALUE {MEANINGS[name]}" in words
    assert "(default 64MiB)" in words


def test_help_names_every_flag_and_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["standalone", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for flag in ("--config FILE", "--listen HOST:PORT", "--token-file FILE", "--pchannels VALUE", "--retention-s VALUE"):
        assert flag in text
    assert "exit status:" in text
    assert "WAL_SERVER_TOKEN" in text


async def test_signal_closes_the_log_cleanly(data_dir: Path) -> None:
    async def states(server: Child, token: Secret) -> None:
        async with connected(server.address, token=token) as connection:
            answer = await connection.call(NODE_STATES, GetComponentStatesRequest(), "asking")
            assert answer.state.state_code == Healthy

    async with child(data_dir, "--pchannels", "3", WAL_SERVER_TOKEN="open") as server:
        await states(server, Secret("open"))
        assert await server.stop() == 0
    async with open_wal(data_dir) as log:
        assert len(log.statistics().pchannels) == 3


async def test_server_whose_storage_failed_ends_with_3(data_dir: Path) -> None:
    aside = data_dir.with_name("aside")
    async with child(data_dir) as server, grpc.aio.insecure_channel(server.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""))
        assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
        async with open_wal(f"wal://{server.address}") as log:
            await asyncio.to_thread(data_dir.rename, aside)
            durable = 0
            with pytest.raises(StorageError) as raised:
                while True:  # the log checks its directory periodically
                    await log.raw_append(Message("orders", b"x"), idempotency_key=str(durable))
                    durable += 1
            assert "renamed" in str(raised.value) or "removed" in str(raised.value)
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert await server.ended() == 3
            await asyncio.to_thread(aside.rename, data_dir)
            async with child(data_dir, listen=server.address):
                await log.raw_append(Message("orders", b"x"), idempotency_key=str(durable))
                async with log.read("orders", follow=False) as scanner:
                    assert len([message async for message in scanner]) == durable + 1


async def test_status_page_of_a_served_log_changes_it(data_dir: Path) -> None:
    """A log that `wal standalone` serves is changed by its directory, through the status service of that process."""
    token = "a-token-of-sixteen"
    async with child(data_dir, "--status", "127.0.0.1:0", WAL_SERVER_TOKEN=token):
        arguments = ("-m", "wal", "append", data_dir, "orders", "--json")
        appended = await asyncio.to_thread(run_python, *arguments, environment={**os.environ, "WAL_TOKEN": token}, input="text")
        assert json.loads(appended.out)["messages"] == 1
        async with open_wal(data_dir, read_only=True) as log, log.read("orders", follow=False) as scanner:
            assert [message.payload async for message in scanner] == [b"text"]
