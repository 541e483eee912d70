"""ClientLog: what Pulsar's client logs, in `wal.pulsar`, without any thread of the client's in Python.

Owns: a pipe that the client takes for a file, and the thread that reads it. A Python logger, which the client would take as well, is
called by its own threads, and let go of by each of them when it ends, whenever that is. In an interpreter that is about to exit Python
ends such a thread in the middle of a C++ destructor, and the process aborts, long after everything was closed.

The client has one log for a whole process: who makes the first one decides, and where the program did with another logger, nothing
comes here. Information is logged if `wal.pulsar` asks for it when the first connection is started, else warnings and errors are.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pulsar

__all__ = ["CLIENT_LOG", "ClientLog"]

THREAD: Final = "wal-pulsar-log"
READ_BYTES: Final = 1 << 16
_END: Final = b"\0"
_LINE: Final = re.compile(r"\S+ \S+ (INFO|WARN|ERROR) *\[\w+\] (.*)")
"""Time, level, thread, and what is left: where in the client, and the message."""
_LEVELS: Final = {"INFO": logging.INFO, "WARN": logging.WARNING, "ERROR": logging.ERROR}
_log: Final = logging.getLogger("wal.pulsar")


class ClientLog:
    """Of this process. Safe in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pipe: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None
        self._ended = False
        self._hushed = False
        os.register_at_fork(after_in_child=self._forked)
        atexit.register(self._end)

    def logger(self) -> pulsar.FileLogger:
        """For a client. The first call begins to read what clients log."""
        import pulsar

        with self._lock:
            if self._pipe is None:
                # It stays: the client never closes its end, and the end of it that a client opens is only found by this one.
                self._pipe = os.pipe()
            if self._thread is None and not self._ended:
                self._thread = threading.Thread(target=self._pass_on, args=(self._pipe[0],), name=THREAD, daemon=True)
                self._thread.start()
            level = pulsar.LoggerLevel.Info if _log.isEnabledFor(logging.INFO) else pulsar.LoggerLevel.Warn
            return pulsar.FileLogger(level, f"/dev/fd/{self._pipe[1]}")

    def hush(self) -> None:
        """What clients log from now on concerns nobody; it is still read, so that they do not wait."""
        self._hushed = True

    def _end(self) -> None:
        """Before the interpreter goes: a thread that logs then could leave one of Python's streams locked."""
        with self._lock:
            thread, self._thread, self._ended = self._thread, None, True
        if thread is not None and self._pipe is not None:
            os.write(self._pipe[1], _END)
            thread.join()

    def _forked(self) -> None:
        """The child has no thread, and starts one when it connects. The pipe is the parent's as well: either may read a line."""
        self._lock = threading.Lock()
        self._thread = None

    def _pass_on(self, source: int) -> None:
        """In the thread: line for line until the end is written."""
        rest, level = b"", logging.WARNING
        while True:
            *lines, rest = (rest + os.read(source, READ_BYTES)).split(b"\n")
            for line in lines:
                text = line.decode(errors="replace")
                found = _LINE.fullmatch(text)
                if found is not None:  # else it goes on with the message before
                    level, text = _LEVELS[found[1]], found[2]
                if not self._hushed:
                    with contextlib.suppress(Exception):  # of a handler or a filter; who logs here would wait for ever
                        _log.log(level, "%s", text)
            if self._ended and _END in rest:
                return


CLIENT_LOG: Final = ClientLog()
"""Made when this is imported, so that it ends behind whatever is registered with `atexit` by who logs to it."""
