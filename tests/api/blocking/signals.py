"""A signal for a thread that waits, as Ctrl-C is one: it comes when the thread waits, whatever the machine does meanwhile."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

REPEAT_S = 0.01


def interrupt() -> None:
    raise KeyboardInterrupt


@contextmanager
def signal_in_wait(react: Callable[[], None] = interrupt) -> Iterator[None]:
    """Lets `react` run once in the calling (main) thread, in the block, as the handler of a signal that comes when the thread waits.

    Before it waits, the thread may be inside of a lock of the standard library, which an interrupt can leave locked for good. And one
    signal alone may come between the last look of Python for signals and the wait, which it then does not end: it is sent again until
    the handler has run.
    """
    caller = threading.get_ident()
    in_block, handled = threading.Event(), threading.Event()

    def handle(*_: object) -> None:
        if not handled.is_set():
            handled.set()
            react()

    def send() -> None:
        in_block.wait()  # the start of a thread waits as well
        while not handled.is_set() and not waits(caller):
            handled.wait(REPEAT_S / 10)
        while not handled.is_set():
            os.kill(os.getpid(), signal.SIGUSR1)
            handled.wait(REPEAT_S)

    before = signal.signal(signal.SIGUSR1, handle)
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        in_block.set()
        yield
    finally:
        handled.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)


def waits(thread: int) -> bool:
    """Returns whether the thread of this number waits for another one, as it does for the answer of a loop."""
    return _is_in(sys._current_frames().get(thread), threading.Condition.wait)


def _is_in(frame: FrameType | None, function: Callable[..., Any]) -> bool:
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None
