"""ServerProcess: no process survives, whichever side dies and whichever thread started it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.processes import Child
from tests.servers.cache import MissingServerError, installed
from tests.servers.process import ServerProcess, free_ports


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_kill_9_of_the_parent_ends_the_server(tmp_path: Path) -> None:
    PARENT = """
        import sys, threading, time
        from pathlib import Path
        from tests.servers.process import ServerProcess
        log = Path(sys.argv[1])
        server = ServerProcess("sleeper", [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"], log=log,
                               is_ready=lambda: log.exists() and b"up" in log.read_bytes())
        starter = threading.Thread(target=server.start)
        starter.start()
        starter.join()
        print(server.pid, flush=True)
        time.sleep(600)
    """

    wait_s = 20.0
    with Child("-c", PARENT, tmp_path / "log") as parent:
        pid = int(parent.line_now())
        assert is_alive(pid)
        parent.kill_now()
    end = time.monotonic() + wait_s
    while is_alive(pid):
        assert time.monotonic() < end, "the server outlived its parent"
        time.sleep(0.005)


def test_server_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]

    def sleeper(log: Path) -> ServerProcess:
        return ServerProcess("sleeper", SLEEPER, log=log, is_ready=lambda: log.exists() and b"up" in log.read_bytes())

    server = sleeper(tmp_path / "log")
    starter = threading.Thread(target=server.start)
    starter.start()
    starter.join()
    assert server.running
    server.stop()
    assert Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    server.cont()
    before = server.pid
    server.restart()
    assert server.pid != before
    assert not is_alive(before)
    server.terminate()
    assert not server.running
    server.kill()
    with pytest.raises(RuntimeError, match="not running"):
        server.stop()


def test_server_that_ends_at_once_shows_the_end_of_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no room for me'); raise SystemExit(3)"]
    server = ServerProcess("short", command, log=tmp_path / "log", is_ready=lambda: False)
    with pytest.raises(RuntimeError, match=r"(?s)ended with 3.*no room for me"):
        server.start()


def test_free_ports_are_different() -> None:
    assert len(set(free_ports(50))) == 50


def test_processes_have_ports_of_their_own() -> None:
    PORTS = "from tests.servers.process import free_ports; print(*free_ports(450), flush=True); input()"
    with contextlib.ExitStack() as stack:
        children = [stack.enter_context(Child("-c", PORTS)) for _ in range(4)]
        ports = [*free_ports(450), *(int(port) for child in children for port in child.line_now().split())]
    assert len(set(ports)) == len(ports) == 5 * 450


def test_installation_is_made_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made: list[Path] = []

    def install(folder: Path) -> None:
        made.append(folder)
        (folder / "half").touch()
        assert not (tmp_path / "wal/servers/it-1").exists(), "it is visible before it is whole"
        if len(made) == 1:
            raise MissingServerError("the network was away")
        (folder / "whole").touch()

    with pytest.raises(MissingServerError):
        installed("it-1", install)
    assert [path.name for path in (tmp_path / "wal/servers").iterdir()] == [".it-1.lock"]
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(installed("it-1", install))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 2
    assert len(found) == 8
    assert {path.name for path in found[0].iterdir()} == {"half", "whole"}


def test_command_runs_beside_the_servers_it_asks_for(etcd_binary: Path) -> None:
    program = "import os, urllib.request as r; print(r.urlopen('http://' + os.environ['WAL_TEST_ETCD'] + '/version').read())"
    command = [sys.executable, "-m", "tests.servers", "etcd", "--", sys.executable, "-c", program]
    environment = {name: value for name, value in os.environ.items() if name != "WAL_TEST_ETCD"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=True)
    assert "etcdserver" in done.stdout
    assert "WAL_TEST_ETCD=127.0.0.1:" in done.stderr
    wrong = subprocess.run([*command[:3], "zookeeper"], capture_output=True, text=True, timeout=60, check=False)
    assert wrong.returncode == 2
    assert "etcd,pulsar" in wrong.stderr
