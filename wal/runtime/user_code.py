"""Protection from code of the caller: exceptions that cannot be shown or stored, and cancellation of work that must end in order.

The project calls handlers, key functions, codecs and callbacks that users wrote. Their exceptions appear in reasons, errors and log lines;
making these texts never raises. Pure, but for `shielded`, which uses anyio if the process has imported it.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")


def text_of(error: BaseException) -> str:
    """Returns the text of an exception. It never raises, whatever the exception's `__str__` does."""
    try:
        return str(error)
    except BaseException as broken:
        return f"(its text cannot be shown: its __str__ raised {type(broken).__name__})"


def described(error: BaseException) -> str:
    """Returns an exception with its class: `ValueError: no such thing`."""
    return f"{type(error).__name__}: {text_of(error)}"


def shown(value: object, length: int = 80) -> str:
    """Returns the start of the repr of a value. It never raises, whatever the value's `__repr__` does."""
    try:
        return repr(value)[:length]
    except BaseException as broken:
        return f"{type(value).__name__} (its __repr__ raised {type(broken).__name__})"


def called(call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Makes the call in a thread, for a caller that waits for a future of its outcome.

    A StopIteration, such as that of `next()`, becomes a RuntimeError, as in a coroutine: no future can have one, and the caller would wait
    for ever. So does a GeneratorExit: a coroutine that awaits a future with one is closed, as are all that wait for it.
    """
    try:
        return call(*args, **kwargs)
    except (StopIteration, GeneratorExit) as error:
        raise RuntimeError(f"{getattr(call, '__qualname__', type(call).__name__)}() raised {type(error).__name__}") from error


def check_ran(result: object) -> None:
    """Raises TypeError for the result of a generator function: no line of the function has run."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise TypeError(f"the handler returned {shown(result)}, a generator, of which nothing has run: use no yield in a handler")


def check_runs(handler: object) -> None:
    """Raises TypeError for a generator function, since a call runs no line of it."""
    if inspect.isgeneratorfunction(handler) or inspect.isasyncgenfunction(handler):
        raise TypeError(f"handler {shown(handler)} is a generator function, of which a call runs nothing: use no yield in a handler")


def shielded() -> AbstractContextManager[Any]:
    """Returns a block whose awaits a cancelled scope of anyio does not interrupt, so that the end of an `async with` completes within it.

    anyio cancels every new await in a cancelled scope, unless it is shielded; a task of asyncio is cancelled once. A process that has not
    imported anyio has no scopes.
    """
    anyio = sys.modules.get("anyio")
    return nullcontext() if anyio is None else anyio.CancelScope(shield=True)
