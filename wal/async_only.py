"""AsyncOnly: a helpful error when an object for `async with` is entered by `with`.

Python's own error names a missing method. Type checkers do not see the methods here, so they still refuse `with`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

__all__ = ["AsyncOnly"]


class AsyncOnly:
    """A base of classes that only an event loop can enter. `_with_form` is the code that the error suggests instead."""

    __slots__ = ()
    _with_form: ClassVar[str]

    if not TYPE_CHECKING:

        def __enter__(self):
            raise TypeError(f"{type(self).__name__} is entered in an event loop: write {self._with_form}")

        def __exit__(self, *_):  # `with` looks for this method before it enters
            raise AssertionError("it was never entered")
