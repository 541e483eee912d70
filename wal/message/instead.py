"""Instead: a name that people bring from other logs, whose error says what stands for it here. Pure."""

from __future__ import annotations

from typing import Any


class Instead:
    """An attribute that a class does not have. Only its own access costs anything, where `__getattr__` slows every access down.

    Type checkers must not see it, or they would take it for an attribute.
    """

    def __init__(self, meant: str) -> None:
        self._meant = meant
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object | None, owner: type) -> Any:
        raise AttributeError(f"{owner.__name__!r} object has no attribute {self._name!r}; did you mean {self._meant}?")
