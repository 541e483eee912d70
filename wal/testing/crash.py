"""A function in a process of its own that is killed with kill -9 at a chosen moment, or with its machine, by a power cut.

The parent starts a new Python, which imports the function by its name: the child shares no state with the test's process, neither loops nor
locks. The child counts the moments below, and at the chosen one it sends itself SIGKILL, before the call continues. The result is the list
of its reports until then. For a power cut it runs the journal on a `PowerCutDisk`, and sends that disk to the parent before it dies. The
parent then restores the files as the power cut left them.

    append   a call that appends begins: a message, a bulk, a whole transaction, a commit. Nothing of it is written
    sync     a frame is written, and not synced yet. Frames before the first append of the function do not count
    save     a position is about to be stored under the name of a cursor

Only logs that the child itself writes count: journals, and logs in memory. The thread writes all frames, since Linux syncs a frame of the
loop in the same call that writes it.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import importlib.util
import inspect
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import FunctionType
from typing import Any, Final, Literal, NamedTuple, NoReturn, cast, get_args

from wal.errors import InvalidArgumentError
from wal.testing.power import PowerCutDisk

Moment = Literal["append", "save", "sync"]
TIMEOUT_S: Final = 60.0


def run_until_killed(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    *,
    at: Moment,
    number: int,
    timeout_s: float = TIMEOUT_S,
    power_cut: bool = False,
    seed: int | None = None,
) -> list[Any]:
    """Runs `function(report, *arguments)` in a new process, kills it at the `number`-th such moment, and returns its reports.

    The function is sync or async, and at the top level of a module; arguments and reports are pickled. With `power_cut` each journal that
    the process had open afterwards holds only its synced content; with a `seed` each unsynced sector is kept or lost at random. Raises
    AssertionError if the function raises, ends before that moment, or runs for longer than `timeout_s`.
    """
    job = _Job(*_home(function), pickle.dumps(arguments), _check_moment(at), _check_number(number), power_cut, seed)
    reader, writer = os.pipe()
    code = f"import sys; sys.path[:] = {sys.path!r}; from wal.testing.crash import child; child({writer})"
    with Connection(reader, writable=False) as outcomes:
        try:
            process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, pass_fds=[writer])
        finally:
            os.close(writer)
        try:
            assert process.stdin is not None
            with process.stdin as stdin:
                stdin.write(pickle.dumps(job))
            reports, end = _outcome(outcomes, time.monotonic() + timeout_s)
            if end is None and not outcomes.closed and process.poll() is None:
                raise AssertionError(
                    f"{function.__qualname__} ran for {timeout_s} s and did not come to {at} number {number}, after {len(reports)} reports"
                    ": lower the number, or raise timeout_s"
                )
        finally:
            process.kill()
            status = process.wait()
    if end is None:
        raise AssertionError(f"the process of {function.__qualname__} ended by itself (exit status {status}): {len(reports)} reports")
    if end.failure:
        raise AssertionError(f"{function.__qualname__} {end.failure}")
    for disk in end.disks:
        _leave_over(disk)
    return reports


class _Job(NamedTuple):
    """The job of the child: the module, file and name of the function, its pickled arguments, and the moment of its end."""

    module: str
    file: str
    name: str
    arguments: bytes
    at: Moment
    number: int
    power_cut: bool
    seed: int | None


class _End(NamedTuple):
    """The last outcome that a child sends: the disks on which the power fails, or the reason why it did not reach its moment."""

    disks: list[PowerCutDisk]
    failure: str = ""


def _home(function: Callable[..., Any]) -> tuple[str, str, str]:
    if not isinstance(function, FunctionType):
        raise TypeError(f"the process runs a function, not {function!r}: define one with def or async def")
    if "<" in function.__qualname__:
        raise InvalidArgumentError(
            f"{function.__qualname__} is defined inside a function, where the new process cannot find it by its name: define it at the top "
            "level of its module, and pass its inputs as arguments"
        )
    return function.__module__, inspect.getfile(function), function.__qualname__


def _check_moment(at: object) -> Moment:
    for moment in get_args(Moment):
        if at == moment:
            return cast("Moment", moment)
    raise InvalidArgumentError(f"at={at!r} is not a moment to kill a process: give one of {', '.join(map(repr, get_args(Moment)))}")


def _check_number(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"number must be an int, not {number!r}")
    if number < 1:
        raise InvalidArgumentError(f"number={number} is below 1: the first moment is number 1")
    return number


def _outcome(outcomes: Connection, end_s: float) -> tuple[list[Any], _End | None]:
    """Returns the reports of the child, and its end; None if it sent no end in time, or never."""
    reports: list[Any] = []
    while outcomes.poll(max(0.0, end_s - time.monotonic())):
        try:
            outcome = outcomes.recv()
        except EOFError:
            outcomes.close()
            break
        if isinstance(outcome, _End):
            return reports, outcome
        reports.append(outcome[0])
    return reports, None


def _leave_over(disk: PowerCutDisk) -> None:
    """Cuts the power of a disk whose process is dead, and replaces its directory by the remaining content."""
    disk.cut()
    if disk.left_over.exists():
        shutil.rmtree(disk.root)
        disk.left_over.rename(disk.root)


def child(descriptor: int) -> None:
    """Runs the job from the standard input; outcomes go to this descriptor."""
    job: _Job = pickle.load(sys.stdin.buffer)
    outcomes, sending = Connection(descriptor, readable=False), threading.Lock()
    disks: list[PowerCutDisk] = []

    def report(value: object) -> None:
        with sending:
            outcomes.send((value,))

    def die() -> NoReturn:
        with sending:
            for disk in disks:
                disk.stop()
            outcomes.send(_End(disks))
            while True:
                os.kill(os.getpid(), signal.SIGKILL)

    moments = _Moments(job.at, job.number, die)
    try:
        function = _find(job)
        _watch(moments)
        _watch_journals(moments, disks, job)
        outcome = function(report, *pickle.loads(job.arguments))
        if inspect.iscoroutine(outcome):
            asyncio.run(outcome)
        failure = f"ended after {moments.counts[job.at]} of {job.at}, before number {job.number}: lower the number, or let it do more"
    except BaseException:
        failure = f"raised before {job.at} number {job.number}:\n{traceback.format_exc()}"
    with sending:
        outcomes.send(_End([], failure))


def _find(job: _Job) -> Callable[..., Any]:
    """Returns the function of a job, from its module as the test imported it, or from the module's file."""
    try:
        module = importlib.import_module(job.module)
    except ImportError:
        module = None
    if module is None or getattr(module, "__file__", None) != job.file:
        spec = importlib.util.spec_from_file_location(job.module, job.file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[job.module] = module
        spec.loader.exec_module(module)
    attribute: Any = module
    for name in job.name.split("."):
        attribute = getattr(attribute, name)
    return cast("Callable[..., Any]", attribute)


class _Moments:
    """Counts moments, in any thread, and calls `die` at the chosen one. Other threads then wait for ever."""

    def __init__(self, at: Moment, number: int, die: Callable[[], NoReturn]) -> None:
        self.counts: dict[Moment, int] = dict.fromkeys(get_args(Moment), 0)
        self._at = at
        self._number = number
        self._die = die
        self._lock = threading.Lock()

    def come(self, moment: Moment) -> None:
        with self._lock:
            self.counts[moment] += 1
            if moment == self._at and self.counts[moment] == self._number:
                self._die()

    def take_back(self, moment: Moment) -> None:
        """Uncounts a call that did nothing, and that its caller repeats in another form."""
        with self._lock:
            self.counts[moment] -= 1


def _watch(moments: _Moments) -> None:
    """Wraps the calls that append or store a cursor, so that they count as moments."""
    from wal.node.appends import LocalAppends
    from wal.node.cursors import NodeCursors
    from wal.node.txn import LocalTxn
    from wal.read.cursors.pinned import PinnedCursors

    def counted(owner: type, name: str, moment: Moment) -> None:
        real = getattr(owner, name)

        @functools.wraps(real)
        def call(*arguments: Any, **options: Any) -> Any:
            moments.come(moment)
            outcome = real(*arguments, **options)
            if moment == "append" and outcome is None:  # no room in flight
                moments.take_back(moment)
            return outcome

        setattr(owner, name, call)

    for name in ("append", "send_run", "_transaction"):
        counted(LocalAppends, name, "append")
    counted(LocalTxn, "send_commit", "append")
    for cursors in (NodeCursors, PinnedCursors):
        counted(cursors, "save", "save")


def _watch_journals(moments: _Moments, disks: list[PowerCutDisk], job: _Job) -> None:
    """Wraps the syncs of frames so that they count as moments, and for a power cut moves each journal to a disk of `disks`."""
    from wal.node.local import storage
    from wal.storage.journal.backend import JournalBackend
    from wal.storage.journal.disk import JournalFile
    from wal.storage.journal.thread_path import ThreadPath

    writing = threading.local()
    real_write, real_sync = ThreadPath._write, JournalFile.sync

    def write(self: ThreadPath, frame: Any) -> int:
        writing.tail = self._tail
        try:
            return real_write(self, frame)
        finally:
            writing.tail = None

    def sync(self: JournalFile) -> None:
        tail = getattr(writing, "tail", None)
        if tail is not None and tail.active.file is self and moments.counts["append"]:
            moments.come("sync")
        real_sync(self)

    class WatchedBackend(JournalBackend):
        """A journal whose frames the thread writes."""

        def __init__(self, directory: Path, **options: Any) -> None:
            options["write_path"] = "thread"
            if job.power_cut:
                options["disk"] = _disk_of(directory, disks, job.seed)
            super().__init__(directory, **options)

    ThreadPath._write = write  # type: ignore[method-assign]
    JournalFile.sync = sync  # type: ignore[method-assign]
    vars(storage)["JournalBackend"] = WatchedBackend


def _disk_of(directory: Path, disks: list[PowerCutDisk], seed: int | None) -> PowerCutDisk:
    """Returns the disk of a directory: the same one at each opening, since unsynced changes of one opening are lost with the next."""
    for disk in disks:
        if disk.root == directory:
            return disk
    rng = None if seed is None else random.Random(f"{seed} {len(disks)}")
    disk = PowerCutDisk(rng, directory, directory.parent / f"{directory.name}-left-over")
    disk.go_on(sys.maxsize, power=True)
    disks.append(disk)
    return disk
