"""The parts of the generated blocking classes: calls on the loop of the log, and the blocks that `with` opens.

`make twins` writes `blocking.py` from the async classes: each call there hands its arguments to the async object on the loop of the log,
which a `LoopThread` runs, and waits for the result. A method that is defined here is not generated. Any number of threads may call at once;
an interrupted caller cancels its call, and after the end of the log every call raises the error that the async object raises.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from wal.runtime.loop_thread import LoopThread

_T = TypeVar("_T")


class Twin:
    """The blocking form of an async object, which stays on the loop of its log."""

    def __init__(self, twin: Any, thread: LoopThread) -> None:
        self._async = twin
        self._thread = thread

    def __repr__(self) -> str:
        return f"Blocking{self._async!r}"

    def _call(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """Awaits on the loop what `call` returns there."""
        return self._thread.call(call)

    def _run(self, call: Callable[[], _T]) -> _T:
        """Makes a call on the loop that does not wait."""
        return self._thread.run(call)

    def _started(self, call: Callable[[], asyncio.Future[_T]]) -> concurrent.futures.Future[_T]:
        """Returns a thread-safe future for a future of the loop. It cannot be cancelled, since that would undo nothing."""

        async def start() -> concurrent.futures.Future[_T]:
            inner = call()
            outer: concurrent.futures.Future[_T] = concurrent.futures.Future()
            outer.set_running_or_notify_cancel()

            def settle(_: object) -> None:
                if inner.cancelled():
                    outer.set_exception(concurrent.futures.CancelledError())
                elif (error := inner.exception()) is not None:
                    outer.set_exception(error)
                else:
                    outer.set_result(inner.result())

            inner.add_done_callback(settle)
            return outer

        return self._thread.call(start)


class TwinOfLog(Twin):
    """An open log: it ends with `close()` from any thread, at the end of its `with` block, or at the exit of the interpreter."""

    if not TYPE_CHECKING:  # for type checkers

        def __getattr__(self, name: str) -> object:
            from wal.api.guesses import missing_call

            raise AttributeError(missing_call(type(self), name), name=name, obj=self)

    def __init__(self, twin: Any, thread: LoopThread) -> None:
        super().__init__(twin, thread)
        thread.closing = twin.close

    def __repr__(self) -> str:
        return repr(self._async).replace(type(self._async).__name__, type(self).__name__, 1)

    def close(self) -> None:
        """Drains what is in flight, closes the log and ends the thread. Idempotent, from any thread; concurrent calls all wait."""
        self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()


class TwinOfTxn(Twin):
    """A transaction, which its `with` block commits, or rolls back on an exception; it may also be ended inside the block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if not self._async.ended:
            self._thread.call(self._async.commit if kind is None else self._async.rollback)


def listed(values: _T) -> _T:
    """Returns the elements of an iterable as a list, so that it is iterated in the caller's thread; other values stay as they are."""
    if isinstance(values, list | tuple | str | bytes | Mapping) or not isinstance(values, Iterable):
        return values
    return list(values)  # type: ignore[return-value]  # where a call takes an iterable, it takes a list
