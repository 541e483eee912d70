"""ServerProcess: a real server as a child of this process, which tests start, freeze, kill and start again.

Owns the child and its log file. When `start` returns, the server has answered; whatever ends this process, even kill -9, ends the child
too. It never restarts a server by itself, and never hides why a server did not start: the end of its log is in the error.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final, Self

from tests.processes import Process, is_stopped, start_python

POLL_S: Final = 0.02
PYTHON: Final = "python"
LOG_TAIL_BYTES: Final = 4000


class ServerProcess:
    """One server. `command` runs with `environment` added to this process's own; its output goes to `log`.

    A command that begins with PYTHON is forked from the fork server of `tests.processes`.

    `is_ready` is called until it returns True; a call neither waits long nor raises.
    """

    _temporary: Path | None = None

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        log: Path,
        is_ready: Callable[[], bool],
        ready_timeout_s: float = 60.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.command = list(command)
        self._environment = {**os.environ, **(environment or {})}
        self._is_ready = is_ready
        self._ready_timeout_s = ready_timeout_s
        self._child: Process | None = None

    def _own(self, folder: Path | None, name: str) -> Path:
        """Returns this folder, or a temporary one, which `close` removes. A subclass that needs it for its command calls this first."""
        self._temporary = None if folder else Path(tempfile.mkdtemp(prefix=f"wal-{name}-"))
        folder = folder or self._temporary
        assert folder is not None
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def close(self) -> None:
        """Kills the server and removes its folder, unless the caller gave one."""
        self.kill()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Returns the process id of the running server."""
        return self._running().pid

    @property
    def running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Starts the server and waits until it answers; RuntimeError with the end of its log when it ends first or takes too long."""
        if self.running:
            raise RuntimeError(f"{self.name} is running already, as process {self.pid}")
        self._child = _spawn(self.command, self._environment, self.log)
        end = time.monotonic() + self._ready_timeout_s
        while not self._is_ready():
            if self._child.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self._child.returncode} at its start; {self._log_tail()}")
            if time.monotonic() > end:
                self.kill()
                raise RuntimeError(f"{self.name} did not answer within {self._ready_timeout_s} s; {self._log_tail()}")
            time.sleep(POLL_S)

    def check(self) -> None:
        """RuntimeError with the end of its log when the server runs no more or does not answer."""
        if not (self.running and self._is_ready()):
            raise RuntimeError(f"{self.name} does not answer; {self._log_tail()}")

    def kill(self) -> None:
        """Kills the server (kill -9), and waits for its end. Idempotent."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()

    def terminate(self) -> None:
        """Stops the server with SIGTERM, and kills it when that takes more than ten seconds. Idempotent."""
        if self._child is not None and self.running:
            self._child.send_signal(signal.SIGCONT)
            self._child.terminate()
            try:
                self._child.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()

    def stop(self) -> None:
        """Freezes the server (SIGSTOP), and waits until it is frozen: its connections stay open, but it does not answer."""
        self._running().send_signal(signal.SIGSTOP)
        while not is_stopped(self.pid):
            time.sleep(POLL_S)

    def cont(self) -> None:
        """Resumes the server after `stop`."""
        self._running().send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Kills the server (kill -9) if it runs, then starts it on the same ports and directory."""
        self.kill()
        self.start()

    def _running(self) -> Process:
        if self._child is None or self._child.poll() is not None:
            raise RuntimeError(f"{self.name} is not running: start() it first")
        return self._child

    def _log_tail(self) -> str:
        try:
            tail = self.log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace")
        except OSError:
            tail = ""
        return f"its log {self.log} ends with:\n{tail}"


_BLOCKS: Final = [range(first, first + 500) for first in range(12_000, 32_000, 500)]
"""Each process of the tests has a block of ports to itself. They lie below those that the system gives to outgoing connections (from 32768
on): one of these would be taken while the server that had it is down."""


class _Ports:
    """The ports of this process. Its socket has the first port of the block until the process ends, so that no other run of the tests, of
    any user, takes from the same block: a server takes its ports seconds after they were found free."""

    def __init__(self) -> None:
        self._claim = socket.socket()
        for self.block in _BLOCKS:
            with contextlib.suppress(OSError):
                self._claim.bind(("127.0.0.1", self.block.start))
                break
        else:
            raise RuntimeError(f"none of the ports {_BLOCKS[0].start}, {_BLOCKS[1].start} … {_BLOCKS[-1].start} is free")
        self.cycle = itertools.cycle(self.block[1:])


_own_ports: Final = functools.cache(_Ports)


def free_ports(count: int) -> list[int]:
    """Returns different ports of 127.0.0.1 that nobody has, and that stay free for a server that is started again."""
    own, ports = _own_ports(), list[int]()
    for port in itertools.islice(own.cycle, len(own.block) - 1):
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            ports.append(port)
        if len(ports) == count:
            return ports
    raise RuntimeError(f"fewer than {count} of the ports {own.block.start} to {own.block.stop - 1} are free")


_DIE_WITH: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
if os.getppid() != int(sys.argv[1]):  # it ended before the line above
    sys.exit(1)
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""The code that the child runs before it becomes the server. A `preexec_fn` needs a plain fork, which gRPC's threads do not tolerate."""

_Order = tuple[list[str], dict[str, str], Path, "Future[subprocess.Popen[bytes]]"]
_orders: Final[queue.SimpleQueue[_Order]] = queue.SimpleQueue()
_spawner: threading.Thread | None = None
_spawner_lock: Final = threading.Lock()


def _spawn(command: list[str], environment: dict[str, str], log: Path) -> Process:
    if command[0] == PYTHON:
        with log.open("ab") as output, open(os.devnull, "rb") as no_input:
            return start_python(command[1:], no_input, output, output, environment=environment)
    # The kernel sends PR_SET_PDEATHSIG when the *thread* that created the child ends, so one thread, which lives as long as this process,
    # creates all of them: a test may then start a server from any thread.
    global _spawner
    with _spawner_lock:
        if _spawner is None:
            _spawner = threading.Thread(target=_serve, name="servers", daemon=True)
            _spawner.start()
    child: Future[subprocess.Popen[bytes]] = Future()
    _orders.put((command, environment, log, child))
    return child.result()


def _serve() -> None:
    while True:
        command, environment, log, child = _orders.get()
        try:
            with log.open("ab") as output:
                child.set_result(
                    subprocess.Popen(
                        [sys.executable, "-I", "-S", "-c", _DIE_WITH, str(os.getpid()), *command],
                        env=environment,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,  # Ctrl-C goes to the process that started it, which then stops it
                    )
                )
        except BaseException as error:
            child.set_exception(error)
