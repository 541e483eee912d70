"""The error of a flow graph that has failed."""

from __future__ import annotations

from wal.errors import WALError

__all__ = ["NodeFailedError"]


class NodeFailedError(WALError):
    """A node of a flow graph raised, or gave a result that it must not give; `__cause__` is that error.

    `node` is its name. `tick` is the tick that it worked on; of an input node the highest one that it has given, or None before the first.
    """

    def __init__(self, node: str, tick: int | None, cause: BaseException) -> None:
        what = "its first tick" if tick is None else f"tick {tick}"
        super().__init__(f"node {node!r} failed at {what}: {type(cause).__name__}: {cause}")
        self.node = node
        self.tick = tick
        self.__cause__ = cause

    def __reduce__(self) -> tuple[object, ...]:
        return NodeFailedError, (self.node, self.tick, self.__cause__)
