"""Registry: how an append operator comes to the broadcaster without the one knowing the other's room.

Owns: one operator a type. The log registers its accesser when it is open (the seeds' `registry.Register(AppendOperatorTypeStreaming,
…)`), and a broadcaster that was started before waits for it. Never closes an operator.
"""

from __future__ import annotations

import asyncio
import enum

from broadcaster.operator import AppendOperator
from wal.errors import InvalidArgumentError

__all__ = ["AppendOperatorType", "Registry"]


class AppendOperatorType(enum.Enum):
    """What appends. The seeds know one."""

    STREAMING = "streaming"


class Registry:
    """The operators of one broadcaster."""

    def __init__(self) -> None:
        self._operators: dict[AppendOperatorType, AppendOperator] = {}
        self._registered = asyncio.Event()

    def register(self, operator_type: AppendOperatorType, operator: AppendOperator) -> None:
        """Gives the operator of this type; a second one is an InvalidArgumentError."""
        if not isinstance(operator_type, AppendOperatorType):
            raise TypeError(f"operator_type must be an AppendOperatorType, not {operator_type!r}")
        if operator_type in self._operators:
            raise InvalidArgumentError(
                f"an append operator of type {operator_type.name} is registered already: make a registry for each log"
            )
        self._operators[operator_type] = operator
        self._registered.set()

    async def operator(self, operator_type: AppendOperatorType) -> AppendOperator:
        """The operator of this type, once it is registered."""
        while operator_type not in self._operators:
            self._registered.clear()
            await self._registered.wait()
        return self._operators[operator_type]
