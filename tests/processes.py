"""The other processes of a test. All of them are gone when the test ends, and a failure is reported here.

* `run_python`: a program that runs to its end.
* `Child`: a program or a function of a test with which the test talks line by line, until it kills it or lets it end.
* `Other`: a function of a test, with a pipe of objects to the test. An exception of the function becomes an AssertionError here, with its
  traceback; a process whose test has died sees the end of its pipe and ends.

All of them are forked from a server that has imported the product and started nothing: a process costs 20 ms of processor time instead of
a second, and is killed just as truly. With `fresh` a process is a new interpreter, for tests of imports, of flags and of its own end.

A function that waits has a twin with `_now` for tests without a loop.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import ctypes
import importlib
import inspect
import math
import multiprocessing
import operator
import os
import re
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
import types
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any, Final, NamedTuple, Self

import msgspec

WAIT_TIMEOUT_S: Final = 60.0
START_TIMEOUT_S: Final = 60.0
"""The maximum time until a process runs its job: the first one waits for the imports of the process that it is forked from."""

context: Final = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        "wal.bridge",
        "wal.operate.cli.main",
        "wal.operate.cli.cluster",
        "wal.operate.processes.coordinator",
        "wal.operate.processes.node",
        "wal.operate.processes.standalone",
        "wal.spark.sink.locks",
        "uvloop",
        "pyarrow",
        "pytest",
        "hypothesis",
        "tests.processes",
        "tests.storage.files.other_user",
        "tests.broadcaster.served_child",
        "tests.simulation.test_incidents",
        "tests.simulation.test_defects",
    ]
)


ROOT: Final = Path(__file__).parents[1]


class Ended(NamedTuple):
    """A program that has ended: its exit code, its output and its errors."""

    code: int
    out: str
    err: str


def run_python(
    *arguments: object,
    code: int | None = 0,
    timeout_s: float = WAIT_TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    input: str = "",
    fresh: bool = False,
) -> Ended:
    """Runs Python with these arguments to its end; AssertionError if it ends with another exit code than `code` (None: any)."""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(input.encode())
        given.seek(0)
        process = start_python(arguments, given, out, err, environment=environment, cwd=cwd, fresh=fresh)
        try:
            process.wait(timeout_s)
        finally:
            process.kill()
            process.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    assert process.returncode is not None
    assert code is None or process.returncode == code, f"exit code {process.returncode}:\n{texts[0]}{texts[1]}"
    return Ended(process.returncode, *texts)


def start_python(
    arguments: Sequence[object],
    stdin: IO[bytes],
    stdout: IO[bytes],
    stderr: IO[bytes],
    *,
    environment: Mapping[str, str] | None = None,
    cwd: Path = ROOT,
    fresh: bool = False,
) -> Process:
    """Starts Python with these arguments and files; the code after "-c" may be indented. Flags before "-c" or "-m" make it fresh.

    Instead of a program the first argument may be a job, as of `Other`: a function or coroutine function of the other arguments.
    """
    environment = dict(os.environ if environment is None else environment)
    if callable(arguments[0]):
        return Forked(list(map(_sendable, arguments)), [file.fileno() for file in (stdin, stdout, stderr)], environment, cwd)
    texts = list(map(str, arguments))
    if "-c" in texts:
        program = texts.index("-c") + 1
        texts[program] = textwrap.dedent(texts[program])
    if fresh or texts[0] not in ("-c", "-m"):
        command = [sys.executable, *texts]
        return subprocess.Popen(command, cwd=cwd, env=environment, stdin=stdin, stdout=stdout, stderr=stderr)
    return Forked(texts, [file.fileno() for file in (stdin, stdout, stderr)], environment, cwd)


class Forked:
    """A program in a process of the fork server, with the calls of `subprocess.Popen` that tests need."""

    def __init__(self, arguments: Sequence[Any], descriptors: list[int], environment: dict[str, str], cwd: Path) -> None:
        self._lock = threading.Lock()
        self._process = context.Process(
            target=_run_program, args=(arguments, list(map(_Descriptor, descriptors)), environment, cwd), daemon=True
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Returns the exit code once the process has ended, a negative one after a signal."""
        with self._lock:
            if self.returncode is None:
                self.returncode = self._process.exitcode
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Returns the exit code when the process has ended; subprocess.TimeoutExpired if it does not within `timeout` seconds."""
        if self.returncode is None and not wait([self._process.sentinel], timeout) and timeout is not None:
            raise subprocess.TimeoutExpired(str(self._process), timeout)
        code = self.poll()
        assert code is not None
        return code

    def send_signal(self, sig: int) -> None:
        """Sends a signal, if the process still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process = Forked | subprocess.Popen[bytes]


