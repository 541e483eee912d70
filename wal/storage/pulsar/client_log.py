"""ClientLog: the lines that Pulsar's client writes, as records of the logger `wal.pulsar`.

The client writes from its own C++ threads, which must not enter an interpreter that is about to exit: so it writes into a pipe, and one
thread of Python reads that.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import select
import threading
from typing import TYPE_CHECKING, Final

from wal.runtime.descriptors import pipe

if TYPE_CHECKING:
    import pulsar


LOG_THREAD: Final = "wal-pulsar-log"
READ_BYTES: Final = 1 << 16
_LINE: Final = re.compile(r"\S+ \S+ (INFO|WARN|ERROR) *\[\w+\] (.*)")
"""A line of the client's log: time, level, thread, and the rest (the location in the client's code, and the message)."""
_LEVELS: Final = {"INFO": logging.DEBUG, "WARN": logging.WARNING, "ERROR": logging.ERROR}


class ClientLog:
    """The log of Pulsar's client, one for the process. It forwards the client's lines to the logger `wal.pulsar`. Thread-safe.

    Owns: the pipe that the client writes to, the thread that reads it, and the end of both when the process forks or exits.

    The client writes to a pipe that it takes for a file, and one thread reads the pipe. The client would also accept a Python logger, but
    its own threads would call it, and each would release it when the thread ends, at an unknown time. In an interpreter that is about to
    exit, Python ends such a thread in the middle of a C++ destructor, and the process aborts, long after the log was closed.

    The client has one log for the whole process, set by the first client: if the program created one with another logger, no line arrives
    here. Its lines of INFO are for DEBUG here, because it writes some ten for each opened reader; it writes none of them unless
    `wal.pulsar` enables DEBUG when the first connection is started.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipe: tuple[int, int] | None = None
        self._wake: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None
        self._ended = False
        self._hushed = False
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self._end)

    def logger(self) -> pulsar.FileLogger:
        """Returns the logger for a client. The first call starts the thread."""
        import pulsar

        with self._lock:
            if self._pipe is None:
                # The pipe stays open: the client never closes its end, and a new client finds the pipe only by this descriptor.
                self._pipe = pipe()
                os.set_blocking(self._pipe[0], False)  # another process may read the bytes that woke this one
            if self._thread is None and not self._ended:
                self._wake = pipe()
                self._thread = threading.Thread(target=self._pass_on, args=(self._pipe[0], self._wake[0]), name=LOG_THREAD, daemon=True)
                self._thread.start()
            level = pulsar.LoggerLevel.Info if _log.isEnabledFor(logging.DEBUG) else pulsar.LoggerLevel.Warn
            return pulsar.FileLogger(level, f"/dev/fd/{self._pipe[1]}")

    def hush(self) -> None:
        """Drops the clients' log from now on; the pipe is still read, so that no client blocks on it."""
        self._hushed = True

    def _end(self) -> None:
        """Ends the thread before the interpreter does: a thread that logged then could leave one of Python's streams locked."""
        with self._lock:
            thread, self._thread, self._ended = self._thread, None, True
        if thread is not None and self._wake is not None:
            os.write(self._wake[1], b"\0")
            thread.join()

    def _forked(self) -> None:
        """Forgets the thread in a forked child, which starts one when it connects. The pipe of the log is shared with the parent: either
        process may read a line."""
        self._lock = threading.Lock()
        self._thread = None
        if self._wake is not None:
            for end in self._wake:
                os.close(end)
            self._wake = None

    def _pass_on(self, source: int, wake: int) -> None:
        """Runs in the thread: logs line by line, and returns at the end of the available bytes after it was woken."""
        rest, level, ends = b"", logging.WARNING, False
        poll = select.poll()
        for readable in (source, wake):
            poll.register(readable, select.POLLIN)
        while True:
            ends = ends or any(readable == wake for readable, _ in poll.poll())
            try:
                data = os.read(source, READ_BYTES)
            except BlockingIOError:
                data = b""
            if ends and not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                text = line.decode(errors="replace")
                match = _LINE.fullmatch(text)
                if match is not None:  # else the line continues the previous message
                    level, text = _LEVELS[match[1]], match[2]
                if not self._hushed:
                    with contextlib.suppress(Exception):  # raised by a handler: without this thread the client would block for ever
                        _log.log(level, "%s", text)


CLIENT_LOG: Final = ClientLog()
"""Created at import, so that it ends after every `atexit` function that was registered later."""
_log: Final = logging.getLogger("wal.pulsar")
