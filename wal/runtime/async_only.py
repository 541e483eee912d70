"""Two helpers for code on an event loop: a clear error when `with` enters an object for `async with`, and imports that do not block the
loop.

Python's own error names a missing method. Type checkers do not see the methods here, so they still refuse `with`.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from wal.runtime.threads import in_thread


class AsyncOnly:
    """A base of classes that only an event loop can enter. `_with_form` is the code that the error suggests instead."""

    __slots__ = ()
    _with_form: ClassVar[str]

    if not TYPE_CHECKING:

        def __enter__(self):
            raise TypeError(f"{type(self).__name__} is entered in an event loop: write {self._with_form}")

        def __exit__(self, *_):  # `with` looks for this method before it enters
            raise AssertionError("it was never entered")


async def import_late(name: str) -> None:
    """Imports a module in a thread, unless it is loaded already. Raises the errors of the import.

    An import reads files and takes tens of milliseconds; the event loop must not block that long. After this call an `import` statement
    finds the module loaded.
    """
    module = sys.modules.get(name)
    # If another thread is importing the module, this call waits for it in a thread too.
    if module is None or getattr(module.__spec__, "_initializing", False):
        await in_thread(import_module, name)