class _Descriptor:
    """A file descriptor that a process of the fork server gets."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __getstate__(self) -> Any:
        return reduction.DupFd(self.descriptor)

    def __setstate__(self, duplicate: Any) -> None:
        self.descriptor = duplicate.detach()


def _run_program(arguments: Sequence[Any], descriptors: list[_Descriptor], environment: dict[str, str], cwd: Path) -> None:
    """Runs a module or code as `python -m` and `python -c` do, or a job. It dies with the fork server, which dies with the tests."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor.descriptor, number)
        os.close(descriptor.descriptor)
    sys.stdin, sys.stdout, sys.stderr = open(0, closefd=False), open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    sys.stderr.reconfigure(line_buffering=True)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    sys.path[0] = str(cwd)
    first, *rest = arguments
    try:
        if callable(first):
            waiting = first(*rest)
            if asyncio.iscoroutine(waiting):
                asyncio.run(waiting)
        elif first == "-m":
            sys.argv = rest
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "'.*' found in sys.modules", RuntimeWarning)
                runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = ["-c", *rest[1:]]
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


class Child:
    """A program that reads and prints lines. It is killed at the end of the `with` or `async with`, if it still runs."""

    def __init__(
        self,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        cwd: Path = ROOT,
        fresh: bool = False,
        with_errors: bool = False,
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> None:
        """Starts Python as `start_python` does. Its lines include those of its errors `with_errors`; each comes within `timeout_s`."""
        self._timeout_s = timeout_s
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        (their_input, our_input), (our_output, their_output) = os.pipe(), os.pipe()
        self._input, self._output = open(our_input, "wb", buffering=0), open(our_output, "rb", buffering=0)  # noqa: SIM115
        with open(their_input, "rb") as stdin, open(their_output, "wb") as stdout:
            stderr = stdout if with_errors else self._errors
            self._process = start_python(arguments, stdin, stdout, stderr, environment=environment, cwd=cwd, fresh=fresh)
        self._heard = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def tell(self, line: object = "") -> None:
        """Sends a line, if it still runs."""
        with contextlib.suppress(BrokenPipeError):
            self._input.write(f"{line}\n".encode())

    def close_input(self) -> None:
        """Ends what it hears."""
        self._input.close()

    async def line(self) -> str:
        """Returns its next line; AssertionError with its errors if it ends instead, or prints nothing for too long."""
        return await asyncio.to_thread(self.line_now)

    def line_now(self) -> str:
        line = self._next_line()
        if line is None:
            raise AssertionError(f"the child ended with exit code {self._process.wait()} instead of saying something:\n{self._failure()}")
        return line

    async def find(self, pattern: str) -> re.Match[str]:
        """Reads lines until one has a match of this pattern, and returns the match; AssertionError with the lines if none has."""
        return await asyncio.to_thread(self.find_now, pattern)

    def find_now(self, pattern: str) -> re.Match[str]:
        lines = []
        for line in self.lines_now(timeout_s=self._timeout_s):
            if match := re.search(pattern, line):
                return match
            lines.append(line)
        text = "\n".join(lines)
        raise AssertionError(f"the child ended with exit code {self._process.wait()} before {pattern!r}:\n{text}\n{self._failure()}")

    async def lines(self, *, kill_after: int | None = None, timeout_s: float = math.inf) -> AsyncIterator[str]:
        """Yields every whole line until it has ended, and kills it after this many of them; AssertionError if it does not end in time."""
        lines = self.lines_now(kill_after=kill_after, timeout_s=timeout_s)
        while (line := await asyncio.to_thread(next, lines, None)) is not None:
            yield line

    def lines_now(self, *, kill_after: int | None = None, timeout_s: float = math.inf) -> Iterator[str]:
        count = 0
        end = time.monotonic() + timeout_s
        while (line := self._next_line()) is not None:
            assert time.monotonic() < end, f"the child still runs after {timeout_s} s, and its last line is {line!r}:\n{self._failure()}"
            count += 1
            if count == kill_after:
                self.send_signal(signal.SIGKILL)
            yield line

    async def stop(self) -> None:
        """Sends SIGSTOP; returns when the kernel reports the stop."""
        await stopped(self.pid)

    def cont(self) -> None:
        self.send_signal(signal.SIGCONT)

    def send_signal(self, number: signal.Signals) -> None:
        """Sends a signal, if it still runs."""
        self._process.send_signal(number)

    async def kill(self) -> list[str]:
        """Sends SIGKILL; returns the whole lines that were not heard yet. AssertionError with its errors if it had failed by itself."""
        return await asyncio.to_thread(self.kill_now)

    def kill_now(self) -> list[str]:
        self.send_signal(signal.SIGKILL)
        lines = list(self.lines_now())
        self.end_now(0, -signal.SIGKILL)
        return lines

    async def wait(self) -> int:
        """Waits until it has ended; returns its exit code, whatever it is."""
        return await asyncio.to_thread(self._process.wait, WAIT_TIMEOUT_S)

    async def end(self, *codes: int) -> int:
        """Waits until it has ended with one of these exit codes (0), which is returned; AssertionError with its errors for any other."""
        return await asyncio.to_thread(self.end_now, *codes)

    def end_now(self, *codes: int) -> int:
        code = self._process.wait(WAIT_TIMEOUT_S)
        assert code in (codes or (0,)), f"the child failed with exit code {code}:\n{self._failure()}"
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self.close_input()
        self._output.close()
        self._errors.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self.__exit__)

    def _next_line(self) -> str | None:
        """Returns the next whole line; None at the end, where part of a line may be lost."""
        end = time.monotonic() + self._timeout_s
        while b"\n" not in self._heard:
            if not select.select([self._output], [], [], max(0.0, end - time.monotonic()))[0]:
                raise AssertionError(f"the child said nothing for {self._timeout_s} s:\n{self._failure()}")
            more = os.read(self._output.fileno(), 1 << 16)
            if not more:
                return None
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def _failure(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")


async def stopped(pid: int) -> None:
    """Sends a process SIGSTOP; returns when the kernel reports the stop."""
    os.kill(pid, signal.SIGSTOP)
    await eventually(lambda: is_stopped(pid))


def is_stopped(pid: int) -> bool:
    """Returns whether the kernel reports a process as stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


class Other:
    """Starts a process that runs `job(line, *args)`.

    A job is a function or a coroutine function of a module, or one inside a test, which uses no variable of the test.
    """

    def __init__(self, job: Callable[..., Any], *args: Any, fresh: bool = False, prepare: Callable[[], None] | None = None) -> None:
        """With `fresh` the process does its own imports, and may live as long as the tests. It calls `prepare` before the job."""
        self._line, theirs = context.Pipe()
        self._has_started = False
        chosen = multiprocessing.get_context("spawn") if fresh else context
        job, *args_there = map(_sendable, (job, *args))
        self._process = chosen.Process(target=_run, args=(job, theirs, args_there, prepare), daemon=True)
        self._process.start()
        theirs.close()

    async def __aenter__(self) -> Other:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def tell(self, word: Any = "") -> None:
        self._line.send(word)

    async def hear(self) -> Any:
        """Returns the next message of the process; AssertionError if it fails, ends, or sends nothing for too long."""
        return await asyncio.to_thread(self.hear_now)

    def hear_now(self) -> Any:
        """`hear` for a test without a loop."""
        self._wait_for_start()
        return self._next(WAIT_TIMEOUT_S)

    def _wait_for_start(self) -> None:
        if not self._has_started:
            started = self._next(START_TIMEOUT_S)
            assert isinstance(started, _Started), f"the process sent {started!r} before its job began"
            self._has_started = True

    def _next(self, timeout_s: float) -> Any:
        if not self._line.poll(timeout_s):
            raise AssertionError(f"the other process said nothing for {timeout_s} s")
        try:
            word = self._line.recv()
        except EOFError:
            raise AssertionError("the other process ended without a word") from None
        if isinstance(word, _Failure):
            raise AssertionError(f"the other process failed:\n{word.text}")
        return word

    async def kill(self) -> None:
        """Sends SIGKILL; returns when the process is gone."""
        await asyncio.to_thread(self.kill_now)

    async def kill_and_hear(self) -> list[Any]:
        """Sends SIGKILL; returns the messages of the process that were not read yet."""
        return await asyncio.to_thread(self._kill_and_hear)

    def _kill_and_hear(self) -> list[Any]:
        self._process.kill()
        self._process.join()
        words = []
        with contextlib.suppress(EOFError, OSError):  # the last message may be cut off
            while self._line.poll():
                words.append(self._line.recv())
        self._line.close()
        return [word for word in words if not isinstance(word, _Started)]

    def kill_now(self) -> None:
        """`kill` for a test without a loop."""
        self._process.kill()
        self._process.join()
        self._line.close()

    async def stop(self) -> None:
        """Sends SIGSTOP; returns when the kernel reports the stop."""
        await stopped(self.pid)

    def cont(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    async def end(self) -> None:
        """Waits until the process has ended by itself, without a further message."""
        await asyncio.to_thread(self._wait_for_start)
        await asyncio.to_thread(self._process.join, WAIT_TIMEOUT_S)
        assert self._process.exitcode == 0, f"exit code {self._process.exitcode}"
        self._line.close()


class Line:
    """The other process's end."""

    def __init__(self, line: Connection) -> None:
        self._line = line

    def tell(self, word: Any) -> None:
        self._line.send(word)

    def hear_now(self) -> Any:
        return self._line.recv()

    async def hear(self) -> Any:
        return await asyncio.to_thread(self._line.recv)


async def eventually(condition: Callable[[], Any], *, timeout_s: float = WAIT_TIMEOUT_S) -> Any:
    """Waits until the condition's value, or its awaitable's result, is true, and returns it."""
    pause_s = 0.005
    async with asyncio.timeout(timeout_s):
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
                pause_s = min(2 * pause_s, 0.1)  # most ask a server, which costs both of them
            if found:
                return found
            await asyncio.sleep(pause_s)


class _Failure(msgspec.Struct):
    text: str


class _Started(msgspec.Struct):
    """The first message of a process: its job begins."""


class _Inside:
    """A function inside another one, which the other process finds by its name: pickle sends only functions of a module."""

    def __init__(self, function: types.FunctionType) -> None:
        assert not function.__code__.co_freevars, f"{function.__qualname__} uses {function.__code__.co_freevars} of the function around it"
        self._names = function.__module__, function.__qualname__

    def __reduce__(self) -> tuple[Callable[[str, str], types.FunctionType], tuple[str, str]]:
        return _find_inside, self._names


def _sendable(argument: Any) -> Any:
    return _Inside(argument) if isinstance(argument, types.FunctionType) and "<locals>" in argument.__qualname__ else argument


def _find_inside(module: str, names: str) -> types.FunctionType:
    outer, *inner = names.split(".<locals>.")
    function = inspect.unwrap(operator.attrgetter(outer)(importlib.import_module(module)))
    code = function.__code__
    for name in inner:
        code = next(each for each in code.co_consts if isinstance(each, types.CodeType) and each.co_name == name)
    return types.FunctionType(code, function.__globals__)


def _run(job: Callable[..., Any], line: Connection, args: Sequence[Any], prepare: Callable[[], None] | None) -> None:
    try:
        if prepare is not None:
            prepare()
        line.send(_Started())
        if asyncio.iscoroutinefunction(job):
            asyncio.run(job(Line(line), *args))
        else:
            job(Line(line), *args)
    except (EOFError, BrokenPipeError):
        os._exit(1)  # the test is gone
    except BaseException:  # the test must learn of any exception
        line.send(_Failure(traceback.format_exc()))
        raise
