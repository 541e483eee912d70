"""Unread: fields of received messages and packs whose values are made when they are first read.

To convert all fields of a message from protobuf takes several times as long as protobuf takes to parse it, and many messages are handed on,
or chosen by one field. So a received message begins without values. Python calls `__getattr__` for a field that has none; that makes the
value and stores it, so a field that was read or assigned is an ordinary one, and what a program changes in it stays. What msgspec does with
all fields at once (==, repr, copy, pickle) reads them first.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

__all__ = ["Unread"]


class Unread:
    """A base of structs that can have unread fields; it precedes the struct among the bases."""

    __slots__ = ()

    _READERS: ClassVar[dict[str, Callable[[Any], Any]]] = {}
    """Functions from the object to the value of a field, by field. Other fields have the value of `_blank()`."""
    __struct_fields__: ClassVar[tuple[str, ...]]

    @classmethod
    def _blank(cls) -> Self:
        """Returns one object of the class, always the same."""
        raise NotImplementedError

    def read(self) -> None:
        """Reads all fields. The functions of `msgspec` itself, such as `msgspec.structs.replace`, need that before."""
        for name in self.__struct_fields__:
            getattr(self, name)

    if not TYPE_CHECKING:  # which would find every attribute

        def __getattr__(self, name: str) -> Any:
            read = self._READERS.get(name)
            if read is None and name not in self.__struct_fields__:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            value = read(self) if read is not None else copy(getattr(self._blank(), name))
            setattr(self, name, value)
            return value

    def __eq__(self, other: object) -> bool:
        self.read()
        if isinstance(other, Unread):
            other.read()
        return super().__eq__(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __repr__(self) -> str:
        self.read()
        return super().__repr__()

    def __rich_repr__(self) -> Any:
        self.read()
        return super().__rich_repr__()  # type: ignore[misc]

    def __copy__(self) -> Self:
        self.read()
        return super().__copy__()  # type: ignore[misc,no-any-return]

    def __replace__(self, **changes: Any) -> Self:
        self.read()
        return super().__replace__(**changes)  # type: ignore[misc,no-any-return]

    def __reduce__(self) -> Any:
        self.read()
        return super().__reduce__()
