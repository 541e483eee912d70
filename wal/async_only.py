"""AsyncOnly: what is entered by `async with` says so where it is entered by `with`.

Python's own error names a missing method. Type checkers do not see the methods here, so they go on refusing `with`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

__all__ = ["AsyncOnly"]


class AsyncOnly:
    """A base of classes that only an event loop can enter. `_with_form` is what to write instead, for the error."""

    __slots__ = ()
    _with_form: ClassVar[str]

    if not TYPE_CHECKING:

        def __enter__(self):
            raise TypeError(f"{type(self).__name__} is entered in an event loop: write {self._with_form}")

        def __exit__(self, *_):  # `with` looks for this method before it enters
            raise AssertionError("it was never entered")
