"""Instead: a name that users of other logs expect, whose error names the equivalent here. Pure."""

from __future__ import annotations

from typing import Any


class Instead:
    """An attribute that a class lacks. Only its own access costs time, while a `__getattr__` would slow every access down.

    Type checkers must not see it, or they would take it for an attribute.
    """

    def __init__(self, meant: str) -> None:
        self._meant = meant
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object | None, owner: type) -> Any:
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}; did you mean {self._meant}?")
