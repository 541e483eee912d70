"""A process that stages and commits a batch, and kills itself at a chosen moment: SIGKILL, no clean-up of any kind.

Run as a program it imports everything once and forks such a process for each line of its input, so that dozens of them cost little.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.spark.sink_tasks import Sink, rows_of
from wal.spark.sink import publishing, staging
from wal.spark.sink.folder import SinkFolder


class Attempt(msgspec.Struct):
    """The child's task: it writes these rows as this batch, and dies when it reaches `point` for the `nth` time, or never ("")."""

    journal: str
    query_id: str | None
    label: str
    batch_id: int
    point: str = ""
    nth: int = 1
    options: dict[str, str] = {}
    count: int = 40


def run(attempt: Attempt) -> None:
    if attempt.point:
        owner, name, after, only = POINTS[attempt.point]
        _deadly(owner, name, nth=attempt.nth, after=after, only=only)
    sink = Sink(Path(attempt.journal), query_id=attempt.query_id, **attempt.options)
    writer = sink.writer()
    rows = rows_of(attempt.label, count=attempt.count)
    messages = sink.stage(writer, rows, batch_id=attempt.batch_id, attempt=os.getpid())
    sink.commit(writer, messages, batch_id=attempt.batch_id)


def serve() -> None:
    """Reads attempts, a line of JSON each, and answers each with a line: the result of `waitstatus_to_exitcode` for its process."""
    with tempfile.TemporaryDirectory() as directory:  # imports what an attempt needs, which takes longer than an attempt
        run(Attempt(directory, None, "imports", 0, count=1))
    for line in sys.stdin.buffer:
        pid = os.fork()
        if pid == 0:
            try:
                run(msgspec.json.decode(line, type=Attempt))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _is_manifest(path: Any, *rest: Any) -> bool:
    return str(rest[0] if rest else path).endswith(".manifest")


def _is_mark(path: Any, *rest: Any) -> bool:
    return "published" in str(path)


def _any(*args: Any) -> bool:
    return True


POINTS: dict[str, tuple[Any, str, bool, Callable[..., bool]]] = {
    "staging: before a chunk": (staging.StagingWriter, "_write", False, _any),
    "staging: before the file is synced": (staging.StagingWriter, "_finish", False, _any),
    "staging: a task is done": (staging.StagingWriter, "_finish", True, _any),
    "manifest: before it is written": (SinkFolder, "store", False, _any),
    "manifest: written beside, not renamed": (os, "rename", False, _is_manifest),
    "manifest: renamed": (os, "rename", True, _is_manifest),
    "manifest: stored": (SinkFolder, "store", True, _any),
    "publishing: before a commit": (publishing, "_committed", False, _any),
    "publishing: after a commit": (publishing, "_committed", True, _any),
    "publishing: between the manifest's advance and its producer": (publishing.Publisher, "_forget", False, _any),
    "publishing: a producer forgotten": (publishing.Publisher, "_forget", True, _any),
    "done: before the mark": (SinkFolder, "finish", False, _any),
    "done: the mark written beside": (os, "rename", False, _is_mark),
    "done: the mark stored": (SinkFolder, "forget", False, _any),
    "done: the manifest gone": (SinkFolder, "drop_staged", False, _any),
    "done: all files gone": (SinkFolder, "forget", True, _any),
    "done: before the sweep": (SinkFolder, "sweep", False, _any),
}
"""The points by name: the call there, whether the process dies before or after it, and which calls count."""


def _deadly(owner: Any, name: str, *, nth: int, after: bool, only: Callable[..., bool]) -> None:
    """Makes the process die after, or instead of, the `nth` call that counts."""
    call = getattr(owner, name)
    calls = 0

    def counted(args: tuple[Any, ...]) -> bool:
        nonlocal calls
        calls += only(*args)
        return bool(only(*args)) and calls == nth

    if _is_async(call):

        async def waiting(*args: Any, **kwargs: Any) -> Any:
            last = counted(args)
            if last and not after:
                _die()
            result = await call(*args, **kwargs)
            if last:
                _die()
            return result

        setattr(owner, name, waiting)
        return

    def plain(*args: Any, **kwargs: Any) -> Any:
        last = counted(args)
        if last and not after:
            _die()
        result = call(*args, **kwargs)
        if last:
            _die()
        return result

    setattr(owner, name, plain)


def _is_async(call: Any) -> bool:
    return bool(call.__code__.co_flags & 0x80) if hasattr(call, "__code__") else False


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    serve()
